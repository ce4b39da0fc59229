package locks

import (
	"crypto/rand"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/store"
)

// grant is what the server gave when the lock was acquired. A hand-over passes it on. It is not
// changed after the acquisition: the locks that had it share it.
type grant struct {
	token    any       // a string, as scripts are given it
	lost     []any     // tokens of the last requests, if they had no reply: the next replaces them
	member   string    // in line, which the acquisition may have made; "" once it is answered
	window   window    // chosen before the acquisition was sent
	sent     time.Time // when that was: a window later the lock goes back to Redis
	fences   fences
	replicas int           // so many have acknowledged it, and each extension
	apart    bool          // its lock is in no queue: see apart
	asked    time.Duration // the longest TTL that an unsettled extension of an earlier holder asked for
}

// randomLength is how many characters of a token are random: 5 bits each. inspect.lua has it too.
const randomLength = 26

// newToken returns a token that no other acquisition has: label:random, or only what is random.
func newToken(owner string) string {
	random := rand.Text()[:randomLength]
	if owner == "" {
		return random
	}
	return owner + ":" + random
}

// OwnerIn returns the label in a token, and whether newToken may have made it.
func OwnerIn(token string) (owner string, ok bool) {
	label := len(token) - randomLength
	if label < 0 || strings.Trim(token[label:], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
		return "", false
	}
	owner, ok = strings.CutSuffix(token[:label], ":")
	return owner, ok == (owner != "") // a label has a colon behind it, and no label has none
}

// A window is how long an Engine hands a lock over among its own callers, from the moment at
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

// keyTTL returns the TTL that a key is taken with, in ms, as an argument of scripts.
func (w window) keyTTL(o *Options) any {
	if w == shortestWindow {
		return o.keyTTL // without an allocation
	}
	return store.Millis(o.TTL + w.margin())
}

// roundTrips are those of a name's last acquisitions that were answered. The head of the name's
// queue notes them, and a release reads them. Those of other names say less: where many locks are
// taken at once, each waits for a connection. The zero value is ready.
type roundTrips struct {
	count  atomic.Uint32
	last   [7]atomic.Uint32 // in microseconds; a ring
	inVain atomic.Uint32    // the longest time without a reply since the last one, in microseconds
	noted  atomic.Int64     // when something was noted last, in ns of Unix time
}

const (
	// expectedFor is for how long it counts what was noted: after that one caller tries, however
	// short its time is.
	expectedFor = time.Second
	// longestExpected is the longest time for which a reply is expected to be on its way: a server
	// that takes longer is not far away, but hangs, and may answer the next request at once.
	longestExpected = 500 * time.Millisecond
)

// note notes how long the reply to a command took that was sent then.
func (r *roundTrips) note(sent time.Time) {
	n, now := int(r.count.Load()), time.Now()
	r.last[n%len(r.last)].Store(microseconds(now.Sub(sent)))
	r.count.Add(1)
	r.inVain.Store(0)
	r.noted.Store(now.UnixNano())
}

// noteNone notes that no reply has come to a command that was sent then.
func (r *roundTrips) noteNone(sent time.Time) {
	now := time.Now()
	r.inVain.Store(max(r.inVain.Load(), microseconds(now.Sub(sent))))
	r.noted.Store(now.UnixNano())
}

func microseconds(d time.Duration) uint32 {
	return uint32(max(0, min(d.Microseconds(), math.MaxUint32)))
}

// expected returns how long a reply takes at the least, by what was noted lately, or 0.
func (r *roundTrips) expected() time.Duration {
	if since := time.Now().UnixNano() - r.noted.Load(); since > int64(expectedFor) || since < 0 { // the clock was set back
		return 0
	}
	return min(max(r.shortest(), time.Duration(r.inVain.Load())*time.Microsecond), longestExpected)
}

// shortest returns the shortest of the last ones, or 0 as long as fewer than two are known:
// the first may have made a connection.
//
// It is the shortest because a server that stalls, or a process without a CPU, must not widen
// the window: other processes would wait for longer. Seven slow ones in a row widen it, and
// the first quick one makes it narrow again. An average would do neither.
func (r *roundTrips) shortest() time.Duration {
	n := min(int(r.count.Load()), len(r.last))
	if n < 2 {
		return 0
	}
	least := r.last[0].Load()
	for i := 1; i < n; i++ {
		least = min(least, r.last[i].Load())
	}
	return time.Duration(least) * time.Microsecond
}

// longest returns the longest of the last ones, 0 if none is known.
func (r *roundTrips) longest() time.Duration {
	var most uint32
	for i := range r.last {
		most = max(most, r.last[i].Load())
	}
	return time.Duration(most) * time.Microsecond
}

// fences are those that were reserved with an acquisition. The first is at least the
// server's time in microseconds. Each hand-over takes the fence of its own time, and what
// is left is given back with the lock.
//
// So no fence runs ahead of the server's clock: the n-th is not given out before n
// microseconds have passed since the acquisition was answered. The clock alone then makes
// the next acquisition's fence higher, should the server have forgotten all of them.
type fences struct {
	first int64 // 0 if there are none
	block int64 // how many there are
	since time.Time
}

// last is the last of them, 0 if there are none.
func (f fences) last() int64 { return max(0, f.first+f.block-1) }

// after takes a fence for the lock that takes over from the one that took the current fence:
// that of the present microsecond or, where that was taken, the next one, when its time has come.
//
// The following one of the block would do as long as one primary gives all fences. After
// a failover two primaries may do so for a while: the other one may have given a higher
// fence meanwhile.
func (f fences) after(current int64) (next int64, ok bool) {
	last := f.last()
	if f.first == 0 || current == last {
		return 0, false
	}
	for range 500 { // a few microseconds; on a fake clock that stands still, in vain
		if now := f.first + time.Since(f.since).Microseconds(); now > current {
			return min(now, last), true
		}
	}
	return 0, false
}

// unusedFences is how many fences are to be given back. Of an acquisition whose reply was
// lost, all. It reads nothing that changes after the acquisition was sent: the sender calls it when
// the caller has left.
func (h *Hold) unusedFences() int64 {
	f := h.grant.fences
	if f.first == 0 {
		return h.grant.window.fences()
	}
	return f.last() - h.fence
}
