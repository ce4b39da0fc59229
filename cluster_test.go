package sluice_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestHungShard: a primary that hangs costs the locks that it keeps, and no others:
// those are renewed in time.
func TestHungShard(t *testing.T) {
	t.Parallel()
	// Else the others refuse everything while they have no primary for some slots.
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	rdb, tags := c.Client(t), tagsOf(t, c)
	const ttl = time.Second // less than the client waits for a reply
	l := newLocker(t, rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew())
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
	for range 30 {
		time.Sleep(ttl / 10) // three times the TTL, in all
		require.True(t, held[tags[0]].Valid(), "lost")
		require.True(t, held[tags[2]].Valid(), "lost")
	}
}

// TestCleanUpBesideAHungShard: what may be left on other servers is cleaned up at once.
func TestCleanUpBesideAHungShard(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000")
	rdb, faults := c.Faulty(t)
	clean, tags := c.Client(t), tagsOf(t, c)
	l := newLocker(t, rdb, sluice.WithTTL(time.Minute))
	for _, tag := range tags {
		warm(t, l, tag+"left")
	}
	held, err := l.Lock(t.Context(), tags[1]+"left")
	require.NoError(t, err)
	hung := c.Primary(tags[1])
	hung.Pause(t)
	defer hung.Resume(t)
	// A release that goes on in the background, for as long as the server hangs. Then
	// an acquisition on another server that nobody knows of.
	require.ErrorIs(t, held.Unlock(ended()), sluice.ErrUnknown)
	time.Sleep(100 * time.Millisecond) // until it has begun
	faults.Delay(200 * time.Millisecond)
	_, err = l.Lock(within(t, 50*time.Millisecond), tags[0]+"left")
	require.ErrorIs(t, err, sluice.ErrUnknown)
	time.Sleep(250 * time.Millisecond) // until it has landed
	faults.Delay(0)
	require.Eventually(t, func() bool {
		return clean.Exists(context.Background(), "Lock:"+tags[0]+"left").Val() == 0
	}, 3*time.Second, time.Millisecond, "the key of nobody was left") // the client waits for five
}

// TestSlotMigration moves a slot to and fro between two primaries, key by key, under
// load on its locks and its queue. Nothing is lost or wrong, no call fails, and none
// waits for long, though one move follows the other. In full:
//
//	go test -run TestSlotMigration -v -timeout 30m . -migrations 1000
func TestSlotMigration(t *testing.T) {
	// Not parallel: it measures.
	f, c := onCluster(t, "--cluster-node-timeout", "2000")
	f.tags = f.tags[:1]
	tag := f.tags[0]
	slot, at, other := c.Slot(t, tag), c.Primary(tag), c.Primary(tagsOf(t, c)[1])
	l := newLoad(t, f)
	l.bound = patience // so that a probe's longest call is seen
	l.start()
	for _, p := range l.probes {
		p.reset()
	}
	var move time.Duration
	for i := range *migrations {
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
	t.Logf("%d moves of a slot, of %v at most: %d TRYAGAIN, %d ASK, %d MOVED; a call took %v at most", *migrations,
		move.Round(time.Millisecond), c.Errors("TRYAGAIN"), c.Errors("ASK"), c.Errors("MOVED"), longest)
	l.report()
	l.check()
	require.Empty(t, l.double, "double grants")
	require.Empty(t, l.lostTasks(), "lost tasks")
	require.Empty(t, l.errors)
	require.Less(t, longest, patience/2)
	for _, code := range []string{"TRYAGAIN", "ASK", "MOVED"} {
		require.NotZero(t, c.Errors(code), "%s never struck", code)
	}
}
