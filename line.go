package sluice

import (
	"slices"
	"sync"
	"time"
)

const (
	// passFor is how long a Locker hands a lock on among its own callers before
	// it gives it back to Redis, where other processes wait. The key is taken
	// for that much longer than the TTL, so that whoever gets the lock by hand
	// has his full TTL too.
	passFor = 10 * time.Millisecond
	slack   = passFor + 2*time.Millisecond
	// yieldFor is how long a Locker that has given a lock back lets those who
	// were told of it go first.
	yieldFor = 2 * time.Millisecond
	// headStart is by how much a Locker lets another go first that has waited for
	// one release more than itself, and longestStart for how many at most.
	headStart    = 300 * time.Microsecond
	longestStart = 5 * time.Millisecond
)

// lines are the callers of one Locker by the name that they want. A line is idle
// unless somebody of them holds the lock, asks Redis for it, or waits.
//
// The one in front holds the lock or asks for it; the others wait for their
// turn, first come first served, and send nothing. When the one in front
// releases the lock, the next gets it without a round trip (pass) if all of its
// TTL is covered by what the server knows, for a short time; otherwise it is
// released on Redis, and the next one asks there (advance).
type lines struct {
	mu   sync.Mutex       // guards what follows, the lines' fields and their places
	all  map[string]*line // by key
	room int              // when all has grown to this, idle lines are dropped
}

type line struct {
	at *address

	front *place // nobody is before it; nil if the line is idle
	held  bool   // front holds the lock, and has not begun to give it back
	// taken says that front has been told that somebody else holds the lock,
	// and has heard nothing else since.
	taken       bool
	first, last *place // those who wait
	// peers is how many others were told when the lock was last given back from
	// here, and heard how many releases the hub had heard of then. Redis tells
	// subscribers in the order in which they came, so that of those who simply
	// ask, the oldest two would pass the lock to and fro between them.
	peers, heard int
	alarm        *time.Timer // looks whether front has lost the lock; nil if none is set
	alarmAt      time.Time   // when
}

// place is a caller's place in a line.
type place struct {
	lock       *Lock
	line       *line
	try        bool // TryLock: leaves as soon as somebody is known to hold the lock
	waits      bool // it is between first and last
	prev, next *place
	turn       chan turn // cap 1: what a place that waits is told, once
}

// turn is what somebody who waits is told.
type turn int

const (
	granted  turn = iota // the lock is yours
	ask                  // you are in front: ask Redis
	askLater             // likewise, but others were before you
	busyTurn             // TryLock: somebody else holds it
)

// enter gives k a place. With ask it is in front; with busyTurn it has none,
// because somebody holds the lock and it would not wait. Otherwise the turn comes
// through the place's channel, and wait is true.
func (ls *lines) enter(k *Lock, try bool) (t turn, wait bool, err error) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := ls.all[k.prefix+k.name]
	if ln == nil || checkLengths(k.prefix, k.name) != nil {
		ln = &line{}
		if ln.at, err = addressOf(k.prefix, k.name); err != nil {
			return 0, false, err
		}
		ls.makeRoom()
		ls.all[ln.at.key] = ln
	}
	if k.at = ln.at; k.fenced && k.at.fenced == nil {
		k.at.fenced = append(slices.Clip(k.at.keys), companion(k.at.key, ":fence"))
	}
	k.place = place{lock: k, line: ln, try: try}
	if ln.held && ln.front.lock.expired() {
		ls.next(ln, ask) // without the holder, who has forgotten it
	}
	switch {
	case ln.front == nil:
		ln.front = &k.place
		return ask, false, nil
	case try && (ln.held || ln.taken):
		return busyTurn, false, nil
	}
	k.place.turn = make(chan turn, 1)
	ln.push(&k.place)
	if ln.held {
		ls.watch(ln)
	}
	return 0, true, nil
}

// leave takes a place that waits out of its line. It says no if the turn has
// come already.
func (ls *lines) leave(p *place) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if !p.waits {
		return false
	}
	p.line.remove(p)
	return true
}

// known says whether somebody is known to hold the lock that p waits for.
func (ls *lines) known(p *place) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return p.line.held || p.line.taken
}

// looked notes what the one in front was told by Redis: that somebody else holds
// the lock, or (with taken false) nothing yet.
func (ls *lines) looked(p *place, taken bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if p.line.front != p {
		return
	}
	p.line.taken = taken
	if taken {
		p.line.sendTriersHome()
	}
}

// hold makes the one in front the holder, unless the Locker is closed: Close
// releases those who hold after it has closed the channel.
func (ls *lines) hold(p *place, closed <-chan struct{}) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if isClosed(closed) {
		return false
	}
	ln := p.line
	ln.held, ln.taken = true, false
	ln.sendTriersHome()
	if ln.first != nil {
		ls.watch(ln)
	}
	return true
}

// distrust keeps a lock that was forced open from being handed on: that of the one
// in front, or the one that it is about to be told of.
func (ls *lines) distrust(key string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln := ls.all[key]; ln != nil && ln.front != nil {
		ln.front.lock.distrust()
	}
}

// pass hands the lock of the one in front, who has just given it up, to the next
// in line, and says whether it did. It does where that is safe, and the Locker is
// not closed.
func (ls *lines) pass(p *place, closed <-chan struct{}) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln := p.line
	if ln.front != p || !ln.held {
		return false
	}
	next := ln.first
	if next == nil || isClosed(closed) || !next.lock.inherit(p.lock) {
		// It goes back to Redis, and p stays in front until it is there. It is no
		// holder any more (one that has lost its lock would be put out of the
		// line), but the lock is not free either.
		ln.held, ln.taken = false, true
		return false
	}
	ln.remove(next)
	ln.front = next
	if ln.first != nil {
		ls.watch(ln)
	}
	next.turn <- granted
	return true
}

// advance ends the turn of the one in front, who holds nothing any more: the
// next one is to ask.
func (ls *lines) advance(p *place) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if p.line != nil && p.line.front == p {
		ls.next(p.line, ask)
	}
}

// released is advance when the lock was given back to Redis, and so many others
// were told: they are to go first. heard is how many releases the hub has heard
// of, this one included.
func (ls *lines) released(p *place, others, heard int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if p.line == nil || p.line.front != p {
		return
	}
	p.line.peers, p.line.heard = others, heard
	if others > 0 {
		ls.next(p.line, askLater)
	} else {
		ls.next(p.line, ask)
	}
}

// courtesy is how long to wait before asking when a release was heard of: the less,
// the more of them this line has let pass since it had the lock itself, so that
// the Locker that has waited longest comes first.
func (ls *lines) courtesy(p *place, heard int) time.Duration {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if heard < p.line.heard-1 { // the channel was forgotten, and is counted anew
		return 0
	}
	before := max(p.line.peers-max(heard-p.line.heard, 0), 0)
	return min(time.Duration(before)*headStart, longestStart)
}

func (ls *lines) next(ln *line, t turn) {
	ln.held, ln.taken = false, false
	ln.front = ln.first
	if ln.front != nil {
		ln.remove(ln.front)
		ln.front.turn <- t
		return
	}
	ln.peers, ln.heard = 0, 0 // the hub may forget the channel before it is wanted again
	if ln.alarm != nil {
		ln.alarm.Stop()
		ln.alarm = nil
	}
}

// watch sees to it that a holder who forgets its lock is noticed when it is lost.
// Its deadline moves with every extension and every hand-over, mostly to later, so
// the alarm is set anew only for an earlier one, and looks when it goes off.
func (ls *lines) watch(ln *line) {
	deadline := ln.front.lock.Deadline()
	if ln.alarm != nil && !deadline.Before(ln.alarmAt) {
		return
	}
	if ln.alarm != nil {
		ln.alarm.Stop()
	}
	ln.alarmAt = deadline
	ln.alarm = time.AfterFunc(time.Until(deadline), func() { ls.look(ln) })
}

func (ls *lines) look(ln *line) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln.alarm = nil
	if !ln.held || ln.first == nil {
		return
	}
	if !ln.front.lock.expired() {
		ls.watch(ln)
		return
	}
	ls.next(ln, ask)
}

// holders are the locks that are held.
func (ls *lines) holders() (locks []*Lock) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, ln := range ls.all {
		if ln.held {
			locks = append(locks, ln.front.lock)
		}
	}
	return locks
}

// makeRoom drops idle lines, and those whose holder has lost its lock and for
// which nobody waits, so that forgetting locks leaks nothing. Until then an idle
// line spares the next lock of that name its making.
func (ls *lines) makeRoom() {
	if len(ls.all) < ls.room {
		return
	}
	for key, ln := range ls.all {
		if ln.front == nil || ln.held && ln.first == nil && ln.front.lock.expired() {
			delete(ls.all, key)
		}
	}
	ls.room = 2*len(ls.all) + 64
}

func (ln *line) push(p *place) {
	p.waits, p.prev = true, ln.last
	if ln.last == nil {
		ln.first = p
	} else {
		ln.last.next = p
	}
	ln.last = p
}

func (ln *line) remove(p *place) {
	if p.prev == nil {
		ln.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		ln.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.waits, p.prev, p.next = false, nil, nil
}

// sendTriersHome tells those who would not wait that there is nothing to be had.
func (ln *line) sendTriersHome() {
	for p := ln.first; p != nil; {
		next := p.next
		if p.try {
			ln.remove(p)
			p.turn <- busyTurn
		}
		p = next
	}
}
