package locks

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestAdopt_GoesOnWhereTheFirstHolderLetGo(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		first, second := systest.NewLocker(t, rdb, sluice.WithOwner("till:7")), systest.NewLocker(t, s.Client(t))
		a, err := first.Lock(ctx, name, sluice.WithAutoRenew())
		require.NoError(t, err)
		held := a.Context()
		next := waitFor(t, first, name)
		token, err := a.Detach(ctx)
		require.NoError(t, err)
		require.Equal(t, a.Token(), token)
		require.False(t, a.Valid())
		require.ErrorIs(t, context.Cause(held), context.Canceled)
		require.ErrorIs(t, a.Unlock(ctx), sluice.ErrNotHeld)
		_, err = a.Detach(ctx)
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.NoError(t, first.UnlockAll(ctx))
		require.Equal(t, token, rdb.Get(ctx, "Lock:"+name).Val())

		b, err := second.Adopt(ctx, name, token, sluice.WithTTL(time.Hour))
		require.NoError(t, err)
		require.True(t, b.Valid())
		require.Equal(t, name, b.Name())
		require.Zero(t, b.Fence())
		info, err := second.Inspect(ctx, name)
		require.NoError(t, err)
		require.Equal(t, "till:7", info.Owner)
		require.Greater(t, info.TTL, 59*time.Minute)
		require.Less(t, time.Until(b.Deadline()), info.TTL)
		require.NoError(t, b.Extend(ctx, 2*time.Hour))
		left, err := b.TTL(ctx)
		require.NoError(t, err)
		require.Greater(t, left, 119*time.Minute)
		_, err = second.TryLock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrLocked)
		require.NoError(t, b.Unlock(ctx))
		require.ErrorIs(t, b.Unlock(ctx), sluice.ErrNotHeld)
		third := <-next // the caller that waited behind the first holder
		require.NotEqual(t, token, third.Token())
		require.NoError(t, third.Unlock(ctx))
		requireFree(t, first, name)
	})
}

func TestAdopt_RefusesWhatIsNotHeld(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
		k, err := l.Lock(ctx, name)
		require.NoError(t, err)
		token := k.Token()
		require.NoError(t, k.Unlock(ctx))
		for _, opts := range [][]sluice.LockOption{nil, {sluice.WithFencing()}} {
			_, err = l.Adopt(ctx, name, token, opts...)
			require.ErrorIs(t, err, sluice.ErrNotHeld)
			require.NotContains(t, err.Error(), token)
			other, err := l.Lock(ctx, name)
			require.NoError(t, err)
			_, err = l.Adopt(ctx, name, token, opts...)
			require.ErrorIs(t, err, sluice.ErrNotHeld)
			require.True(t, other.Valid())
			require.NoError(t, other.Unlock(ctx))
			requireFree(t, l, name)
		}
		for _, bad := range []string{
			"", "x", token[1:], token + "A", strings.ToLower(token), token[:25] + "1", token[:25] + "\n", ":" + token, "a" + token, "\x00:" + token,
			strings.Repeat("a", 65) + ":" + token,
		} {
			_, err = l.Adopt(ctx, name, bad)
			require.ErrorIs(t, err, sluice.ErrInvalid, "%q", bad)
			require.NotContains(t, err.Error(), token[1:25])
		}
		_, err = l.Adopt(ctx, "a{b", token)
		require.ErrorIs(t, err, sluice.ErrInvalidName)
		require.NoError(t, rdb.Set(ctx, "{Lock:"+name+"}:fence", "foreign", 0).Err())
		require.NoError(t, rdb.Set(ctx, "Lock:"+name, token, time.Minute).Err())
		_, err = l.Adopt(ctx, name, token, sluice.WithFencing(), sluice.WithTTL(time.Hour))
		require.ErrorIs(t, err, sluice.ErrCorrupt)
		require.LessOrEqual(t, rdb.PTTL(ctx, "Lock:"+name).Val(), time.Minute)
		require.NoError(t, rdb.Del(ctx, "{Lock:"+name+"}:fence", "Lock:"+name).Err())
		require.NoError(t, l.Close())
		_, err = l.Adopt(ctx, name, token)
		require.ErrorIs(t, err, sluice.ErrClosed)
	})
}

// TestAdopt_HasAFenceOfItsOwn: higher than the first holder's, lower than the next one's, also when
// it is adopted again.
func TestAdopt_HasAFenceOfItsOwn(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		first, second := systest.NewLocker(t, s.Client(t), sluice.WithFencing()), systest.NewLocker(t, s.Client(t), sluice.WithFencing())
		last := int64(0)
		higher := func(k *sluice.Lock, err error) *sluice.Lock {
			t.Helper()
			require.NoError(t, err)
			require.Greater(t, k.Fence(), last)
			last = k.Fence()
			return k
		}
		for range 3 {
			k := higher(first.Lock(ctx, name))
			for _, l := range []*sluice.Locker{second, first, second} {
				token, err := k.Detach(ctx)
				require.NoError(t, err)
				k = higher(l.Adopt(ctx, name, token))
			}
			require.NoError(t, k.Unlock(ctx))
		}
		k, err := first.Lock(ctx, name)
		require.NoError(t, higher(k, err).Unlock(ctx))
	})
}

// TestAdopt_RenewalGoesOver: for an hour by the fake clock the second process renews, and the first
// does not.
func TestAdopt_RenewalGoesOver(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx := t.Context()
		first, closeFirst := systest.BubbleLocker(t, rdb, sluice.WithTTL(3*time.Second), sluice.WithAutoRenew())
		defer closeFirst()
		second, closeSecond := systest.BubbleLocker(t, systest.BubbleClient(t, systest.BubbleDialer(m)), sluice.WithTTL(3*time.Second), sluice.WithAutoRenew())
		defer closeSecond()
		a, err := first.Lock(ctx, "a")
		require.NoError(t, err)
		unadopted, err := first.Lock(ctx, "unadopted")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		token, err := a.Detach(ctx)
		require.NoError(t, err)
		_, err = unadopted.Detach(ctx)
		require.NoError(t, err)
		b, err := second.Adopt(ctx, "a", token)
		require.NoError(t, err)
		time.Sleep(4 * time.Second)
		requireFree(t, first, "unadopted")
		time.Sleep(time.Hour)
		require.True(t, b.Valid())
		require.NoError(t, first.Close())
		require.True(t, m.Exists("Lock:a"))
		require.NoError(t, second.Close())
		require.ErrorIs(t, context.Cause(b.Context()), sluice.ErrClosed)
		require.ErrorIs(t, b.Unlock(ctx), sluice.ErrClosed)
		require.False(t, m.Exists("Lock:a"))
	})
}

// TestAdopt_IsLostAsOthersAre: at its deadline, at the limit of WithMaxHold, or when its Locker
// forces it open.
func TestAdopt_IsLostAsOthersAre(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx := t.Context()
		l, closeLocker := systest.BubbleLocker(t, rdb, sluice.WithTTL(10*time.Second))
		defer closeLocker()
		for _, one := range []struct {
			opts []sluice.LockOption
			end  func()
			want time.Duration
		}{
			{nil, func() {}, 10 * time.Second},
			{[]sluice.LockOption{sluice.WithAutoRenew(), sluice.WithMaxHold(25 * time.Second)}, func() {}, 25 * time.Second},
			{[]sluice.LockOption{sluice.WithAutoRenew()}, func() { _, _ = l.ForceUnlock(ctx, "a") }, 0},
		} {
			k, err := l.Lock(ctx, "a", sluice.WithTTL(time.Second))
			require.NoError(t, err)
			token, err := k.Detach(ctx)
			require.NoError(t, err)
			k, err = l.Adopt(ctx, "a", token, one.opts...)
			require.NoError(t, err)
			start := time.Now()
			one.end()
			<-k.Context().Done()
			require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
			require.InDelta(t, one.want.Seconds(), time.Since(start).Seconds(), 0.2)
			_, err = k.Detach(ctx)
			require.ErrorIs(t, err, sluice.ErrNotHeld)
			time.Sleep(10 * time.Second)
			requireFree(t, l, "a")
		}
	})
}

// TestAdopt_ForgottenHandlesAreDropped: adopting and never releasing leaks nothing.
func TestAdopt_ForgottenHandlesAreDropped(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		l, closeLocker := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Second))
		defer closeLocker()
		for i := range 1000 {
			name := fmt.Sprint(i)
			k, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
			token, err := k.Detach(t.Context())
			require.NoError(t, err)
			_, err = l.Adopt(t.Context(), name, token)
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
		}
		require.Less(t, systest.Apart(l), 50)
	})
}

// TestAdopt_FenceIsBeyondAClockThatWasSetBack: the last fence counts, and not only the server's
// clock; of permits too.
func TestAdopt_FenceIsBeyondAClockThatWasSetBack(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		ahead := time.Now().Add(time.Hour).UnixMicro()
		for _, permits := range []int{1, 3} {
			l := systest.NewLocker(t, rdb, sluice.WithFencing(), sluice.WithPermits(permits))
			k, err := l.Lock(ctx, name)
			require.NoError(t, err)
			token, err := k.Detach(ctx)
			require.NoError(t, err)
			require.NoError(t, rdb.Set(ctx, "{Lock:"+name+"}:fence", ahead, time.Hour).Err())
			k, err = l.Adopt(ctx, name, token)
			require.NoError(t, err)
			require.Equal(t, ahead+1, k.Fence())
			require.NoError(t, k.Unlock(ctx))
			k, err = l.Lock(ctx, name)
			require.NoError(t, err)
			require.Greater(t, k.Fence(), ahead+1)
			require.NoError(t, k.Unlock(ctx))
		}
	})
}

// TestAdopt_FenceIsBelowThoseOfLaterHolders: also if the first handle was not let go, and releases
// the lock.
func TestAdopt_FenceIsBelowThoseOfLaterHolders(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		first, second := systest.NewLocker(t, rdb, sluice.WithFencing()), systest.NewLocker(t, s.Client(t), sluice.WithFencing())
		ahead := time.Now().Add(time.Hour).UnixMicro() // so that the clock raises no fence
		require.NoError(t, rdb.Set(ctx, "{Lock:"+name+"}:fence", ahead, time.Hour).Err())
		for _, adopts := range []bool{false, true} {
			k, err := first.Lock(ctx, name)
			require.NoError(t, err)
			last := k.Fence()
			if adopts {
				adopted, err := second.Adopt(ctx, name, k.Token())
				require.NoError(t, err)
				require.Greater(t, adopted.Fence(), last)
				last = adopted.Fence()
			}
			require.NoError(t, k.Unlock(ctx))
			k, err = first.Lock(ctx, name)
			require.NoError(t, err)
			require.Greater(t, k.Fence(), last)
			require.NoError(t, k.Unlock(ctx))
		}
	})
}
