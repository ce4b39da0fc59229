package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// Peek returns no poison entries, and reads on behind them.
func TestQueue_PeekReadsPastWhatItDoesNotShow(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		pipe := b.RDB.Pipeline()
		bad := b.Sized(1200)
		for i := range bad {
			id := fmt.Sprint("bad", i)
			pipe.ZAdd(ctx, b.Key, redis.Z{Score: 1, Member: id})
			pipe.HSet(ctx, "{"+b.Key+"}:state", id, "garbage")
		}
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "good"})
		require.NoError(b, b.Q.Wait(ctx))
		peeked, err := b.Q.Peek(ctx, 1)
		require.NoError(b, err)
		require.Equal(b, []string{"good"}, systest.IDs(peeked))
		require.Equal(b, []string{"good"}, systest.IDs(b.Claim(1, time.Minute)))
		require.Equal(b, int64(bad), b.Stats().Dead)
		s, err := b.Q.Stats(ctx)
		require.NoError(b, err)
		require.Equal(b, int64(bad), s.Buried, "each is read once")
	})
}

// A claim of large payloads is several scripts, so that none of them blocks the server
// for long.
func TestQueue_ClaimsLargePayloadsInSteps(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		const n = 12
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		var tasks []sluice.Task
		for i := range n {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint(i), Payload: make([]byte, 400_000)})
		}
		_, err := q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		require.NoError(t, q.Wait(t.Context()))
		require.Eventually(t, func() bool { // the last of the batch is due 12 microseconds after the first
			s, err := q.Stats(t.Context())
			return err == nil && s.Due == n
		}, 20*time.Second, time.Millisecond)
		before := faults.Scripts()
		claimed, err := q.Claim(t.Context(), 100, time.Minute)
		require.NoError(t, err)
		require.Len(t, claimed, n)
		require.Len(t, claimed[n-1].Payload, 400_000)
		require.GreaterOrEqual(t, faults.Scripts()-before, 4, "3 tasks make more than a megabyte")

		for _, e := range claimed {
			require.NoError(t, q.Retry(t.Context(), 0, "failed", e))
		}
		again, err := q.Claim(t.Context(), 100, time.Minute)
		require.NoError(t, err)
		require.Len(t, again, n)
		for _, e := range again {
			require.Equal(t, 2, e.Attempt)
			require.Len(t, e.Payload, 400_000)
		}
	})
}

// holdsServer is the most that one command may hold up the others on a server.
const holdsServer = 20 * time.Millisecond

// TestQueue_NoCommandHoldsTheServerForLong has many large tasks go through every operation. The
// server's slow log measures wall time, also while another process has its processor: what the
// server has waited for one does not count, and each operation has several tries.
func TestQueue_NoCommandHoldsTheServerForLong(t *testing.T) {
	for size, n := range map[int]int{64 << 10: 250, 1 << 20: 40} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			if size > 64<<10 {
				redistest.NotShort(t)
			}
			s := redistest.Start(t, "--slowlog-log-slower-than", fmt.Sprint(holdsServer.Microseconds()))
			rdb, quick := s.Client(t), map[int]bool{}
			var slowest map[string]time.Duration
			for try := 0; try < 5 && (try == 0 || len(slowest) > 0); try++ {
				slowest = map[string]time.Duration{}
				q := systest.NewQueue(t, rdb)
				tasks := make([]sluice.Task, n)
				for i := range tasks {
					tasks[i] = sluice.Task{ID: fmt.Sprint(i), Payload: make([]byte, size)}
				}
				for i, o := range largeOperations(q, tasks) {
					held := s.Slowest(t, rdb, func() { require.NoError(t, o.run(t.Context()), o.name) })
					if quick[i] = quick[i] || held <= holdsServer; !quick[i] {
						slowest[o.name] = held
					}
				}
			}
			require.Empty(t, slowest)
		})
	}
}

// operation is an operation on all tasks of a queue.
type operation struct {
	name string
	run  func(ctx context.Context) error
}

// largeOperations returns operations on tasks, in an order in which each finds something to do.
func largeOperations(q *sluice.Queue, tasks []sluice.Task) []operation {
	var es []sluice.Entry
	claim := operation{"claim", func(ctx context.Context) (err error) {
		es = nil
		for err == nil && len(es) < len(tasks) {
			var some []sluice.Entry
			some, err = q.Claim(ctx, len(tasks), time.Minute)
			es = append(es, some...)
		}
		return err
	}}
	each := func(name string, do func(ctx context.Context, e sluice.Entry) error) operation {
		return operation{name, func(ctx context.Context) error {
			var errs []error
			for _, e := range es {
				errs = append(errs, do(ctx, e))
			}
			return errors.Join(errs...)
		}}
	}
	return []operation{
		{"enqueue batch", func(ctx context.Context) error { _, err := q.EnqueueBatch(ctx, tasks); return err }},
		{"replace", func(ctx context.Context) error { _, err := q.EnqueueBatch(ctx, tasks); return err }},
		{"peek", func(ctx context.Context) error { _, err := q.Peek(ctx, len(tasks)); return err }},
		claim,
		{"list leased", func(ctx context.Context) error {
			_, err := q.List(ctx, sluice.StateLeased, sluice.TaskInfo{}, len(tasks))
			return err
		}},
		{"list scheduled", func(ctx context.Context) error {
			_, err := q.List(ctx, sluice.StateScheduled, sluice.TaskInfo{}, 1)
			return err
		}},
		each("extend", func(ctx context.Context, e sluice.Entry) error { return q.Extend(ctx, e, time.Minute) }),
		{"defer", func(ctx context.Context) error { _, err := q.EnqueueBatch(ctx, tasks); return err }},
		each("retry", func(ctx context.Context, e sluice.Entry) error { return q.Retry(ctx, 0, "failed", e) }),
		claim,
		{"release", func(ctx context.Context) error { return q.Release(ctx, es...) }},
		claim,
		each("bury", func(ctx context.Context, e sluice.Entry) error { return q.Bury(ctx, "why", e) }),
		{"dead", func(ctx context.Context) error {
			_, err := q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, len(tasks))
			return err
		}},
		{"revive", func(ctx context.Context) error {
			ids := make([]string, len(tasks))
			for i := range tasks {
				ids[i] = tasks[i].ID
			}
			_, err := q.Revive(ctx, ids...)
			return err
		}},
		claim,
		{"dequeue", func(ctx context.Context) error { return q.Dequeue(ctx, es...) }},
		{"enqueue again", func(ctx context.Context) error { _, err := q.EnqueueBatch(ctx, tasks); return err }},
		{"pause", func(ctx context.Context) error { return errors.Join(q.Pause(ctx, 0), q.Resume(ctx)) }},
		{"stats", func(ctx context.Context) error { _, err := q.Stats(ctx); return err }},
		{"pop", func(ctx context.Context) error { _, err := q.Pop(ctx, len(tasks)/2); return err }},
		{"purge", q.Purge},
	}
}

// When Dequeue fails in its second step, its error also names the stale receipts of the
// first step.
func TestQueue_DequeueReportsStaleReceiptsBesideAnError(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		tasks := make([]sluice.Task, 600)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err := q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		var es []sluice.Entry
		for len(es) < len(tasks) {
			more, err := q.Claim(t.Context(), 600, time.Minute)
			require.NoError(t, err)
			es = append(es, more...)
		}
		require.ErrorIs(t, q.Dequeue(t.Context(), sluice.Entry{ID: "x", Score: 1}), sluice.ErrStale) // knows the script
		es[3].Score++
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		second := faults.Scripts() + 2
		faults.StallFrom(2)
		defer faults.Resume()
		go func() { // ends ctx when the second step is under way, to which no reply comes
			defer cancel()
			assert.Eventually(t, func() bool { return faults.Scripts() >= second || ctx.Err() != nil }, 20*time.Second, time.Millisecond)
		}()
		err = q.Dequeue(ctx, es...)
		require.ErrorIs(t, err, context.Canceled)
		var stale *sluice.StaleError
		require.ErrorAs(t, err, &stale)
		require.Equal(t, []string{es[3].ID}, stale.IDs)
	})
}

// Any number of letters is listed and revived, in steps.
func TestQueue_ListsAndRevivesManyDeadLetters(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, want := b.Context(), []string{}
		pipe := b.RDB.Pipeline()
		for i := range max(b.Sized(1203), 300) { // more than a step
			id := fmt.Sprint(5000 - i)
			want = append(want, id)
			pipe.ZAdd(ctx, "{"+b.Key+"}:dead", redis.Z{Score: float64(i), Member: id})
			pipe.HSet(ctx, "{"+b.Key+"}:state", id, "7:dead:why")
			pipe.HSet(ctx, "{"+b.Key+"}:tasks", id, "p")
		}
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		letters := b.Dead(5000)
		require.Len(b, letters, len(want))
		for i, letter := range letters {
			require.Equal(b, sluice.TaskInfo{
				Entry: sluice.Entry{ID: want[i], Payload: []byte("p"), Attempt: 7, Score: float64(i)},
				State: sluice.StateDead, DiedAt: time.Unix(int64(i), 0), Reason: "why",
			}, letter)
		}
		require.Len(b, b.Dead(len(want)/2), len(want)/2)
		b.Revive(len(want), append(want, "unknown")...)
		require.Empty(b, b.Dead(1))
		require.Len(b, b.Claim(5000, time.Minute), len(want))
	})
}

// A step that lists ends at a megabyte, and the next step goes on from there. To revive
// letters reads none of their payloads.
func TestQueue_ListsAndRevivesLargeDeadLettersInSteps(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		var ids []string
		for i := range 12 {
			ids = append(ids, fmt.Sprint(i))
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: ids[i], Payload: make([]byte, 400_000)})
			require.NoError(t, err)
			es, err := q.Claim(t.Context(), 1, time.Minute)
			require.NoError(t, err)
			require.NoError(t, q.Bury(t.Context(), "", es[0]))
		}
		before := faults.Scripts()
		letters, err := q.List(t.Context(), sluice.StateDead, sluice.TaskInfo{}, 100)
		require.NoError(t, err)
		require.Len(t, letters, 12)
		require.GreaterOrEqual(t, faults.Scripts()-before, 4, "3 letters make more than a megabyte")
		before = faults.Scripts()
		n, err := q.Revive(t.Context(), ids...)
		require.NoError(t, err)
		require.Equal(t, 12, n)
		require.LessOrEqual(t, faults.Scripts()-before, 2, "one, and one more to a server that does not know it")
	})
}
