package distributed

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestCluster_HungServerCostsItsOwnLocks: a primary that hangs costs the locks that it
// keeps, and no others: those are renewed in time.
func TestCluster_HungServerCostsItsOwnLocks(t *testing.T) {
	t.Parallel()
	// Else the others refuse everything while they have no primary for some slots; or are taken for
	// dead on a busy machine, and fail over.
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000")
	const ttl = 6 * time.Second // less than the client waits for a reply, and long for a busy machine
	rdb, tags := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.Addr}, ReadTimeout: 5 * ttl}), tagsOf(t, c)
	t.Cleanup(func() { _ = rdb.Close() })
	l := systest.NewLocker(t, rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew())
	held := map[string]*sluice.Lock{}
	for _, tag := range tags {
		k, err := l.Lock(t.Context(), tag+"held")
		require.NoError(t, err)
		held[tag] = k
	}
	hung := c.Primary(tags[1])
	hung.Pause(t)
	defer hung.Resume(t)
	<-held[tags[1]].Context().Done()
	require.ErrorIs(t, context.Cause(held[tags[1]].Context()), sluice.ErrLost)
	require.Never(t, func() bool { return !held[tags[0]].Valid() || !held[tags[2]].Valid() }, 2*ttl, ttl/100, "lost")
}

// TestCluster_AHungServerDelaysItsOwnReleases: the locks of a set that other servers keep are
// released at once, also where a renewal is under way on the one that hangs.
func TestCluster_AHungServerDelaysItsOwnReleases(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000")
	rdb, tags := c.Client(t), tagsOf(t, c)
	lag, renewals := systest.Lag(t), systest.NewRenewals(t)
	rdb.AddHook(renewals)
	const ttl = 9 * time.Second
	for name, unlock := range map[string]func(l *sluice.Locker, set *sluice.LockSet) error{
		"Unlock":    func(_ *sluice.Locker, set *sluice.LockSet) error { return set.Unlock(context.Background()) },
		"UnlockAll": func(l *sluice.Locker, _ *sluice.LockSet) error { return l.UnlockAll(context.Background()) },
	} {
		l, other := systest.NewLocker(t, rdb, sluice.WithTTL(ttl)), systest.NewLocker(t, rdb)
		names := []string{tags[0] + name, tags[1] + name, tags[2] + name}
		for _, name := range names {
			systest.Warm(t, l, name)
			systest.Warm(t, other, name)
		}
		set, err := l.LockAll(t.Context(), names)
		require.NoError(t, err)
		hung := c.Primary(tags[1])
		hung.Pause(t)
		before, _ := renewals.Counts()
		require.Eventually(t, func() bool { sent, _ := renewals.Counts(); return sent > before }, 20*time.Second, time.Millisecond, "no renewal is under way")
		ended := make(chan error, 1)
		start := time.Now()
		go func() { ended <- unlock(l, set) }()
		for _, i := range []int{0, 2} {
			k, err := other.Lock(t.Context(), names[i])
			require.NoError(t, err)
			require.NoError(t, k.Unlock(t.Context()))
		}
		require.Less(t, time.Since(start), time.Second+10*lag(), name)
		hung.Resume(t)
		<-ended
	}
}

// TestCluster_CleansUpBesideAHungServer: what may be left on other servers is cleaned up at
// once.
func TestCluster_CleansUpBesideAHungServer(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000")
	rdb, faults := c.Faulty(t)
	lag := systest.Lag(t)
	clean, tags := c.Client(t), tagsOf(t, c)
	l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Minute))
	for _, tag := range tags {
		systest.Warm(t, l, tag+"left")
		// This client too has to know the slots before one of the servers hangs, which
		// it might ask for them.
		require.NoError(t, clean.Exists(t.Context(), "Lock:"+tag+"left").Err())
	}
	held, err := l.Lock(t.Context(), tags[1]+"left")
	require.NoError(t, err)
	hung := c.Primary(tags[1])
	hung.Pause(t)
	defer hung.Resume(t)
	sent := faults.Scripts()
	// A release that goes on in the background, for as long as the server hangs. Then
	// an abandoned acquisition on another server.
	require.ErrorIs(t, held.Unlock(systest.Ended()), sluice.ErrUnknown)
	require.Eventually(t, func() bool { return faults.Scripts() > sent }, 20*time.Second, time.Millisecond, "it has not begun")
	faults.Delay(200 * time.Millisecond)
	systest.Unsure(t, 50*time.Millisecond, func(ctx context.Context) error {
		_, err := l.Lock(ctx, tags[0]+"left")
		return err
	})
	time.Sleep(250 * time.Millisecond) // until its reply has come: no other client can see that
	faults.Delay(0)
	abandoned := time.Now()
	require.Eventually(t, func() bool {
		n, err := clean.Exists(t.Context(), "Lock:"+tags[0]+"left").Result()
		return err == nil && n == 0
	}, 20*time.Second, time.Millisecond, "the abandoned lock was not released")
	require.Less(t, time.Since(abandoned), 3*time.Second+10*lag()) // the client waits for the other server for five
}

// TestCluster_SlotMigrationLosesNothing moves a slot to and fro between two primaries, key
// by key, under load on its locks and its queue. Nothing is lost or wrong, no call fails,
// and none waits for long, though one move follows the other.
func TestCluster_SlotMigrationLosesNothing(t *testing.T) {
	migrate(t, 5*systest.Scale())
}

// migrate is TestCluster_SlotMigrationLosesNothing with n moves.
func migrate(t *testing.T, n int) {
	t.Helper()
	// Not parallel: it measures.
	f, c := onCluster(t, "--cluster-node-timeout", "30000")
	f.tags = f.tags[:1]
	tag := f.tags[0]
	slot, at, other := c.Slot(t, tag), c.Primary(tag), c.Primary(tagsOf(t, c)[1])
	l := newLoad(t, f, 0)
	l.bound = unavailableFor // so that a probe's longest call is seen
	l.start()
	for _, p := range l.probes {
		p.reset()
	}
	var move time.Duration
	for i := range n {
		begun := time.Now()
		c.Migrate(t, slot, at, other, func() { time.Sleep(rand.N(20 * time.Millisecond)) }) // half of it is there
		move = max(move, time.Since(begun))
		if i%10 == 9 {
			l.awaitSteps()
		}
		at, other = other, at
	}
	l.finish()
	longest := max(l.probes[tag+"lock"].longest(), l.probes[tag+"queue"].longest())
	t.Logf("%d moves of a slot, of %v at most: %d TRYAGAIN, %d ASK, %d MOVED; a call took %v at most", n,
		move.Round(time.Millisecond), c.Errors("TRYAGAIN"), c.Errors("ASK"), c.Errors("MOVED"), longest)
	l.report()
	l.check()
	require.Empty(t, l.double, "double grants")
	require.Empty(t, l.lostTasks(), "lost tasks")
	require.Empty(t, l.errors)
	require.Less(t, longest, unavailableFor/2)
	for _, code := range []string{"TRYAGAIN", "ASK", "MOVED"} {
		require.NotZero(t, c.Errors(code), "%s never struck", code)
	}
}
