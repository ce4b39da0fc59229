package sluice_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// BenchmarkLock is an uncontended lock, taken and released.
func BenchmarkLock(b *testing.B) {
	measure(b, nil, sluiceSection(b, redistest.Redis(b).Client(b)))
}

// BenchmarkFencedLock is the same with a fence.
func BenchmarkFencedLock(b *testing.B) {
	measure(b, nil, sluiceSection(b, redistest.Redis(b).Client(b), sluice.WithFencing()))
}

// BenchmarkFloor is the same by two bare round trips, the least that it can cost.
func BenchmarkFloor(b *testing.B) {
	measure(b, nil, floorSection(b, redistest.Redis(b).Client(b)))
}

// BenchmarkLockToFloor takes turns between the two, which a noisy machine hits
// alike, and reports the ratio.
func BenchmarkLockToFloor(b *testing.B) {
	rdb := redistest.Redis(b).Client(b)
	contenders := [2]func() error{sluiceSection(b, rdb), floorSection(b, rdb)}
	var spent [2]time.Duration
	for i := 0; b.Loop(); i++ {
		for j := range contenders {
			j = (i + j) % 2
			start := time.Now()
			if err := contenders[j](); err != nil {
				b.Fatal(err)
			}
			spent[j] += time.Since(start)
		}
	}
	b.ReportMetric(float64(spent[0])/float64(spent[1]), "ratio")
}

// BenchmarkHotLock is one lock that 64 goroutines want.
func BenchmarkHotLock(b *testing.B) {
	section := sluiceSection(b, redistest.Redis(b).Client(b))
	b.SetParallelism(max(1, 64/runtime.GOMAXPROCS(0)))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := section(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkTryLockRefused is a TryLock of what another Locker holds.
func BenchmarkTryLockRefused(b *testing.B) {
	ctx, rdb, name := cancellable(b), redistest.Redis(b).Client(b), redistest.Name(b)
	held, err := benchLocker(b, rdb, sluice.WithTTL(time.Hour)).Lock(ctx, name)
	require.NoError(b, err)
	l := benchLocker(b, rdb)
	measure(b, nil, func() error {
		if _, err := l.TryLock(ctx, name); !errors.Is(err, sluice.ErrLocked) {
			return fmt.Errorf("not refused: %w", err)
		}
		return nil
	})
	require.NoError(b, held.Unlock(ctx))
}

// BenchmarkEnqueue is one new task.
func BenchmarkEnqueue(b *testing.B) {
	ctx, q, id := cancellable(b), benchQueue(b), 0
	measure(b, nil, func() error {
		id++
		_, err := q.Enqueue(ctx, sluice.Task{ID: strconv.Itoa(id)})
		return err
	})
}

// BenchmarkEnqueueBatch is 500 new tasks.
func BenchmarkEnqueueBatch(b *testing.B) {
	ctx, q, tasks := cancellable(b), benchQueue(b), systest.DueTasks(500)
	measure(b, func() error { return q.Purge(ctx) }, enqueueing(ctx, q, tasks))
	reportTasks(b, len(tasks))
}

// BenchmarkClaim is 100 due tasks, claimed and finished.
func BenchmarkClaim(b *testing.B) {
	ctx, q, tasks := cancellable(b), benchQueue(b), systest.DueTasks(100)
	measure(b, enqueueing(ctx, q, tasks), func() error {
		entries, err := q.Claim(ctx, len(tasks), time.Minute)
		if err == nil && len(entries) != len(tasks) {
			err = fmt.Errorf("claimed %d of %d", len(entries), len(tasks))
		}
		return errors.Join(err, q.Dequeue(ctx, entries...))
	})
	reportTasks(b, len(tasks))
}

// BenchmarkWorker is a backlog of tasks that take no time, with the start of the
// worker and its end.
func BenchmarkWorker(b *testing.B) {
	ctx, q, tasks := cancellable(b), benchQueue(b), systest.DueTasks(5000)
	measure(b, enqueueing(ctx, q, tasks), func() error {
		working, stop := context.WithCancel(ctx)
		defer stop()
		var left atomic.Int64
		left.Store(int64(len(tasks)))
		w := &sluice.Worker{Queue: q, Concurrency: 64, Handler: func(context.Context, sluice.Entry) error {
			if left.Add(-1) == 0 {
				stop()
			}
			return nil
		}}
		return w.Run(working)
	})
	reportTasks(b, len(tasks))
}

// BenchmarkPoolToWorker takes turns between a backlog in one queue, of a Worker of 64 handlers, and
// as large a one in 6 and in 50 queues, of a Pool of as many, and reports how many times as long
// each takes per task. The handlers take no time.
func BenchmarkPoolToWorker(b *testing.B) {
	const tasks = 20_000
	ctx, counts, rdb := cancellable(b), []int{1, 6, 50}, redistest.Redis(b).Client(b)
	spent := make([]time.Duration, len(counts))
	turn := func(queues int) time.Duration {
		var left atomic.Int64
		working, stop := context.WithCancel(ctx)
		defer stop()
		p := &sluice.Pool{Concurrency: 64}
		for range queues {
			q, err := sluice.NewQueue(rdb, redistest.Name(b))
			require.NoError(b, err)
			require.NoError(b, enqueueing(ctx, q, systest.DueTasks(tasks/queues))())
			left.Add(int64(tasks / queues))
			p.Workers = append(p.Workers, &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error {
				if left.Add(-1) == 0 {
					stop()
				}
				return nil
			}})
		}
		began := time.Now()
		if queues == 1 {
			p.Workers[0].Concurrency = p.Concurrency
			require.NoError(b, p.Workers[0].Run(working))
		} else {
			require.NoError(b, p.Run(working))
		}
		return time.Since(began)
	}
	for n := 0; b.Loop(); n++ {
		for i := range counts {
			i = (n + i) % len(counts)
			spent[i] += turn(counts[i])
		}
	}
	for i, queues := range counts {
		b.ReportMetric(float64(b.N*(tasks/queues*queues))/spent[i].Seconds(), fmt.Sprintf("tasks/s/%d-queues", queues))
	}
}

// measure repeats do. What prepare does before each, if it is not nil, is not
// timed.
func measure(b *testing.B, prepare, do func() error) {
	b.ReportAllocs()
	for b.Loop() {
		if prepare != nil {
			b.StopTimer()
			if err := prepare(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
		if err := do(); err != nil {
			b.Fatal(err)
		}
	}
}

// reportTasks is for loops of n tasks each.
func reportTasks(b *testing.B, n int) {
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tasks/s")
}

func benchLocker(b *testing.B, rdb redis.UniversalClient, opts ...sluice.LockOption) *sluice.Locker {
	l, err := sluice.NewLocker(rdb, opts...)
	require.NoError(b, err)
	b.Cleanup(func() { _ = l.Close() })
	return l
}

func benchQueue(b *testing.B) *sluice.Queue {
	q, err := sluice.NewQueue(redistest.Redis(b).Client(b), redistest.Name(b))
	require.NoError(b, err)
	b.Cleanup(func() { _ = q.Purge(context.Background()) })
	return q
}

func enqueueing(ctx context.Context, q *sluice.Queue, tasks []sluice.Task) func() error {
	return func() error {
		_, err := q.EnqueueBatch(ctx, tasks)
		return err
	}
}

func sluiceSection(b *testing.B, rdb redis.UniversalClient, opts ...sluice.LockOption) func() error {
	ctx, name, l := cancellable(b), redistest.Name(b), benchLocker(b, rdb, opts...)
	return func() error {
		k, err := l.Lock(ctx, name)
		if err == nil {
			err = k.Unlock(ctx)
		}
		return err
	}
}

func floorSection(b *testing.B, rdb redis.UniversalClient) func() error {
	ctx, key := cancellable(b), redistest.Name(b)
	release := redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)
	require.NoError(b, release.Load(ctx, rdb).Err())
	return func() error {
		token := rand.Text()
		err := rdb.SetNX(ctx, key, token, 15*time.Second).Err()
		if err == nil {
			err = release.EvalSha(ctx, rdb, []string{key}, token).Err()
		}
		return err
	}
}

// cancellable is a context as a request has one.
func cancellable(b *testing.B) context.Context {
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	return ctx
}
