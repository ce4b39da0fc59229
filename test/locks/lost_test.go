package locks

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// waitFor has a caller wait for a lock behind others of its Locker, and returns the channel
// on which it hands the lock on.
func waitFor(t *testing.T, l *sluice.Locker, name string) <-chan *sluice.Lock {
	t.Helper()
	waiting, next := systest.Waiting(l), make(chan *sluice.Lock, 1)
	go func() {
		k, err := l.Lock(context.Background(), name)
		if err != nil {
			t.Error(err)
		}
		next <- k
	}()
	require.Eventually(t, func() bool { return systest.Waiting(l) > waiting }, 20*time.Second, time.Millisecond)
	return next
}

// TestLocker_ForceUnlockEndsTheHolderOfItsLocker at once, and the next waiter acquires.
func TestLocker_ForceUnlockEndsTheHolderOfItsLocker(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Hour))
		k, err := l.Lock(ctx, name, sluice.WithAutoRenew())
		require.NoError(t, err)
		held, next := k.Context(), waitFor(t, l, name)
		forced, err := l.ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.True(t, forced)
		require.ErrorIs(t, context.Cause(held), sluice.ErrLost)
		require.False(t, k.Valid())
		second := <-next
		require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)
		require.NotEqual(t, k.Token(), second.Token())
		require.Equal(t, second.Token(), rdb.Get(ctx, "Lock:"+name).Val())
		require.True(t, second.Valid())
		require.NoError(t, second.Unlock(ctx))
	})
}

// slowForce lets a caller go on before it gets the reply to force.lua.
type slowForce struct {
	redis.Hook
	carriedOut, goOn chan struct{}
}

func (h *slowForce) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *slowForce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *slowForce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if text, _ := cmd.Args()[1].(string); err == nil && strings.Contains(text, "whatever its token") {
			close(h.carriedOut)
			<-h.goOn
		}
		return err
	}
}

// TestLocker_ForceUnlockSparesALaterHolder: the reply to ForceUnlock comes when the next
// caller has acquired the lock.
func TestLocker_ForceUnlockSparesALaterHolder(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t) // the test's own, which does not know the script: its text is sent
	ctx, rdb := t.Context(), s.Client(t)
	hook := &slowForce{carriedOut: make(chan struct{}), goOn: make(chan struct{})}
	rdb.AddHook(hook)
	l := systest.NewLocker(t, rdb)
	k, err := l.Lock(ctx, "a")
	require.NoError(t, err)
	forced := make(chan error, 1)
	go func() { _, err := l.ForceUnlock(ctx, "a"); forced <- err }()
	select {
	case <-hook.carriedOut:
	case <-time.After(30 * time.Second):
		require.FailNow(t, "the hook does not know the script by its first line")
	}
	require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)
	later, err := l.Lock(ctx, "a")
	require.NoError(t, err)
	close(hook.goOn)
	require.NoError(t, <-forced)
	require.True(t, later.Valid(), "the lock of a later holder was taken from it")
	require.NoError(t, later.Unlock(ctx))
}

// TestLocker_WaitersLearnThatTheKeyIsGone: the lock of a holder of this process was deleted,
// or forced open by another one, a long time before its deadline.
func TestLocker_WaitersLearnThatTheKeyIsGone(t *testing.T) {
	for what, remove := range map[string]func(t *testing.T, rdb redis.UniversalClient, name string){
		"deleted": func(t *testing.T, rdb redis.UniversalClient, name string) {
			require.NoError(t, rdb.Del(t.Context(), "Lock:"+name).Err())
		},
		"forced open": func(t *testing.T, rdb redis.UniversalClient, name string) {
			_, err := systest.NewLocker(t, rdb).ForceUnlock(t.Context(), name)
			require.NoError(t, err)
		},
	} {
		t.Run(what, func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
				l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(20*time.Millisecond))
				k, err := l.Lock(ctx, name)
				require.NoError(t, err)
				held, next := k.Context(), waitFor(t, l, name)
				remove(t, rdb, name)
				second := <-next // at its deadline otherwise, in an hour
				require.ErrorIs(t, context.Cause(held), sluice.ErrLost)
				require.True(t, second.Valid())

				remove(t, rdb, name)
				var third *sluice.Lock
				require.Eventually(t, func() bool {
					third, err = l.TryLock(ctx, name)
					return err == nil
				}, time.Minute, 5*time.Millisecond)
				require.False(t, second.Valid())
				require.NoError(t, third.Unlock(ctx))
			})
		})
	}
}

// TestLocker_InspectsAtMostOncePerInterval: only a holder that has held for a whole retry
// interval, and only while a caller waits for it or has tried.
func TestLocker_InspectsAtMostOncePerInterval(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		const interval = 100 * time.Millisecond
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(interval))
		defer done()
		_, err := l.Inspect(t.Context(), "a") // now the server knows the script
		require.NoError(t, err)
		var sent systest.Pipelines // inspections are sent in pipelines, and nothing else is here
		rdb.AddHook(&sent)
		inspections := func(d time.Duration) int64 {
			before := sent.Commands.Load()
			time.Sleep(d)
			synctest.Wait()
			return sent.Commands.Load() - before
		}
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		require.Zero(t, inspections(time.Second), "no caller waits")
		_, err = l.TryLock(t.Context(), "a")
		require.ErrorIs(t, err, sluice.ErrLocked)
		_ = inspections(time.Second) // the first makes a connection
		for range 50 {
			_, err = l.TryLock(t.Context(), "a")
			require.ErrorIs(t, err, sluice.ErrLocked)
		}
		require.EqualValues(t, 1, inspections(time.Second), "for all that have tried")
		next := waitFor(t, l, "a")
		require.EqualValues(t, 10, inspections(10*interval+interval/2))
		start := time.Now()
		m.Del("Lock:a")
		second := <-next
		require.LessOrEqual(t, time.Since(start), interval)
		require.ErrorIs(t, k.Unlock(t.Context()), sluice.ErrNotHeld)
		require.NoError(t, second.Unlock(t.Context()))

		var callers sync.WaitGroup
		before, stop := sent.Commands.Load(), time.Now().Add(20*interval)
		for range 3 {
			callers.Go(func() {
				for time.Now().Before(stop) {
					k, err := l.Lock(t.Context(), "a")
					require.NoError(t, err)
					time.Sleep(interval / 3)
					require.NoError(t, k.Unlock(t.Context()))
				}
			})
		}
		callers.Wait()
		require.Equal(t, before, sent.Commands.Load(), "while it goes from hand to hand")
	})
}

// TestLocker_InspectionWithoutAnAnswerChangesNothing: and it takes one connection of the
// user's pool, however many names are waited for.
func TestLocker_InspectionWithoutAnAnswerChangesNothing(t *testing.T) {
	redistest.NotShort(t)
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		rdb := systest.BubbleClient(t, faults.Dial)
		defer func() { require.NoError(t, rdb.Close()) }()
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Hour))
		defer done()
		var locks []*sluice.Lock
		var waiting []<-chan *sluice.Lock
		for i := range 8 {
			k, err := l.Lock(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
			locks, waiting = append(locks, k), append(waiting, waitFor(t, l, fmt.Sprint(i)))
		}
		faults.Stall()
		time.Sleep(time.Minute)
		require.LessOrEqual(t, rdb.PoolStats().TotalConns, uint32(2))
		faults.Resume()
		time.Sleep(time.Minute)
		for i, k := range locks {
			require.True(t, k.Valid())
			require.NoError(t, k.Unlock(t.Context()))
			require.NoError(t, (<-waiting[i]).Unlock(t.Context()))
		}
	})
}

// TestLock_UnlockWaitsUntilTheLocksEnd, and no longer, on a server that does not answer,
// whatever the client's timeouts are. The release goes on.
func TestLock_UnlockWaitsUntilTheLocksEnd(t *testing.T) {
	for what, unlock := range map[string]func(l *sluice.Locker, k *sluice.Lock) error{
		"Unlock":    func(_ *sluice.Locker, k *sluice.Lock) error { return k.Unlock(context.Background()) },
		"UnlockAll": func(l *sluice.Locker, _ *sluice.Lock) error { return l.UnlockAll(context.Background()) },
		"Extend":    func(_ *sluice.Locker, k *sluice.Lock) error { return k.Extend(context.Background(), time.Hour) },
	} {
		t.Run(what, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				faults := redistest.NewFaults(systest.BubbleDialer(m))
				rdb := systest.BubbleClient(t, faults.Dial)
				defer func() { require.NoError(t, rdb.Close()) }()
				const ttl = 2 * time.Second
				l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(ttl))
				defer done()
				systest.Warm(t, l, "a")
				k, err := l.Lock(t.Context(), "a")
				require.NoError(t, err)
				faults.StallRequests()
				start := time.Now()
				require.ErrorIs(t, unlock(l, k), sluice.ErrUnknown)
				require.InDelta(t, ttl, time.Since(start), float64(40*time.Millisecond))
				if what == "Unlock" {
					require.ErrorIs(t, k.Unlock(context.Background()), sluice.ErrNotHeld)
				}
				faults.Resume()
				time.Sleep(time.Second)
				require.False(t, m.Exists("Lock:a"))
			})
		})
	}
}

// TestLock_UnlockAfterTheEndSaysSoAtOnce, even if the server does not answer.
func TestLock_UnlockAfterTheEndSaysSoAtOnce(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		rdb := systest.BubbleClient(t, faults.Dial)
		defer func() { require.NoError(t, rdb.Close()) }()
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(time.Second))
		defer done()
		k, err := l.Lock(t.Context(), "a")
		require.NoError(t, err)
		time.Sleep(2 * time.Second)
		faults.StallRequests()
		defer faults.Resume()
		start := time.Now()
		err = k.Unlock(context.Background())
		require.ErrorIs(t, err, sluice.ErrUnknown)
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.Equal(t, 15*time.Millisecond, time.Since(start))
	})
}

// hung runs a test with a Locker whose server can be made to give no answer.
func hung(t *testing.T, test func(t *testing.T, l *sluice.Locker, m *miniredis.Miniredis, faults *redistest.Faults)) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		rdb := systest.BubbleClient(t, faults.Dial)
		defer func() { require.NoError(t, rdb.Close()) }()
		l, done := systest.BubbleLocker(t, rdb, sluice.WithTTL(500*time.Millisecond))
		defer done()
		systest.Warm(t, l, "a")
		test(t, l, m, faults)
	})
}

// TestLocker_UnlockAllWaitsOnceForAll: a second, however many pipelines the locks need, and
// no longer than a reply's grace if all of them are over.
func TestLocker_UnlockAllWaitsOnceForAll(t *testing.T) {
	const n = 501
	for what, test := range map[string]struct {
		options    []sluice.LockOption
		wait, most time.Duration
	}{
		"held":              {nil, 0, time.Second},
		"over":              {nil, time.Second, 15 * time.Millisecond},
		"over by a limit":   {[]sluice.LockOption{sluice.WithTTL(time.Hour), sluice.WithMaxHold(time.Second)}, time.Second, 15 * time.Millisecond},
		"held for longer":   {[]sluice.LockOption{sluice.WithTTL(3 * time.Second)}, 0, 3012 * time.Millisecond},
		"held for a moment": {[]sluice.LockOption{sluice.WithTTL(time.Hour), sluice.WithMaxHold(time.Minute)}, 59 * time.Second, time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			hung(t, func(t *testing.T, l *sluice.Locker, _ *miniredis.Miniredis, faults *redistest.Faults) {
				for i := range n {
					_, err := l.Lock(t.Context(), fmt.Sprint(i), test.options...)
					require.NoError(t, err)
				}
				time.Sleep(test.wait)
				faults.StallRequests()
				start := time.Now()
				require.ErrorIs(t, l.UnlockAll(context.Background()), sluice.ErrUnknown)
				require.InDelta(t, test.most, time.Since(start), float64(50*time.Millisecond))
				faults.Resume()
				time.Sleep(10 * time.Second)
			})
		})
	}
}

// TestLock_UnlockPastItsLimitSaysSoAtOnce: its key lives for long after that, but not for
// the caller.
func TestLock_UnlockPastItsLimitSaysSoAtOnce(t *testing.T) {
	hung(t, func(t *testing.T, l *sluice.Locker, m *miniredis.Miniredis, faults *redistest.Faults) {
		hour := []sluice.LockOption{sluice.WithTTL(time.Hour), sluice.WithMaxHold(time.Second)}
		over, err := l.Lock(t.Context(), "over", hour...)
		require.NoError(t, err)
		time.Sleep(1100 * time.Millisecond)
		nearly, err := l.Lock(t.Context(), "nearly", hour...)
		require.NoError(t, err)
		faults.StallRequests()
		start := time.Now()
		err = over.Unlock(context.Background())
		require.ErrorIs(t, err, sluice.ErrUnknown)
		require.ErrorIs(t, err, sluice.ErrNotHeld)
		require.Equal(t, 15*time.Millisecond, time.Since(start))
		err = nearly.Unlock(context.Background())
		require.ErrorIs(t, err, sluice.ErrUnknown)
		require.NotErrorIs(t, err, sluice.ErrNotHeld)
		require.InDelta(t, time.Second, time.Since(start), float64(40*time.Millisecond))
		faults.Resume()
		time.Sleep(time.Second)
		require.False(t, m.Exists("Lock:over"))
		require.False(t, m.Exists("Lock:nearly"))
	})
}

// TestLock_ALossIsKnownWithoutAnAnswer: past the deadline every error without an answer
// says that the lock is not held.
func TestLock_ALossIsKnownWithoutAnAnswer(t *testing.T) {
	for what, says := range map[string]string{
		"refused": "NOPERM no permissions", "full": "OOM command not allowed", "unavailable": "LOADING the data",
	} {
		t.Run(what, func(t *testing.T) {
			hung(t, func(t *testing.T, l *sluice.Locker, m *miniredis.Miniredis, _ *redistest.Faults) {
				k, err := l.Lock(t.Context(), "unlocked")
				require.NoError(t, err)
				extended, err := l.Lock(t.Context(), "extended")
				require.NoError(t, err)
				held, err := l.Lock(t.Context(), "held", sluice.WithTTL(time.Minute))
				require.NoError(t, err)
				m.SetError(says)
				if what == "unavailable" { // it is tried until the deadline
					err = extended.Extend(context.Background(), time.Minute)
					require.ErrorIs(t, err, sluice.ErrNotHeld)
					require.ErrorIs(t, err, sluice.ErrUnavailable)
				}
				time.Sleep(time.Second)
				err = k.Unlock(context.Background())
				require.ErrorIs(t, err, sluice.ErrNotHeld)
				require.NotErrorIs(t, err, sluice.ErrUnknown)
				require.ErrorContains(t, err, strings.Fields(says)[0])
				require.Equal(t, what != "refused", errors.Is(err, sluice.ErrUnavailable))
				err = held.Unlock(systest.Within(t, 2*time.Second))
				require.Error(t, err)
				require.NotErrorIs(t, err, sluice.ErrNotHeld)
				m.SetError("")
				time.Sleep(time.Second)
			})
		})
	}
}

// quitsOnce ends the goroutines that send the first pipelines, as a hook of the user's may.
type quitsOnce struct {
	redis.Hook
	left atomic.Int64
}

func (h *quitsOnce) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *quitsOnce) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *quitsOnce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.left.Add(-1) >= 0 {
			runtime.Goexit()
		}
		return next(ctx, cmds)
	}
}

// TestLocker_AHookThatEndsItsGoroutineEndsNoOtherWork: what renews locks and what releases them
// in the background go on.
func TestLocker_AHookThatEndsItsGoroutineEndsNoOtherWork(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		faulty, faults := s.Faulty(t)
		hook := new(quitsOnce)
		faulty.(interface{ AddHook(hook redis.Hook) }).AddHook(hook)
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, faulty, sluice.WithTTL(time.Hour))
		hook.left.Store(1)
		k, err := l.Lock(ctx, name, sluice.WithAutoRenew(), sluice.WithTTL(3*time.Second))
		require.NoError(t, err)
		deadline := k.Deadline()
		require.Eventually(t, func() bool { return k.Deadline().After(deadline) }, 30*time.Second, time.Millisecond, "it is not renewed")
		require.NoError(t, k.Unlock(ctx))

		faults.Delay(300 * time.Millisecond)
		systest.Unsure(t, 100*time.Millisecond, func(ctx context.Context) error {
			hook.left.Store(1)
			_, err := l.Lock(ctx, name)
			return err
		})
		faults.Delay(0)
		require.Eventually(t, func() bool { return hook.left.Load() < 0 && rdb.Exists(ctx, "Lock:"+name).Val() == 0 },
			30*time.Second, time.Millisecond, "it is not released")
	})
}

// TestLocker_ForceUnlockFromSparesOthers: only the owner that is named loses the lock, also where another
// label begins like it, or the holder has none.
func TestLocker_ForceUnlockFromSparesOthers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, name := t.Context(), redistest.Name(t)
		l, operator := systest.NewLocker(t, s.Client(t)), systest.NewLocker(t, s.Client(t))
		for _, opts := range [][]sluice.LockOption{nil, {sluice.WithOwner("pod-12")}, {sluice.WithOwner("pod")}, {sluice.WithPermits(2), sluice.WithOwner("pod-2")}} {
			k, err := l.Lock(ctx, name, opts...)
			require.NoError(t, err)
			freed, err := operator.ForceUnlockFrom(ctx, name, "pod-1")
			require.NoError(t, err)
			require.False(t, freed)
			require.NoError(t, k.Unlock(ctx), "it has the lock")
		}
		for _, opts := range [][]sluice.LockOption{{sluice.WithOwner("pod-1")}, {sluice.WithPermits(2), sluice.WithOwner("pod-1")}} {
			k, err := l.Lock(ctx, name, opts...)
			require.NoError(t, err)
			freed, err := operator.ForceUnlockFrom(ctx, name, "pod-1")
			require.NoError(t, err)
			require.True(t, freed)
			require.ErrorIs(t, k.Unlock(ctx), sluice.ErrNotHeld)
		}
		freed, err := operator.ForceUnlockFrom(ctx, name, "pod-1")
		require.NoError(t, err)
		require.False(t, freed, "it is free")

		// Of permits, those of the owner alone; and each goes to one who waits.
		permits := []sluice.LockOption{sluice.WithPermits(3)}
		var own []*sluice.Lock
		for _, owner := range []string{"pod-1", "pod-1", "pod-2"} {
			k, err := systest.NewLocker(t, s.Client(t)).Lock(ctx, name, append(permits, sluice.WithOwner(owner), sluice.WithTTL(time.Minute))...)
			require.NoError(t, err)
			own = append(own, k)
		}
		waiting := make(chan error, 2)
		for range 2 {
			waiter := systest.NewLocker(t, s.Client(t), sluice.WithRetryInterval(time.Minute))
			go func() { // it ends with the lock
				_, err := waiter.Lock(ctx, name, permits...)
				waiting <- err
			}()
		}
		require.Eventually(t, func() bool { return systest.InLine(ctx, s.Client(t), "Lock:"+name) == 2 }, 30*time.Second, 5*time.Millisecond)
		freed, err = operator.ForceUnlockFrom(ctx, name, "pod-1")
		require.NoError(t, err)
		require.True(t, freed)
		require.NoError(t, <-waiting)
		require.NoError(t, <-waiting)
		require.ErrorIs(t, own[0].Extend(ctx, time.Minute), sluice.ErrNotHeld)
		require.ErrorIs(t, own[1].Extend(ctx, time.Minute), sluice.ErrNotHeld)
		require.NoError(t, own[2].Extend(ctx, time.Minute), "another's")
		_, err = operator.ForceUnlockFrom(ctx, name, "")
		require.ErrorIs(t, err, sluice.ErrInvalid)
	})
}
