// Package line keeps this process's places in the lines of locks, in which processes wait.
//
// A line is on the server: a sorted set beside the lock's key, with an entry for each process that waits. As in ZooKeeper's and
// etcd's lock recipes, a release wakes one of them, and not all. Scripts join the line and move it (see lua/shared/line.lua); a
// Place knows what they have said, waits, and says when the server is to be asked again.
//
// The line is a hint. A process may be dead and in line, or alive and left out. So each one polls too: the more rarely, the
// more are before it.
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
)

// longestPoll is the longest time between two polls of one that is not the first in line, unless its retry interval is longer.
const longestPoll = 10 * time.Second

// renewal is the longest time between two polls of one that is in line: a poll renews the line's TTL of a minute when half of it
// is over.
const renewal = 25 * time.Second

// nearest is how many of those that are first in line poll once in a retry interval. The others poll the more rarely, the more
// are before them: of a thousand, some 25 do in each interval. More would find sooner what every message about was lost.
const nearest = 4

// ErrStopped is the error of a wait whose stop was closed.
var ErrStopped = errors.New("stopped")

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

// Place is the place of a process in the line of one lock, or none. All callers of the process for that lock share it. It
// belongs to the one that acquires; Yield and Yields are for each of them.
type Place struct {
	process  *Process
	channel  string           // on which the process is woken; made when it first waits
	listener *notify.Listener // nil unless it waits
	score    string           // of the entry, or of one before it; "" for none
	ahead    int              // how many were before it when the server was last asked; -1 if it was not in line
	drawn    bool             // the time of its first poll was drawn
	timedOut bool             // the last wait ended without a notification
	asked    notify.Mark      // when the server was last asked

	yieldUntil atomic.Int64 // in ns of Unix time

	mu    sync.Mutex // guards what follows; the owner reads entry without it
	entry string     // which may be in line; "" for none
	woken bool       // since the server was last asked, as what follows
	first time.Time  // when the holder's TTL ends; zero unless a message said that it is the first in line
}

// Init makes p a place of a process.
func (p *Place) Init(process *Process) { p.process = process }

// Listen has the process listen for messages. wake is the channel of the lock, which the process's own is named after.
func (p *Place) Listen(wake string) {
	if p.listener != nil {
		return
	}
	if p.channel == "" {
		p.channel = wake + ":" + p.process.id
	}
	p.ahead = -1
	p.listener = p.process.notifier.JoinHearing(p.channel, p.hear)
}

// Waits reports whether the process listens, and may be in line.
func (p *Place) Waits() bool { return p.listener != nil }

// InLine reports whether it was in line when the server was last asked.
func (p *Place) InLine() bool { return p.ahead >= 0 }

// Ask begins a request that may join the line, and returns its entry and the entry's score.
func (p *Place) Ask() (entry, score string) {
	p.asked = p.process.notifier.Mark(p.channel)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entry == "" || strings.HasPrefix(p.entry, "*") != p.asked.Sharded {
		p.entry = p.process.id + ":" + strconv.FormatUint(p.process.waits.Add(1), 10)
		if p.asked.Sharded {
			p.entry = "*" + p.entry
		}
	}
	p.woken, p.first = false, time.Time{}
	return p.entry, p.score
}

// Entry returns the one that may be in line, "" if there is none.
func (p *Place) Entry() string { return p.entry }

// Stands notes the reply: how many are before the entry, -1 if it is not in line, and its score.
//
// If it is not in line although the process is subscribed, the server does not know of the subscription: its connection is dead,
// or goes to another server of a Cluster. Nothing else would find that out while others have the lock by turns: this process would
// be out of line until a poll found the lock free by chance.
func (p *Place) Stands(ahead int, score string) {
	missing := ahead < 0 && p.asked.Confirmed
	if missing || p.timedOut && ahead == 0 && p.ahead > 0 { // the latter should have been told
		p.process.notifier.RequestPing(p.channel)
	}
	if p.ahead = ahead; ahead >= 0 {
		p.score = score
	}
}

// Renumber has the next request join with an entry of its own, with the same score. Call it when the present one is left to
// the janitor, which takes it out of the line: at any time later.
func (p *Place) Renumber() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entry = ""
}

// Served ends the wait: the lock was acquired, and the entry is gone. If no message said that the lock was free, then either its
// holder's TTL has ended, or the connection is dead.
func (p *Place) Served() {
	if p.timedOut {
		p.process.notifier.RequestPing(p.channel)
	}
	p.Leave()
}

// Leave ends the wait, and returns the entry that may be in line, "" if there is none.
func (p *Place) Leave() (entry string) {
	if p.listener == nil {
		return ""
	}
	p.process.notifier.Leave(p.channel, p.listener)
	entry = p.entry
	p.Renumber()
	p.listener, p.score, p.ahead, p.drawn, p.timedOut = nil, "", -1, false, false
	return entry
}

// Yield has the process join behind the others without trying, for d: it has just woken another one, which is on its way.
func (p *Place) Yield(d time.Duration) { p.yieldUntil.Store(time.Now().Add(d).UnixNano()) }

// Yields reports whether the process is to do so.
func (p *Place) Yields() bool {
	until := p.yieldUntil.Load()
	return until != 0 && time.Now().UnixNano() < until
}

// Wait waits until the server is to be asked again: the process is woken, it may have missed that, or it is to poll. left is how
// long the holder has the lock at most. It returns the error of ctx, or ErrStopped if stop is closed.
func (p *Place) Wait(ctx context.Context, stop <-chan struct{}, left, retry time.Duration) error {
	p.timedOut = false
	pause := p.pause(left, retry)
	polls, timer := time.Now().Add(pause), time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-p.listener.C:
			woken, first := p.heard()
			if woken || p.missed() {
				return nil
			}
			if !first.IsZero() {
				p.ahead = 0
				polls = earlier(polls, time.Now().Add(p.pause(time.Until(first), retry))) // whatever comes, and however often
				timer.Reset(time.Until(polls))
			}
		case <-timer.C:
			p.timedOut = true
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return ErrStopped
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// pause returns when the process is to poll.
func (p *Place) pause(left, retry time.Duration) time.Duration {
	if p.ahead >= 0 {
		retry = min(retry, renewal)
	}
	if p.ahead <= 0 {
		return max(min(left+time.Millisecond, backoff.Half(retry)), 0)
	}
	every := max(retry, min(retry*time.Duration(p.ahead)/nearest, longestPoll))
	if p.drawn {
		return every
	}
	p.drawn = true
	return backoff.Full(every)
}

// hear takes a message. The notifier calls it. One that wakes an earlier entry is late: that wait has had the lock, or its
// leave wakes the next.
func (p *Place) hear(m notify.Mark) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, err := strconv.ParseInt(m.Message, 10, 64)
	if err != nil {
		p.woken = p.woken || m.Message == p.entry
		return p.woken
	}
	p.first = time.Now().Add(time.Duration(min(left, int64(time.Hour/time.Millisecond))) * time.Millisecond)
	return true
}

// heard returns what messages have said since the server was last asked.
func (p *Place) heard() (woken bool, first time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.woken, p.first
}

// missed reports whether a message may have been lost since the server was last asked: the subscription is new. One that is in
// line was subscribed when it joined, although that may have been confirmed only later.
func (p *Place) missed() bool {
	now, before := p.process.notifier.Mark(p.channel), p.asked
	if !now.Confirmed || now.Follows(before) {
		return false
	}
	p.asked = now
	return !before.IsFirst() || p.ahead < 0
}
