package sluice_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestQueue_DropRemovesDeadLettersOnly(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		die := func(id string) {
			b.Enqueue(sluice.Added, sluice.Task{ID: id, Payload: []byte("p")})
			b.Bury(b.ClaimOne(time.Minute), "hopeless")
		}
		die("dead")
		die("revived")
		die("anew")
		b.Revive(1, "revived")
		leased := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.Added, sluice.Task{ID: "anew", Payload: []byte("new"), Delay: time.Hour})
		die("put back") // by a foreign producer's ZADD, beside the dead letter
		require.NoError(b, b.RDB.ZAdd(ctx, b.Key, redis.Z{Score: b.Now() + 3600, Member: "put back"}).Err())

		n, err := b.Q.Drop(ctx, "dead", "revived", "anew", "put back", "absent", "dead")
		require.NoError(b, err)
		require.Equal(b, 1, n, "more than the dead letter was dropped")
		_, err = b.Q.Get(ctx, "dead")
		require.ErrorIs(b, err, sluice.ErrNotFound)
		require.Empty(b, b.Dead(10))
		for id, want := range map[string]sluice.State{"revived": sluice.Leased, "anew": sluice.Scheduled, "put back": sluice.Scheduled} {
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
	q, err := sluice.NewQueue(rdb, "q", sluice.WithShards(3))
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
			require.NoError(t, q.Bury(ctx, e, ""))
		}
		dead += len(entries)
	}
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	n, err := q.Drop(ctx, append(ids, "absent")...)
	require.NoError(t, err)
	require.Equal(t, len(tasks), n)
	stats, err := q.Stats(ctx)
	require.NoError(t, err)
	require.Zero(t, stats)
}
