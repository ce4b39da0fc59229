package sluice

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// TestExtension_OfManyIsThatOfEach compares the script that extends leases with many tasks at once and with each
// alone, on queues of every kind: what it answers, and what it leaves on the server.
func TestExtension_OfManyIsThatOfEach(t *testing.T) {
	t.Parallel()
	const pairs = 60
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	counts := map[taskloop.Answer]int{}
	for seed := range uint64(pairs) {
		w := newTwins(t, m, rdb, seed)
		for range 3 + w.rand.IntN(40) {
			w.step()
		}
		items := make([]taskloop.Item, 1+w.rand.IntN(8))
		for i := range items {
			e := w.receipt()
			items[i] = taskloop.Item{ID: e.ID, Receipt: receiptOf(e)}
		}
		lease := w.delay() + time.Millisecond
		got := (&source{queue: w.queues[0], lease: lease}).Extend(t.Context(), 0, items)
		require.NoError(t, got.Err)
		for i, item := range items {
			want := (&source{queue: w.queues[1], lease: lease}).Extend(t.Context(), 0, []taskloop.Item{item})
			require.NoError(t, want.Err)
			require.Equal(t, want.Answers[0], got.Answers[i], "seed %d, item %d", seed, i)
			counts[got.Answers[i]]++
		}
		require.Equal(t, dump(t, rdb, w.queues[1]), dump(t, rdb, w.queues[0]), "seed %d", seed)
	}
	for _, answer := range []taskloop.Answer{taskloop.Accepted, taskloop.Stale, taskloop.Gone} {
		require.Greater(t, counts[answer], pairs/10, answer)
	}
}

// TestExtension_OfAGroupAnswersForEachTask: whatever is wrong with one, the others are extended.
func TestExtension_OfAGroupAnswersForEachTask(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const lease = time.Hour
		ctx, rdb := t.Context(), s.Client(t)
		q, err := NewQueue(rdb, redistest.Name(t))
		require.NoError(t, err)
		sh := q.shards[0]
		long, binary := strings.Repeat("x", 512), "\x00\r\n$5\r\n\xff{}:/"
		states := []string{"plain", "extended", "waits", "stale", "gone", "buried", "corrupt", long, binary, "1", "unclaimed", "unclaimed field"}
		var items []taskloop.Item
		for _, id := range states {
			_, err := q.Enqueue(ctx, Task{ID: id})
			require.NoError(t, err)
		}
		require.NoError(t, q.Wait(ctx))
		es, err := q.Claim(ctx, 10, time.Minute) // the first ten
		require.NoError(t, err)
		require.Len(t, es, 10)
		for _, e := range es {
			items = append(items, taskloop.Item{ID: e.ID, Receipt: receiptOf(e)})
		}
		for _, id := range states[10:] {
			e, err := q.Get(ctx, id)
			require.NoError(t, err)
			items = append(items, taskloop.Item{ID: id, Receipt: receiptOf(e)})
		}
		require.NoError(t, q.Extend(ctx, es[1], 2*time.Minute))
		_, err = q.Enqueue(ctx, Task{ID: "waits", Payload: []byte("new")})
		require.NoError(t, err)
		items[3].Receipt = "1790000000.5"
		_, err = q.Cancel(ctx, "gone")
		require.NoError(t, err)
		require.NoError(t, q.Bury(ctx, es[5], "why"))
		fields, _ := sh.keys[3].(string)
		require.NoError(t, rdb.HSet(ctx, fields, "corrupt", "garbage").Err())
		require.NoError(t, rdb.HSet(ctx, fields, "unclaimed field", "2::").Err())

		before := s.Now(t, rdb)
		r := (&source{queue: q, lease: lease}).Extend(ctx, 0, items)
		require.NoError(t, r.Err)
		require.Equal(t, []taskloop.Answer{1, 1, 1, 0, 2, 0, -1, 1, 1, 1, 0, 0}, r.Answers)
		for i, id := range states {
			if r.Answers[i] != taskloop.Accepted {
				continue
			}
			e, err := q.Get(ctx, id)
			require.NoError(t, err)
			require.Equal(t, Leased, e.State)
			require.False(t, e.Time().Before(before.Add(lease)), id)
			require.NoError(t, rdb.ZScore(ctx, sh.keys[4].(string), id).Err())
		}
		require.NoError(t, q.Dequeue(ctx, es[0], es[1], es[2], es[7], es[8], es[9]), "the receipts stay as they are")
		e, err := q.Get(ctx, "waits")
		require.NoError(t, err)
		require.Equal(t, "new", string(e.Payload))
	})
}

// TestExtension_SendsATaskForLittleMoreThanItsID, however its receipt differs from that of the next one.
func TestExtension_SendsATaskForLittleMoreThanItsID(t *testing.T) {
	t.Parallel()
	q, err := NewQueue(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "orders")
	require.NoError(t, err)
	for receipts, most := range map[int]int{1: 50, taskloop.MaxGroup: 85} {
		items := make([]taskloop.Item, taskloop.MaxGroup)
		for i := range items {
			items[i] = taskloop.Item{ID: fmt.Sprintf("%036d", i), Receipt: receiptText(1790000000 + float64(i%receipts)/1e6)}
		}
		bytes := 0
		for _, arg := range q.shards[0].heartbeatRequest(time.Minute, items...).Args {
			n := len(fmt.Sprint(arg))
			bytes += n + len(fmt.Sprintf("$%d\r\n\r\n", n))
		}
		require.LessOrEqual(t, bytes/len(items), most)
	}
	_, err = decodeDone([]any{int64(1)}, 2)
	require.ErrorIs(t, err, redisexec.ErrCorrupt)
	_, err = decodeDone(nil, 2)
	require.ErrorIs(t, err, redisexec.ErrCorrupt)
}
