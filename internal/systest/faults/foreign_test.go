package faults

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestForeign_WritersInACrowd: programs that know nothing of the library write whatever they like
// to the keys of a lock and of a queue, while a crowd is at work. Nothing is promised meanwhile,
// but that each call returns and each Worker runs on. Once the keys are removed, everything goes on
// by itself.
func TestForeign_WritersInACrowd(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	const lock, queue = "Lock:crowd", "Queue:crowd"
	keys := []string{lock, queue}
	for _, ending := range keyspace.Endings {
		keys = append(keys, "{"+lock+"}"+ending, "{"+queue+"}"+ending)
	}
	var handled sync.Map
	var sections atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 4)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range cap(ended) {
		client := s.Client(t)
		l := systest.NewLocker(t, client, sluice.WithTTL(time.Second))
		for i := range 8 {
			opts := [][]sluice.LockOption{nil, {sluice.WithFencing()}, {sluice.WithPermits(2)}}[i%3]
			all.Go(func() {
				for ctx.Err() == nil {
					if k, err := l.Lock(ctx, "crowd", opts...); err == nil {
						sections.Add(1)
						_ = k.Unlock(ctx)
					} else {
						time.Sleep(time.Millisecond) // a key of another type: refused at once
					}
				}
			})
		}
		q, err := sluice.NewQueue(client, "crowd", sluice.WithRetention(time.Minute), sluice.WithMaxAttempts(3))
		require.NoError(t, err)
		w := &sluice.Worker{Queue: q, Concurrency: 8, Lease: time.Second, Grace: time.Second, Logger: slog.New(slog.DiscardHandler),
			Handler: func(_ context.Context, e sluice.Entry) error {
				handled.Store(e.ID, true)
				return nil
			}}
		all.Go(func() { ended <- w.Run(ctx) })
		all.Go(func() {
			for ctx.Err() == nil {
				_, _ = q.Enqueue(ctx, sluice.Task{ID: fmt.Sprint(rand.N(50)), Delay: rand.N(10 * time.Millisecond)})
				_, _ = q.Stats(ctx)
				_, _ = q.List(ctx, sluice.StateDue, sluice.TaskInfo{}, 10)
				time.Sleep(time.Millisecond)
			}
		})
	}
	var writers sync.WaitGroup
	for until := time.Now().Add(4 * time.Second); len(ended) == 0 && time.Now().Before(until); {
		for range 8 {
			writers.Go(func() {
				for range 20 {
					write(t.Context(), rdb, keys[rand.N(len(keys))])
				}
			})
		}
		writers.Wait()
	}
	require.Empty(t, ended, "a Worker has ended")
	require.NoError(t, rdb.Unlink(t.Context(), keys...).Err())
	require.Eventually(t, func() bool {
		q, err := sluice.NewQueue(rdb, "crowd")
		require.NoError(t, err)
		for i := range 10 {
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint("after ", i)})
			require.NoError(t, err)
		}
		for i := range 10 {
			if _, ok := handled.Load(fmt.Sprint("after ", i)); !ok {
				return false
			}
		}
		return true
	}, 30*time.Second, 100*time.Millisecond, "tasks are not handled")
	before := sections.Load()
	require.Eventually(t, func() bool { return sections.Load() > before+100 }, 30*time.Second, 10*time.Millisecond, "no lock is granted")
	cancel()
	for range cap(ended) {
		require.NoError(t, <-ended)
	}
	t.Logf("%d sections", sections.Load())
}

// write does something to a key that the library would not.
func write(ctx context.Context, rdb redis.UniversalClient, key string) {
	odd := []string{"", "0", "-1", "1:2:3", "9:9:9:9:9", "nan", "*", strings.Repeat("x", 1000), "\xff\x00SLU", fmt.Sprint(rand.N(50))}
	text := func() string { return odd[rand.N(len(odd))] }
	scores := []float64{0, -1, 1e300, math.Inf(1), math.Inf(-1), float64(time.Now().UnixMicro()) / 1e6, 0.1}
	z := redis.Z{Score: scores[rand.N(len(scores))], Member: text()}
	switch rand.N(9) {
	case 0, 1:
		rdb.ZAdd(ctx, key, z)
	case 2, 3:
		rdb.HSet(ctx, key, text(), text())
	case 4:
		rdb.Set(ctx, key, text(), rand.N(time.Second)+time.Millisecond)
	case 5:
		rdb.Del(ctx, key)
	case 6:
		rdb.ZRem(ctx, key, text())
	case 7:
		rdb.HDel(ctx, key, text())
	case 8:
		for _, channel := range rdb.PubSubChannels(ctx, "*crowd*").Val() {
			rdb.Publish(ctx, channel, text())
		}
	}
}
