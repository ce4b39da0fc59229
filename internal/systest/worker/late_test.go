package worker

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// With a lease of 3s a worker waits for a reply for 1s, and the lease is its own for
// 2.968s: less 1% and 2ms.
const (
	shortLease = 3 * time.Second
	givenUp    = time.Second
	owned      = 2968 * time.Millisecond
)

// A claim that is answered after the worker has given it up has claimed its tasks all
// the same. The worker handles them, and no attempt is wasted.
func TestWorker_HandlesAClaimAnsweredLate(t *testing.T) {
	for late := givenUp + 50*time.Millisecond; late < owned; late += 100 * time.Millisecond {
		t.Run(late.String(), func(t *testing.T) {
			w := &sluice.Worker{Concurrency: 2, Lease: shortLease, Handler: func(context.Context, sluice.Entry) error { return nil }}
			onFakeClock(t, w, func(f fixture) {
				f.add("a")
				f.warm()
				f.faults.Delay(late) // of the replies that the server sends from now on
				f.start()
				time.Sleep(givenUp + 20*time.Millisecond)
				f.faults.Delay(0)
				time.Sleep(2 * shortLease)
				require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
				require.Empty(f, f.Dead(1))
				f.RequireClean()
			}, sluice.WithMaxAttempts(1))
		})
	}
}

// The same on every backend, where the reply comes when the log says that the worker has
// given it up.
func TestWorker_HandlesAClaimAnsweredLateOnEveryBackend(t *testing.T) {
	eachFaulty(t, func(b systest.QueueTest, q *sluice.Queue, faults *redistest.Faults) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		require.NoError(b, q.Wait(b.Context())) // has a connection
		faults.Stall()
		log := &systest.Buffer{}
		w := &sluice.Worker{Queue: q, Concurrency: 2, Lease: 2 * shortLease, Logger: systest.LogTo(log),
			Handler: func(context.Context, sluice.Entry) error { return nil }}
		systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return log.Count("cannot use its queue") > 0 })
		faults.Resume()
		b.Eventually(func() bool { s := w.Stats(); return s.Done+s.Lost > 0 })
		require.Equal(b, sluice.WorkerStats{Done: 1}, w.Stats())
		b.RequireClean()
	}, sluice.WithMaxAttempts(1))
}

// Every reply to a disposition comes after the worker has given it up, and sent it again.
// The disposition counts once. It goes out with a claim, and the two replies are delayed
// one after the other.
func TestWorker_CountsALateDispositionOnce(t *testing.T) {
	for late := givenUp/2 + 50*time.Millisecond; 2*late < owned; late += 100 * time.Millisecond {
		t.Run(late.String(), func(t *testing.T) {
			onGatedWorker(t, shortLease, func(f gated) {
				f.warm()
				f.faults.Delay(late)
				f.gate <- nil
				time.Sleep(2 * shortLease)
				require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
				f.RequireClean()
			})
		})
	}
}

// The server answers when the worker has given up the disposition and sent it again. It
// counts once.
func TestWorker_CountsADispositionSentTwiceOnce(t *testing.T) {
	onGatedWorker(t, shortLease, func(f gated) {
		f.faults.Stall()
		f.gate <- nil
		time.Sleep(givenUp + 500*time.Millisecond)
		f.faults.Resume()
		synctest.Wait() // the replies have come
		require.NoError(f, f.stop())
		require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
		f.RequireClean()
	})
}

// A claim that is answered after its lease has ended begins nothing.
func TestWorker_BeginsNothingAfterItsLease(t *testing.T) {
	const lease = 100 * time.Millisecond
	for _, late := range []time.Duration{lease - 3*time.Millisecond, 3 * lease} { // the lease is owned for 97ms
		t.Run(late.String(), func(t *testing.T) {
			var begun atomic.Int64
			w := &sluice.Worker{Concurrency: 2, Lease: lease, Handler: func(context.Context, sluice.Entry) error { begun.Add(1); return nil }}
			onFakeClock(t, w, func(f fixture) {
				f.add("a")
				f.warm()
				f.faults.Delay(late)
				f.start()
				time.Sleep(late + time.Millisecond)
				require.Zero(f, begun.Load())
				time.Sleep(4 * late)
				require.Zero(f, begun.Load())
				require.Positive(f, f.w.Stats().Released, "it is given back")
			})
		})
	}
}

// Replies of more than 1,400 bytes vanish, so that a claim of many tasks is never answered
// and one of few is. After a claim without an answer a worker asks for one task, and then
// for more again: every task is handled, and none dies unseen.
func TestWorker_AsksForFewerAfterAClaimWithoutAnAnswer(t *testing.T) {
	const tasks = 40
	var mu sync.Mutex
	begun := map[string]int{}
	w := &sluice.Worker{Concurrency: 64, Lease: shortLease, Handler: func(_ context.Context, e sluice.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		begun[e.ID]++
		return nil
	}}
	onFakeClock(t, w, func(f fixture) {
		for i := range tasks {
			f.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: strconv.Itoa(i), Payload: make([]byte, 100)})
		}
		f.faults.DropLargeReplies(1400)
		f.start()
		time.Sleep(5 * time.Minute)
		require.Empty(f, f.Dead(tasks))
		require.Equal(f, int64(tasks), f.w.Stats().Done)
		require.Len(f, begun, tasks)
		require.NoError(f, f.stop())
	}, sluice.WithMaxAttempts(8))
}

// The network's limit lasts, and the queue allows few attempts: a worker does not come back
// again and again to a size that has failed, so that no task dies unseen.
func TestWorker_ALastingLimitBuriesNothing(t *testing.T) {
	const tasks = 200
	for _, attempts := range []int{1, 3} {
		t.Run(strconv.Itoa(attempts), func(t *testing.T) {
			w := &sluice.Worker{Concurrency: 32, Lease: shortLease, Handler: func(context.Context, sluice.Entry) error { return nil }}
			onFakeClock(t, w, func(f fixture) {
				for i := range tasks {
					f.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: strconv.Itoa(i), Payload: make([]byte, 200)})
				}
				f.faults.DropLargeReplies(1400)
				f.start()
				time.Sleep(20 * time.Second)
				require.Zero(f, f.Stats().Dead)
				require.Equal(f, int64(tasks), f.w.Stats().Done)
				for i := range 3 * tasks { // again, over some minutes
					f.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: strconv.Itoa(i), Payload: make([]byte, 200)})
					if i%50 == 0 {
						time.Sleep(30 * time.Second)
					}
				}
				time.Sleep(time.Minute)
				require.Zero(f, f.Stats().Dead)
				require.Equal(f, int64(4*tasks), f.w.Stats().Done)
				require.NoError(f, f.stop())
			}, sluice.WithMaxAttempts(attempts))
		})
	}
}
