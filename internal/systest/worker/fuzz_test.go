package worker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// Whatever is stored at a queue's keys, every operation ends with its promised result or
// a typed error. What cannot be a task is buried, and does not come back.
func FuzzQueue_HostileKeys(f *testing.F) {
	for _, field := range []string{"", "::", "1::", "1:1.5:", "1:1e308:1e308", "9999999999::", "1:dead:foo", "1:dead", "x", "1:nan:inf", ":::", ":::n", "1:1.5:2:n", "1:::n:m", "\x00"} {
		f.Add("id", 1.0, field, false)
		f.Add("\xff", -1e300, field, true)
		f.Add("", 1e300, field, true)
	}
	s := redistest.Redis(f)
	rdb := s.Client(f)
	f.Fuzz(func(t *testing.T, id string, score float64, field string, dead bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		name := redistest.Name(t)
		q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(3))
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Purge(context.Background())) }()
		key := "Queue:" + name
		if rdb.ZAdd(ctx, key, redis.Z{Score: score, Member: id}).Err() != nil {
			return // not a number
		}
		require.NoError(t, rdb.HSet(ctx, "{"+key+"}:state", id, field).Err())
		require.NoError(t, rdb.HSet(ctx, "{"+key+"}:tasks", id, "p").Err())
		if dead {
			require.NoError(t, rdb.ZAdd(ctx, "{"+key+"}:dead", redis.Z{Score: score, Member: id}).Err())
		}
		typed := func(err error) {
			t.Helper()
			for _, known := range []error{sluice.ErrCorrupt, sluice.ErrNotFound, sluice.ErrStale, sluice.ErrInvalid} {
				if errors.Is(err, known) {
					return
				}
			}
			require.NoError(t, err)
		}
		_, err = q.Stats(ctx)
		typed(err)
		_, err = q.Get(ctx, id)
		typed(err)
		_, err = q.Peek(ctx, 10)
		typed(err)
		_, err = q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 10)
		typed(err)
		for range 5 {
			es, err := q.Claim(ctx, 10, time.Minute)
			typed(err)
			for _, e := range es {
				_, err := q.Enqueue(ctx, sluice.Task{ID: e.ID, Payload: []byte("new")})
				typed(err)
				typed(q.Extend(ctx, e, time.Minute))
				typed(q.Retry(ctx, 0, "failed", e))
			}
		}
		_, err = q.Revive(ctx, id)
		typed(err)
		_, err = q.Reschedule(ctx, id, 0)
		typed(err)
		es, err := q.Pop(ctx, 10)
		typed(err)
		require.LessOrEqual(t, len(es), 1)
		_, err = q.Cancel(ctx, id)
		typed(err)
		after, err := q.Stats(ctx)
		require.NoError(t, err)
		require.Zero(t, after.Due, "it is still there")
	})
}
