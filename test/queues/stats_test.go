package queues

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestStats_CountsWhatIsDiscarded: by a handler or because it has expired, with units and without.
func TestStats_CountsWhatIsDiscarded(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.NoError(b, b.Q.SetStock(b.Context(), "phone", 10))
		for _, task := range []sluice.Task{
			{ID: "done"}, {ID: "discarded"}, {ID: "discarded in a group", Group: "g"}, {ID: "discarded with a unit", Take: sluice.Take{Item: "phone"}},
			{ID: "expired", Expires: time.Now().Add(-time.Hour)}, {ID: "expired with a unit", Expires: time.Now().Add(-time.Hour), Take: sluice.Take{Item: "phone"}},
		} {
			b.Enqueue(sluice.OutcomeAdded, task)
		}
		stop := systest.StartWorker(b.T, &sluice.Worker{Queue: b.Q, Concurrency: 6, Handler: func(_ context.Context, e sluice.Entry) error {
			if e.ID == "done" {
				return nil
			}
			return sluice.Discard(errors.New("of no use"))
		}})
		b.RequireDrained()
		require.NoError(b, stop())
		s, err := b.Q.Stats(b.Context())
		require.NoError(b, err)
		require.Equal(b, []int64{6, 5}, []int64{s.Finished, s.Discarded})
		stock, err := b.Q.Stock(b.Context(), "phone")
		require.NoError(b, err)
		require.Equal(b, sluice.StockInfo{Total: 10, Left: 10}, stock)
	})
}

// TestStats_CountsWhatBecomesOfTasks: each once, whichever operation it was.
func TestStats_CountsWhatBecomesOfTasks(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		counts := func(done, retried, buried, lost int64) {
			b.Helper()
			s, err := b.Q.Stats(ctx)
			require.NoError(b, err)
			require.Equal(b, []int64{done, retried, buried, lost}, []int64{s.Finished, s.Retried, s.Buried, s.Lost})
		}
		counts(0, 0, 0, 0)
		for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
		}
		es := b.Claim(6, time.Minute)
		require.NoError(b, b.Q.Dequeue(ctx, es[0], es[1]))
		counts(2, 0, 0, 0)
		require.ErrorIs(b, b.Q.Dequeue(ctx, es[0], es[2]), sluice.ErrStale)
		counts(3, 0, 0, 0)
		require.NoError(b, b.Q.Release(ctx, es[3]))
		require.NoError(b, b.Q.Extend(ctx, es[4], time.Hour))
		require.NoError(b, b.Q.Dequeue(ctx, es[4]))
		counts(4, 0, 0, 0)
		require.NoError(b, b.Q.Retry(ctx, time.Hour, "failed", es[5]))
		counts(4, 1, 0, 0)
		b.Bury(b.ClaimOne(time.Minute), "why")
		counts(4, 1, 1, 0)
		require.ErrorIs(b, b.Q.Bury(ctx, "why", es[5]), sluice.ErrStale)
		require.ErrorIs(b, b.Q.Retry(ctx, 0, "why", es[5]), sluice.ErrStale)
		b.Revive(1, "d")
		popped, err := b.Q.Pop(ctx, 1)
		require.NoError(b, err)
		require.Len(b, popped, 1)
		counts(5, 1, 1, 0)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "g"})
		b.EndLeaseUnseen(b.ClaimOne(time.Minute))
		counts(5, 1, 1, 1)
		lost := b.ClaimOne(time.Minute)
		counts(5, 1, 1, 1)
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "g"})
		require.NoError(b, b.Q.Retry(ctx, 0, "the version takes over", lost))
		counts(5, 2, 1, 1)
		again := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "g"})
		b.Bury(again, "the version takes over")
		counts(5, 3, 1, 1)
		again = b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "g"})
		require.NoError(b, b.Q.Dequeue(ctx, again))
		counts(6, 3, 1, 1)
		b.EndLeaseUnseen(b.ClaimOne(time.Minute))
		popped, err = b.Q.Pop(ctx, 1)
		require.NoError(b, err)
		require.Len(b, popped, 1)
		counts(7, 3, 1, 2)
		next := sluice.Task{ID: "h", At: time.Now().Add(time.Hour), Payload: []byte("next")}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "h"})
		require.NoError(b, b.PutNext(ctx, b.ClaimOne(time.Minute), next))
		counts(8, 3, 1, 2)
		_, err = b.Q.Cancel(ctx, "h")
		require.NoError(b, err)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "i"})
		b.EndLeaseSoon(b.ClaimOne(time.Minute)) // extended, and used up
		b.Eventually(func() bool { return b.Stats().Leased == 0 })
		es, err = b.On(b.RDB, sluice.WithMaxAttempts(1)).Claim(ctx, 1, time.Minute)
		require.NoError(b, err)
		require.Empty(b, es)
		counts(8, 3, 2, 3)
		require.NoError(b, b.Q.Purge(ctx))
		counts(8, 3, 2, 3)
		ttl := b.RDB.PTTL(ctx, "{"+b.Key+"}:counts").Val()
		require.InDelta(b, 24*time.Hour, ttl, float64(time.Minute))
	})
}

// TestStats_ALeaseThatRunsOutIsLost as soon as it has run out, also if nothing claims any more; and
// once, whatever becomes of its task then.
func TestStats_ALeaseThatRunsOutIsLost(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		ends := map[string]func(e sluice.Entry) error{
			"finished late": func(e sluice.Entry) error { return b.Q.Dequeue(ctx, e) },
			"retried late":  func(e sluice.Entry) error { return b.Q.Retry(ctx, time.Hour, "why", e) },
			"buried late":   func(e sluice.Entry) error { return b.Q.Bury(ctx, "why", e) },
			"extended late": func(e sluice.Entry) error { return b.Q.Extend(ctx, e, time.Hour) },
			"cancelled":     func(e sluice.Entry) error { _, err := b.Q.Cancel(ctx, e.ID); return err },
			"put off":       func(e sluice.Entry) error { _, err := b.Q.Reschedule(ctx, e.ID, time.Hour); return err },
			"replaced": func(e sluice.Entry) error {
				_, err := b.Q.Enqueue(ctx, sluice.Task{ID: e.ID, Duplicates: sluice.DuplicatesReplace})
				return err
			},
			"claimed again":   func(sluice.Entry) error { _, err := b.Q.Claim(ctx, 1, time.Hour); return err },
			"popped":          func(sluice.Entry) error { _, err := b.Q.Pop(ctx, 1); return err },
			"purged":          func(sluice.Entry) error { return b.Q.Purge(ctx) },
			"gone by foreign": func(e sluice.Entry) error { return b.RDB.ZRem(ctx, b.Key, e.ID).Err() },
		}
		counted := func() int64 {
			s, err := b.Q.Stats(ctx)
			require.NoError(b, err)
			return s.Lost
		}
		lost := int64(0)
		claim := func() sluice.Entry {
			for {
				es, err := b.Q.Claim(ctx, 1, 300*time.Millisecond)
				if errors.Is(err, sluice.ErrLost) { // on a busy machine the reply came too late: it is claimed again
					lost++
					continue
				}
				require.NoError(b, err)
				if len(es) == 1 {
					return es[0]
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(ends)) {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: name})
			e := claim()
			lost++
			b.Eventually(func() bool { return counted() == lost })
			require.NoError(b, ends[name](e), name)
			require.Equal(b, lost, counted(), name)
			_, err := b.Q.Cancel(ctx, name)
			require.NoError(b, err)
			require.Equal(b, lost, counted(), name)
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "last"})
		b.ClaimOne(time.Hour)
		require.Equal(b, lost, counted())
		require.EqualValues(b, 1, b.RDB.ZCard(ctx, "{"+b.Key+"}:leased").Val(), "what is counted is not listed")
	})
}

// TestStats_LostNeverFalls, also where a foreign consumer has removed more leased tasks than a
// claim looks at.
func TestStats_LostNeverFalls(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		var ts []sluice.Task
		for i := range 400 {
			ts = append(ts, sluice.Task{ID: fmt.Sprintf("%03d", i)})
		}
		_, err := b.Q.EnqueueBatch(ctx, ts)
		require.NoError(b, err)
		b.Claim(400, 4*time.Second)
		for _, t := range ts[:300] {
			require.NoError(b, b.RDB.ZRem(ctx, b.Key, t.ID).Err())
		}
		lost := func() int64 {
			s, err := b.Q.Stats(ctx)
			require.NoError(b, err)
			return s.Lost
		}
		b.Eventually(func() bool { return lost() >= 400 }) // more on a busy machine, where the first leases are over before the last begin
		for was := lost(); b.RDB.ZCount(ctx, b.Key, "-inf", "("+fmt.Sprint(time.Now().Unix())).Val() > 0; was = lost() {
			b.Claim(25, time.Hour)
			require.GreaterOrEqual(b, lost(), was)
		}
	})
}

// TestStats_APeriodicTaskThatIsPutOffCountsAsNothing, also past its next occurrence.
func TestStats_APeriodicTaskThatIsPutOffCountsAsNothing(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Minute))
		require.NoError(t, err)
		w := &sluice.Worker{
			Queue: q, Periodic: []sluice.Periodic{{ID: "p", Schedule: sluice.Every(time.Hour)}},
			Handler: func(context.Context, sluice.Entry) error { return sluice.Again(2 * time.Hour) },
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(3*time.Hour + time.Minute)
		require.EqualValues(t, 3, w.Stats().Again)
		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, []int64{0, 0, 0, 0}, []int64{stats.Finished, stats.Retried, stats.Buried, stats.Lost})
		stop()
		require.NoError(t, <-ended)
		time.Sleep(time.Minute) // the library's goroutines end
	})
}

// TestStats_AWorkerKeepsTheCounts, though nothing was counted for a day.
func TestStats_AWorkerKeepsTheCounts(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		for i := range 30 {
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: strings.Repeat("x", i+1)})
			require.NoError(t, err)
			es, err := q.Pop(t.Context(), 1)
			require.NoError(t, err)
			require.Len(t, es, 1)
		}
		time.Sleep(24*time.Hour - 5*time.Second)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- (&sluice.Worker{Queue: q, Handler: nothing}).Run(ctx) }()
		time.Sleep(time.Minute)
		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 30, stats.Finished)
		require.Equal(t, 1, stats.Workers)
		stop()
		require.NoError(t, <-ended)
		time.Sleep(time.Minute) // the library's goroutines end
	})
}

// TestQueue_CountsAndListsBesideManyTasks in about the same time as beside none: no command of it
// takes the server long. The tasks are a foreign producer's: 200,000, or a million with
// SLUICE_TEST_SCALE=5. A busy machine slows a server down, too, so that each has several tries.
func TestQueue_CountsAndListsBesideManyTasks(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	const most = 5 * time.Millisecond
	server := redistest.Start(t, "--slowlog-log-slower-than", fmt.Sprint(most.Microseconds()))
	rdb := server.Client(t)
	ctx, q := t.Context(), systest.NewQueue(t, rdb)
	key := "Queue:" + q.Name()
	const fill = `local now = tonumber(redis.call('TIME')[1])
for i = 1, 2000 do
  local n = ARGV[1] * 2000 + i
  redis.call('ZADD', KEYS[1], string.format('%d.%06d', now - 500 + n % 1000, n % 1000000), 't' .. n)
end
return 1`
	for i := range 100 * systest.Scale() {
		require.NoError(t, rdb.Eval(ctx, fill, []string{key}, i).Err())
	}
	claimed, err := q.Claim(ctx, 1000, time.Hour)
	require.NoError(t, err)
	require.Len(t, claimed, 1000)
	looks := map[string]func(){"Stats": func() {
		stats, err := q.Stats(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1000, stats.Leased)
		require.Greater(t, stats.Due, int64(50_000*systest.Scale()))
		require.Greater(t, stats.Scheduled, int64(50_000*systest.Scale()))
	}}
	for _, s := range []sluice.State{sluice.StateScheduled, sluice.StateDue, sluice.StateLeased} {
		after := sluice.TaskInfo{}
		for _, page := range []string{"first", "second"} {
			from := after
			look := func() {
				listed, err := q.List(ctx, s, from, 100)
				require.NoError(t, err)
				require.Len(t, listed, 100)
				after = listed[99]
			}
			look()
			looks[fmt.Sprintf("List, %s page of %v", page, s)] = look
		}
	}
	for name, look := range looks {
		fastest := time.Hour
		for try := 0; try < 50 && fastest > most; try++ {
			fastest = min(fastest, server.Slowest(t, rdb, look))
		}
		require.LessOrEqual(t, fastest, most, name)
	}
}
