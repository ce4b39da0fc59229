package queues

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// workerOn returns a worker on a queue, which does not run.
func workerOn(q *sluice.Queue, lease time.Duration) *queues.Worker {
	return &queues.Worker{Queue: systest.EngineOf(q), Loop: taskloop.Queue{Lease: lease}}
}

// twins are two queues on a server whose clock stands still, to which the same is done.
type twins struct {
	*testing.T
	server   *miniredis.Miniredis
	rdb      *redis.Client
	rand     *rand.Rand
	now      time.Time
	queues   [2]*sluice.Queue
	receipts []sluice.Entry
	steps    int
}

func newTwins(t *testing.T, m *miniredis.Miniredis, rdb *redis.Client, seed uint64) *twins {
	w := &twins{T: t, server: m, rdb: rdb, rand: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 5, 6, 7, 8, 9, 123457000, time.UTC)}
	m.FlushAll()
	m.SetTime(w.now)
	limits := []sluice.Limits{{}, {}, {Running: 2}, {Running: 3}, {Rate: 1, Burst: 6}, {Running: 4, Rate: 2, Burst: 5}}[seed%6]
	opts := []sluice.QueueOption{sluice.WithMaxAttempts([]int{-1, 1, 3}[w.rand.IntN(3)]), sluice.WithDuplicates(sluice.Duplicates(1 + w.rand.IntN(4)))}
	for i := range w.queues {
		q, err := sluice.NewQueue(rdb, fmt.Sprint("q", i), opts...)
		require.NoError(t, err)
		require.NoError(t, q.SetLimits(t.Context(), limits))
		w.queues[i] = q
	}
	return w
}

// both does the same to both queues, with the same result.
func (w *twins) both(do func(ctx context.Context, q *sluice.Queue) any) any {
	first, second := do(w.Context(), w.queues[0]), do(w.Context(), w.queues[1])
	require.Equal(w, first, second)
	return first
}

func (w *twins) id() string { return string(rune('a' + w.rand.IntN(6))) }

func (w *twins) delay() time.Duration {
	return []time.Duration{0, time.Millisecond, time.Second, time.Hour}[w.rand.IntN(4)]
}

// receipt returns one of all receipts so far, or a forged one.
func (w *twins) receipt() sluice.Entry {
	if len(w.receipts) == 0 || w.rand.IntN(12) == 0 {
		return sluice.Entry{ID: w.id(), Score: float64(w.now.Unix())}
	}
	return w.receipts[w.rand.IntN(len(w.receipts))]
}

// step does something to both queues, by the library or as a foreign client.
func (w *twins) step() {
	id, delay, e := w.id(), w.delay(), w.receipt()
	task := sluice.Task{ID: id, Payload: []byte("payload")[:7*w.rand.IntN(2)], Delay: delay}
	lease, n := max(delay, time.Millisecond), 1+w.rand.IntN(4)
	score := float64(w.now.Add(delay - time.Second).Unix())
	if w.steps++; w.steps%4 == 0 {
		w.note(id, fmt.Sprint(":note-", w.steps%3))
	}
	switch kind := w.rand.IntN(14); kind {
	default:
		w.both(func(ctx context.Context, q *sluice.Queue) any {
			o, err := q.Enqueue(ctx, task)
			require.NoError(w, err)
			return o
		})
	case 5, 6, 7:
		got := w.both(func(ctx context.Context, q *sluice.Queue) any {
			reply, err := systest.EngineOf(q).Executor.Run(ctx, systest.EngineOf(q).Store.Exchange(nil, store.Claim{N: n, Lease: lease}))
			require.NoError(w, err)
			x, err := store.DecodeExchange(reply.Value, 0)
			require.NoError(w, err)
			var es []sluice.Entry
			for _, t := range x.Tasks {
				es = append(es, sluice.Entry{ID: t.ID, Payload: t.Payload, Score: t.Score, Attempt: t.Attempt, Due: t.Due})
			}
			return es
		})
		w.receipts = append(w.receipts, got.([]sluice.Entry)...)
	case 8:
		w.both(func(ctx context.Context, q *sluice.Queue) any { return q.Retry(ctx, delay, "failed", e) == nil })
	case 9:
		w.both(func(ctx context.Context, q *sluice.Queue) any { return q.Extend(ctx, e, lease) == nil })
	case 10:
		w.both(func(ctx context.Context, q *sluice.Queue) any { return q.Bury(ctx, "why", e) == nil })
	case 11:
		w.both(func(ctx context.Context, q *sluice.Queue) any {
			return w.rdb.ZAdd(ctx, systest.EngineOf(q).Store.Key(), redis.Z{Score: score, Member: id}).Err()
		})
	case 12:
		w.both(func(ctx context.Context, q *sluice.Queue) any {
			return w.rdb.ZRem(ctx, systest.EngineOf(q).Store.Key(), id).Err()
		})
	case 13:
		w.now = w.now.Add(lease)
		w.server.SetTime(w.now)
	}
}

// note writes a fourth part into the state field of a task, as a later version may.
func (w *twins) note(id, note string) {
	for _, q := range w.queues {
		states := systest.EngineOf(q).Store.Keys()[3].(string)
		if field := w.rdb.HGet(w.Context(), states, id).Val(); strings.Count(field, ":") == 2 && !strings.Contains(field, "dead") {
			require.NoError(w, w.rdb.HSet(w.Context(), states, id, field+note).Err())
		}
	}
}

// TestExchange_IsWhatItsHalvesAre compares the script that finishes tasks and claims others with
// the two halves, one after the other, on queues of every kind: what they answer, and what they
// leave on the server. Most often all tasks are plain, which the script handles apart.
func TestExchange_IsWhatItsHalvesAre(t *testing.T) {
	compareExchanges(t, redistest.FullOrShort[uint64](30, 10))
}

// compareExchanges does so with so many random pairs of queues.
func compareExchanges(t *testing.T, pairs uint64) {
	t.Parallel()
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	finished, claimed := 0, 0
	for seed := range pairs {
		w := newTwins(t, m, rdb, seed)
		for range 3 + w.rand.IntN(25) {
			w.step()
		}
		items := make([]store.Item, 1+w.rand.IntN(5))
		for i := range items {
			e := w.receipt()
			items[i] = store.Item{ID: e.ID, Receipt: store.ScoreText(e.Score)}
		}
		n, lease := 1+w.rand.IntN(4), w.delay()+time.Millisecond
		together := w.run(0, items, n, lease)
		half, other := w.run(1, items, 0, 0), w.run(1, nil, n, lease)

		got, err := store.DecodeExchange(together, len(items))
		require.NoError(t, err)
		finish, err := store.DecodeExchange(half, len(items))
		require.NoError(t, err)
		claim, err := store.DecodeExchange(other, 0)
		require.NoError(t, err)
		require.Equal(t, finish.Answers, got.Answers, "seed %d", seed)
		require.Equal(t, claim.Tasks, got.Tasks, "seed %d", seed)
		require.Equal(t, claim.More, got.More, "seed %d", seed)
		require.Equal(t, dump(t, rdb, w.queues[1]), dump(t, rdb, w.queues[0]), "seed %d", seed)
		for _, answer := range got.Answers {
			if answer == store.Accepted {
				finished++
			}
		}
		claimed += len(got.Tasks)
	}
	require.Greater(t, finished, int(pairs/5))
	require.Greater(t, claimed, int(pairs/5))
}

// TestExchange_TellsOfTheHead that it leaves: in what time it is due.
// Whether the tasks are plain makes no difference.
func TestExchange_TellsOfTheHead(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		q, err := sluice.NewQueue(s.Client(t), redistest.Name(t))
		require.NoError(t, err)
		loop := workerOn(q, time.Minute)
		head := func() time.Duration {
			_, claimed := loop.Exchange(nil, 1)
			require.NoError(t, claimed.Err)
			return claimed.Head.Off
		}
		now := s.Now(t, s.Client(t))
		var at []time.Time
		for _, ago := range []time.Duration{time.Hour, 50 * time.Second, 0, -50 * time.Second, -2 * time.Hour} {
			at = append(at, now.Add(-ago))
		}
		require.Equal(t, time.Hour, head(), "of an empty queue")
		for i, due := range at {
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), At: due})
			require.NoError(t, err)
		}
		for i, want := range []time.Duration{0, 0, 50 * time.Second} {
			require.InDelta(t, want, head(), float64(10*time.Second), "%d", i)
		}
		_, err = q.Cancel(t.Context(), "3")
		require.NoError(t, err)
		require.InDelta(t, time.Minute, head(), float64(10*time.Second), "the first lease ends")
	})
}

// run runs the script on one of the queues.
func (w *twins) run(on int, items []store.Item, n int, lease time.Duration) any {
	q := w.queues[on]
	reply, err := systest.EngineOf(q).Executor.Run(w.Context(), systest.EngineOf(q).Store.Exchange(items, store.Claim{N: n, Lease: lease}))
	require.NoError(w, err)
	return reply.Value
}

// dump returns all that the server has of a queue.
func dump(t *testing.T, rdb *redis.Client, q *sluice.Queue) (all []any) {
	for _, i := range []int{0, 2, 4} {
		z, err := rdb.ZRangeWithScores(t.Context(), systest.EngineOf(q).Store.Keys()[i].(string), 0, -1).Result()
		require.NoError(t, err)
		all = append(all, z)
	}
	for _, i := range []int{1, 3} {
		h, err := rdb.HGetAll(t.Context(), systest.EngineOf(q).Store.Keys()[i].(string)).Result()
		require.NoError(t, err)
		all = append(all, h)
	}
	limits, err := rdb.Get(t.Context(), keyspace.Companion(systest.EngineOf(q).Store.Key(), keyspace.Paused)).Result()
	if err != nil {
		require.ErrorIs(t, err, redis.Nil)
	}
	return append(all, map[string]string{"limits": limits})
}

// TestEnqueueBatch_IsWhatItsTasksAre compares a batch with the same tasks enqueued one by one, on
// queues of every kind: the outcomes, and what is on the server. Scores may differ in their last
// bit.
func TestEnqueueBatch_IsWhatItsTasksAre(t *testing.T) { compareBatches(t, 60) }

// compareBatches does so with so many random pairs of queues.
func compareBatches(t *testing.T, pairs uint64) {
	t.Parallel()
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	counts := map[sluice.Outcome]int{}
	for seed := range pairs {
		w := newTwins(t, m, rdb, seed)
		for range w.rand.IntN(12) {
			w.step()
		}
		tasks := w.tasks()
		outcomes, err := w.queues[0].EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		require.Len(t, outcomes, len(tasks))
		same := map[store.Due]time.Duration{}
		for i, task := range tasks {
			draft := store.Draft{Delay: task.Delay, At: task.At}
			due := draft.Enqueue().Due
			if task.At.IsZero() {
				task.Delay += same[due]
			} else {
				task.At = task.At.Add(same[due])
			}
			same[due] += time.Microsecond
			outcome, err := w.queues[1].Enqueue(t.Context(), task)
			require.NoError(t, err)
			require.Equal(t, outcome, outcomes[i], "seed %d, task %d", seed, i)
			counts[outcome]++
		}
		got, want := dump(t, rdb, w.queues[0]), dump(t, rdb, w.queues[1])
		for _, i := range []int{0, 1, 2} {
			requireScores(t, want[i].([]redis.Z), got[i].([]redis.Z), seed)
		}
		require.Equal(t, withoutTimes(want[3:]), withoutTimes(got[3:]), "seed %d", seed)
	}
	for _, outcome := range []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeUpdated, sluice.OutcomeKept, sluice.OutcomeDeferred} {
		require.Greater(t, counts[outcome], int(pairs/15), outcome)
	}
}

// tasks returns a batch: tasks due together or not, within a second or beyond its end, at times
// that need all digits; IDs may occur twice.
func (w *twins) tasks() []sluice.Task {
	tasks := make([]sluice.Task, 1+w.rand.IntN(30))
	ats := []time.Time{
		{}, time.Unix(5, 0), time.Unix(1073741823, 999995000), time.Unix(1900000000, 999990000),
		time.Unix(1900000000, 123456000), time.Unix(4294967294, 999990000), time.Unix(5000000000, 0),
	}
	names, payload := 6+w.rand.IntN(100), w.rand.IntN(3)
	for i := range tasks {
		tasks[i].ID = fmt.Sprint("t", w.rand.IntN(names))
		if w.rand.IntN(8) == 0 {
			tasks[i].ID = w.id()
		}
		if at := ats[w.rand.IntN(len(ats))]; i > 0 && w.rand.IntN(4) > 0 {
			tasks[i].At, tasks[i].Delay = tasks[i-1].At, tasks[i-1].Delay
		} else if at.IsZero() {
			tasks[i].Delay = w.delay()
		} else {
			tasks[i].At = at
		}
		if payload > w.rand.IntN(2) {
			tasks[i].Payload = []byte(fmt.Sprint("payload ", i))
		}
	}
	return tasks
}

// requireScores compares members and their order, and their scores but for a bit.
func requireScores(t *testing.T, want, got []redis.Z, seed uint64) {
	require.Len(t, got, len(want), "seed %d", seed)
	for i := range want {
		require.Equal(t, want[i].Member, got[i].Member, "seed %d", seed)
		require.InDelta(t, want[i].Score, got[i].Score, 1e-6, "seed %d, %v", seed, want[i].Member)
	}
}

// withoutTimes returns hashes with the whole seconds of the times in state fields.
func withoutTimes(hashes []any) (all []map[string]string) {
	for _, hash := range hashes {
		plain := map[string]string{}
		for id, value := range hash.(map[string]string) {
			plain[id] = regexp.MustCompile(`\.\d+`).ReplaceAllString(value, "")
		}
		all = append(all, plain)
	}
	return all
}

// TestExtension_OfManyIsThatOfEach compares the script that extends leases with many tasks at once
// and with each alone, on queues of every kind: what it answers, and what it leaves on the server.
func TestExtension_OfManyIsThatOfEach(t *testing.T) {
	t.Parallel()
	pairs := redistest.FullOrShort(30, 10)
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	counts := map[store.Answer]int{}
	for seed := range uint64(pairs) {
		w := newTwins(t, m, rdb, seed)
		for range 3 + w.rand.IntN(40) {
			w.step()
		}
		items := make([]store.Item, 1+w.rand.IntN(8))
		for i := range items {
			e := w.receipt()
			items[i] = store.Item{ID: e.ID, Receipt: store.ScoreText(e.Score)}
		}
		lease := w.delay() + time.Millisecond
		got := workerOn(w.queues[0], lease).Extend(t.Context(), items)
		require.NoError(t, got.Err)
		for i, item := range items {
			want := workerOn(w.queues[1], lease).Extend(t.Context(), []store.Item{item})
			require.NoError(t, want.Err)
			require.Equal(t, want.Answers[0], got.Answers[i], "seed %d, item %d", seed, i)
			counts[got.Answers[i]]++
		}
		require.Equal(t, dump(t, rdb, w.queues[1]), dump(t, rdb, w.queues[0]), "seed %d", seed)
	}
	for _, answer := range []store.Answer{store.Accepted, store.Stale, store.Gone} {
		require.Greater(t, counts[answer], pairs/10, answer)
	}
}

// TestExtension_OfAGroupAnswersForEachTask: whatever is wrong with one, the others are extended.
func TestExtension_OfAGroupAnswersForEachTask(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const lease = time.Hour
		ctx, rdb := t.Context(), s.Client(t)
		q, err := sluice.NewQueue(rdb, redistest.Name(t))
		require.NoError(t, err)
		long, binary := strings.Repeat("x", 512), "\x00\r\n$5\r\n\xff{}:/"
		states := []string{"plain", "extended", "waits", "stale", "gone", "buried", "corrupt", long, binary, "1", "unclaimed", "unclaimed field"}
		var items []store.Item
		for _, id := range states {
			_, err := q.Enqueue(ctx, sluice.Task{ID: id})
			require.NoError(t, err)
		}
		require.NoError(t, q.Wait(ctx))
		es, err := q.Claim(ctx, 10, time.Minute) // the first ten
		require.NoError(t, err)
		require.Len(t, es, 10)
		for _, e := range es {
			items = append(items, store.Item{ID: e.ID, Receipt: store.ScoreText(e.Score)})
		}
		for _, id := range states[10:] {
			shown, err := q.Get(ctx, id)
			require.NoError(t, err)
			items = append(items, store.Item{ID: id, Receipt: store.ScoreText(shown.Score)})
		}
		require.NoError(t, q.Extend(ctx, es[1], 2*time.Minute))
		_, err = q.Enqueue(ctx, sluice.Task{ID: "waits", Payload: []byte("new")})
		require.NoError(t, err)
		items[3].Receipt = "1790000000.5"
		_, err = q.Cancel(ctx, "gone")
		require.NoError(t, err)
		require.NoError(t, q.Bury(ctx, "why", es[5]))
		fields, _ := systest.EngineOf(q).Store.Keys()[3].(string)
		require.NoError(t, rdb.HSet(ctx, fields, "corrupt", "garbage").Err())
		require.NoError(t, rdb.HSet(ctx, fields, "unclaimed field", "2::").Err())

		before := s.Now(t, rdb)
		r := workerOn(q, lease).Extend(ctx, items)
		require.NoError(t, r.Err)
		require.Equal(t, []store.Answer{1, 1, 1, 0, 2, 0, -1, 1, 1, 1, 0, 0}, r.Answers)
		for i, id := range states {
			if r.Answers[i] != store.Accepted {
				continue
			}
			e, err := q.Get(ctx, id)
			require.NoError(t, err)
			require.Equal(t, sluice.StateLeased, e.State)
			require.False(t, e.LeaseEnds.Before(before.Add(lease)), id)
			require.NoError(t, rdb.ZScore(ctx, systest.EngineOf(q).Store.Keys()[4].(string), id).Err())
		}
		require.NoError(t, q.Dequeue(ctx, es[0], es[1], es[2], es[7], es[8], es[9]), "the receipts stay as they are")
		e, err := q.Get(ctx, "waits")
		require.NoError(t, err)
		require.Equal(t, "new", string(e.Payload))
	})
}

// TestExtension_SendsATaskForLittleMoreThanItsID, however its receipt differs from that of the next
// one.
func TestExtension_SendsATaskForLittleMoreThanItsID(t *testing.T) {
	t.Parallel()
	q, err := sluice.NewQueue(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "orders")
	require.NoError(t, err)
	for receipts, most := range map[int]int{1: 50, store.MaxGroup: 85} {
		items := make([]store.Item, store.MaxGroup)
		for i := range items {
			items[i] = store.Item{ID: fmt.Sprintf("%036d", i), Receipt: store.ScoreText(1790000000 + float64(i%receipts)/1e6)}
		}
		bytes := 0
		for _, arg := range systest.EngineOf(q).Store.Extend(time.Minute, items...).Args {
			n := len(fmt.Sprint(arg))
			bytes += n + len(fmt.Sprintf("$%d\r\n\r\n", n))
		}
		require.LessOrEqual(t, bytes/len(items), most)
	}
	_, err = store.DecodeExtended([]any{int64(1)}, 2)
	require.ErrorIs(t, err, redisexec.ErrCorrupt)
	_, err = store.DecodeExtended(nil, 2)
	require.ErrorIs(t, err, redisexec.ErrCorrupt)
}
