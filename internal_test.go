package sluice

import (
	"testing"
	"time"

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
		"shorter TTL":       {ttl: time.Second, want: true},
		"in time":           {held: passFor - 2*time.Millisecond, ttl: ttl, want: true},
		"passed for long":   {held: passFor, ttl: time.Second},
		"longer TTL":        {ttl: ttl + 2*slack},
		"past the deadline": {ttl: time.Second, spoil: func(from *Lock) { from.deadline = time.Now() }},
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
			next := &Lock{ttl: test.ttl}
			require.Equal(t, test.want, next.inherit(from))
			require.Equal(t, test.want, from.passed())
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
	ls := lines{all: map[lineKey]*line{}}
	id := lineKey{"", "a"}
	front := &Lock{ttl: time.Minute, deadline: time.Now().Add(time.Minute)}
	first, wait, err := ls.enter(front, id, false)
	require.NoError(t, err)
	require.False(t, wait)
	require.Equal(t, ask, first)
	require.True(t, ls.hold(&front.place, nil))
	require.NoError(t, front.end(nil))
	require.False(t, ls.pass(&front.place, nil), "there is nobody to pass it to")

	next := &Lock{ttl: time.Minute}
	_, wait, err = ls.enter(next, id, false)
	require.NoError(t, err)
	require.True(t, wait, "it overtook the release")
	busy, _, err := ls.enter(&Lock{}, id, true)
	require.NoError(t, err)
	require.Equal(t, busyTurn, busy)

	ls.released(&front.place, 3, 0)
	require.Equal(t, askLater, <-next.place.turn)
	ls.advance(&next.place)
	require.Empty(t, ls.all)
}
