package sluice

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// scriptHook calls f around each command that runs a script.
type scriptHook struct {
	script *redisexec.Script
	f      func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
}

func (scriptHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[1] == h.script.Request(nil).Args[1] {
			return h.f(ctx, cmd, next)
		}
		return next(ctx, cmd)
	}
}

func (scriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// movedQueue returns two queues of one name, with n tasks. The first one's client has hooks of its own.
func movedQueue(t *testing.T, n int) (q, other *Queue, rdb *redis.Client) {
	t.Helper()
	s := redistest.Redis(t)
	rdb = redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	name := redistest.Name(t)
	q, err := NewQueue(rdb, name)
	require.NoError(t, err)
	other, err = NewQueue(s.Client(t), name)
	require.NoError(t, err)
	for i := range n {
		_, err := q.Enqueue(t.Context(), Task{ID: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	_, err = other.Get(t.Context(), "0")
	require.NoError(t, err)
	return q, other, rdb
}

// TestReshard_ALostReplyBeforeItStaysUnknown: the first attempt has used the receipt up, and its
// reply was lost. The next one finds the shard closed.
func TestReshard_ALostReplyBeforeItStaysUnknown(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]struct {
		script *redisexec.Script
		f      func(q *Queue, e Entry) error
	}{
		"dequeue": {scriptExchange, func(q *Queue, e Entry) error { return q.Dequeue(t.Context(), e) }},
		"retry":   {scriptGiveBack, func(q *Queue, e Entry) error { return q.Retry(t.Context(), e, time.Hour) }},
		"release": {scriptGiveBack, func(q *Queue, e Entry) error { return q.Release(t.Context(), e) }},
		"bury":    {scriptBury, func(q *Queue, e Entry) error { return q.Bury(t.Context(), e, "why") }},
	} {
		t.Run(name, func(t *testing.T) {
			q, other, rdb := movedQueue(t, 2)
			es, err := q.Claim(t.Context(), 1, time.Hour)
			require.NoError(t, err)
			require.NoError(t, rdb.ScriptLoad(t.Context(), do.script.Source()).Err())
			lost := 0
			rdb.AddHook(scriptHook{do.script, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				err := next(ctx, cmd)
				if lost++; lost == 1 {
					require.NoError(t, err)
					require.NoError(t, other.Reshard(ctx, 3, nil))
					cmd.SetErr(io.ErrUnexpectedEOF)
					return io.ErrUnexpectedEOF
				}
				return err
			}})
			err = do.f(q, es[0])
			require.ErrorIs(t, err, ErrUnknown)
			require.NotErrorIs(t, err, ErrStale)
			require.NotErrorIs(t, err, ErrCorrupt)
			require.ErrorIs(t, do.f(q, es[0]), ErrStale, "it has followed, and the first attempt has done it")
		})
	}
}

// TestReshard_PurgeNeedsTheLayout: else it would remove what was moved so far, and say that it has removed all.
func TestReshard_PurgeNeedsTheLayout(t *testing.T) {
	t.Parallel()
	q, _, rdb := movedQueue(t, 600)
	_, err := q.begin(t.Context(), 3)
	require.NoError(t, err)
	l := q.layout()
	way := move{q, l, 0}
	batch, err := way.take(t.Context(), 0, maxGroup)
	require.NoError(t, err)
	_, err = way.put(t.Context(), batch)
	require.NoError(t, err)
	_, err = way.take(t.Context(), batch.number, maxGroup)
	require.NoError(t, err)
	rdb.AddHook(scriptHook{scriptLayout, func(context.Context, redis.Cmder, redis.ProcessHook) error {
		return &net.OpError{Op: "dial", Err: io.ErrUnexpectedEOF}
	}})
	require.ErrorIs(t, q.Purge(t.Context()), ErrUnavailable)
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 600-250, stats.Due, "nothing is gone; 250 are on their way")
}

// TestReshard_OnAFullServer: a move takes some memory, and what is there can still be moved and finished.
func TestReshard_OnAFullServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	q, err := NewQueue(rdb, "q")
	require.NoError(t, err)
	for i := range 4 {
		_, err := q.Enqueue(t.Context(), Task{ID: fmt.Sprint(i), Payload: []byte("p")})
		require.NoError(t, err)
	}
	es, err := q.Claim(t.Context(), 2, time.Hour)
	require.NoError(t, err)
	l, err := q.begin(t.Context(), 3)
	require.NoError(t, err)
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.NoError(t, q.Dequeue(t.Context(), es[0]))
	require.NoError(t, q.Dequeue(t.Context(), es[1]), "the shard is closed already")
	require.NoError(t, q.moveAll(t.Context(), l, nil))
	require.NoError(t, q.end(t.Context(), l))
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Due)
}

// TestReshard_AClosedShardIsLookedIntoOnce, not once for each task whose lease is to be extended: if the layout's
// server did not answer, each would wait for it, after the other.
func TestReshard_AClosedShardIsLookedIntoOnce(t *testing.T) {
	t.Parallel()
	q, other, rdb := movedQueue(t, 50)
	es, err := q.Claim(t.Context(), 50, time.Hour)
	require.NoError(t, err)
	require.NoError(t, other.Reshard(t.Context(), 3, nil))
	looks := 0
	rdb.AddHook(scriptHook{scriptLayout, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		looks++
		return next(ctx, cmd)
	}})
	var items []taskloop.Item
	for _, e := range es {
		items = append(items, taskloop.Item{ID: e.ID, Receipt: receiptOf(e)})
	}
	require.ErrorIs(t, (&source{queue: q, lease: time.Hour}).Extend(t.Context(), 0, items).Err, taskloop.ErrMoved)
	require.Equal(t, 1, looks)
}
