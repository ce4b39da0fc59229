package virtualtime

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLateCopy_IsReleasedHoweverLate: an acquisition whose caller has left is carried out a minute,
// ten minutes or an hour later. It is released before it has held the key for as long as it was
// late, and half a second: whatever the kind of the lock and the timeouts of the client.
func TestLateCopy_IsReleasedHoweverLate(t *testing.T) {
	try := func(ctx context.Context, l *sluice.Locker) error { _, err := l.TryLock(ctx, "a"); return err }
	for name, test := range map[string]struct {
		lock func(ctx context.Context, l *sluice.Locker) error
		opts []sluice.LockOption
	}{
		"SET":    {lock: func(ctx context.Context, l *sluice.Locker) error { _, err := l.Lock(ctx, "a"); return err }},
		"script": {lock: try},
		"LockAll": {lock: func(ctx context.Context, l *sluice.Locker) error {
			_, err := l.LockAll(ctx, []string{"a", "b"})
			return err
		}},
		"fenced": {lock: try, opts: []sluice.LockOption{sluice.WithFencing()}},
		"permit": {lock: try, opts: []sluice.LockOption{sluice.WithPermits(2)}},
	} {
		for _, timeout := range []time.Duration{0, 500 * time.Millisecond} {
			for _, late := range []time.Duration{30 * time.Second, time.Minute, 10 * time.Minute, time.Hour} {
				t.Run(name+" "+timeout.String()+" "+late.String(), func(t *testing.T) {
					systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
						faults := redistest.NewFaults(systest.BubbleDialer(m))
						rdb := clientThatReadsFor(faults, timeout)
						defer func() { require.NoError(t, rdb.Close()) }()
						l, done := systest.BubbleLocker(t, rdb, append(test.opts, sluice.WithTTL(24*time.Hour))...)
						defer done()
						require.NoError(t, test.lock(t.Context(), l)) // now the server knows the scripts
						require.NoError(t, l.UnlockAll(t.Context()))
						ctx, cancel := context.WithCancel(t.Context())
						time.AfterFunc(time.Millisecond, cancel)
						faults.HoldRequest(1)
						faults.Delay(time.Second) // of the reply to a repeat: the caller leaves without it
						err := test.lock(ctx, l)
						require.ErrorIs(t, err, sluice.ErrUnknown)
						faults.Delay(0)
						time.Sleep(late)
						require.False(t, m.Exists("Lock:a"))
						require.Equal(t, 1, faults.Deliver())
						require.True(t, m.Exists("Lock:a"), "the fault did not strike")
						time.Sleep(late + 600*time.Millisecond)
						require.False(t, m.Exists("Lock:a"), "kept without a holder")
					})
				})
			}
		}
	}
}

// clientThatReadsFor returns a client with this ReadTimeout.
func clientThatReadsFor(faults *redistest.Faults, timeout time.Duration) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", Dialer: faults.Dial, ReadTimeout: timeout,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// TestLocker_ReleasesWhatHangs: a lock that was acquired, and whose reply hangs in a connection, is
// released when its caller leaves, and not when the client gives the connection up.
func TestLocker_ReleasesWhatHangs(t *testing.T) {
	for _, timeout := range []time.Duration{0, 20 * time.Second, -1} {
		t.Run(timeout.String(), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				faults := redistest.NewFaults(systest.BubbleDialer(m))
				rdb := clientThatReadsFor(faults, timeout)
				defer func() { require.NoError(t, rdb.Close()) }()
				l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Hour))
				defer done()
				for range 2 { // with two connections
					require.NoError(t, rdb.Ping(t.Context()).Err())
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				faults.Delay(time.Minute)
				time.AfterFunc(900*time.Millisecond, func() { faults.Delay(0) })
				_, err := l.Lock(ctx, "a")
				require.ErrorIs(t, err, sluice.ErrUnknown)
				time.Sleep(10 * time.Millisecond)
				require.False(t, m.Exists("Lock:a"), "kept until the client gives the connection up")
				time.Sleep(2 * time.Minute)
			})
		})
	}
}

// TestLock_DetachDuringARenewal: it returns soon after its context has ended. The renewal may still
// be carried out: it takes no lock that was released, and keeps one that is not adopted for its TTL
// at most.
func TestLock_DetachDuringARenewal(t *testing.T) {
	for _, adopted := range []bool{true, false} {
		t.Run(fmt.Sprint(adopted), func(t *testing.T) {
			faultyBubble(t, func(n network) {
				l, done := n.taught(sluice.WithTTL(3*time.Second), sluice.WithAutoRenew())
				defer done()
				other, closeOther := systest.BubbleLocker(n.T, n.clean)
				defer closeOther()
				k, err := l.Lock(n.Context(), "a")
				require.NoError(n, err)
				n.warmPipelines(1)
				n.faults.StallRequests()
				time.Sleep(1200 * time.Millisecond) // a renewal is under way
				ctx, cancel := context.WithTimeout(n.Context(), 100*time.Millisecond)
				defer cancel()
				start := time.Now()
				token, err := k.Detach(ctx)
				require.NoError(n, err)
				require.Equal(n, 115*time.Millisecond, time.Since(start))
				before := n.m.TTL("Lock:a")
				if adopted {
					k, err = other.Adopt(n.Context(), "a", token)
					require.NoError(n, err)
					require.NoError(n, k.Unlock(n.Context()))
				}
				n.faults.Resume()
				synctest.Wait() // what was held back is carried out
				require.Equal(n, !adopted, n.m.Exists("Lock:a"))
				require.True(n, adopted || n.m.TTL("Lock:a") > before, "the fault did not strike")
				time.Sleep(3012 * time.Millisecond)
				require.False(n, n.m.Exists("Lock:a"))
			})
		})
	}
}

// TestLock_DetachOfWhatARenewalFindsLost: the renewal that it waits for says that the lock is held by none. The
// lock's own context, which the call ends, does not end that wait.
func TestLock_DetachOfWhatARenewalFindsLost(t *testing.T) {
	faultyBubble(t, func(n network) {
		var lost atomic.Int32
		l, done := n.taught(sluice.WithTTL(3*time.Second), sluice.WithAutoRenew(), sluice.WithLockHooks(sluice.LockHooks{LockLost: func(sluice.LockLost) { lost.Add(1) }}))
		defer done()
		k, err := l.Lock(n.Context(), "a")
		require.NoError(n, err)
		n.warmPipelines(1)
		n.faults.StallRequests()
		time.Sleep(1200 * time.Millisecond) // a renewal is under way
		n.m.Del("Lock:a")
		go func() { // ends at once; Detach waits for what it lets through
			time.Sleep(100 * time.Millisecond)
			n.faults.Resume()
		}()
		token, err := k.Detach(k.Context())
		require.ErrorIs(n, err, sluice.ErrNotHeld)
		require.Empty(n, token)
		require.EqualValues(n, 1, lost.Load())
		time.Sleep(time.Minute)
	})
}
