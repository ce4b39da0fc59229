// Package sluicetest provides a Redis in the test's own process, with a clock that the test moves,
// for the tests of programs that use sluice: a week of delays, leases and renewals takes a moment
// (see below what costs time), and nothing has to be installed.
//
// # A test
//
// The service puts off the cancellation of an unpaid order:
//
//	type Shop struct{ Queue *sluice.Queue }
//
//	func (s *Shop) Order(ctx context.Context, id string) error {
//		_, err := s.Queue.Enqueue(ctx, sluice.Task{ID: id, Delay: 15 * time.Minute})
//		return err
//	}
//
// Its test runs in a bubble of [testing/synctest], and moves the time:
//
//	func TestShop_CancelsWhatIsNotPaid(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			r := sluicetest.New(t)
//			queue, err := sluice.NewQueue(r.Client(), "orders")
//			require.NoError(t, err)
//			canceled := make(chan string, 1)
//			worker := &sluice.Worker{Queue: queue, Handler: func(_ context.Context, e sluice.Entry) error {
//				canceled <- e.ID
//				return nil
//			}}
//			ctx, stop := context.WithCancel(t.Context())
//			ended := make(chan error)
//			go func() { ended <- worker.Run(ctx) }()
//
//			require.NoError(t, (&Shop{queue}).Order(t.Context(), "order-1"))
//			task := r.RequireEnqueued("orders", "order-1")
//			require.Equal(t, 15*time.Minute, task.Due.Sub(r.Now()))
//
//			r.Advance(14 * time.Minute)
//			require.Empty(t, canceled)
//			r.Advance(time.Minute + time.Millisecond)
//			require.Equal(t, "order-1", <-canceled)
//			r.RequireNotEnqueued("orders", "order-1")
//
//			stop() // whatever the test has started ends before the bubble does
//			require.NoError(t, <-ended)
//		})
//	}
//
// The program in examples/orders is tested like this, with nothing else.
//
// # In a bubble
//
// Everything follows [Redis.Advance], because there is one clock: the server's time, TTLs and
// delays, and the library's timers, so renewals, extensions of leases, polls, pauses before a
// retry, deadlines of contexts and timeouts of handlers. Each happens at its time, in order. Times
// are exact: a task is due when the test says, to the microsecond. time.Sleep does the same as
// Advance, except that Advance also returns only when whatever was to happen has happened.
//
// What the test starts has to end before the test's function does: end the ctx of a Worker and wait
// for Run, and close a Locker. Otherwise synctest panics: "deadlock: main bubble goroutine has
// exited but blocked goroutines remain", with goroutines of sluice among them. A test may call
// t.Parallel before synctest.Test, not within it.
//
// What costs time in a bubble is work, not waiting. An idle Worker or caller of Wait polls once in
// each WithPollInterval (1 s by default), a caller that waits for a lock once in each
// WithRetryInterval (100 ms), a Worker sends a heartbeat every 15 s, or as often as it polls if
// that is less often, and a renewed lock is extended three times in each TTL (15 s); each of these
// takes the fake about half a millisecond, several times that under the race detector. In a bubble
// no notification is lost, so give the queues and Lockers of tests that cross days an interval of
// an hour.
//
// # Outside a bubble
//
// A socket does not work in a bubble: a goroutine that waits for the network keeps the bubble's clock
// from moving. An HTTP service needs none: [Transport] has a client of it served in the test's own
// process. A test that needs real sockets runs without a bubble. Then there are two clocks:
//
//   - The server's clock runs like the real one, and Advance puts it forward: delays, leases on the
//     server, TTLs of locks, and the times by which tasks are listed and counted follow. Callers of Wait and
//     Lock and Workers are notified, look again at once, and find what is due or free by then.
//   - The clock of the test's process stays as it is. The renewals of locks and the extensions of
//     leases, the deadline of a Lock's Context, a Worker's Timeout and Grace, and whatever else the
//     process waits for take real time. So a lock that is held while Advance puts the clock forward
//     beyond its TTL expires on the server, as if the process had been stopped for so long, although it
//     is renewed; and Valid says true until the next renewal. Likewise a task in a handler, when Advance
//     passes its lease, may be handed out again.
//
// Advance does not wait for what it has woken: wait for the effect.
//
// # What it is not
//
// The server is [miniredis]: one server without persistence, failovers, access rules, a memory
// limit or Cluster. Each Redis has its own server and shares nothing with others, so tests may run
// in parallel. It tests what your program does with sluice; what Redis does under faults is tested
// by sluice.
//
// [miniredis]: https://github.com/alicebob/miniredis
package sluicetest
