package store

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// MaxPermits is how many may hold one lock at once, at most: Force reads all their tokens at once.
const MaxPermits = 1000

// Lock has the keys of a lock, and makes the requests about it.
//
// A lock of which several may hold a permit each has the same keys, and scripts of its own.
type Lock struct {
	scripts *Scripts
	keys    []any // the lock's, and its line's
}

// Init names the keys of the lock with that main key.
func (l *Lock) Init(s *Scripts, key string) {
	l.scripts, l.keys = s, []any{key, keyspace.Companion(key, keyspace.Line)}
}

// Key is the lock's main key.
func (l *Lock) Key() string {
	key, _ := l.keys[0].(string)
	return key
}

// RoutingKey is the main key as an argument: it says which server has the lock.
func (l *Lock) RoutingKey() any { return l.keys[0] }

// WakeChannel is what the channels begin with on which the processes in its line are notified.
func (l *Lock) WakeChannel() string { return keyspace.Companion(l.Key(), keyspace.Wake) }

// fencedKeys are these, and that of the last fence: most locks need none.
func (l *Lock) fencedKeys() []any {
	return append(slices.Clone(l.keys), keyspace.Companion(l.Key(), keyspace.Fence))
}

// Set takes the lock if its key is free, without its line and without a fence.
func (l *Lock) Set(token, ttl any) redisexec.Request {
	return redisexec.Plain("set", l.keys[0], token, "px", ttl, "nx")
}

// Acquisition is what a request to take the lock says.
type Acquisition struct {
	Token    any    // a string
	TTL      any    // for how many milliseconds the key is to live
	Permits  int    // how many may hold the lock at once
	Fenced   bool   // the holder gets a fence
	Fences   int64  // how many are reserved for those to whom the lock is handed over
	Member   string // of the process in the lock's line; "" if it is not there
	Score    string // its place there, if Joins
	Joins    bool   // the process joins the line, or stays there, if another one holds the lock
	Replaces []any  // the tokens of earlier requests without a reply
}

// Acquire takes the lock if it is free, or reserved for this process.
func (l *Lock) Acquire(a *Acquisition) redisexec.Request {
	script, keys, values := l.kind(a.Permits > 1).Acquire, l.keys[:1], []any{a.Token, a.TTL}
	waits := a.Member != "" || len(a.Replaces) > 0
	switch {
	case a.Permits > 1:
		values = append(values, a.Permits)
	case a.Fenced:
		values = append(values, a.Fences)
	case waits:
		values = append(values, "")
	}
	if waits {
		how := ""
		if a.Joins {
			how = "join"
		}
		keys, values = l.keys[:2], append(append(values, a.Member, a.Score, how), a.Replaces...)
	}
	if a.Fenced {
		keys = l.fencedKeys()
	}
	return spareLine(script.Request(keys, values...))
}

// spareLine says that a request does without the lock's line where a server has not got that key.
func spareLine(r redisexec.Request) redisexec.Request {
	r.SecondIsSpare = true
	return r
}

// NotListening is the place in line of a process that is not subscribed where the line is.
const NotListening = -2

// Acquired is the answer to an acquisition.
type Acquired struct {
	Taken   bool
	Fence   int64         // the first that was reserved, if it is taken and there are any
	Left    time.Duration // for how long another one may still keep it, if it is not
	Ahead   int           // how many processes are before this one in line; -1, or NotListening, if it is not there
	Score   string        // its place in line
	HeldFor int           // if it is held for another number of holders: that number; else 0
}

// DecodeAcquired reads the answer to an acquisition.
func DecodeAcquired(value any) (a Acquired, err error) {
	switch v := value.(type) {
	case int64:
		switch {
		case v > 0:
			return Acquired{Left: timeToLive(v), Ahead: -1}, nil
		case v < -1:
			return Acquired{HeldFor: int(-1 - v)}, nil
		}
	case []any:
		return decodeWaiting(v)
	}
	a.Fence, err = decodeFence(value)
	a.Taken = err == nil
	return a, err
}

func decodeWaiting(list []any) (Acquired, error) {
	r := newReader(list)
	left, ahead, score := r.between(0, math.MaxInt64), r.between(NotListening, math.MaxInt64), r.text()
	return Acquired{Left: timeToLive(left), Ahead: int(min(ahead, math.MaxInt32)), Score: score}, r.err()
}

// decodeFence reads a fence, 0 for none. A string is for those that a script cannot put into a
// number.
func decodeFence(value any) (fence int64, err error) {
	switch v := value.(type) {
	case int64:
		switch {
		case v == 0:
			return 0, nil
		case v < 0:
			return 0, fmt.Errorf("%w: the last fence", redisexec.ErrCorrupt)
		}
	case string:
		if fence, err = strconv.ParseInt(v, 10, 64); err == nil && fence > 0 {
			return fence, nil
		}
	}
	return 0, redisexec.Unexpected(value)
}

// Release gives the lock back and notifies the first in line. member is that of this process which
// the acquisition may have left there; "" for none. The answer is 0 if the token did not hold the
// lock, else 1 and the number of processes woken.
func (l *Lock) Release(token any, member string, permits bool) redisexec.Request {
	if member == "" {
		return spareLine(l.kind(permits).Release.Request(l.keys, token))
	}
	return spareLine(l.kind(permits).Release.Request(l.keys, token, member))
}

// ReleaseFenced is Release of a lock with fences, of which so many were not used: 0 last for those
// that are not known.
func (l *Lock) ReleaseFenced(token any, member string, unused, last int64) redisexec.Request {
	var known any = ""
	if last != 0 {
		known = last
	}
	return spareLine(l.scripts.OfLocks.Release.Request(l.fencedKeys(), token, member, unused, known))
}

// Leave takes the process's member out of the line, and passes on what it was woken for.
func (l *Lock) Leave(member string, permits bool) redisexec.Request {
	return l.kind(permits).Release.Request(l.keys, member, member)
}

// Extend has the lock last for d from now on. The answer is 1 if the token holds it.
func (l *Lock) Extend(token any, d time.Duration, permits bool) redisexec.Request {
	return l.kind(permits).Extend.Request(l.keys[:1], token, Millis(d))
}

// Adopt is Extend of what may have no holder in this process; the answer has its last fence, if it
// is fenced.
func (l *Lock) Adopt(token any, d time.Duration, permits, fenced bool) redisexec.Request {
	if fenced {
		return spareLine(l.kind(permits).Extend.Request(l.fencedKeys(), token, Millis(d)))
	}
	return l.Extend(token, d, permits)
}

// kind returns the scripts of permits or of plain locks.
func (l *Lock) kind(permits bool) *LockScripts {
	if permits {
		return &l.scripts.OfPermits
	}
	return &l.scripts.OfLocks
}

// DecodeAdopted reads the answer to Adopt. A fence is text, and 1 says that the lock has none.
func DecodeAdopted(value any) (held bool, fence int64, err error) {
	if value == int64(1) {
		return true, 0, nil
	}
	fence, err = decodeFence(value)
	return fence > 0, fence, err
}

// TTL asks for how long the token still holds the lock.
func (l *Lock) TTL(token any, permits bool) redisexec.Request {
	return l.kind(permits).Inspect.Request(l.keys[:1], token)
}

// DecodeTTL reads the answer to TTL. A key of a foreign program may live for ever: then d is
// negative.
func DecodeTTL(value any) (d time.Duration, held bool, err error) {
	ms, err := redisexec.Int(value)
	return timeToLive(ms), ms != -2, err
}

// Inspect asks who holds the lock, and how many wait.
func (l *Lock) Inspect() redisexec.Request {
	return spareLine(l.scripts.OfLocks.Inspect.Request(l.keys, ""))
}

// Inspected is the answer to Inspect.
type Inspected struct {
	Holders int
	Owners  []string // as the holders' tokens begin, which others may have written
	Left    time.Duration
	Waiting int
	Waiters []string // likewise, of the first in line
}

// DecodeInspected reads the answer to Inspect.
func DecodeInspected(value any) (i Inspected, err error) {
	r := newReader(value)
	i.Left = timeToLive(r.between(-2, math.MaxInt64))
	i.Owners = texts(r.list())
	i.Holders, i.Waiting = int(r.between(0, MaxPermits)), int(min(r.between(0, math.MaxInt64), math.MaxInt32))
	i.Waiters = texts(r.list())
	if r.err() != nil {
		return Inspected{}, r.err()
	}
	return i, nil
}

// texts returns those of a list that are texts.
func texts(list []any) (all []string) {
	for _, one := range list {
		if text, ok := one.(string); ok {
			all = append(all, text)
		}
	}
	return all
}

// Force takes the lock from its holders, if one of them has that label; from any for "". The answer has
// the tokens that held it.
func (l *Lock) Force(owner string) redisexec.Request {
	return spareLine(l.scripts.Force.Request(l.keys, owner))
}

// DecodeForced reads the answer to Force.
func DecodeForced(value any) (tokens map[string]bool, err error) {
	r := newReader(value)
	tokens = map[string]bool{}
	for r.more() {
		tokens[r.text()] = true
	}
	return tokens, r.err()
}
