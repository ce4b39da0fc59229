package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestAutoRenew holds a lock of ten seconds for a day.
func TestAutoRenew(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb, sluice.WithTTL(10*time.Second), sluice.WithAutoRenew())
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		held := k.Context()
		for range 24 * 60 {
			time.Sleep(time.Minute)
			require.True(t, k.Valid())
			require.NoError(t, held.Err())
			require.Greater(t, m.TTL("Lock:a"), 6*time.Second)
		}
		require.NoError(t, k.Unlock(t.Context()))
		before := m.CommandCount()
		time.Sleep(time.Hour)
		require.Equal(t, before, m.CommandCount(), "a renewal after Unlock")
	})
}

// TestDoRenews: the TTL is no bound for the function.
func TestDoRenews(t *testing.T) {
	bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb, sluice.WithTTL(time.Second))
		defer done()
		require.NoError(t, l.Do(t.Context(), "a", func(ctx context.Context) error {
			time.Sleep(time.Hour)
			return ctx.Err()
		}))
	})
}

// TestRenewalFindsItGone: the holder learns of it at the next renewal, and the next
// in line goes on.
func TestRenewalFindsItGone(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb, sluice.WithTTL(9*time.Second))
		defer done()
		k, err := l.Lock(t.Context(), "a", sluice.WithAutoRenew())
		require.NoError(t, err)
		next := make(chan *sluice.Lock, 1)
		go func() {
			k, err := l.Lock(t.Context(), "a")
			require.NoError(t, err)
			next <- k
		}()
		time.Sleep(time.Minute)
		m.Del("Lock:a")
		start := time.Now()
		<-k.Context().Done()
		require.LessOrEqual(t, time.Since(start), 3*time.Second)
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		second := <-next
		require.ErrorIs(t, k.Unlock(t.Context()), sluice.ErrNotHeld)
		require.NoError(t, second.Unlock(t.Context()))
	})
}

func TestMaxHold(t *testing.T) {
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, done := bubbleLocker(t, rdb, sluice.WithTTL(10*time.Second), sluice.WithAutoRenew())
		defer done()
		start := time.Now()
		k, err := l.Lock(t.Context(), "a", sluice.WithMaxHold(time.Minute))
		require.NoError(t, err)
		<-k.Context().Done()
		require.Equal(t, time.Minute, time.Since(start))
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		require.False(t, k.Valid())
		require.ErrorIs(t, k.Extend(t.Context(), time.Minute), sluice.ErrNotHeld)
		// And the TTL runs out.
		time.Sleep(11 * time.Second)
		require.False(t, m.Exists("Lock:a"))
	})
}

// TestRenewalOfManyLocks: few pipelines, whatever the number of locks.
func TestRenewalOfManyLocks(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const n, ttl = 300, 6 * time.Second
		rdb, name := s.Client(t), redistest.Name(t)
		var pipelines, renewals atomic.Int64
		rdb.AddHook(countPipelines{&pipelines, &renewals})
		l := newLocker(t, rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew())
		var locks []*sluice.Lock
		for i := range n {
			k, err := l.Lock(t.Context(), fmt.Sprint(name, i))
			require.NoError(t, err)
			locks = append(locks, k)
		}
		pipelines.Store(0)
		renewals.Store(0)
		time.Sleep(ttl)      // two or three renewals of each
		if !s.AutoPipeline { // which has pipelines of its own
			require.LessOrEqual(t, pipelines.Load(), int64(40))
			require.GreaterOrEqual(t, renewals.Load(), int64(2*n))
		}
		for _, k := range locks {
			require.True(t, k.Valid())
			require.NoError(t, k.Unlock(t.Context()))
		}
	})
}

type countPipelines struct{ pipelines, commands *atomic.Int64 }

func (countPipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (countPipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (c countPipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.pipelines.Add(1)
		c.commands.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// TestLossOnAStalledConnection: whatever hangs, Context ends while the server
// still has the key.
func TestLossOnAStalledConnection(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		clean, name := s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb, sluice.WithTTL(900*time.Millisecond), sluice.WithAutoRenew())
		k, err := l.Lock(t.Context(), name)
		require.NoError(t, err)
		time.Sleep(700 * time.Millisecond) // beyond the first renewals
		require.True(t, k.Valid())
		faults.Stall()
		<-k.Context().Done()
		left := clean.PTTL(context.Background(), "Lock:"+name).Val()
		faults.Resume()
		require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
		require.Positive(t, left, "the key was gone before its holder knew")
	})
}

// TestNoRenewalAfterUnlock: of locks that are renewed all the time, none is after
// Unlock has returned.
func TestNoRenewalAfterUnlock(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l, name := newLocker(t, rdb, sluice.WithTTL(60*time.Millisecond), sluice.WithAutoRenew()), redistest.Name(t)
		for i := 0; i < 60; {
			k, err := l.Lock(t.Context(), name)
			if errors.Is(err, sluice.ErrLost) {
				continue // a slow machine
			}
			require.NoError(t, err)
			i++
			time.Sleep(time.Duration(18+i%5) * time.Millisecond) // into the first renewal
			_ = k.Unlock(t.Context())
			before := faults.Scripts()
			time.Sleep(25 * time.Millisecond) // the next would be due
			require.Equal(t, before, faults.Scripts())
		}
	})
}

// TestSlowRenewal: what is answered after its round has been given up counts, so
// that a lock outlives replies which take nearly half its TTL.
func TestSlowRenewal(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		l := newLocker(t, rdb, sluice.WithTTL(1200*time.Millisecond), sluice.WithAutoRenew())
		k, err := l.Lock(t.Context(), redistest.Name(t))
		require.NoError(t, err)
		time.Sleep(500 * time.Millisecond)   // beyond the first renewal: scripts are known, connections there
		faults.Delay(500 * time.Millisecond) // a round is given half of what is left: less
		select {
		case <-k.Context().Done():
			t.Fatal("lost")
		case <-time.After(4 * time.Second):
		}
		faults.Delay(0)
		require.NoError(t, k.Unlock(t.Context()))
	})
}

// TestStalledRound: a renewal that hangs, of a lock that has time, does not hold up
// that of one which has none.
func TestStalledRound(t *testing.T) {
	t.Parallel()
	rdb, faults := redistest.Redis(t).Faulty(t)
	l, name := newLocker(t, rdb, sluice.WithAutoRenew()), redistest.Name(t)
	patient, err := l.Lock(t.Context(), name+".patient", sluice.WithTTL(6*time.Second))
	require.NoError(t, err)
	// The moments on a server's clock at which the two are renewed: at 2s, and
	// 200ms after 1.9s and so on.
	time.Sleep(1900 * time.Millisecond)
	pressed, err := l.Lock(t.Context(), name+".pressed", sluice.WithTTL(600*time.Millisecond))
	require.NoError(t, err)
	time.Sleep(50 * time.Millisecond)
	faults.Cut() // new connections are all right
	time.Sleep(1500 * time.Millisecond)
	require.True(t, pressed.Valid())
	require.True(t, patient.Valid())
}
