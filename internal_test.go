package sluice

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// TestLock_TakesOverOnlyWhatCoversItsTTL is the rule by which a lock is handed over.
func TestLock_TakesOverOnlyWhatCoversItsTTL(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	for name, test := range map[string]struct {
		window time.Duration // the shortest by default
		held   time.Duration // how long ago the lock was acquired
		ttl    time.Duration // of the lock that takes over
		spoil  func(from *Lock)
		want   bool
	}{
		"at once":           {ttl: ttl, want: true},
		"shorter TTL":       {ttl: time.Second}, // a crash would block others for the longer one
		"in time":           {held: 8 * time.Millisecond, ttl: ttl, want: true},
		"after the window":  {held: 10 * time.Millisecond, ttl: ttl},
		"longer TTL":        {ttl: ttl + 24*time.Millisecond},
		"far, in time":      {window: 150 * time.Millisecond, held: 140 * time.Millisecond, ttl: ttl, want: true},
		"far, after":        {window: 150 * time.Millisecond, held: 150 * time.Millisecond, ttl: ttl},
		"far, longer TTL":   {window: 150 * time.Millisecond, ttl: ttl + 155*time.Millisecond},
		"far, shorter TTL":  {window: 150 * time.Millisecond, ttl: ttl - 10*time.Millisecond},
		"past the deadline": {ttl: ttl, spoil: func(from *Lock) { from.begin(time.Now(), time.Now(), time.Now().Add(ttl)) }},
		"forced open":       {ttl: ttl, spoil: func(from *Lock) { from.member().ForbidHandOver() }},
		"asked for an hour": {ttl: ttl, spoil: func(from *Lock) { from.lease.Ask(time.Hour) }},
		"asked for its TTL": {ttl: ttl, want: true, spoil: func(from *Lock) { from.lease.Ask(ttl) }},
		"was refused": {ttl: ttl, want: true, spoil: func(from *Lock) {
			from.lease.Ask(time.Hour)
			from.lease.Settle()
		}},
		"one of two was answered": {ttl: ttl, spoil: func(from *Lock) {
			from.lease.Ask(time.Hour)
			from.lease.Ask(ttl)
			from.lease.Settle()
		}},
		"an earlier holder asked for an hour": {ttl: ttl, spoil: func(from *Lock) { from.grant.asked = time.Hour }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := time.Now().Add(-test.held)
			w := max(window(test.window), shortestWindow)
			from := &Lock{options: &lockOptions{ttl: ttl}, grant: &grant{token: "t", window: w, sent: sent}}
			from.begin(sent, lease.SafeUntil(sent, ttl), lease.SafeUntil(sent, ttl+w.margin()))
			_, covered, _ := from.lease.Bounds()
			if test.spoil != nil {
				test.spoil(from)
			}
			next := &Lock{options: &lockOptions{ttl: test.ttl}}
			deadline, ok := next.member().TakeOver(from.member())
			require.Equal(t, test.want, ok)
			require.Equal(t, test.want, next.Valid())
			require.True(t, deadline.Equal(next.Deadline()))
			require.False(t, next.Deadline().After(covered), "not covered by the key")
		})
	}
}

// TestLock_SharesItsGrant: a hand-over passes the grant on as it is. What the next one is to
// know of an earlier holder's extension is in a grant of its own.
func TestLock_SharesItsGrant(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	now, longer := time.Now(), ttl+5*time.Millisecond
	takeOver := func(from *Lock, ttl time.Duration) (*Lock, bool) {
		next := &Lock{options: &lockOptions{ttl: ttl}}
		_, ok := next.member().TakeOver(from.member())
		return next, ok
	}
	first := &Lock{options: &lockOptions{ttl: ttl}, grant: &grant{window: shortestWindow, sent: now}}
	first.begin(now, lease.SafeUntil(now, ttl), lease.SafeUntil(now, ttl+shortestWindow.margin()))
	second, ok := takeOver(first, ttl)
	require.True(t, ok)
	require.Same(t, first.grant, second.grant)
	require.True(t, second.lease.Ask(longer))
	third, ok := takeOver(second, longer)
	require.True(t, ok)
	require.Zero(t, second.grant.asked, "another lock's grant has changed")
	require.Equal(t, longer, third.grant.asked)
	_, ok = takeOver(third, ttl)
	require.False(t, ok, "the key may yet be given a longer life")
}

// TestWindow_IsBounded: the window follows the round trip, within what a crash may add to a TTL.
func TestWindow_IsBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ roundTrip, ttl, want time.Duration }{
		{0, time.Hour, 10 * time.Millisecond}, // not known yet
		{3 * time.Millisecond, time.Hour, 10 * time.Millisecond},
		{20 * time.Millisecond, time.Hour, 60 * time.Millisecond},
		{60 * time.Millisecond, time.Hour, 180 * time.Millisecond},
		{time.Minute, time.Hour, 200 * time.Millisecond},
		{time.Minute, time.Second, 100 * time.Millisecond}, // a tenth of the TTL
		{time.Minute, time.Millisecond, 10 * time.Millisecond},
	} {
		w := windowFor(test.roundTrip, test.ttl)
		require.Equal(t, test.want, time.Duration(w), "%v", test)
		require.LessOrEqual(t, w.fences(), int64(time.Duration(w)/time.Microsecond))
		sent := time.Now()
		end, ttl := sent.Add(time.Duration(w)), max(test.ttl, time.Second)
		require.False(t, lease.SafeUntil(end.Add(-time.Millisecond), ttl).After(lease.SafeUntil(sent, ttl+w.margin())),
			"the margin does not cover the window: %v", test)
	}
}

// TestRoundTrips_AreNotWidenedByAStall: one slow reply, and six, change nothing. The
// first, which may have made a connection, does not count alone.
func TestRoundTrips_AreNotWidenedByAStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r roundTrips
		note := func(d time.Duration) time.Duration {
			sent := time.Now()
			time.Sleep(d)
			r.note(sent)
			return r.shortest()
		}
		require.Zero(t, r.shortest())
		require.Zero(t, note(time.Second))
		require.Equal(t, time.Millisecond, note(time.Millisecond))
		for range 6 {
			require.Equal(t, time.Millisecond, note(time.Second))
		}
		require.Equal(t, time.Second, note(time.Second), "a server that has moved away")
		require.Equal(t, time.Millisecond, note(time.Millisecond))
	})
}

// unconnected returns a Locker whose server is not there.
func unconnected(t *testing.T) *Locker {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	l, err := NewLocker(rdb)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestLock_LateExtensionLeavesTheNextHolderAlone: an extension that is answered after
// Unlock has begun must not have the token released, which may be the next holder's by
// then.
func TestLock_LateExtensionLeavesTheNextHolderAlone(t *testing.T) {
	t.Parallel()
	l, now := unconnected(t), time.Now()
	unlocked := &Lock{locker: l, options: &l.options, address: &address{}, grant: &grant{token: "t"}}
	unlocked.begin(now, now.Add(time.Minute), now.Add(time.Minute))
	require.True(t, unlocked.lease.End(nil))
	unlocked.handleLateExtension()
	require.Zero(t, l.janitor.Len())

	lost := &Lock{locker: l, options: &l.options, address: &address{keys: []any{"k"}}, grant: &grant{token: "u"}}
	lost.begin(now, now, now)
	lost.handleLateExtension()
	require.Equal(t, 1, l.janitor.Len())
}

// TestLock_KnownKeyMakesNoBadNameGood: an empty name is refused though its prefix is the
// key of a queue that is there.
func TestLock_KnownKeyMakesNoBadNameGood(t *testing.T) {
	t.Parallel()
	l := unconnected(t)
	good := &Lock{locker: l, name: "a", options: &l.options}
	turn, err := good.join(false)
	require.NoError(t, err)
	require.Equal(t, waitqueue.Acquire, turn)
	bad := &Lock{locker: l, options: &l.options}
	options := l.options
	options.prefix = "Lock:a"
	bad.options = &options
	_, err = bad.join(false)
	require.ErrorIs(t, err, ErrInvalidName)
}

// TestFences_RiseWithinAMicrosecond: hand-overs may be faster than the clock's unit, and no
// fence is given twice.
func TestFences_RiseWithinAMicrosecond(t *testing.T) {
	t.Parallel()
	const block = 30_000
	f, current, given := fences{first: 1, block: block, since: time.Now()}, int64(1), 0
	for {
		next, ok := f.after(current)
		if !ok {
			break // the block is used up
		}
		require.Greater(t, next, current)
		require.LessOrEqual(t, next, int64(block), "beyond the block")
		current, given = next, given+1
	}
	require.EqualValues(t, block, current)
	require.Zero(t, (&Lock{grant: &grant{fences: f}, fence: current}).unusedFences())
	require.Positive(t, given)
}

// TestQueue_ClaimReturnsTheLastReceiptOfAnID: a server whose clock is set forward in the
// middle of a Claim hands out again what the same Claim has.
func TestQueue_ClaimReturnsTheLastReceiptOfAnID(t *testing.T) {
	t.Parallel()
	c := claiming{lease: time.Minute}
	c.add(time.Now().Add(-time.Minute), time.Now().Add(-time.Minute), []Entry{{ID: "late", Score: 1}, {ID: "a", Score: 1}})
	c.add(time.Now(), time.Now(), []Entry{{ID: "a", Score: 2}, {ID: "b", Score: 2}})
	c.add(time.Now(), time.Now(), []Entry{{ID: "c", Score: 3}, {ID: "a", Score: 3}})
	valid, late := c.sort()
	require.Equal(t, []Entry{{ID: "b", Score: 2}, {ID: "c", Score: 3}, {ID: "a", Score: 3}}, valid)
	require.Equal(t, []Entry{{ID: "late", Score: 1}}, late)
}

// What a caller was told whose context has ended at the same time, another one is told.
func TestWatcher_PassesOnWhatACallerMakesNoUseOf(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	passed := 0
	for range 200 {
		// A watch that does nothing: only its callers are of interest.
		w := &watcher{current: &watch{stop: func() {}, changed: make(chan struct{}, 1)}}
		first, second := make(chan notice, 1), make(chan notice, 1)
		p := w.enter(first)
		w.enter(second)
		w.tellNext()
		require.Len(t, first, 1)
		require.Empty(t, second)
		if w.waitFor(ended, p, first) == nil {
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
			w := &watcher{shard: &shard{options: &queueOptions{poll: time.Second}}}
			w.claimed(notify.Mark{Confirmed: true}, time.Now(), off, 1_000_000, 0)
			require.True(t, w.outlook.known)
			if w.outlook.askAt.Equal(time.Now().Add(off + clockMargin)) {
				asks++
			}
			require.WithinDuration(t, time.Now().Add(time.Second), w.outlook.lookAt, time.Second/2+off, "and all look again")
		}
		require.InDelta(t, tries/2, asks, tries/10)
		fed := &watcher{shard: &shard{options: &queueOptions{poll: time.Second}}}
		for range 20 {
			fed.claimed(notify.Mark{Confirmed: true}, time.Now(), off, 1_000_000, 1)
			require.Equal(t, time.Now().Add(off+clockMargin), fed.outlook.askAt, "one that has brought a task asks for the next")
			fed.claimed(notify.Mark{Confirmed: true}, time.Now(), 0, 1_000_000, 1)
			require.Equal(t, time.Now(), fed.outlook.askAt)
		}
	})
}

// A look that finds a task due which should have been announced has the connection checked.
func TestWatcher_ALookSaysWhetherAnAnnouncementWasMissed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now, confirmed := time.Now(), notify.Mark{Confirmed: true}
		due, later := head{id: "1 a"}, head{id: "1 a", off: time.Minute}
		for name, c := range map[string]struct {
			before outlook
			found  head
			missed bool
		}{
			"it was said to be due later":   {outlook{known: true, mark: confirmed, due: now.Add(time.Hour)}, due, true},
			"it was expected":               {outlook{known: true, mark: confirmed, due: now.Add(-time.Millisecond)}, due, false},
			"it is not due":                 {outlook{known: true, mark: confirmed, due: now.Add(time.Hour)}, later, false},
			"nothing was known":             {outlook{mark: confirmed, due: now.Add(time.Hour)}, due, false},
			"there was no subscription yet": {outlook{known: true, due: now.Add(time.Hour)}, due, false},
		} {
			w := &watcher{shard: &shard{options: &queueOptions{poll: time.Second}}, outlook: c.before}
			require.Equal(t, c.missed, w.takeLook(c.found, confirmed, now), name)
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
	q, err := NewQueue(rdb, redistest.Name(t))
	require.NoError(t, err)
	only := q.shards[0]
	n := q.client.notifier
	defer n.Leave(only.channel, n.Join(only.channel))
	require.Eventually(t, func() bool { return only.watcher.mark().Confirmed }, time.Minute, time.Millisecond)
	before := only.watcher.mark()
	require.NoError(t, rdb.Publish(t.Context(), only.channel, "0 1 0").Err())
	require.Eventually(t, func() bool { return only.watcher.mark().Since(before) == 1 }, time.Minute, time.Millisecond)
	after, sent := only.watcher.mark(), time.Now()
	// heard returns a watcher that knows of the announcement.
	heard := func() *watcher {
		w := &watcher{shard: only, client: q.client, outlook: outlook{mark: before}}
		require.True(t, w.heard(after))
		require.True(t, w.outlook.known)
		return w
	}

	w := heard()
	w.claimed(before, sent, farOff, 0, 0)
	require.Equal(t, heard().outlook, w.outlook, "a claim")
	w.claimed(after, sent, farOff, 0, 0)
	require.True(t, w.outlook.askAt.IsZero(), "a claim that was sent later")

	w = heard()
	w.claimed(notify.Mark{}, sent, farOff, 0, 0)
	require.Equal(t, heard().outlook, w.outlook, "a claim before there was a subscription")

	w = heard()
	w.claimed(before, sent, 0, 0, 1)
	require.Equal(t, after, w.outlook.mark, "it is not heard twice")

	w = heard()
	require.False(t, w.takeLook(head{off: farOff}, before, sent))
	want := heard().outlook
	want.lookAt = sent.Add(q.options.poll)
	require.Equal(t, want, w.outlook, "a look")

	w = heard() // and told a caller of it
	w.outlook.known, w.outlook.lookAt = false, sent.Add(passOnAfter)
	want = w.outlook
	require.False(t, w.takeLook(head{off: farOff}, before, sent))
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

// A client that was told of a task which had been due for a while asks twice as often if it gets
// it, and ever so little less often after each claim in vain.
func TestShare_FollowsWhatTheOthersDo(t *testing.T) {
	t.Parallel()
	clients := func(s *share) int { return s.of(notify.Announcement{Clients: 1 << 30}).Clients }
	var s share
	require.Equal(t, 1<<30, clients(&s))
	s.claimed(true)
	require.Zero(t, clients(&s), "the one that got a task asks for the next")
	s.claimed(false)
	require.Equal(t, 1<<30, clients(&s), "it was not late")
	for range 3 {
		s.late = true
		s.claimed(true)
		s.claimed(true) // the same task was late once
	}
	s.claimed(false)
	require.InDelta(t, float64(1<<27), float64(clients(&s)), 1<<27/50)
	s.late = true
	s.claimed(false)
	require.False(t, s.late)
	for range 1000 {
		s.claimed(false)
	}
	require.Equal(t, 1<<30, clients(&s))
	for range 100 {
		s.late = true
		s.claimed(true)
	}
	s.claimed(false)
	require.Greater(t, clients(&s), 1<<9, "and there is a bound")
}

// What was due before a watch began is late for other reasons than clients that never claim.
func TestWatcher_OnlyWhatItHasWaitedForIsLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for ago, late := range map[time.Duration]bool{
			lateAfter / 2: false, 2 * lateAfter: true, time.Minute: false,
		} {
			w := &watcher{shard: &shard{options: &queueOptions{poll: time.Second}}}
			w.current = &watch{began: time.Now().Add(-time.Second), stop: func() {}, changed: make(chan struct{}, 1)}
			w.enter(make(chan notice, 1))
			w.outlook = outlook{known: true, due: time.Now().Add(-ago), askAt: time.Now(), callers: 1}
			w.next(w.current)
			require.Empty(t, w.waiters)
			require.Equal(t, late, w.share.late, ago)
		}
	})
}

// TestLooker_AResultThatIsNotReadBlocksNothing: a watch that has others to do may plan the next
// look before it has read what the last one found.
func TestLooker_AResultThatIsNotReadBlocksNothing(t *testing.T) {
	t.Parallel()
	q, err := NewQueue(redistest.Mini(t).Client(t), "q")
	require.NoError(t, err)
	l := &q.client.looker
	i := &idleLook{shard: q.shards[0], found: make(chan lookResult, 1)}
	for range 3 {
		l.plan(i, plan{at: time.Now()})
		require.Eventually(t, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return !l.underWay[i] && len(l.planned) == 0 && len(i.found) == 1
		}, time.Minute, time.Millisecond)
	}
	l.cancel(i)
}
