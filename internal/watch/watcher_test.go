package watch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redistest"
)

// unwatched returns a watcher that has a watch which does nothing: only its callers are of interest.
func unwatched() *Watcher {
	return &Watcher{
		queue:   Queue{Poll: time.Second},
		current: &watch{began: time.Now(), stop: func() {}, changed: make(chan struct{}, 1)},
	}
}

// TestWait_AFailureIsToldOfIfNothingElseComes: by all watchers, or for a poll interval.
func TestWait_AFailureIsToldOfIfNothingElseComes(t *testing.T) {
	t.Parallel()
	broken, cut := errors.New("broken"), errors.New("cut")
	for name, c := range map[string]struct {
		happens func(first, second *Watcher)
		which   int
		errs    []error
		after   time.Duration
	}{
		"one fails": {func(first, _ *Watcher) { first.fail(first.current, broken) }, 0, []error{broken}, time.Second},
		"all fail": {func(first, second *Watcher) {
			second.fail(second.current, cut)
			time.Sleep(time.Millisecond)
			first.fail(first.current, broken)
		}, 0, []error{cut, broken}, time.Millisecond},
		"one fails, the other has a task": {func(first, second *Watcher) {
			first.fail(first.current, broken)
			time.Sleep(time.Second - 1)
			second.tellNext()
		}, 1, nil, time.Second - 1},
		"the context ends": {func(_, _ *Watcher) {}, 0, []error{context.DeadlineExceeded}, time.Minute - time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				first, second, start := unwatched(), unwatched(), time.Now().Add(time.Millisecond)
				time.AfterFunc(time.Millisecond, func() { c.happens(first, second) }) // when the caller waits
				which, errs := Wait(ctx, first, second)
				require.Equal(t, c.which, which)
				require.Equal(t, c.errs, errs)
				require.Equal(t, c.after, time.Since(start))
				require.Empty(t, first.waiters)
				require.Empty(t, second.waiters)
				synctest.Wait()
			})
		})
	}
}

// What a caller was told whose context has ended at the same time, another one is told.
func TestWatcher_PassesOnWhatACallerMakesNoUseOf(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	passed := 0
	for range 200 {
		w := unwatched()
		first, second := make(waiter, 1), make(waiter, 1)
		w.enter(first)
		w.enter(second)
		w.tellNext()
		require.Len(t, first, 1)
		require.Empty(t, second)
		if _, errs := first.wait(ended, []*Watcher{w}); len(errs) == 0 {
			require.Empty(t, second)
			continue
		}
		passed++
		require.Len(t, second, 1)
		require.Empty(t, w.waiters)
	}
	require.Positive(t, passed)
}

// Clients that have looked for one task in vain do not all look for the next: each second one
// does, and the others as if it had been announced.
func TestWatcher_EachSecondOfThoseThatClaimedNothingAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const tries, off = 1000, 100 * time.Millisecond
		asks := 0
		for range tries {
			w := &Watcher{queue: Queue{Poll: time.Second}}
			w.Claimed(notify.Mark{Confirmed: true}, time.Now(), Head{Off: off, Clients: 1_000_000}, false)
			require.True(t, w.outlook.known)
			if w.outlook.askAt.Equal(time.Now().Add(off + clockMargin)) {
				asks++
			}
			require.WithinDuration(t, time.Now().Add(time.Second), w.outlook.lookAt, time.Second/2+off, "and all look again")
		}
		require.InDelta(t, tries/2, asks, tries/10)
		fed := &Watcher{queue: Queue{Poll: time.Second}}
		for range 20 {
			fed.Claimed(notify.Mark{Confirmed: true}, time.Now(), Head{Off: off, Clients: 1_000_000}, true)
			require.Equal(t, time.Now().Add(off+clockMargin), fed.outlook.askAt, "one that has brought a task asks for the next")
			fed.Claimed(notify.Mark{Confirmed: true}, time.Now(), Head{Clients: 1_000_000}, true)
			require.Equal(t, time.Now(), fed.outlook.askAt)
		}
	})
}

// A look that finds a task due which should have been announced has the connection checked.
func TestWatcher_ALookSaysWhetherAnAnnouncementWasMissed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now, confirmed := time.Now(), notify.Mark{Confirmed: true}
		due, later := Head{ID: "1 a"}, Head{ID: "1 a", Off: time.Minute}
		for name, c := range map[string]struct {
			before outlook
			found  Head
			missed bool
		}{
			"it was said to be due later":   {outlook{known: true, mark: confirmed, due: now.Add(time.Hour)}, due, true},
			"it was expected":               {outlook{known: true, mark: confirmed, due: now.Add(-time.Millisecond)}, due, false},
			"it is not due":                 {outlook{known: true, mark: confirmed, due: now.Add(time.Hour)}, later, false},
			"nothing was known":             {outlook{mark: confirmed, due: now.Add(time.Hour)}, due, false},
			"there was no subscription yet": {outlook{known: true, due: now.Add(time.Hour)}, due, false},
		} {
			w := &Watcher{queue: Queue{Poll: time.Second}, outlook: c.before}
			require.Equal(t, c.missed, w.takeLook(lookResult{c.found, confirmed, now}), name)
			want := now
			if name == "it was expected" { // since then another client should have asked: see share.late
				want = c.before.due
			}
			if c.found == due {
				require.Equal(t, want, w.outlook.due, name)
				require.Equal(t, now, w.outlook.askAt, name)
			}
			require.False(t, w.outlook.lookAt.After(now.Add(time.Second)), name)
		}
	})
}

// What was announced after a claim or a look was sent is newer than their replies; and what came
// over another subscription is not known to be complete.
func TestWatcher_WhatWasAnnouncedMeanwhileCounts(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	client, q := newClient(rdb, empty{}), Queue{Channel: redistest.Name(t), Poll: time.Minute}
	mark := client.Watcher(q).Mark
	defer client.Notifier.Leave(q.Channel, client.Notifier.Join(q.Channel))
	require.Eventually(t, func() bool { return mark().Confirmed }, time.Minute, time.Millisecond)
	before := mark()
	require.NoError(t, rdb.Publish(t.Context(), q.Channel, "0 1 0").Err())
	require.Eventually(t, func() bool { return mark().Since(before) == 1 }, time.Minute, time.Millisecond)
	after, sent := mark(), time.Now()
	// heard returns a watcher that knows of the announcement.
	heard := func() *Watcher {
		w := client.Watcher(q)
		w.outlook.mark = before
		require.True(t, w.heard(after))
		require.True(t, w.outlook.known)
		return w
	}
	far := Head{Off: FarOff}

	w := heard()
	w.Claimed(before, sent, far, false)
	require.Equal(t, heard().outlook, w.outlook, "a claim")
	w.Claimed(after, sent, far, false)
	require.True(t, w.outlook.askAt.IsZero(), "a claim that was sent later")

	w = heard()
	w.Claimed(notify.Mark{}, sent, far, false)
	require.Equal(t, heard().outlook, w.outlook, "a claim before there was a subscription")

	w = heard()
	w.Claimed(before, sent, Head{}, true)
	require.Equal(t, after, w.outlook.mark, "it is not heard twice")

	w = heard()
	require.False(t, w.takeLook(lookResult{Head{Off: FarOff}, before, sent}))
	want := heard().outlook
	want.lookAt = sent.Add(q.Poll)
	require.Equal(t, want, w.outlook, "a look")

	w = heard() // and told a caller of it
	w.outlook.known, w.outlook.lookAt = false, sent.Add(passOnAfter)
	want = w.outlook
	require.False(t, w.takeLook(lookResult{Head{Off: FarOff}, before, sent}))
	require.Equal(t, want, w.outlook, "it is looked for again soon, in case that this caller does nothing")

	w = heard()
	w.outlook.mark, w.outlook.askAt = before, time.Time{}
	w.resume()
	require.False(t, w.outlook.askAt.IsZero(), "a new watch")

	w = heard()
	w.outlook.mark = notify.Mark{}
	w.resume()
	require.False(t, w.outlook.known, "a new watch that had another subscription")
}

// What was due before a watch began is late for other reasons than clients that never claim.
func TestWatcher_OnlyWhatItHasWaitedForIsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for ago, late := range map[time.Duration]bool{
			lateAfter / 2: false, 2 * lateAfter: true, time.Minute: false,
		} {
			w := unwatched()
			w.current.began = time.Now().Add(-time.Second)
			w.enter(make(waiter, 1))
			w.outlook = outlook{known: true, due: time.Now().Add(-ago), askAt: time.Now(), callers: 1}
			w.next(w.current)
			require.Empty(t, w.waiters)
			require.Equal(t, late, w.share.late, ago)
		}
	})
}
