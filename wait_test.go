package sluice_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// What is published says how many clients wait, how many tasks are due, and how far off the
// head is. A claim that leaves a head and may have no room for it publishes that, if clients
// wait.
func TestQueue_AnnouncesItsHead(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		subscribe := func(channel string) *redis.PubSub {
			pubsub := b.RDB.Subscribe(ctx, "{"+b.Key+"}"+channel)
			_, err := pubsub.Receive(ctx)
			require.NoError(b, err)
			return pubsub
		}
		wake := subscribe(":wake")
		defer func() { _ = wake.Close() }()
		announced := func() (clients, due, off int) {
			message, err := wake.ReceiveMessage(ctx)
			require.NoError(b, err)
			_, err = fmt.Sscanf(message.Payload, "%d %d %d", &clients, &due, &off)
			require.NoError(b, err, message.Payload)
			return clients, due, off
		}
		require3 := func(wantClients, wantDue, most int, why string) {
			clients, due, off := announced()
			require.Equal(b, []int{wantClients, wantDue}, []int{clients, due}, why)
			require.GreaterOrEqual(b, off, 0)
			require.LessOrEqual(b, off, most, why)
			require.Greater(b, off, most-60_000_000, why)
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: 20 * time.Minute})
		require3(0, 1, 20*60_000_000, "a new head that is due later")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		require3(0, 1, 0, "one task")
		for i := range 2 {
			b.ClaimOne(time.Hour)
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint("b", i), At: time.Unix(2, 0)})
			require3(0, 1, 0, "nothing was published by the claim")
		}

		b.ClaimOne(time.Hour)
		idle := subscribe(":idle")
		defer func() { _ = idle.Close() }()
		_, err := b.Q.EnqueueBatch(ctx, []sluice.Task{{ID: "c", At: time.Unix(1, 0)}, {ID: "d", At: time.Unix(3, 0)}, {ID: "e", Delay: time.Hour}})
		require.NoError(b, err)
		require3(1, 2, 0, "two of three, and one client")
		claim := func() string {
			es, err := b.Q.Claim(ctx, 1, time.Hour)
			require.NoError(b, err)
			require.Len(b, es, 1)
			return es[0].ID
		}
		require.Equal(b, "c", claim())
		require3(1, 1, 0, "the claim has left one")
		require.Equal(b, "d", claim())
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "f"})
		require3(1, 1, 0, "nothing was published by a claim that left no head for the next second")
	})
}

// herd is many clients that wait for the tasks of one queue.
type herd struct {
	asked   atomic.Int64   // Waits that returned
	claimed chan time.Time // when each task was
	deaf    atomic.Int64   // so many of the next callers that are told do not claim, and die
	all     sync.WaitGroup
	stop    context.CancelFunc
}

// startHerd starts clients, each with a caller that waits and claims.
func startHerd(t *testing.T, m *miniredis.Miniredis, n int, opts ...sluice.QueueOption) *herd {
	h := &herd{claimed: make(chan time.Time, 10_000)}
	ctx, stop := context.WithCancel(t.Context())
	h.stop = func() {
		stop()
		h.all.Wait()
		time.Sleep(time.Minute) // so that what lingers has ended
	}
	for range n {
		rdb := systest.BubbleClient(t, systest.BubbleDialer(m))
		q, err := sluice.NewQueue(rdb, "q", opts...)
		require.NoError(t, err)
		h.all.Go(func() {
			defer func() { _ = rdb.Close() }()
			for q.Wait(ctx) == nil {
				h.asked.Add(1)
				if h.deaf.Add(-1) >= 0 {
					return
				}
				es, err := q.Claim(ctx, 1, time.Minute)
				if err != nil {
					return
				}
				for _, e := range es {
					h.claimed <- time.Now()
					_ = q.Dequeue(ctx, e)
				}
			}
		})
		time.Sleep(time.Second / time.Duration(n)) // they do not poll together
	}
	time.Sleep(time.Second)
	return h
}

// Of many clients that wait, few ask for a task: those that are told when it is enqueued, and
// those that have a timer for when it is due.
func TestQueue_FewAskForOneTask(t *testing.T) {
	for name, delay := range map[string]time.Duration{"due at once": 0, "due later": 300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				h := startHerd(t, m, 60)
				q, err := sluice.NewQueue(rdb, "q")
				require.NoError(t, err)
				const tasks = 40
				for i := range tasks {
					_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), Delay: delay})
					require.NoError(t, err)
					time.Sleep(25 * time.Millisecond)
				}
				time.Sleep(delay)
				// Five for each on average, and 40 tasks make it a narrow distribution: all would be 60.
				require.Less(t, int(h.asked.Load()), 12*tasks)
				time.Sleep(2 * time.Second)
				require.Len(t, h.claimed, tasks)
				h.stop()
			})
		})
	}
}

// If much is due, all clients ask, so that all get to work at once.
func TestQueue_AllAskForManyTasks(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		h := startHerd(t, m, 30)
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		tasks := make([]sluice.Task, 100)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err = q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		time.Sleep(500 * time.Microsecond) // the tasks of a batch are a microsecond apart
		require.Len(t, h.claimed, len(tasks), "without a pause")
		h.stop()
	})
}

// A task of which those that were told first make nothing is found by another client within a
// second.
func TestQueue_OthersAskIfTheFirstDie(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		h := startHerd(t, m, 30, sluice.WithPollInterval(time.Hour))
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		h.deaf.Store(15)
		start := time.Now()
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		require.LessOrEqual(t, (<-h.claimed).Sub(start), time.Second)
		h.stop()
	})
}

// Clients that are counted as waiting and never claim, as those of a host that is gone, do not
// make tasks late for long: the others notice, and ask more often.
func TestQueue_ClientsThatNeverClaimAreMadeUpFor(t *testing.T) {
	for _, live := range []int{1, 5} {
		t.Run(fmt.Sprint(live), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				ghosts := make([]*redis.PubSub, 40)
				for i := range ghosts {
					ghosts[i] = rdb.Subscribe(t.Context(), "{Queue:q}:wake", "{Queue:q}:idle")
					_, err := ghosts[i].Receive(t.Context())
					require.NoError(t, err)
				}
				h := startHerd(t, m, live)
				q, err := sluice.NewQueue(rdb, "q")
				require.NoError(t, err)
				late := func(id int) time.Duration {
					start := time.Now()
					_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(id)})
					require.NoError(t, err)
					took := (<-h.claimed).Sub(start)
					time.Sleep(300 * time.Millisecond)
					return took
				}
				for i := range 50 {
					require.LessOrEqual(t, late(i), time.Second+time.Millisecond)
				}
				const tasks = 100
				slow := 0
				for i := range tasks {
					if late(100+i) > 100*time.Millisecond {
						slow++
					}
				}
				require.LessOrEqual(t, slow, tasks/5) // without it about three of four
				for _, g := range ghosts {
					require.NoError(t, g.Close())
				}
				h.stop()
			})
		})
	}
}

// countScripts counts the scripts that the server is sent. It is called before there are clients.
func countScripts(t *testing.T, m *miniredis.Miniredis) *atomic.Int64 {
	t.Helper()
	first, err := m.Dial() // which starts the server
	require.NoError(t, err)
	require.NoError(t, first.Close())
	var n atomic.Int64
	m.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if command == "EVALSHA" || command == "EVAL" {
			n.Add(1)
		}
		return false
	})
	return &n
}

// The Queues of one client share a pub/sub connection, and are looked at together. One that
// fails costs the others nothing.
func TestQueue_ShareOneConnectionAndOneLook(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		scripts := countScripts(t, m)
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		ended := make(chan string, 300)
		for i := range 300 {
			q, err := sluice.NewQueue(rdb, fmt.Sprint(i))
			require.NoError(t, err)
			all.Go(func() {
				_ = q.Wait(ctx)
				ended <- fmt.Sprint(i)
			})
			time.Sleep(7 * time.Millisecond) // they begin to wait at different times
		}
		require.Len(t, m.PubSubChannels("*:wake"), 300)
		time.Sleep(10*time.Second + time.Second/2)
		require.NoError(t, m.Set("Queue:7", "of another type"))
		require.Equal(t, "7", <-ended)
		before := m.CurrentConnectionCount()
		scripts.Store(0)
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, int(scripts.Load()), 10*3, "two for 299 queues, and now and then one more")
		require.LessOrEqual(t, m.CurrentConnectionCount(), before)
		_, err := m.ZAdd("Queue:123", 1, "foreign")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, "123", <-ended)
		stop()
		all.Wait()
		time.Sleep(time.Minute)
		require.Empty(t, m.PubSubChannels("*"))
		time.Sleep(time.Minute)
		require.LessOrEqual(t, int(scripts.Load()), 12*3)
	})
}

// hanging is a hook that keeps pipelines of scripts back for a minute once it is armed. A new connection
// is set up by a pipeline too.
type hanging struct {
	interfere
	armed atomic.Bool
}

func (h *hanging) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.armed.Load() && cmds[0].Name() == "evalsha" {
			time.Sleep(time.Minute)
		}
		return next(ctx, cmds)
	}
}

// An idle look that hangs, with the connection that it was sent on, is given up after a second.
// Each queue then looks for itself.
func TestQueue_ALookThatHangsIsBounded(t *testing.T) {
	for _, queues := range []int{1, 2} { // one is looked at by another way than several
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				var hook hanging
				rdb.(*redis.Client).AddHook(&hook)
				var all sync.WaitGroup
				for i := range queues {
					q, err := sluice.NewQueue(rdb, fmt.Sprint(i))
					require.NoError(t, err)
					all.Go(func() { require.NoError(t, q.Wait(t.Context())) })
				}
				time.Sleep(5*time.Second + time.Second/2)
				hook.armed.Store(true)
				for i := range queues {
					_, err := m.ZAdd(fmt.Sprint("Queue:", i), 1, "foreign")
					require.NoError(t, err)
				}
				start := time.Now()
				all.Wait()
				require.LessOrEqual(t, time.Since(start), 2*time.Second, "a poll interval, and a second")
				require.Greater(t, time.Since(start), time.Second, "the look has hung")
				time.Sleep(3 * time.Minute) // so that what lingers has ended
			})
		})
	}
}

// What the Queues of a client share is forgotten with them.
func TestQueue_WhatIsSharedIsCollected(t *testing.T) {
	make100 := func() {
		for range 100 {
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			for range 2 {
				_, err := sluice.NewQueue(rdb, "q")
				require.NoError(t, err)
			}
			require.NoError(t, rdb.Close())
		}
	}
	make100()
	require.Eventually(t, func() bool {
		runtime.GC()
		return sluice.Clients() < 50 // other tests have some
	}, 30*time.Second, 10*time.Millisecond)
}

// Of the callers on one Queue one is told of a task, in the order in which they came. If that
// one does not claim, the next is told.
func TestQueue_TellsOneCallerATask(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		var all sync.WaitGroup
		told := make(chan int, 10)
		for i := range 4 {
			all.Go(func() {
				require.NoError(t, q.Wait(t.Context()))
				told <- i
			})
			time.Sleep(time.Second)
		}
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 0, <-told)
		require.Empty(t, told)
		_, err = q.Claim(t.Context(), 1, 30*time.Minute)
		require.NoError(t, err)
		time.Sleep(29 * time.Minute)
		require.Empty(t, told, "it was claimed")
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, 1, <-told, "when the lease has ended")
		for i := range 2 {
			time.Sleep(time.Second)
			require.Equal(t, 2+i, <-told, "it is not claimed")
		}
		all.Wait()
		time.Sleep(time.Minute)
	})
}

// interfere is a hook that calls a function when a script has been answered, before the caller
// has the answer.
type interfere struct{ then atomic.Pointer[func()] }

func (i *interfere) DialHook(next redis.DialHook) redis.DialHook { return next }

func (i *interfere) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (i *interfere) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if then := i.then.Swap(nil); then != nil {
			(*then)()
		}
		return err
	}
}

// What is announced while a claim is under way counts, though the claim has found nothing.
func TestQueue_WaitKnowsWhatCameDuringAClaim(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		hooked := systest.BubbleClient(t, systest.BubbleDialer(m))
		defer func() { _ = hooked.Close() }()
		var hook interfere
		hooked.(*redis.Client).AddHook(&hook)
		q, err := sluice.NewQueue(hooked, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		other, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		_, err = q.Claim(t.Context(), 1, time.Minute) // the server has the script
		require.NoError(t, err)
		for i := range 3 { // the subscription is there, was there, and was never there
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if i < 2 {
				require.ErrorIs(t, q.Wait(ctx), context.DeadlineExceeded)
				time.Sleep(time.Duration(i) * 10 * time.Second)
			}
			cancel()
			enqueue := func() {
				_, err := other.Enqueue(t.Context(), sluice.Task{ID: "a"})
				require.NoError(t, err)
				time.Sleep(time.Millisecond) // it is announced
			}
			hook.then.Store(&enqueue)
			es, err := q.Claim(t.Context(), 1, time.Minute)
			require.NoError(t, err)
			require.Empty(t, es)
			start := time.Now()
			require.NoError(t, q.Wait(t.Context()))
			require.Zero(t, time.Since(start))
			_, err = q.Pop(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(time.Minute) // so that what lingers has ended
		}
	})
}

// A task costs a lone worker its enqueue, a claim and a finish: to be told costs no script,
// and to wait again after a claim costs none.
func TestQueue_AWakeUpCostsOneScript(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		scripts := countScripts(t, m)
		h := startHerd(t, m, 1)
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		for _, delay := range []time.Duration{0, 30 * time.Millisecond} {
			before := scripts.Load()
			for i := range 100 {
				due := time.Now().Add(delay)
				_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), Delay: delay})
				require.NoError(t, err)
				time.Sleep(100 * time.Millisecond)
				require.Len(t, h.claimed, 1)
				require.WithinDuration(t, due, <-h.claimed, 10*time.Microsecond)
			}
			require.LessOrEqual(t, int(scripts.Load()-before), 3*100+15, "and a look a second")
		}
		h.stop()
	})
}
