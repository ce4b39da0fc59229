package sluice_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestLostDuringAnExtension: the lease is over while its extension is under way, and
// then the handler returns. The worker counts right, and so stops at once.
func TestLostDuringAnExtension(t *testing.T) {
	eachFaulty(t, 200*time.Millisecond, func(f faultyWorker) {
		f.faults.Stall()
		require.ErrorIs(f, f.cause(), sluice.ErrLost)
		time.Sleep(50 * time.Millisecond) // until its result has been taken
		f.faults.Resume()
		f.gate <- nil // again
		f.eventually(func() bool { return f.w.Stats().Done == 1 })
		start := time.Now()
		require.NoError(f, f.stop())
		require.Less(f, time.Since(start), time.Second)
		f.requireClean()
	})
}

// slowWorker is a worker of two hands on a connection whose replies come late from
// now on, and a task that has just become due for it.
func slowWorker(t *testing.T, s *redistest.Server, lease, late time.Duration, handler func(*redistest.Faults)) (bundle, *sluice.Worker) {
	rdb, faults := s.Faulty(t)
	name, clean := redistest.Name(t), s.Client(t)
	q, err := sluice.NewQueue(rdb, name, sluice.WithPollInterval(20*time.Millisecond), sluice.WithMaxAttempts(2))
	require.NoError(t, err)
	own, err := sluice.NewQueue(clean, name)
	require.NoError(t, err)
	b := bundle{T: t, q: own, rdb: clean, key: "Queue:" + name}
	teach(t, own)
	w := &sluice.Worker{Queue: q, Concurrency: 2, Lease: lease,
		Handler: func(context.Context, sluice.Entry) error { handler(faults); return nil }}
	start(t, w)
	var warm sync.WaitGroup // a new connection, to the queue's server, would be later still
	for range 10 {
		warm.Go(func() {
			_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error { return p.Type(t.Context(), b.key).Err() })
			if err != nil {
				t.Error(err)
			}
		})
	}
	warm.Wait()
	time.Sleep(100 * time.Millisecond) // until it has subscribed, and is idle
	faults.Delay(late)
	t.Cleanup(func() { faults.Delay(0) })
	b.enqueue(sluice.Added, sluice.Task{ID: "a"})
	return b, w
}

// TestClaimAnsweredLate: an answer that nobody waits for any more has claimed tasks
// all the same. They are worked on, and don't die of it.
func TestClaimAnsweredLate(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const lease, late = 3 * time.Second, 1200 * time.Millisecond // it waits for a second
		b, w := slowWorker(t, s, lease, late, func(faults *redistest.Faults) { faults.Delay(0) })
		require.Eventually(t, func() bool { return w.Stats().Done == 1 }, 10*time.Second, time.Millisecond)
		require.Equal(t, sluice.WorkerStats{Done: 1}, w.Stats())
		require.Empty(t, b.dead(1))
	})
}

// TestVerdictsAnsweredLate: every answer comes when it is not waited for any more.
func TestVerdictsAnsweredLate(t *testing.T) {
	eachFaulty(t, 3*time.Second, func(f faultyWorker) {
		f.faults.Delay(1200 * time.Millisecond)
		f.gate <- nil
		require.Eventually(f, func() bool { s := f.w.Stats(); return s.Done+s.Lost > 0 }, 10*time.Second, time.Millisecond)
		require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
		f.faults.Delay(0)
	})
}

// TestClaimAfterItsLease: what comes later than that is not begun.
func TestClaimAfterItsLease(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		var begun atomic.Int64
		_, w := slowWorker(t, s, 100*time.Millisecond, 300*time.Millisecond, func(*redistest.Faults) { begun.Add(1) })
		require.Eventually(t, func() bool { return w.Stats().Lost > 0 }, 5*time.Second, time.Millisecond)
		require.Zero(t, begun.Load())
	})
}

// restricted is a queue whose client must not use a command, and one whose may all.
func restricted(t *testing.T, denied string) (q, own *sluice.Queue) {
	s := redistest.Start(t)
	all := s.Client(t)
	require.NoError(t, all.Do(t.Context(), "ACL", "SETUSER", "user", "on", ">secret", "~*", "&*", "+@all", "-"+denied).Err())
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "user", Password: "secret"})
	t.Cleanup(func() { _ = rdb.Close() })
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	own, err = sluice.NewQueue(all, "q")
	require.NoError(t, err)
	return q, own
}

// TestVerdictsRefused: Redis gives tasks out and takes no results. There is an end
// to what is worked on in vain.
func TestVerdictsRefused(t *testing.T) {
	t.Parallel()
	q, own := restricted(t, "zmscore")
	tasks := make([]sluice.Task, 200)
	for i := range tasks {
		tasks[i].ID = fmt.Sprint(i)
	}
	_, err := own.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	var begun atomic.Int64
	start(t, &sluice.Worker{Queue: q, Concurrency: 8, Grace: time.Millisecond, Handler: func(context.Context, sluice.Entry) error {
		begun.Add(1)
		return nil
	}})
	time.Sleep(4 * time.Second) // a dozen tries
	require.Positive(t, begun.Load())
	require.LessOrEqual(t, begun.Load(), int64(3*8)) // those claimed before the first refusal included
}

// TestOneCommandDenied: waiting fails and claiming does not. Tasks are done, and the
// log stays short.
func TestOneCommandDenied(t *testing.T) {
	t.Parallel()
	q, own := restricted(t, "zrange")
	log := &diary{}
	w := &sluice.Worker{Queue: q, Logger: log.logger(), Handler: func(context.Context, sluice.Entry) error { return nil }}
	start(t, w)
	b := bundle{T: t, q: own}
	for i := range 3 {
		b.enqueue(sluice.Added, sluice.Task{ID: fmt.Sprint(i)})
		b.eventually(func() bool { return w.Stats().Done == int64(i+1) })
	}
	time.Sleep(time.Second) // several tries
	require.LessOrEqual(t, strings.Count(log.String(), "\n"), 3, log)
	require.NotContains(t, log.String(), "secret")
}
