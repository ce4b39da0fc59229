package sluice

import (
	"context"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/redistest"
)

// overtaken returns two queues of one name, with three tasks, a dead letter and the count of one that was dropped. f is called before
// or after the first one runs that script for the first time.
func overtaken(t *testing.T, script *redisexec.Script, before bool, f func(other *Queue)) (q, other *Queue) {
	t.Helper()
	s := redistest.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	name := redistest.Name(t)
	q, err := NewQueue(rdb, name, WithDeadLimit(1))
	require.NoError(t, err)
	other, err = NewQueue(s.Client(t), name, WithDeadLimit(1))
	require.NoError(t, err)
	for _, id := range []string{"dead", "dropped"} {
		_, err := q.Enqueue(t.Context(), Task{ID: id})
		require.NoError(t, err)
		claimed, err := q.Claim(t.Context(), 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Bury(t.Context(), claimed[0], "hopeless"))
	}
	for _, id := range []string{"a", "b", "c"} {
		_, err := q.Enqueue(t.Context(), Task{ID: id})
		require.NoError(t, err)
	}
	requireWhole(t, other)
	require.NoError(t, rdb.ScriptLoad(t.Context(), script.Source()).Err())
	var met atomic.Bool
	rdb.AddHook(scriptHook{script, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if !met.CompareAndSwap(false, true) {
			return next(ctx, cmd)
		}
		if before {
			f(other)
			return next(ctx, cmd)
		}
		err := next(ctx, cmd)
		f(other)
		return err
	}})
	t.Cleanup(func() { require.True(t, met.Load()) })
	return q, other
}

// requireWhole requires that a queue has what overtaken puts into it.
func requireWhole(t *testing.T, q *Queue) Stats {
	t.Helper()
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, []int64{3, 1, 1}, []int64{stats.Due, stats.Dead, stats.Dropped})
	return stats
}

// TestReshard_MayBeOvertaken: another process has ended the move before this one puts its batch, or its count. What was asked for is
// done then.
func TestReshard_MayBeOvertaken(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]*redisexec.Script{"put": scriptReshardPut, "count": scriptReshardDropped} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, other := overtaken(t, script, true, func(other *Queue) { require.NoError(t, other.Reshard(t.Context(), 1, nil)) })
			require.NoError(t, other.Reshard(t.Context(), 3, nil))
			require.NoError(t, q.Reshard(t.Context(), 1, nil))
			requireWhole(t, q)
			requireWhole(t, other)
		})
	}
}

// TestReshard_WhatComesLateForgetsNothing: a mover that was slow, after the end of its move, must not remove the pause and the count
// of the queue that has come back to its first key since.
func TestReshard_WhatComesLateForgetsNothing(t *testing.T) {
	t.Parallel()
	q, other := overtaken(t, scriptReshardEnd, false, func(other *Queue) {
		require.NoError(t, other.Reshard(t.Context(), 1, nil))
		require.NoError(t, other.Pause(t.Context(), time.Hour))
	})
	require.NoError(t, q.Reshard(t.Context(), 3, nil))
	require.True(t, requireWhole(t, other).Paused)
	require.NoError(t, other.Resume(t.Context()))
}

// TestReshard_KeysOfAnotherType end it, and are not taken for a move that others have ended.
func TestReshard_KeysOfAnotherType(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		q, err := NewQueue(rdb, redistest.Name(t))
		require.NoError(t, err)
		require.NoError(t, rdb.Set(t.Context(), q.main, "foreign", 0).Err())
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, q.Reshard(ctx, 2, nil), ErrCorrupt)
		require.NoError(t, ctx.Err())
	})
}

// TestReshard_AResumedQueueStaysSo: a mover that has slept through the move, or crashed on the way, has read that the queue was paused.
func TestReshard_AResumedQueueStaysSo(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		q, err := NewQueue(s.Client(t), name)
		require.NoError(t, err)
		late, err := NewQueue(s.Client(t), name)
		require.NoError(t, err)
		isPaused := func() bool {
			stats, err := q.Stats(ctx)
			require.NoError(t, err)
			return stats.Paused
		}
		require.NoError(t, q.Reshard(ctx, 2, nil))
		require.NoError(t, q.Pause(ctx, 0))

		slept, err := late.begin(ctx, 3)
		require.NoError(t, err)
		l, err := q.begin(ctx, 3)
		require.NoError(t, err)
		require.NoError(t, q.carryPause(ctx, l))
		require.NoError(t, q.moveAll(ctx, l, nil))
		require.NoError(t, q.end(ctx, l)) // and crashes before it forgets
		require.True(t, isPaused())
		require.NoError(t, q.Resume(ctx))
		require.NoError(t, late.carryPause(ctx, slept))
		require.False(t, isPaused())

		require.NoError(t, q.Pause(ctx, 0))
		l, err = q.begin(ctx, 2)
		require.NoError(t, err)
		require.NoError(t, q.Resume(ctx))
		require.NoError(t, q.carryPauseStep(ctx, l, 0)) // it has read that the queue is paused, and crashes
		require.NoError(t, q.Reshard(ctx, 2, nil))
		require.False(t, isPaused())
	})
}

// TestPause_OfTheNewShardsNeedsNoneOfTheFormer: all shards are paused of which the error is not.
func TestPause_OfTheNewShardsNeedsNoneOfTheFormer(t *testing.T) {
	t.Parallel()
	s := redistest.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	q, err := NewQueue(rdb, redistest.Name(t))
	require.NoError(t, err)
	l, err := q.begin(t.Context(), 2)
	require.NoError(t, err)
	require.NoError(t, rdb.ScriptLoad(t.Context(), scriptPause.Source()).Err())
	rdb.AddHook(scriptHook{scriptPause, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Args()[3] == l.from.only().keys[0] {
			cmd.SetErr(io.ErrUnexpectedEOF)
			return io.ErrUnexpectedEOF
		}
		return next(ctx, cmd)
	}})
	require.ErrorIs(t, q.Pause(t.Context(), 0), ErrUnknown)
	for _, s := range l.shards {
		require.EqualValues(t, 1, rdb.Exists(t.Context(), s.pause().(string)).Val())
	}
}

// TestPurge_SaysThatSomeShardsWerePurged: a client that does not know yet that the queue is being moved has purged those that are not
// closed.
func TestPurge_SaysThatSomeShardsWerePurged(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		q, err := NewQueue(s.Client(t), name, WithShards(2))
		require.NoError(t, err)
		for i := range 20 {
			_, err := q.Enqueue(ctx, Task{ID: strconv.Itoa(i)})
			require.NoError(t, err)
		}
		mover, err := NewQueue(s.Client(t), name)
		require.NoError(t, err)
		l, err := mover.begin(ctx, 3)
		require.NoError(t, err)
		_, err = (move{mover, l, 0}).take(ctx, 0, maxGroup)
		require.NoError(t, err)

		require.ErrorIs(t, q.Purge(ctx), ErrUnknown)
		require.ErrorIs(t, q.Purge(ctx), ErrUnavailable, "it knows")
		require.NoError(t, mover.Reshard(ctx, 3, nil))
		require.NoError(t, q.Purge(ctx))
	})
}

// TestReshard_APauseThatIsChangedMeanwhileStaysSo: a mover carries what it has found, between any two steps of a Resume or a Pause.
func TestReshard_APauseThatIsChangedMeanwhileStaysSo(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		rdb := s.Client(t)
		q, err := NewQueue(rdb, name)
		require.NoError(t, err)
		mover, err := NewQueue(s.Client(t), name)
		require.NoError(t, err)
		require.NoError(t, q.Pause(ctx, 0))
		l, err := mover.begin(ctx, 2)
		require.NoError(t, err)
		require.NoError(t, rdb.ScriptLoad(ctx, scriptResume.Source()).Err())
		var one sync.Mutex
		rdb.AddHook(scriptHook{scriptResume, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			one.Lock()
			defer one.Unlock()
			err := next(ctx, cmd)
			require.NoError(t, mover.carryPause(ctx, l))
			return err
		}})
		require.NoError(t, q.Resume(ctx))
		stats, err := q.Stats(ctx)
		require.NoError(t, err)
		require.False(t, stats.Paused)

		require.NoError(t, mover.Reshard(ctx, 2, nil))
		l, err = mover.begin(ctx, 3)
		require.NoError(t, err)
		require.NoError(t, q.Pause(ctx, time.Hour))
		require.NoError(t, mover.carryPauseStep(ctx, l, 50)) // what was there before that
		left, err := mover.pauseOf(ctx, l)
		require.NoError(t, err)
		require.Greater(t, left, (50 * time.Minute).Milliseconds())
	})
}
