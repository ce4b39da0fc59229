package sluice

import (
	"math"
	"slices"
	"time"
)

// A window is how long a Locker hands a lock over among its own callers, from the moment at
// which the acquisition was sent, before it gives the lock back to Redis, where other
// processes wait.
//
// It is chosen before the acquisition is sent, because the key's life has to cover it, and
// stays with the grant. On the way to the server and back a round trip of it is lost, and
// another one with the release. So it follows the round trip: of windows of three, a caller
// beyond the network hands over for half of the time.
type window time.Duration

const (
	shortestWindow = window(10 * time.Millisecond)
	// longestWindow and windowShare of the TTL bound what a crash adds to the TTL, and for how
	// long one turn of a process keeps the others waiting.
	longestWindow = window(200 * time.Millisecond)
	windowShare   = 10
	windowTrips   = 3
)

// windowFor returns the window of a lock with that TTL, if a round trip takes so long.
func windowFor(roundTrip, ttl time.Duration) window {
	return max(shortestWindow, min(window(windowTrips*roundTrip), longestWindow, window(ttl/windowShare)))
}

// margin is by how much longer than its TTL a key is taken, so that a caller that takes the
// lock over within the window has its full TTL too.
func (w window) margin() time.Duration { return time.Duration(w) + 2*time.Millisecond }

// fences is how many fences are reserved with an acquisition: one for each microsecond of
// the window.
func (w window) fences() int64 { return time.Duration(w).Microseconds() }

// px returns the TTL that a key is taken with, in ms, as an argument of scripts.
func (w window) px(o *lockOptions) any {
	if w == shortestWindow {
		return o.px // without an allocation
	}
	return millis(o.ttl + w.margin())
}

// roundTrips are those of a name's last acquisitions that were answered. They belong to the
// head of the name's queue. Those of other names say less: where many locks are taken at
// once, each waits for a connection. The zero value is ready.
type roundTrips struct {
	count uint32
	last  [7]uint32 // in microseconds; a ring
}

// note notes how long the reply to a command took that was sent then.
func (r *roundTrips) note(sent time.Time) {
	r.last[int(r.count)%len(r.last)] = uint32(min(time.Since(sent).Microseconds(), math.MaxUint32))
	r.count++
}

// shortest returns the shortest of the last ones, or 0 as long as fewer than two are known:
// the first may have made a connection.
//
// It is the shortest because a server that stalls, or a process without a CPU, must not widen
// the window: other processes would wait for longer. Seven slow ones in a row widen it, and
// the first quick one makes it narrow again. An average would do neither.
func (r *roundTrips) shortest() time.Duration {
	if r.count < 2 {
		return 0
	}
	known := r.last[:min(int(r.count), len(r.last))]
	return time.Duration(slices.Min(known)) * time.Microsecond
}
