package sluice

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestInherit is the rule by which a lock is handed on.
func TestInherit(t *testing.T) {
	const ttl = 10 * time.Second
	for name, test := range map[string]struct {
		held  time.Duration // how long ago the lock was acquired
		ttl   time.Duration // of who inherits
		spoil func(from *Lock)
		want  bool
	}{
		"at once":           {ttl: ttl, want: true},
		"shorter TTL":       {ttl: time.Second}, // a crash would block others for the longer one
		"in time":           {held: passFor - 2*time.Millisecond, ttl: ttl, want: true},
		"passed for long":   {held: passFor, ttl: ttl},
		"longer TTL":        {ttl: ttl + 2*slack},
		"past the deadline": {ttl: ttl, spoil: func(from *Lock) { from.deadline = time.Now() }},
		"forced open":       {ttl: ttl, spoil: func(from *Lock) { from.hold.forced = true }},
	} {
		t.Run(name, func(t *testing.T) {
			sent := time.Now().Add(-test.held)
			from := &Lock{deadline: deadline(sent, ttl), hold: hold{
				token: "t", keyUntil: deadline(sent, ttl+slack), passUntil: sent.Add(passFor),
			}}
			if test.spoil != nil {
				test.spoil(from)
			}
			next := &Lock{lockOptions: lockOptions{ttl: test.ttl}}
			require.Equal(t, test.want, next.inherit(from))
			require.Equal(t, test.want, next.Valid())
			require.False(t, next.deadline.After(from.hold.keyUntil), "not covered by the key")
		})
	}
}

// TestBusy: what the server says of itself is waited out; Redis 6 wraps what a
// script meets.
func TestBusy(t *testing.T) {
	for text, want := range map[string]bool{
		"READONLY You can't write against a read only replica.":                       true,
		"LOADING Redis is loading the dataset in memory":                              true,
		"TRYAGAIN Multiple keys request during rehashing of slot":                     true,
		"CLUSTERDOWN The cluster is down":                                             true,
		"ERR Error running script (call to f_1): @user_script:5: -READONLY You can't": true,
		"ERR unknown command READONLY":                                                false,
		"OOM command not allowed when used memory > 'maxmemory'.":                     false,
	} {
		require.Equal(t, want, isBusy(serverError(text)), text)
	}
}

// TestGivingBack: while the lock of the one in front is on its way back to Redis,
// who comes stands behind it; TryLock is told that it is held; and the next is
// told to ask when it is there.
func TestGivingBack(t *testing.T) {
	ls := lines{all: map[string]*line{}}
	front := &Lock{name: "a", lockOptions: lockOptions{ttl: time.Minute}, deadline: time.Now().Add(time.Minute)}
	first, wait, err := ls.enter(front, false)
	require.NoError(t, err)
	require.False(t, wait)
	require.Equal(t, ask, first)
	require.True(t, ls.hold(&front.place, nil))
	require.NoError(t, front.end(nil))
	require.False(t, ls.pass(&front.place, nil), "there is nobody to pass it to")

	next := &Lock{name: "a", lockOptions: lockOptions{ttl: time.Minute}}
	_, wait, err = ls.enter(next, false)
	require.NoError(t, err)
	require.True(t, wait, "it overtook the release")
	busy, _, err := ls.enter(&Lock{name: "a"}, true)
	require.NoError(t, err)
	require.Equal(t, busyTurn, busy)

	ls.released(&front.place, 3, 0)
	require.Equal(t, askLater, <-next.place.turn)
	ls.advance(&next.place)
	ls.room = 0
	ls.makeRoom()
	require.Empty(t, ls.all)
}

// TestTooLate: an extension that is answered after Unlock has begun must not have
// the token released, which may be the next holder's by then.
func TestTooLate(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	defer func() { _ = rdb.Close() }()
	l, err := NewLocker(rdb)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	k := &Lock{locker: l, at: &address{}, deadline: time.Now().Add(time.Minute), hold: hold{token: "t"}}
	require.NoError(t, k.end(nil))
	k.tooLate()
	l.cleaner.mu.Lock()
	require.Empty(t, l.cleaner.jobs)
	l.cleaner.mu.Unlock()

	lost := &Lock{locker: l, at: &address{}, deadline: time.Now(), hold: hold{token: "u"}}
	lost.tooLate()
	l.cleaner.mu.Lock()
	require.Len(t, l.cleaner.jobs, 1)
	l.cleaner.mu.Unlock()
}

// TestNewerLine: a holder whose line was dropped as forgotten must not take the
// newer line of its name away when it unlocks at last.
func TestNewerLine(t *testing.T) {
	ls := lines{all: map[string]*line{}}
	old := &Lock{name: "a", lockOptions: lockOptions{ttl: time.Minute}}
	_, _, err := ls.enter(old, false)
	require.NoError(t, err)
	require.True(t, ls.hold(&old.place, nil)) // and its deadline has passed
	ls.mu.Lock()
	ls.room = 0
	ls.makeRoom()
	ls.mu.Unlock()
	require.Empty(t, ls.all)
	newer := &Lock{name: "a", lockOptions: lockOptions{ttl: time.Minute}, deadline: time.Now().Add(time.Minute)}
	_, _, err = ls.enter(newer, false)
	require.NoError(t, err)
	require.True(t, ls.hold(&newer.place, nil))
	ls.released(&old.place, 0, 0)
	require.Equal(t, []*Lock{newer}, ls.holders())
}

// TestInvalidWithAnIdleLine: that a key is known makes no bad name good.
func TestInvalidWithAnIdleLine(t *testing.T) {
	ls := lines{all: map[string]*line{}}
	good := &Lock{name: "a", lockOptions: lockOptions{prefix: "Lock:", ttl: time.Minute}}
	_, _, err := ls.enter(good, false)
	require.NoError(t, err)
	ls.advance(&good.place)
	_, _, err = ls.enter(&Lock{lockOptions: lockOptions{prefix: "Lock:a", ttl: time.Minute}}, false)
	require.ErrorIs(t, err, ErrInvalidName)
}

// TestCourtesy: who comes back to a name owes nobody a head start for what was
// before, nor who counts anew.
func TestCourtesy(t *testing.T) {
	ls := lines{all: map[string]*line{}}
	k, waits := &Lock{name: "a"}, &Lock{name: "a"}
	_, _, err := ls.enter(k, false)
	require.NoError(t, err)
	_, wait, err := ls.enter(waits, false)
	require.NoError(t, err)
	require.True(t, wait)
	ls.released(&k.place, 3, 5000)
	require.Equal(t, 3*headStart, ls.courtesy(&waits.place, 5000))
	require.Equal(t, headStart, ls.courtesy(&waits.place, 5002))
	require.Zero(t, ls.courtesy(&waits.place, 1), "the channel was forgotten")
	ls.advance(&waits.place)
	_, _, err = ls.enter(k, false)
	require.NoError(t, err)
	require.Zero(t, ls.courtesy(&k.place, 5000), "the line was idle")
}

// TestFirstRenewal is at a third of the TTL, or sooner where the acquisition has
// left little of it.
func TestFirstRenewal(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	defer func() { _ = rdb.Close() }()
	l, err := NewLocker(rdb)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	for left, want := range map[time.Duration]time.Duration{
		time.Minute:      20 * time.Second,
		10 * time.Second: 5 * time.Second,
	} {
		now := time.Now()
		k := &Lock{locker: l, at: &address{keys: []any{"k"}}, deadline: now.Add(left), lockOptions: lockOptions{ttl: time.Minute}}
		l.renewer.add(k)
		l.renewer.mu.Lock()
		at := l.renewer.due[k]
		l.renewer.mu.Unlock()
		require.WithinDuration(t, now.Add(want), at, time.Second)
	}
}
