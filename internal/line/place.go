// Package line keeps this process's places in the lines of locks, in which processes wait.
//
// A line is on the server: a sorted set beside the lock's key, with a member for each process that
// waits. As in ZooKeeper's and etcd's lock recipes, a release wakes one of them, and not all; and
// it reserves the lock for that process, which takes it although others come first. Scripts join
// the line and move it (see lua/shared/lock_line.lua); a Place knows what they have said, waits,
// and says when the server is to be asked again.
//
// The line is a hint. A process may be dead and in line, or alive and left out. So each one polls
// too: the more rarely, the more are before it.
package line

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/store"
)

// longestPoll is the longest time between two polls of one that is not the first in line, unless
// its retry interval is longer.
const longestPoll = 10 * time.Second

// renewal is the longest time between two polls of one that is in line: a poll renews the line's
// TTL of a minute when half of it is over.
const renewal = 25 * time.Second

// nearest is how many of those that are first in line poll once in a retry interval. The others
// poll the more rarely, the more are before them: of a thousand, some 25 do in each interval. More
// would find sooner what every message about was lost.
const nearest = 4

// A reservation is for as long as three of the process's longest round trips lately, within these
// bounds: so long others wait for a process that was stopped after it had joined.
const (
	shortestReservation = 50 * time.Millisecond
	longestReservation  = 500 * time.Millisecond // lock_line.lua grants no more
	reservationTrips    = 3
)

// linger is how long the place is kept of a process whose last caller has given up: mostly it tries
// again.
const linger = 10 * time.Millisecond

var (
	// ErrStopped is the error of a wait whose stop was closed.
	ErrStopped = errors.New("stopped")
	// ErrTooLate is the error of a wait that has reached its until.
	ErrTooLate = errors.New("too late")
)

// Process is what stands in lines. It is safe for concurrent use.
type Process struct {
	notifier *notify.Notifier
	id       string
	waits    atomic.Uint64 // they are numbered, so that what arrives late is told from the present one's
}

// NewProcess returns a process that is woken through a notifier.
func NewProcess(n *notify.Notifier) *Process {
	return &Process{notifier: n, id: rand.Text()[:12]}
}

// Place is the place of a process in the line of one lock, or none. All callers of the process for
// that lock share it. It belongs to the one that acquires.
type Place struct {
	process  *Process
	channel  string           // on which the process is woken; made when it first waits
	listener *notify.Listener // nil unless it waits
	score    string           // of the member, or of one before it; "" for none
	ahead    int              // how many were before it when the server was last asked; -1 if it was not in line
	drawn    bool             // the time of its first poll was drawn
	timedOut bool             // the last wait ended without a notification
	asked    notify.Mark      // when the server was last asked
	answered bool             // it has answered since

	mu      sync.Mutex // guards what follows; the owner reads member without it
	member  string     // which may be in line; "" for none
	woken   time.Time  // when it was since the server was last asked, as what follows; zero if it was not
	first   time.Time  // when the lock is free by itself; zero unless a message said that the process is the first in line
	polls   time.Time  // when the server is asked again, whatever messages come; zero until the first wait
	free    time.Time  // the same as first, or what the last reply said to the first in line; zero for any other one
	retry   time.Duration
	until   time.Time   // when the owner gives up; zero if it does not by itself
	timer   *time.Timer // of the wait; nil unless it waits
	lingers *time.Timer // ends the wait; nil unless the place has no owner
	owners  int         // how many have given it up
}

// Init makes p a place of a process.
func (p *Place) Init(process *Process) { p.process = process }

// Listen has the process listen for messages. wake is the channel of the lock, which the process's
// own is named after.
func (p *Place) Listen(wake string) {
	if p.listener != nil {
		return
	}
	if p.channel == "" {
		p.channel = wake + ":" + p.process.id
	}
	p.ahead = -1
	p.listener = p.process.notifier.Join(p.channel, p.hear)
}

// Resume gives the place to a caller that is to acquire, and reports whether the process listens,
// and may be in line.
func (p *Place) Resume() (waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lingers = nil
	return p.listener != nil
}

// Linger takes the place from its owner, the last caller of the process, which has given up. A
// caller that comes soon goes on with it. Otherwise, or as soon as the process is woken, the wait
// ends, and leave is called with the member.
func (p *Place) Linger(leave func(member string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	d := linger
	if !p.woken.IsZero() || !p.InLine() {
		d = 0
	}
	p.owners++
	owner := p.owners
	p.lingers = time.AfterFunc(d, func() {
		if member := p.endLinger(owner); member != "" {
			leave(member)
		}
	})
}

// endLinger ends the wait, unless the place has had another owner since. It returns the member that
// may be in line.
func (p *Place) endLinger(owner int) (member string) {
	p.mu.Lock()
	if p.lingers == nil || p.owners != owner {
		p.mu.Unlock()
		return ""
	}
	listener, member := p.listener, p.member
	p.forget()
	p.mu.Unlock()
	p.process.notifier.Leave(p.channel, listener) // without the mutex, which the notifier takes within its own
	return member
}

// forget ends what the place knows of the wait. The mutex is held.
func (p *Place) forget() {
	p.listener, p.score, p.ahead, p.drawn, p.timedOut = nil, "", -1, false, false
	p.member, p.woken, p.polls, p.lingers = "", time.Time{}, time.Time{}, nil
}

// InLine reports whether it was in line, with its present member, when the server was last asked,
// and has answered.
func (p *Place) InLine() bool { return p.ahead >= 0 && p.answered && p.member != "" }

// Woken returns when the process was woken, since the server was last asked: the lock is reserved
// for its member. It is zero if it was not.
func (p *Place) Woken() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.woken
}

// Ask begins a request that may join the line, and returns its member and the member's score. trip
// is the longest time that a reply to the process has taken lately: a member that is made now says
// how long a release is to wait for it. It names its owner, "" for none, to those that look at the line.
func (p *Place) Ask(trip time.Duration, owner string) (member, score string) {
	p.asked = p.process.notifier.Mark(p.channel)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.member == "" || strings.HasPrefix(p.member, "*") != p.asked.Sharded {
		reserve := max(shortestReservation, min(reservationTrips*trip, longestReservation)).Milliseconds()
		p.member = p.process.id + ":"
		if owner != "" {
			p.member += owner + ":"
		}
		p.member += strconv.FormatUint(p.process.waits.Add(1), 10) + ":" + strconv.FormatInt(reserve, 10)
		if p.asked.Sharded {
			p.member = "*" + p.member
		}
	}
	p.woken, p.first, p.polls, p.answered = time.Time{}, time.Time{}, time.Time{}, false
	return p.member, p.score
}

// Member returns the one that may be in line, "" if there is none.
func (p *Place) Member() string { return p.member }

// Stands notes the reply: how many are before the member, -1 or store.NotListening if it is not in line,
// and its score.
//
// If the server knows of no subscription, although it was confirmed, its connection is dead, or goes to
// another server: of a Cluster, or to a primary that has become a replica and lives on. Nothing else
// would find that out while others have the lock by turns: this process would be out of line until a
// poll found the lock free by chance.
func (p *Place) Stands(ahead int, score string) {
	switch {
	case ahead == store.NotListening && p.asked.Confirmed:
		p.process.notifier.Renew(p.channel, p.asked)
	case p.timedOut && ahead == 0 && p.ahead > 0: // it should have been told
		p.process.notifier.RequestPing(p.channel)
	}
	if p.ahead, p.answered = max(ahead, -1), true; ahead >= 0 {
		p.score = score
	}
}

// Renumber has the next request join with a member of its own, with the same score, and returns the
// present one: it is left to the janitor, which takes it out of the line at any time later.
func (p *Place) Renumber() (member string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	member, p.member, p.woken = p.member, "", time.Time{}
	return member
}

// Served ends the wait: the lock was acquired, and the member is gone. If no message said that the
// lock was free, then either its holder's TTL has ended, or the connection is dead.
func (p *Place) Served() {
	if p.timedOut {
		p.process.notifier.RequestPing(p.channel)
	}
	p.Leave()
}

// Leave ends the wait, and returns the member that may be in line, "" if there is none.
func (p *Place) Leave() (member string) {
	if p.listener == nil {
		return ""
	}
	p.process.notifier.Leave(p.channel, p.listener)
	p.mu.Lock()
	defer p.mu.Unlock()
	member = p.member
	p.forget()
	return member
}

// Wait waits until the server is to be asked again: the process is woken, it may have missed that,
// or it is to poll. left is how long the holder has the lock at most. It returns the error of ctx,
// ErrStopped if stop is closed, or ErrTooLate at until, if that is set.
//
// It polls after its interval and, as the first in line, when the lock is free by itself: the last
// message says when. A caller that goes on with another one's wait, without asking, has the rest of
// its interval.
func (p *Place) Wait(ctx context.Context, stop <-chan struct{}, until time.Time, left, retry time.Duration) error {
	p.timedOut = false
	if !p.Woken().IsZero() || p.missed() { // the one before may have used the signal up
		return nil
	}
	timer := p.startTimer(until, left, retry)
	defer p.stopTimer()
	for {
		select {
		case <-p.listener.C:
			if !p.Woken().IsZero() || p.missed() {
				return nil
			}
		case <-timer.C:
			if !until.IsZero() && !time.Now().Before(until) {
				return ErrTooLate
			}
			p.timedOut = true
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return ErrStopped
		}
	}
}

// startTimer starts the timer of a wait, which hear may set anew.
func (p *Place) startTimer(until time.Time, left, retry time.Duration) *time.Timer {
	interval := p.interval(retry)
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.polls.IsZero() {
		p.retry, p.polls, p.free = retry, now.Add(interval), p.first
		switch {
		case p.ahead <= 0 && p.first.IsZero():
			p.free = now.Add(left)
		case p.ahead > 0 && !p.first.IsZero():
			p.pollSooner()
		}
	}
	p.until = until
	p.timer = time.NewTimer(p.pause())
	return p.timer
}

func (p *Place) stopTimer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer.Stop()
	p.timer = nil
	if p.ahead > 0 && !p.first.IsZero() {
		p.ahead = 0
	}
}

// pollSooner has a process that has just become the first in line poll as that does. The mutex is
// held, as for the next one.
func (p *Place) pollSooner() {
	p.polls = backoff.Sooner(p.polls, time.Now().Add(backoff.Half(min(p.retry, renewal))))
}

// pause returns how long the process waits: until its next poll, until the lock is free by itself,
// if it is the first in line, or until its owner gives up.
func (p *Place) pause() time.Duration {
	at := backoff.Sooner(p.polls, p.until)
	if !p.free.IsZero() {
		at = backoff.Sooner(at, p.free.Add(time.Millisecond))
	}
	return max(0, time.Until(at))
}

// interval returns how long the process waits until it polls.
func (p *Place) interval(retry time.Duration) time.Duration {
	if p.ahead >= 0 {
		retry = min(retry, renewal)
	}
	if p.ahead <= 0 {
		return backoff.Half(retry)
	}
	every := max(retry, min(retry*time.Duration(p.ahead)/nearest, longestPoll))
	if p.drawn {
		return every
	}
	p.drawn = true
	return backoff.Full(every)
}

// hear takes a message. The notifier calls it. One that wakes an earlier member is late: that wait
// has had the lock, or its leave passes the reservation on.
func (p *Place) hear(m notify.Mark) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, err := strconv.ParseInt(m.Message, 10, 64)
	if err != nil {
		if m.Message == p.member && p.woken.IsZero() {
			p.woken = m.At
			if p.lingers != nil {
				p.lingers.Reset(0)
			}
		}
		return !p.woken.IsZero()
	}
	isNew := p.first.IsZero()
	p.first = m.At.Add(time.Duration(min(left, int64(time.Hour/time.Millisecond))) * time.Millisecond)
	if !p.polls.IsZero() { // it waits, or lingers between two callers
		if p.free = p.first; isNew && p.ahead > 0 {
			p.pollSooner()
		}
	}
	if p.timer != nil { // it is set here, so that the goroutine that waits need not run
		p.timer.Reset(p.pause())
	}
	return false
}

// missed reports whether a message may have been lost since the server was last asked: the
// subscription is new. One that is in line was subscribed when it joined, although that may have
// been confirmed only later.
func (p *Place) missed() bool {
	now, before := p.process.notifier.Mark(p.channel), p.asked
	if !now.Confirmed || now.Follows(before) {
		return false
	}
	p.asked = now
	return !before.IsFirst() || p.ahead < 0
}
