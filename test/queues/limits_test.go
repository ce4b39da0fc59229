package queues

import (
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

func enqueueMany(b systest.QueueTest, from, to int) {
	for i := from; i < to; i++ {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i)})
	}
}

func pop(b systest.QueueTest, n int) []string {
	es, err := b.Q.Pop(b.Context(), n)
	require.NoError(b, err)
	return systest.IDs(es)
}

// TestLimits_Running: live leases count, whatever ends them.
func TestLimits_Running(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		limits := sluice.Limits{Running: 3}
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		enqueueMany(b, 0, 9)
		es := b.Claim(10, time.Hour)
		require.Equal(b, []string{"0", "1", "2"}, systest.IDs(es))
		require.Empty(b, b.Claim(10, time.Hour))
		require.Empty(b, pop(b, 1))
		stats := b.Stats()
		require.Equal(b, limits, stats.Limits)
		require.EqualValues(b, 6, stats.Due)
		require.False(b, stats.Paused)

		ends := []func() error{
			func() error { return b.Q.Dequeue(ctx, es[0]) },
			func() error { return b.Q.Retry(ctx, time.Hour, "busy", es[0]) },
			func() error { return b.Q.Bury(ctx, "broken", es[0]) },
			func() error { _, err := b.Q.Cancel(ctx, es[0].ID); return err },
		}
		for _, end := range ends {
			require.NoError(b, end())
			more := b.Claim(10, time.Hour)
			require.Len(b, more, 1)
			es = append(es[1:], more...)
		}
		b.EndLeaseSoon(es[0])
		b.Eventually(func() bool { return len(b.Claim(10, time.Hour)) == 1 }) // the same one or another
		require.Empty(b, b.Claim(1, time.Hour))

		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 1}))
		require.NoError(b, b.Q.Release(ctx, es[1]))
		require.Empty(b, b.Claim(10, time.Hour), "there are two")
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 4}))
		require.Len(b, b.Claim(10, time.Hour), 2)
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		require.NotEmpty(b, b.Claim(10, time.Hour))
		require.NoError(b, b.Q.Purge(ctx))
		require.Equal(b, "0 0 0 0 1 0", b.RDB.GetDel(ctx, "{"+b.Key+"}:paused").Val(), "no Worker is to set its Limits")
		b.RequireClean()
	})
}

// TestLimits_RunningHoldsWhenALeaseIsExtendedLate: its place has another task by then. The one that
// ran out may be extended while there is a place.
func TestLimits_RunningHoldsWhenALeaseIsExtendedLate(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 2}))
		enqueueMany(b, 0, 3)
		es := b.Claim(2, time.Hour)
		b.EndLeaseSoon(es[0])
		b.Eventually(func() bool { return b.Stats().Leased == 1 })
		require.NoError(b, b.Q.Extend(ctx, es[0], 20*time.Millisecond), "its place is free")
		b.Eventually(func() bool { return b.Stats().Leased == 1 })
		require.Equal(b, "2", b.ClaimOne(time.Hour).ID)
		require.ErrorIs(b, b.Q.Extend(ctx, es[0], time.Hour), sluice.ErrStale)
		require.NoError(b, b.Q.Extend(ctx, es[1], time.Hour), "it has its place")
		require.EqualValues(b, 2, b.Stats().Leased)
		require.NoError(b, b.Q.Dequeue(ctx, es[0]), "nothing has claimed it since")
	})
}

// TestLimits_Rate: what was handed out counts, whatever becomes of it.
func TestLimits_Rate(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Rate: 10, Per: time.Hour, Burst: 3}))
		enqueueMany(b, 0, 9)
		es := b.Claim(2, time.Hour)
		require.Len(b, es, 2)
		require.NoError(b, b.Q.Release(ctx, es...))
		require.Equal(b, []string{"2"}, pop(b, 5))
		require.Empty(b, pop(b, 5))
		require.Empty(b, b.Claim(5, time.Hour))

		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Rate: 20, Per: time.Hour, Burst: 4}))
		require.Len(b, b.Claim(5, time.Hour), 1, "three tokens are spent")
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Rate: 1, Per: 24 * time.Hour, Burst: 2}))
		require.Empty(b, b.Claim(5, time.Hour))

		// A token each tenth of a second. A pause accrues the burst at most.
		limits := sluice.Limits{Rate: 10, Per: time.Second, Burst: 2}
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		b.Eventually(func() bool { return len(b.Claim(1, time.Hour)) == 1 })
		began := b.Now()
		require.NoError(b, b.Q.Pause(ctx, time.Second))
		require.Empty(b, b.Claim(1, time.Hour))
		require.True(b, b.Stats().Paused)
		require.Equal(b, limits, b.Stats().Limits)
		var some []sluice.Entry
		var asked float64
		b.Eventually(func() bool { asked = b.Now(); some = b.Claim(9, time.Hour); return len(some) > 0 })
		require.Len(b, some, 2)
		require.GreaterOrEqual(b, b.Now()-began, 0.999)
		more := len(b.Claim(9, time.Hour))
		require.LessOrEqual(b, more, int((b.Now()-asked)/0.1), "of what has come since, if this took so long")
		require.NoError(b, b.Q.Pause(ctx, 0))
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		require.Empty(b, b.Claim(1, time.Hour), "the pause stays")
		require.NoError(b, b.Q.Resume(ctx))
		require.NotEmpty(b, b.Claim(9, time.Hour))
		got, err := b.Q.Limits(ctx)
		require.NoError(b, err)
		require.Zero(b, got)
	})
}

// TestLimits_APauseAndLimitsKeepEachOther, in either order.
func TestLimits_APauseAndLimitsKeepEachOther(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, limits := b.Context(), sluice.Limits{Running: 2, Rate: 7, Per: time.Minute, Burst: 5}
		require.NoError(b, b.Q.Pause(ctx, time.Hour))
		until := b.Stats().PausedUntil
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		require.WithinDuration(b, until, b.Stats().PausedUntil, 5*time.Millisecond)
		forOlder := func() { // a build without limits hands nothing out as long as the key has no TTL: for it, that is a pause without an end
			require.EqualValues(b, -1, b.RDB.PTTL(ctx, "{"+b.Key+"}:paused").Val())
		}
		forOlder()
		require.Equal(b, limits, b.Stats().Limits)
		require.NoError(b, b.Q.Pause(ctx, 0))
		require.True(b, b.Stats().Paused)
		require.Zero(b, b.Stats().PausedUntil)
		enqueueMany(b, 3, 4)
		require.Empty(b, pop(b, 1))
		require.Empty(b, b.Claim(1, time.Hour))
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		require.True(b, b.Stats().Paused)
		require.NoError(b, b.Q.Pause(ctx, 2*time.Hour))
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		require.WithinDuration(b, until.Add(time.Hour), b.Stats().PausedUntil, time.Minute)
		require.NoError(b, b.Q.SetLimits(ctx, limits))
		require.NoError(b, b.Q.Resume(ctx))
		require.Equal(b, limits, b.Stats().Limits)
		enqueueMany(b, 0, 3)
		require.Len(b, b.Claim(3, time.Hour), 2)
		forOlder()
	})
}

// TestLimits_WhatHasNoRoomInAReplyIsNotCounted: payloads of more than a megabyte come in two steps.
func TestLimits_WhatHasNoRoomInAReplyIsNotCounted(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.NoError(b, b.Q.SetLimits(b.Context(), sluice.Limits{Rate: 1, Per: time.Hour, Burst: 4}))
		for i := range 5 {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i), Payload: make([]byte, 700_000)})
		}
		require.Len(b, b.Claim(4, time.Hour), 4)
		require.NoError(b, b.Q.SetLimits(b.Context(), sluice.Limits{}))
		require.NoError(b, b.Q.SetLimits(b.Context(), sluice.Limits{Rate: 1, Per: time.Hour, Burst: 1}))
		require.Len(b, pop(b, 4), 1)
	})
}

// TestLimits_PopHeedsAPauseAndTheRate, with places and without.
func TestLimits_PopHeedsAPauseAndTheRate(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		enqueueMany(b, 0, 9)
		require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 2, Rate: 1, Per: time.Hour, Burst: 4}))
		require.NoError(b, b.Q.Pause(ctx, 0))
		require.Empty(b, pop(b, 3))
		require.Empty(b, b.Claim(3, time.Hour))
		require.NoError(b, b.Q.Resume(ctx))
		require.Equal(b, []string{"0", "1", "2"}, pop(b, 3), "more than places, which it does not take")
		require.Equal(b, []string{"3"}, pop(b, 3))
		require.Empty(b, pop(b, 3))
	})
}

// TestLimits_AClockThatWasAhead: tasks are handed out at the rate again, not only when that time
// comes.
func TestLimits_AClockThatWasAhead(t *testing.T) {
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	b := systest.QueueTest{T: t, Q: q, RDB: rdb}
	now := time.Now()
	at := func(off time.Duration) { m.SetTime(now.Add(off)) }
	at(0)
	enqueueMany(b, 0, 9)
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Rate: 10, Burst: 3}))
	at(time.Hour)
	require.Len(t, pop(b, 5), 3)
	at(time.Second)
	require.Len(t, pop(b, 5), 1)
	require.Empty(t, pop(b, 5))
	at(time.Second + 200*time.Millisecond)
	require.Len(t, pop(b, 5), 2)
	require.NoError(t, rdb.Close())
}

// TestLimits_AnyOtherTextIsAPause, which Resume and SetLimits replace.
func TestLimits_AnyOtherTextIsAPause(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		enqueueMany(b, 0, 3)
		for _, text := range []string{"1", "", "x", "0 1", "0 0 5 0 1 0", "0 0 10 1000000 0 0", "0 3 0 0 0 0 0 0", "0 3 0 0 0 nan", "-1 3 0 0 0 0"} {
			require.NoError(b, b.RDB.Set(ctx, "{"+b.Key+"}:paused", text, 0).Err())
			require.True(b, b.Stats().Paused, text)
			require.Empty(b, b.Claim(1, time.Hour), text)
			require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{Running: 9, Rate: 5}), text)
			require.True(b, b.Stats().Paused, text)
			require.NoError(b, b.Q.Resume(ctx), text)
			require.Equal(b, sluice.Limits{Running: 9, Rate: 5, Per: time.Second, Burst: 1}, b.Stats().Limits, text)
			require.NoError(b, b.Q.SetLimits(ctx, sluice.Limits{}))
		}
		require.Len(b, b.Claim(3, time.Hour), 3)
	})
}

// Bad input is refused, and nothing is sent.
func TestLimits_BadInput(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	for _, l := range []sluice.Limits{
		{Rate: -1, Burst: 1}, {Rate: 1, Per: -1}, {Rate: 1, Burst: -1}, {Per: 1}, {Burst: 1}, {Running: 1 << 30},
		{Rate: 1, Per: 200 * 365 * 24 * time.Hour}, {Rate: 2_000_000},
	} {
		require.ErrorIs(t, q.SetLimits(t.Context(), l), sluice.ErrInvalid, "%+v", l)
	}
	require.NoError(t, rdb.Close())
}
