package distributed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// free waits until a key is gone.
func free(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	require.Eventually(t, func() bool {
		n, err := rdb.Exists(context.Background(), key).Result()
		return err == nil && n == 0
	}, 10*time.Second, time.Millisecond, "not released")
}

// inTime calls f until it has not failed for want of replicas: on a busy machine one that is well
// may take longer than it is waited for.
func inTime(t *testing.T, f func() error) {
	t.Helper()
	var err error
	for range 20 {
		if err = f(); !errors.Is(err, sluice.ErrUnderReplicated) {
			break
		}
	}
	require.NoError(t, err)
}

// TestLock_NeedsReplicas: without as many replicas as it asks for, no lock is acquired, and
// none is left. With as many, it is.
func TestLock_NeedsReplicas(t *testing.T) {
	redistest.NotShort(t)
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		// How many replicas each key has.
		have := map[string]int{"sentinel": 2, "cluster": 1}[s.Name]
		l := systest.NewLocker(t, rdb, sluice.WithTTL(30*time.Second))
		for _, fenced := range []bool{false, true} {
			name := fmt.Sprint(redistest.Name(t), fenced)
			opts := []sluice.LockOption{sluice.WithLockReplicas(have)}
			if fenced {
				opts = append(opts, sluice.WithFencing())
			}
			for _, lock := range []func(context.Context, string, ...sluice.LockOption) (*sluice.Lock, error){l.Lock, l.TryLock} {
				var k *sluice.Lock
				var err error
				inTime(t, func() error { k, err = lock(t.Context(), name, opts...); return err })
				inTime(t, func() error { return k.Extend(t.Context(), time.Minute) })
				require.NoError(t, k.Unlock(t.Context()))
				_, err = lock(t.Context(), name, append(opts, sluice.WithLockReplicas(have+1))...)
				require.ErrorIs(t, err, sluice.ErrUnderReplicated)
				free(t, rdb, "Lock:"+name)
			}
		}
	})
}

// TestLock_IsOnTheReplicasOnceItIsAcquired: the replicas have the lock, its extensions and its
// fence when the caller learns of it.
func TestLock_IsOnTheReplicasOnceItIsAcquired(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 2)
	rdb := g.Client(t)
	l := systest.NewLocker(t, rdb, sluice.WithLockReplicas(2), sluice.WithTTL(5*time.Second))
	for i := range 50 {
		name := fmt.Sprint(i)
		var k *sluice.Lock
		var err error
		inTime(t, func() error { k, err = l.Lock(t.Context(), name); return err })
		for _, replica := range g.Replicas {
			token, err := replica.Direct(t).Get(t.Context(), "Lock:"+name).Result()
			require.NoError(t, err)
			require.Equal(t, k.Token(), token)
		}
		inTime(t, func() error { return k.Extend(t.Context(), time.Minute) })
		for _, replica := range g.Replicas {
			require.Greater(t, replica.Direct(t).PTTL(t.Context(), "Lock:"+name).Val(), 30*time.Second)
		}
	}
}

// TestLock_HungReplicaDoesNotAcknowledge: a replica that hangs counts for none of the ways to
// acquire a lock, and an acquisition that it does not acknowledge is released.
func TestLock_HungReplicaDoesNotAcknowledge(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 2)
	rdb := g.Client(t)
	l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Minute))
	g.Replicas[0].Pause(t)
	defer g.Replicas[0].Resume(t)
	for name, opts := range map[string][]sluice.LockOption{"plain": nil, "fenced": {sluice.WithFencing()}} {
		one, two := append(opts, sluice.WithLockReplicas(1)), append(opts, sluice.WithLockReplicas(2))
		_, err := l.Lock(t.Context(), name, two...)
		require.ErrorIs(t, err, sluice.ErrUnderReplicated)
		require.Regexp(t, "[01] of 2 within 1s", err.Error()) // on a busy machine the one that is well may be late too
		free(t, rdb, "Lock:"+name)
		_, err = l.TryLock(t.Context(), name, two...)
		require.ErrorIs(t, err, sluice.ErrUnderReplicated)
		free(t, rdb, "Lock:"+name)
		err = l.Do(t.Context(), name, func(context.Context) error { t.Error("called"); return nil }, two...)
		require.ErrorIs(t, err, sluice.ErrUnderReplicated)
		free(t, rdb, "Lock:"+name)

		var k *sluice.Lock
		inTime(t, func() error { k, err = l.Lock(t.Context(), name, one...); return err })
		require.NoError(t, k.Unlock(t.Context()), "the other replica is well")
	}
}

// TestLock_ARepeatIsAcknowledgedToo: an attempt whose reply is lost has written the lock, and the
// next one finds it. That the replicas have it is not known before they say so.
func TestLock_ARepeatIsAcknowledgedToo(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb, faults := g.Faulty(t)
	l := systest.NewLocker(t, rdb, sluice.WithTTL(2*time.Second), sluice.WithLockReplicas(1))
	k, err := l.Lock(t.Context(), "warm", sluice.WithLockReplicas(-1))
	require.NoError(t, err)
	require.NoError(t, k.Unlock(t.Context()))
	g.Replicas[0].Pause(t)
	before := faults.Scripts()
	faults.DropReply(1)
	_, err = l.TryLock(t.Context(), "name")
	require.ErrorIs(t, err, sluice.ErrUnderReplicated)
	require.GreaterOrEqual(t, faults.Scripts()-before, 2, "it was not repeated")
	g.Replicas[0].Resume(t)
	inTime(t, func() error {
		free(t, rdb, "Lock:name")
		faults.DropReply(1)
		k, err = l.TryLock(t.Context(), "name")
		return err
	})
	require.NoError(t, k.Unlock(t.Context()))
}

// TestLock_StoppedReplicaDoesNotAcknowledge: one that is gone is waited for, since it may
// come back.
func TestLock_StoppedReplicaDoesNotAcknowledge(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb := g.Client(t)
	l := systest.NewLocker(t, rdb, sluice.WithTTL(4*time.Second), sluice.WithLockReplicas(1))
	g.Replicas[0].Down()
	begun := time.Now()
	_, err := l.Lock(t.Context(), "name")
	require.ErrorIs(t, err, sluice.ErrUnderReplicated)
	require.GreaterOrEqual(t, time.Since(begun), time.Second, "a quarter of the TTL")
	g.Replicas[0].Up(t)
	g.AwaitReplica(t, g.Replicas[0])
	var k *sluice.Lock
	inTime(t, func() error { k, err = l.Lock(t.Context(), "name"); return err })
	require.NoError(t, k.Unlock(t.Context()))
}

// TestLock_AnExtensionNeedsReplicas: one that too few have does not move the deadline, and a
// lock whose renewals too few have is lost.
func TestLock_AnExtensionNeedsReplicas(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	const ttl = 3 * time.Second
	l := systest.NewLocker(t, g.Client(t), sluice.WithTTL(ttl), sluice.WithLockReplicas(1))
	var extended, renewed *sluice.Lock
	var err error
	inTime(t, func() error { extended, err = l.Lock(t.Context(), "extended", sluice.WithTTL(time.Minute)); return err })
	inTime(t, func() error { renewed, err = l.Lock(t.Context(), "renewed", sluice.WithAutoRenew()); return err })
	first := renewed.Deadline()
	require.Eventually(t, func() bool { return renewed.Deadline().After(first.Add(ttl)) }, 20*time.Second, time.Millisecond, "not renewed")

	g.Replicas[0].Pause(t)
	paused := time.Now()
	deadline := extended.Deadline()
	require.ErrorIs(t, extended.Extend(t.Context(), time.Hour), sluice.ErrUnderReplicated)
	require.Equal(t, deadline, extended.Deadline())
	require.True(t, extended.Valid())
	<-renewed.Context().Done()
	require.ErrorIs(t, context.Cause(renewed.Context()), sluice.ErrLost)
	require.False(t, renewed.Deadline().After(paused.Add(ttl)))

	g.Replicas[0].Resume(t)
	inTime(t, func() error { return extended.Extend(t.Context(), 2*time.Hour) })
	require.Greater(t, time.Until(extended.Deadline()), time.Hour)
	require.NoError(t, extended.Unlock(t.Context()))
}

// TestLock_CallsEndWhileReplicasHang: the end of the context ends the call, whatever the server
// still waits for, and what was acquired is released.
func TestLock_CallsEndWhileReplicasHang(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb := g.Client(t)
	l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Minute), sluice.WithLockReplicas(1))
	systest.Warm(t, l, "name")
	lag := systest.Lag(t)
	g.Replicas[0].Pause(t)
	defer g.Replicas[0].Resume(t)
	var late time.Duration
	systest.Unsure(t, 100*time.Millisecond, func(ctx context.Context) error {
		_, err := l.Lock(ctx, "name")
		late = time.Since(func() time.Time { d, _ := ctx.Deadline(); return d }())
		if errors.Is(err, sluice.ErrUnderReplicated) { // the reply may come when the caller has left
			err = sluice.ErrUnknown
		}
		return err
	})
	require.Less(t, late, 50*time.Millisecond+10*lag())
	free(t, rdb, "Lock:name")
}

// TestLock_IsHandedOverToEqualsOnly: a hand-over needs no replica, and what was acquired without
// replicas is not handed to a caller that asks for them.
func TestLock_IsHandedOverToEqualsOnly(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	l := systest.NewLocker(t, g.Client(t))
	systest.Warm(t, l, "warm")
	for _, test := range []struct{ from, to int }{{1, 1}, {1, 0}, {0, 1}} {
		handedOver := 0
		for i := 0; i < 20 || i < 200 && test.to <= test.from && handedOver == 0; i++ { // on a busy machine it may come too late
			name := fmt.Sprint(test, i)
			var first *sluice.Lock
			var err error
			inTime(t, func() error { first, err = l.Lock(t.Context(), name, sluice.WithLockReplicas(test.from)); return err })
			second := make(chan *sluice.Lock, 1)
			go func() {
				k, err := l.Lock(t.Context(), name, sluice.WithLockReplicas(test.to))
				if err != nil && !errors.Is(err, sluice.ErrUnderReplicated) { // on a busy machine
					t.Error(err)
				}
				second <- k
			}()
			time.Sleep(time.Duration(2+i/20) * time.Millisecond) // until it waits in line, mostly; the window is ten
			require.NoError(t, first.Unlock(t.Context()))
			k := <-second
			if k == nil {
				continue
			}
			if k.Token() == first.Token() {
				handedOver++
			}
			require.NoError(t, k.Unlock(t.Context()))
		}
		require.Equal(t, test.to <= test.from, handedOver > 0, "%+v", test)
	}
}

// TestLock_ManyShareAWait: callers of many names share pipelines, and so the waits for the
// replicas.
func TestLock_ManyShareAWait(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb := g.Client(t)
	l := systest.NewLocker(t, rdb, sluice.WithLockReplicas(1))
	var counter waitCounts
	rdb.AddHook(&counter)
	const callers, rounds = 64, 20
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			for range rounds {
				k, err := l.Lock(t.Context(), fmt.Sprint(c))
				if err == nil {
					err = k.Unlock(t.Context())
				}
				if err != nil && !errors.Is(err, sluice.ErrUnderReplicated) { // on a busy machine
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Less(t, counter.waits.Load(), int64(callers*rounds/2))
	require.Zero(t, counter.behind.Load(), "a command stands behind a WAIT")
	require.Zero(t, counter.alone.Load(), "a WAIT in a pipeline of its own may be on another connection")
}

// underReplicated calls f with a context of a second, until a busy machine lets its reply come in
// time.
func underReplicated(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	var err error
	for range 10 {
		if err = f(systest.Within(t, time.Second)); !errors.Is(err, sluice.ErrUnknown) && !errors.Is(err, sluice.ErrLocked) { // by an attempt without a reply
			break
		}
	}
	require.ErrorIs(t, err, sluice.ErrUnderReplicated)
	require.NotErrorIs(t, err, sluice.ErrUnknown)
}

// TestLock_AContextOfASecondLeavesTimeForTheReply: replicas are waited for within what the caller
// waits.
func TestLock_AContextOfASecondLeavesTimeForTheReply(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	l := systest.NewLocker(t, g.Client(t), sluice.WithTTL(time.Minute))
	k, err := l.Lock(t.Context(), "held")
	require.NoError(t, err)
	systest.Warm(t, l, "warm")
	g.Replicas[0].Pause(t)
	defer g.Replicas[0].Resume(t)
	one := sluice.WithLockReplicas(1)
	for name, call := range map[string]func(ctx context.Context) error{
		"lock":     func(ctx context.Context) error { _, err := l.Lock(ctx, "a", one); return err },
		"try lock": func(ctx context.Context) error { _, err := l.TryLock(ctx, "b", one); return err },
		"max wait": func(context.Context) error {
			_, err := l.Lock(context.Background(), "c", one, sluice.WithMaxWait(time.Second))
			return err
		},
		"fenced": func(ctx context.Context) error { _, err := l.Lock(ctx, "d", one, sluice.WithFencing()); return err },
		"permit": func(ctx context.Context) error { _, err := l.Lock(ctx, "e", one, sluice.WithPermits(2)); return err },
		"do": func(ctx context.Context) error {
			return l.Do(ctx, "f", func(context.Context) error { return nil }, one)
		},
		"lock all": func(ctx context.Context) error { _, err := l.LockAll(ctx, []string{"g", "h"}, one); return err },
		"adopt":    func(ctx context.Context) error { _, err := l.Adopt(ctx, "held", k.Token(), one); return err },
	} {
		t.Run(name, func(t *testing.T) { underReplicated(t, call) })
	}
}
