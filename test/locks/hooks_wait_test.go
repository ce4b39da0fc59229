package locks

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLockHooks_TellOfEachWaitInVain, once, with its reason: behind a caller of the same Locker,
// behind another process, of a set, and when the Locker is closed. A call that does not wait, or
// cannot begin, tells of none.
func TestLockHooks_TellOfEachWaitInVain(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name, lag := t.Context(), s.Client(t), redistest.Name(t), systest.Lag(t)
		var ended []sluice.LockWaitFailed
		var released []string
		l := systest.NewLocker(t, rdb, sluice.WithOwner("host 1"), sluice.WithMaxWait(time.Second), sluice.WithLockHooks(sluice.LockHooks{
			LockWaitFailed: func(_ context.Context, i sluice.LockWaitFailed) { ended = append(ended, i) },
			LockReleased:   func(i sluice.LockReleased) { released = append(released, i.Name) },
		}))
		one := func(of string, want, err error) {
			t.Helper()
			require.ErrorIs(t, err, want)
			require.Len(t, ended, 1)
			require.Equal(t, of, ended[0].Name)
			require.Equal(t, "host 1", ended[0].Owner)
			require.ErrorIs(t, ended[0].Err, want)
			require.ErrorIs(t, err, ended[0].Err)
			ended = nil
		}
		other, err := systest.NewLocker(t, rdb).Lock(ctx, name)
		require.NoError(t, err)
		k, err := l.Lock(ctx, name+"own")
		require.NoError(t, err)
		for _, held := range []string{name, name + "own"} {
			_, err = l.Lock(ctx, held)
			one(held, sluice.ErrLocked, err)
			one(held, sluice.ErrLocked, l.Do(ctx, held, func(context.Context) error { return errors.New("it was called") }))
			_, err = l.LockAll(ctx, []string{held, "!" + held}, sluice.WithMaxWait(2*time.Second))
			one(held, sluice.ErrLocked, err)
			require.Equal(t, []string{"!" + held}, released, "given back, not waited for in vain")
			released = nil
			_, err = l.Lock(systest.Within(t, 300*time.Millisecond), held, sluice.WithMaxWait(time.Minute))
			one(held, context.DeadlineExceeded, err)
			_, err = l.Lock(ctx, held)
			require.GreaterOrEqual(t, ended[0].Waited+lag(), 999*time.Millisecond) // it is counted from a moment after the timer was set
			one(held, sluice.ErrLocked, err)

			_, err = l.TryLock(ctx, held)
			require.ErrorIs(t, err, sluice.ErrLocked)
			require.Empty(t, ended, "it does not wait")
		}
		_, err = l.Lock(ctx, "{}")
		require.ErrorIs(t, err, sluice.ErrInvalidName)
		_, err = l.Lock(ctx, name, sluice.WithTTL(-1))
		require.ErrorIs(t, err, sluice.ErrInvalid)
		require.NoError(t, l.Do(ctx, name+"mine", func(ctx context.Context) error {
			_, err := l.Lock(ctx, name+"mine")
			require.ErrorIs(t, err, sluice.ErrInvalid)
			return nil
		}))
		require.Empty(t, ended, "there was no wait")

		waits := make(chan error)
		go func() { _, err := l.Lock(ctx, name, sluice.WithMaxWait(time.Minute)); waits <- err }()
		require.Eventually(t, func() bool { _, busy := systest.Names(l); return busy == 2 }, 10*time.Second, time.Millisecond)
		require.NoError(t, l.Close())
		one(name, sluice.ErrClosed, <-waits)
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrClosed)
		require.NoError(t, other.Unlock(ctx))
	})
}

// TestLockHooks_TellOfAWaitForAServer that cannot be reached.
func TestLockHooks_TellOfAWaitForAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := systest.BubbleClient(t, func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED })
		defer func() { require.NoError(t, rdb.Close()) }()
		var ended []sluice.LockWaitFailed
		l, closeLocker := systest.BubbleLocker(t, rdb, sluice.WithMaxWait(2*time.Second), sluice.WithLockHooks(sluice.LockHooks{
			LockWaitFailed: func(_ context.Context, i sluice.LockWaitFailed) { ended = append(ended, i) },
		}))
		_, err := l.Lock(t.Context(), "a")
		require.ErrorIs(t, err, sluice.ErrUnavailable)
		require.Len(t, ended, 1)
		require.ErrorIs(t, ended[0].Err, sluice.ErrUnavailable)
		require.Equal(t, 2*time.Second, ended[0].Waited)
		closeLocker()
		time.Sleep(time.Minute) // until what lingers has ended
	})
}
