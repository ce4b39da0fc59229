package queues

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestQueue_BuriesListsAndRevives(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		require.Empty(b, b.Dead(10))
		for i, payload := range []string{"x\x00:y", ""} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i), Payload: []byte(payload)})
			e := b.ClaimOne(time.Minute)
			b.Bury(e, "no:such\x00order")
			require.ErrorIs(b, b.Q.Bury(ctx, "again", e), sluice.ErrStale)
			require.ErrorIs(b, b.Q.Dequeue(ctx, e), sluice.ErrStale)
		}
		letters := b.Dead(10)
		require.Len(b, letters, 2)
		require.Equal(b, b.Dead(1), letters[:1])
		for i, letter := range letters {
			require.Equal(b, fmt.Sprint(i), letter.ID, "dead letters are listed in the order of their deaths")
			require.Equal(b, "no:such\x00order", letter.Reason)
			require.Equal(b, 1, letter.Attempt)
			require.WithinDuration(b, time.Now(), letter.DiedAt, time.Minute)
		}
		require.Equal(b, "x\x00:y", string(letters[0].Payload))
		require.Empty(b, letters[1].Payload)
		require.Equal(b, sluice.Stats{Dead: 2}, b.Stats())
		require.Empty(b, b.Claim(10, time.Minute), "a dead letter was handed out")

		b.Revive(1, "0", "unknown", "0")
		b.Revive(0, "0")
		b.Revive(0)
		e := b.ClaimOne(time.Minute)
		require.Equal(b, "x\x00:y", string(e.Payload))
		require.Equal(b, 1, e.Attempt, "it starts anew")
		require.NoError(b, b.Q.Dequeue(ctx, e))
		b.Revive(1, "1")
		require.NoError(b, b.Q.Dequeue(ctx, b.ClaimOne(time.Minute)))
		b.RequireClean()

		// A foreign client's reason may be of any length.
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "long"})
		b.Bury(b.ClaimOne(time.Minute), "")
		require.NoError(b, b.RDB.HSet(ctx, "{"+b.Key+"}:state", "long", "1:dead:"+strings.Repeat("r", 5000)).Err())
		for _, letter := range []sluice.TaskInfo{b.Dead(1)[0], b.Get("long")} {
			require.Equal(b, strings.Repeat("r", 512), letter.Reason)
		}
		b.Revive(1, "long")
		require.NoError(b, b.Q.Dequeue(ctx, b.ClaimOne(time.Minute)))

		// One that was never claimed can be buried too, and cancelled then.
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "peeked"})
		peeked, err := b.Q.Peek(ctx, 1)
		require.NoError(b, err)
		b.Bury(peeked[0], "")
		require.Equal(b, "", b.Dead(1)[0].Reason)
		was, err := b.Q.Cancel(ctx, "peeked")
		require.NoError(b, err)
		require.Equal(b, sluice.StateDead, was)
		b.RequireClean()
	})
}

func TestQueue_CutsReasonsAfterAWholeCharacter(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for reason, want := range map[string]string{
			strings.Repeat("x", 512):             strings.Repeat("x", 512),
			strings.Repeat("x", 513):             strings.Repeat("x", 512),
			strings.Repeat("x", 511) + "é":       strings.Repeat("x", 511),
			strings.Repeat("x", 510) + "日本":      strings.Repeat("x", 510),
			strings.Repeat("\x80", 600) + "x":    "\ufffd",
			"x\x80\x81y":                         "x\ufffdy",
			"é" + strings.Repeat("x", 510) + "x": "é" + strings.Repeat("x", 510),
		} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("payload")})
			b.Bury(b.ClaimOne(time.Minute), reason)
			letter := b.Dead(1)[0]
			require.Equal(b, want, letter.Reason)
			require.Equal(b, "payload", string(letter.Payload))
		}
	})
}

// When a holder buries its task, the deferred version takes over at its own time.
func TestQueue_BuryLetsADeferredVersionTakeOver(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, delay := range []time.Duration{0, time.Hour} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("v1")})
			e := b.ClaimOne(time.Minute)
			b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Payload: []byte("v2"), Delay: delay})
			b.Bury(e, "hopeless")
			require.Empty(b, b.Dead(1))
			next := b.Get("a")
			require.Equal(b, "v2", string(next.Payload))
			require.Zero(b, next.Attempt)
			require.InDelta(b, delay.Seconds(), next.Score-e.Score+60, 10)
			require.Len(b, b.Claim(1, time.Minute), map[bool]int{true: 1}[delay == 0], "its own time")
			require.NoError(b, b.Q.Purge(b.Context()))
		}
	})
}

// Enqueueing the ID of a dead letter starts it anew, alone or in a batch.
func TestQueue_EnqueueStartsADeadLetterAnew(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, batch := range [][]sluice.Task{{{ID: "a"}}, {{ID: "a"}, {ID: "b"}}} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
			b.Bury(b.ClaimOne(time.Minute), "hopeless")
			outcomes, err := b.Q.EnqueueBatch(b.Context(), batch)
			require.NoError(b, err)
			require.Equal(b, sluice.OutcomeAdded, outcomes[0])
			require.Empty(b, b.Dead(1))
			b.Eventually(func() bool { return b.Stats().Due == int64(len(batch)) })
			es := b.Claim(10, time.Minute)
			require.Equal(b, "a", es[0].ID)
			require.Equal(b, 1, es[0].Attempt)
			require.Empty(b, es[0].Payload)
			require.NoError(b, b.Q.Dequeue(b.Context(), es...))
			b.RequireClean()
		}
	})
}

// An empty ID, which no operation can name, leaves the dead letters with any Revive.
func TestQueue_ReviveRemovesAnEmptyID(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		require.NoError(b, b.RDB.ZAdd(ctx, b.Key, redis.Z{Score: 1, Member: ""}).Err())
		require.NoError(b, b.RDB.HSet(ctx, "{"+b.Key+"}:tasks", "", "p").Err())
		require.NoError(b, b.RDB.HSet(ctx, "{"+b.Key+"}:state", "", "::").Err())
		require.Empty(b, b.Claim(1, time.Minute))
		require.Len(b, b.Dead(9), 1)
		_, err := b.Q.Cancel(ctx, "")
		require.ErrorIs(b, err, sluice.ErrInvalid)
		revived, err := b.Q.Revive(ctx, "other")
		require.NoError(b, err)
		require.Zero(b, revived)
		b.RequireClean()
	})
}

func TestQueue_DropRemovesDeadLettersOnly(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		die := func(id string) {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Payload: []byte("p")})
			b.Bury(b.ClaimOne(time.Minute), "hopeless")
		}
		die("dead")
		die("revived")
		die("anew")
		b.Revive(1, "revived")
		leased := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "anew", Payload: []byte("new"), Delay: time.Hour})
		die("put back") // by a foreign producer's ZADD, beside the dead letter
		require.NoError(b, b.RDB.ZAdd(ctx, b.Key, redis.Z{Score: b.Now() + 3600, Member: "put back"}).Err())

		n, err := b.Q.Drop(ctx, "dead", "revived", "anew", "put back", "absent", "dead")
		require.NoError(b, err)
		require.Equal(b, 1, n, "more than the dead letter was dropped")
		_, err = b.Q.Get(ctx, "dead")
		require.ErrorIs(b, err, sluice.ErrNotFound)
		require.Empty(b, b.Dead(10))
		for id, want := range map[string]sluice.State{"revived": sluice.StateLeased, "anew": sluice.StateScheduled, "put back": sluice.StateScheduled} {
			e, err := b.Q.Get(ctx, id)
			require.NoError(b, err, id)
			require.Equal(b, want, e.State, id)
			require.NotEmpty(b, e.Payload, id)
			require.Zero(b, e.Attempt-map[string]int{"revived": 1}[id], id)
		}
		require.NoError(b, b.Q.Dequeue(ctx, leased))
		n, err = b.Q.Drop(ctx)
		require.NoError(b, err)
		require.Zero(b, n)
		for _, id := range []string{"anew", "put back"} {
			_, err := b.Q.Cancel(ctx, id)
			require.NoError(b, err)
		}
		b.RequireClean()
	})
}

func TestQueue_DropOfManyAndOnAFullServer(t *testing.T) {
	s := redistest.Start(t)
	ctx, rdb := t.Context(), s.Client(t)
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	tasks, ids := make([]sluice.Task, 1200), make([]string, 1200)
	for i := range tasks {
		ids[i] = fmt.Sprint("task-", i)
		tasks[i] = sluice.Task{ID: ids[i]}
	}
	_, err = q.EnqueueBatch(ctx, tasks)
	require.NoError(t, err)
	for dead := 0; dead < len(tasks); {
		entries, err := q.Claim(ctx, 250, time.Minute)
		require.NoError(t, err)
		for _, e := range entries {
			require.NoError(t, q.Bury(ctx, "", e))
		}
		dead += len(entries)
	}
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	n, err := q.Drop(ctx, append(ids, "absent")...)
	require.NoError(t, err)
	require.Equal(t, len(tasks), n)
	stats, err := q.Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, systest.Standing(stats))
}
