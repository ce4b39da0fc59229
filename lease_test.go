package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// shift is a worker on a fake clock.
type shift struct {
	*testing.T
	m    *miniredis.Miniredis
	q    *sluice.Queue
	w    *sluice.Worker
	stop func() error
}

// virtual runs a worker in a bubble. A test adds tasks, and ends with stop.
func virtual(t *testing.T, w *sluice.Worker, test func(s shift), opts ...sluice.QueueOption) {
	t.Helper()
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", opts...)
		require.NoError(t, err)
		w := &sluice.Worker{Queue: q, Handler: w.Handler, Concurrency: w.Concurrency, Lease: w.Lease,
			Timeout: w.Timeout, Backoff: w.Backoff, Grace: w.Grace, Logger: w.Logger}
		teach(t, q)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- w.Run(ctx) }()
		s := shift{T: t, m: m, q: q, w: w, stop: func() error { cancel(); return <-result }}
		defer func() {
			cancel()
			m.SetError("")
			time.Sleep(time.Minute) // so that what lingers has ended
		}()
		test(s)
	})
}

// teach has the server know the worker's scripts: in full, several of them in one
// pipeline are more than net.Pipe takes at once.
func teach(t *testing.T, q *sluice.Queue) {
	t.Helper()
	ctx := t.Context()
	claim := func() sluice.Entry {
		es, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 1)
		return es[0]
	}
	_, err := q.Enqueue(ctx, sluice.Task{ID: "a"})
	require.NoError(t, err)
	require.NoError(t, q.Wait(ctx))
	require.NoError(t, q.Retry(ctx, claim(), 0))
	e, err := q.Extend(ctx, claim(), time.Minute)
	require.NoError(t, err)
	require.NoError(t, q.Bury(ctx, e, ""))
	_, err = q.Revive(ctx, "a")
	require.NoError(t, err)
	require.NoError(t, q.Dequeue(ctx, claim()))
}

func (s shift) enqueue(id string) {
	s.Helper()
	_, err := s.q.Enqueue(s.Context(), sluice.Task{ID: id, Payload: []byte("p")})
	require.NoError(s, err)
}

// leaseEnd is when the task's lease ends on the server.
func (s shift) leaseEnd(id string) time.Time {
	s.Helper()
	e, err := s.q.Get(s.Context(), id)
	require.NoError(s, err)
	return e.Time()
}

// TestLeasesAreExtended: work that takes a hundred leases is done once, and finished
// with the newest receipt. Extensions are rare, and come in one go.
func TestLeasesAreExtended(t *testing.T) {
	const lease, long = 30 * time.Second, time.Hour
	virtual(t, &sluice.Worker{Lease: lease, Handler: func(ctx context.Context, e sluice.Entry) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(long):
			return nil
		}
	}}, func(s shift) {
		for i := range 5 {
			s.enqueue(fmt.Sprint(i))
		}
		time.Sleep(time.Second)
		require.Equal(s, int64(5), s.w.Stats().Running)
		least := lease
		for range 700 {
			time.Sleep(5*time.Second + 7*time.Millisecond)
			least = min(least, time.Until(s.leaseEnd("3")))
			es, err := s.q.Claim(s.Context(), 10, time.Second)
			require.NoError(s, err)
			require.Empty(s, es, "a task that is worked on was handed out")
		}
		require.GreaterOrEqual(s, least, lease*2/3-time.Second)
		time.Sleep(long)
		require.Equal(s, sluice.WorkerStats{Done: 5}, s.w.Stats())
		require.NoError(s, s.stop())
	})
}

// TestLeaseIsLost: the handler is told before the lease can end on the server, when
// that does not answer; at the next extension, when the task was cancelled.
func TestLeaseIsLost(t *testing.T) {
	const lease = 30 * time.Second
	log := &diary{}
	var told chan time.Time
	w := &sluice.Worker{Lease: lease, Logger: log.logger(), Handler: func(ctx context.Context, e sluice.Entry) error {
		<-ctx.Done()
		told <- time.Now()
		if !errors.Is(context.Cause(ctx), sluice.ErrLost) {
			return context.Cause(ctx)
		}
		return nil // which makes no difference
	}}
	virtual(t, w, func(s shift) {
		told = make(chan time.Time, 1) // of the bubble
		s.enqueue("a")
		time.Sleep(15 * time.Second) // it has been extended once
		ends := s.leaseEnd("a")
		require.Greater(s, time.Until(ends), 20*time.Second)
		s.m.SetError("LOADING for long")
		at := <-told
		require.True(s, at.Before(ends), "the handler went on when somebody else could have the task")
		require.Less(s, ends.Sub(at), time.Second, "it was told too early")
		s.m.SetError("")
		time.Sleep(5 * time.Second)
		require.Equal(s, int64(1), s.w.Stats().Lost)
		require.Equal(s, int64(1), s.w.Stats().Running, "it is handed out again")
		require.Equal(s, 1, strings.Count(log.String(), "cannot use its queue"), log)
		require.Equal(s, 1, strings.Count(log.String(), "uses its queue again"), log)

		_, err := s.q.Cancel(s.Context(), "a")
		require.NoError(s, err)
		start := time.Now()
		require.LessOrEqual(s, (<-told).Sub(start), lease/3)
		time.Sleep(time.Second)
		require.Equal(s, sluice.WorkerStats{Lost: 2}, s.w.Stats())
		require.NoError(s, s.stop())
		require.Equal(s, 2, strings.Count(log.String(), "lease lost"), log)
	})
}

// TestOutageShorterThanTheLease: nothing is lost, results are told when Redis is
// back, and it is not asked all the time meanwhile.
func TestOutageShorterThanTheLease(t *testing.T) {
	const lease = 30 * time.Second
	log, calls := &diary{}, atomic.Int64{}
	virtual(t, &sluice.Worker{Lease: lease, Logger: log.logger(), Concurrency: 4, Handler: func(ctx context.Context, e sluice.Entry) error {
		calls.Add(1)
		time.Sleep(5 * time.Second)
		return context.Cause(ctx)
	}}, func(s shift) {
		for i := range 8 {
			s.enqueue(fmt.Sprint(i))
		}
		time.Sleep(time.Second)
		s.m.SetError("LOADING for a while")
		before := s.m.CommandCount()
		time.Sleep(20 * time.Second)
		require.Less(s, s.m.CommandCount()-before, 100, "it is asked all the time")
		require.Equal(s, int64(4), calls.Load())
		s.m.SetError("")
		time.Sleep(1500 * time.Millisecond)
		require.Equal(s, int64(4), s.w.Stats().Done)
		require.Equal(s, int64(8), calls.Load())
		time.Sleep(10 * time.Second)
		require.Equal(s, sluice.WorkerStats{Done: 8}, s.w.Stats())
		require.Equal(s, 1, strings.Count(log.String(), "level=WARN"), log)
		require.Equal(s, 1, strings.Count(log.String(), "level=INFO"), log)
		require.NoError(s, s.stop())
	})
}

// TestResultsAreDroppedWithTheLease: what could not be told before the lease ended
// is not told after it.
func TestResultsAreDroppedWithTheLease(t *testing.T) {
	virtual(t, &sluice.Worker{Lease: 10 * time.Second, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(time.Second)
		return nil
	}}, func(s shift) {
		s.enqueue("a")
		time.Sleep(500 * time.Millisecond)
		s.m.SetError("LOADING for long")
		time.Sleep(15 * time.Second)
		require.Equal(s, sluice.WorkerStats{Lost: 1}, s.w.Stats())
		s.m.SetError("")
		time.Sleep(5 * time.Second)
		require.Equal(s, sluice.WorkerStats{Lost: 1, Done: 1}, s.w.Stats(), "it was done again")
		require.NoError(s, s.stop())
	})
}

func TestTimeout(t *testing.T) {
	virtual(t, &sluice.Worker{Timeout: time.Minute, Backoff: at(time.Hour), Handler: func(ctx context.Context, e sluice.Entry) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}}, func(s shift) {
		s.enqueue("a")
		time.Sleep(59 * time.Second)
		require.Equal(s, sluice.WorkerStats{Running: 1}, s.w.Stats())
		time.Sleep(2 * time.Second)
		require.Equal(s, sluice.WorkerStats{Retried: 1}, s.w.Stats())
		require.NoError(s, s.stop())
	})
}

// TestGrace: handlers have it whole; then their contexts end, and an error is the
// worker's doing: the task goes back at once, its attempt not counted.
func TestGrace(t *testing.T) {
	const grace = 10 * time.Second
	w := &sluice.Worker{Grace: grace, Handler: func(ctx context.Context, e sluice.Entry) error {
		switch e.ID {
		case "quick":
			time.Sleep(grace - time.Second)
			return ctx.Err()
		case "panics":
			<-ctx.Done()
			panic("boom")
		case "hopeless":
			<-ctx.Done()
			return sluice.Permanent(errors.New("no"))
		}
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	virtual(t, w, func(s shift) {
		for _, id := range []string{"quick", "long", "panics", "hopeless"} {
			s.enqueue(id)
		}
		time.Sleep(time.Second)
		start := time.Now()
		require.NoError(s, s.stop())
		require.InDelta(s, grace, time.Since(start), float64(50*time.Millisecond))
		require.Equal(s, sluice.WorkerStats{Done: 1, Released: 1, Retried: 1, Buried: 1}, s.w.Stats())
		e, err := s.q.Get(s.Context(), "long")
		require.NoError(s, err)
		require.Zero(s, e.Attempt)
		require.LessOrEqual(s, time.Until(e.Time()), time.Duration(0))
	})
}

// TestDeafHandler: one that does not heed its context keeps its lease, and Run says
// so after Grace and a second. What it returns has no effect.
func TestDeafHandler(t *testing.T) {
	w := &sluice.Worker{Grace: 5 * time.Second, Lease: 30 * time.Second, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(20 * time.Second)
		return nil
	}}
	virtual(t, w, func(s shift) {
		s.enqueue("a")
		time.Sleep(time.Second)
		start := time.Now()
		err := s.stop()
		require.Equal(s, 6*time.Second, time.Since(start))
		var left *sluice.UnfinishedError
		require.ErrorAs(s, err, &left)
		require.Equal(s, sluice.UnfinishedError{Running: 1}, *left)
		require.ErrorContains(s, err, "1 handlers still running")
		require.ErrorIs(s, s.w.Run(s.Context()), sluice.ErrInvalid, "its handlers would be more than it says")
		time.Sleep(20 * time.Second)
		require.Equal(s, sluice.WorkerStats{Lost: 1}, s.w.Stats())
		e, err := s.q.Get(s.Context(), "a")
		require.NoError(s, err)
		require.Equal(s, 1, e.Attempt)
	})
}

// TestAfterAnOutage: results that nobody took until their leases were over are dropped,
// and the hands that they held are free again.
func TestAfterAnOutage(t *testing.T) {
	w := &sluice.Worker{Concurrency: 1, Lease: 10 * time.Second, Handler: func(context.Context, sluice.Entry) error {
		time.Sleep(2 * time.Second)
		return nil
	}}
	virtual(t, w, func(s shift) {
		s.enqueue("a")
		time.Sleep(time.Second)
		s.m.SetError("LOADING for long")
		time.Sleep(20 * time.Second)
		require.Equal(s, sluice.WorkerStats{Lost: 1}, s.w.Stats())
		s.m.SetError("")
		s.enqueue("b")
		time.Sleep(10 * time.Second)
		require.Equal(s, sluice.WorkerStats{Lost: 1, Done: 2}, s.w.Stats())
		require.NoError(s, s.stop())
	})
}

// TestDeafAndLost: a lease that was lost before Run gave up is lost once.
func TestDeafAndLost(t *testing.T) {
	w := &sluice.Worker{Grace: time.Second, Lease: 2 * time.Second, Handler: func(context.Context, sluice.Entry) error {
		time.Sleep(20 * time.Second)
		return nil
	}}
	virtual(t, w, func(s shift) {
		s.enqueue("a")
		time.Sleep(time.Second)
		s.m.SetError("LOADING for long")
		time.Sleep(3 * time.Second)
		require.Equal(s, sluice.WorkerStats{Running: 1, Lost: 1}, s.w.Stats())
		var left *sluice.UnfinishedError
		require.ErrorAs(s, s.stop(), &left)
		require.Equal(s, 1, left.Running)
		time.Sleep(20 * time.Second)
		require.Equal(s, sluice.WorkerStats{Lost: 1}, s.w.Stats())
	})
}

// TestStopWithoutRedis: results that cannot be told are counted.
func TestStopWithoutRedis(t *testing.T) {
	w := &sluice.Worker{Grace: 5 * time.Second, Lease: time.Minute, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(2 * time.Second)
		return nil
	}}
	virtual(t, w, func(s shift) {
		s.enqueue("a")
		s.enqueue("b")
		time.Sleep(time.Second)
		s.m.SetError("LOADING for long")
		var left *sluice.UnfinishedError
		require.ErrorAs(s, s.stop(), &left)
		require.Equal(s, sluice.UnfinishedError{Unacknowledged: 2}, *left)
	})
}

// TestDefaultBackoff: full jitter between 0 and 1s, 2s, 4s ... 1h.
func TestDefaultBackoff(t *testing.T) {
	const tasks = 20
	virtual(t, &sluice.Worker{Concurrency: 5, Handler: func(context.Context, sluice.Entry) error {
		return errors.New("again")
	}}, func(s shift) {
		for i := range tasks {
			s.enqueue(fmt.Sprint(i))
		}
		time.Sleep(time.Second)
		require.Greater(s, s.w.Stats().Retried, int64(tasks), "jitter is full")
		time.Sleep(6 * time.Hour)
		first := s.w.Stats().Retried
		time.Sleep(6 * time.Hour)
		// Half an hour on average.
		require.InDelta(s, tasks*12, s.w.Stats().Retried-first, tasks*12/4)
		require.Zero(s, s.w.Stats().Buried, "no limit")
		require.NoError(s, s.stop())
	}, sluice.WithMaxAttempts(0), sluice.WithPollInterval(time.Hour))
}

// TestIdleWorker sends a command a second, and no more.
func TestIdleWorker(t *testing.T) {
	virtual(t, &sluice.Worker{Handler: func(context.Context, sluice.Entry) error { return nil }}, func(s shift) {
		_, err := s.q.Enqueue(s.Context(), sluice.Task{ID: "later", Delay: 30 * 24 * time.Hour})
		require.NoError(s, err)
		time.Sleep(time.Minute + time.Second/2) // between two looks
		before := s.m.CommandCount()
		time.Sleep(time.Hour)
		require.LessOrEqual(s, s.m.CommandCount()-before, 3600*3) // an EVALSHA that runs two commands
		require.NoError(s, s.stop())
	})
}

// TestOtherClocks: the server's clock is ten minutes off. Nothing depends on it but
// Task.At.
func TestOtherClocks(t *testing.T) {
	for _, off := range []time.Duration{-10 * time.Minute, 10 * time.Minute} {
		t.Run(off.String(), func(t *testing.T) {
			var begun []time.Duration
			var start time.Time
			virtual(t, &sluice.Worker{Lease: 3 * time.Second, Handler: func(ctx context.Context, e sluice.Entry) error {
				begun = append(begun, time.Since(start))
				time.Sleep(10 * time.Second) // three leases
				return ctx.Err()
			}}, func(s shift) {
				ctx, cancel := context.WithCancel(s.Context())
				defer cancel()
				go func() {
					for ctx.Err() == nil {
						s.m.SetTime(time.Now().Add(off))
						time.Sleep(5 * time.Millisecond)
					}
				}()
				time.Sleep(time.Second)
				start = time.Now()
				at := start.Add(20 * time.Minute)
				for _, task := range []sluice.Task{{ID: "delay", Delay: time.Minute}, {ID: "at", At: at}} {
					_, err := s.q.Enqueue(ctx, task)
					require.NoError(s, err)
				}
				time.Sleep(40 * time.Minute)
				require.Equal(s, sluice.WorkerStats{Done: 2}, s.w.Stats())
				require.InDelta(s, time.Minute, begun[0], float64(10*time.Millisecond))
				require.InDelta(s, 20*time.Minute-off, begun[1], float64(10*time.Millisecond), "At is by the caller's clock, what is due by the server's")
				require.NoError(s, s.stop())
			})
		})
	}
}
