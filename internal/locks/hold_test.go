package locks

import (
	"context"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/store"
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
		spoil  func(from *Hold)
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
		"past the deadline": {ttl: ttl, spoil: func(from *Hold) { from.begin(time.Now(), time.Now(), time.Now().Add(ttl)) }},
		"forced open":       {ttl: ttl, spoil: func(from *Hold) { from.ForbidHandOver() }},
		"asked for an hour": {ttl: ttl, spoil: func(from *Hold) { from.lease.Ask(time.Hour) }},
		"asked for its TTL": {ttl: ttl, want: true, spoil: func(from *Hold) { from.lease.Ask(ttl) }},
		"was refused": {ttl: ttl, want: true, spoil: func(from *Hold) {
			from.lease.Ask(time.Hour)
			from.lease.Settle()
		}},
		"one of two was answered": {ttl: ttl, spoil: func(from *Hold) {
			from.lease.Ask(time.Hour)
			from.lease.Ask(ttl)
			from.lease.Settle()
		}},
		"an earlier holder asked for an hour": {ttl: ttl, spoil: func(from *Hold) { from.grant.asked = time.Hour }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // nothing takes time but what is held
				sent := time.Now().Add(-test.held)
				w := max(window(test.window), shortestWindow)
				from := &Hold{options: &Options{TTL: ttl}, grant: &grant{token: "t", window: w, sent: sent}}
				from.begin(sent, lease.SafeUntil(sent, ttl), lease.SafeUntil(sent, ttl+w.margin()))
				_, covered, _ := from.lease.Bounds()
				if test.spoil != nil {
					test.spoil(from)
				}
				next := &Hold{options: &Options{TTL: test.ttl}}
				deadline, ok := next.TakeOver(from)
				require.Equal(t, test.want, ok)
				require.Equal(t, test.want, next.Valid())
				require.True(t, deadline.Equal(next.Deadline()))
				require.False(t, next.Deadline().After(covered), "not covered by the key")
			})
		})
	}
}

// TestLock_SharesItsGrant: a hand-over passes the grant on as it is. What the next one is to
// know of an earlier holder's extension is in a grant of its own.
func TestLock_SharesItsGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		now, longer := time.Now(), ttl+5*time.Millisecond
		takeOver := func(from *Hold, ttl time.Duration) (*Hold, bool) {
			next := &Hold{options: &Options{TTL: ttl}}
			_, ok := next.TakeOver(from)
			return next, ok
		}
		first := &Hold{options: &Options{TTL: ttl}, grant: &grant{window: shortestWindow, sent: now}}
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
	})
}

// TestLock_WhatOneWithoutReplicasHadIsNoneOfTheirs: a lock that wants them does not take over what one that
// wants none may have extended, also if that had it from one that wanted them.
func TestLock_WhatOneWithoutReplicasHadIsNoneOfTheirs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		now := time.Now()
		hold := &Hold{options: &Options{TTL: ttl, Replicas: 1}, grant: &grant{window: shortestWindow, sent: now, replicas: 1}}
		hold.begin(now, lease.SafeUntil(now, ttl), lease.SafeUntil(now, ttl+shortestWindow.margin()))
		for _, test := range []struct {
			replicas int
			ok       bool
		}{{1, true}, {0, true}, {0, true}, {1, false}} {
			next := &Hold{options: &Options{TTL: ttl, Replicas: test.replicas}}
			_, ok := next.TakeOver(hold)
			require.Equal(t, test.ok, ok)
			hold = next
		}
	})
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

// unconnected returns an Engine whose server is not there.
func unconnected(t *testing.T) *Engine {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	e := New(rdb, store.Load(os.DirFS("../../lua")), Options{Prefix: "Lock:", TTL: time.Minute, RetryInterval: time.Second})
	t.Cleanup(func() { _, _ = e.Close() })
	return e
}

// TestLock_LateExtensionLeavesTheNextHolderAlone: an extension that is answered after
// Unlock has begun must not have the token released, which may be the next holder's by
// then.
func TestLock_LateExtensionLeavesTheNextHolderAlone(t *testing.T) {
	t.Parallel()
	e, now := unconnected(t), time.Now()
	unlocked := &Hold{engine: e, options: &e.Options, address: &address{}, grant: &grant{token: "t"}}
	unlocked.begin(now, now.Add(time.Minute), now.Add(time.Minute))
	require.True(t, unlocked.lease.End(nil))
	unlocked.handleLateExtension()
	require.Zero(t, e.janitor.Len())

	at := new(address)
	at.Init(e.scripts, "k")
	lost := &Hold{engine: e, options: &e.Options, address: at, grant: &grant{token: "u"}}
	lost.begin(now, now, now)
	lost.handleLateExtension()
	require.Equal(t, 1, e.janitor.Len())
}

// TestLock_KnownKeyMakesNoBadNameGood: an empty name is refused though its prefix is the
// key of a queue that is there.
func TestLock_KnownKeyMakesNoBadNameGood(t *testing.T) {
	t.Parallel()
	e := unconnected(t)
	good := &Hold{engine: e, name: "a", options: &e.Options}
	turn, err := good.join(false)
	require.NoError(t, err)
	require.Equal(t, waitqueue.Acquire, turn)
	bad := &Hold{engine: e, options: &e.Options}
	options := e.Options
	options.Prefix = "Lock:a"
	bad.options = &options
	_, err = bad.join(false)
	require.ErrorIs(t, err, store.ErrInvalidName)
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
	require.Zero(t, (&Hold{grant: &grant{fences: f}, fence: current}).unusedFences())
	require.Positive(t, given)
}

// TestRoundTrips_ExpectNoMoreThanADistance: a request without a reply says that a reply takes so
// long at least, for a second, until one comes. A server that has hung for longer is not expected
// to do so again.
func TestRoundTrips_ExpectNoMoreThanADistance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r roundTrips
		require.Zero(t, r.expected())
		sent := time.Now()
		time.Sleep(100 * time.Millisecond)
		r.noteNone(sent)
		require.Equal(t, 100*time.Millisecond, r.expected())
		time.Sleep(time.Second + time.Millisecond)
		require.Zero(t, r.expected(), "nothing is known of the last second")
		sent = time.Now()
		time.Sleep(8 * time.Second)
		r.noteNone(sent)
		require.Equal(t, 500*time.Millisecond, r.expected())
		for range 2 {
			sent = time.Now()
			time.Sleep(20 * time.Millisecond)
			r.note(sent)
		}
		require.Equal(t, 20*time.Millisecond, r.expected())
		require.Equal(t, 20*time.Millisecond, r.longest())
		r.noted.Store(time.Now().Add(time.Hour).UnixNano())
		require.Zero(t, r.expected(), "the local clock was set back by an hour since")
	})
}

// TestToken_IsWhatTheScriptTakesForOne: inspect.lua finds the label by the length and the letters
// of what is random.
func TestToken_IsWhatTheScriptTakesForOne(t *testing.T) {
	t.Parallel()
	for range 1000 {
		require.Regexp(t, regexp.MustCompile(`^[A-Z2-7]{26}$`), newToken(""))
		require.Regexp(t, regexp.MustCompile(`^a:b:[A-Z2-7]{26}$`), newToken("a:b"))
	}
	require.NotEqual(t, newToken("a"), newToken("a"))
}

// TestObserver_NoneCostsNothing: without a hook a Hold has no observer. It counts allocations, so
// that it runs alone.
func TestObserver_NoneCostsNothing(t *testing.T) {
	o := &Options{}
	h := &Hold{options: o}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h.observe()
		h.tellWaitFailed(t.Context(), ErrLocked)
		h.tellAcquired(t.Context(), TakenOver)
		h.tellEnded(HandedOver)
	}))
	require.Same(t, o, h.options)
}

// TestObserver_TellsOfTheLossOnce: at the deadline, whatever else ends the lock, and not if it was
// given up before.
func TestObserver_TellsOfTheLossOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for what, c := range map[string]struct {
			before, after func(h *Hold)
			want          time.Duration // 0 for never
		}{
			"at the deadline":          {want: time.Second},
			"beside its context":       {before: func(h *Hold) { h.Context() }, want: time.Second},
			"extended":                 {after: func(h *Hold) { h.lease.Extend(time.Now().Add(time.Minute), time.Now()) }, want: time.Minute},
			"passed before":            {before: func(*Hold) { time.Sleep(2 * time.Second) }, want: 2 * time.Second},
			"ended":                    {after: func(h *Hold) { h.lease.End(nil) }},
			"closed":                   {after: func(h *Hold) { h.lease.End(ErrClosed) }},
			"ended before":             {before: func(h *Hold) { h.lease.End(nil) }},
			"ended after the deadline": {after: func(h *Hold) { time.Sleep(time.Minute); h.lease.End(nil); h.tellEnded(Lost) }, want: time.Second},
		} {
			start := time.Now()
			var told []time.Duration
			h := &Hold{options: &Options{Hooks: []Hook{func(_ context.Context, e Event) {
				if e.What == Lost {
					told = append(told, time.Since(start))
				}
			}}}}
			h.begin(start, start.Add(time.Second), start.Add(time.Minute))
			h.observe()
			if c.before != nil {
				c.before(h)
			}
			h.tellAcquired(t.Context(), Acquired)
			if c.after != nil {
				c.after(h)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			if c.want == 0 {
				require.Empty(t, told, what)
			} else {
				require.Equal(t, []time.Duration{c.want}, told, what)
			}
		}
	})
}

// TestApartLocks_NoneIsAddedUnseen: what is added while the Engine closes is refused, or among
// those that Close releases after that.
func TestApartLocks_NoneIsAddedUnseen(t *testing.T) {
	t.Parallel()
	for range 100 {
		e := &Engine{closed: make(chan struct{})}
		holds, added := make([]Hold, 20), make([]bool, 20)
		soon := time.Now().Add(time.Minute)
		var all sync.WaitGroup
		for i := range holds {
			h := &holds[i]
			h.engine, h.options = e, &e.Options
			h.begin(time.Now(), soon, soon)
			all.Go(func() { added[i] = e.apart.add(h) })
		}
		close(e.closed)
		released := e.apart.all("")
		all.Wait()
		for i := range holds {
			require.Equal(t, added[i], slices.Contains(released, &holds[i]))
		}
	}
}
