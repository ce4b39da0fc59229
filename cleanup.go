package sluice

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// cleanRetry is the pause after a release that got no answer.
	cleanRetry = 250 * time.Millisecond
	// cleanAgain is when a release is repeated after its first answer. What the
	// server had received, but not looked at, before that answer is done by then.
	cleanAgain = 500 * time.Millisecond
	// cleanFor is how long it is tried while the server does not answer. A key
	// that lands later still ends with its TTL.
	cleanFor = 2 * time.Minute
)

// cleaner releases what may have been acquired without the acquirer knowing: the
// reply was lost, or its context ended first. Since the acquisition may even be
// carried out after a release has been, a token is released until the server
// answers, once more shortly after that, and once more after the client's
// longest command time. No release too many can hit anybody else: a token is for
// one stay of the key on the server, and only what is not held by any handle, or
// is on its way back to Redis, is ever given to the cleaner.
//
// One goroutine does it for the whole Locker, with one pipeline at a time to each
// server, so that one that hangs costs the user's pool one connection and the others no
// time. It is started by add and ends when there is nothing left, or in close.
type cleaner struct {
	door        *door
	commandTime time.Duration

	mu      sync.Mutex // guards what follows
	jobs    map[any]*job
	asked   map[any]bool // servers that a pipeline is under way to, see door.nodeOf
	running bool
	closed  bool
	kick    chan struct{} // cap 1: jobs, asked or closed have changed
}

type job struct {
	token   any
	call    call
	next    time.Time
	answers int       // so many releases were answered
	giveUp  time.Time // if none is
}

func newCleaner(d *door, commandTime time.Duration) *cleaner {
	return &cleaner{door: d, commandTime: commandTime, jobs: map[any]*job{}, asked: map[any]bool{}, kick: make(chan struct{}, 1)}
}

// add has the release of a token carried out, beginning now. Of a closed cleaner
// it is carried out once.
func (c *cleaner) add(token any, release call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.start(func() { c.door.sendAll(context.Background(), []call{release}) })
		return
	}
	now := time.Now()
	c.jobs[token] = &job{token: token, call: release, next: now, giveUp: now.Add(cleanFor)}
	signal(c.kick)
	if !c.running {
		c.running = true
		c.start(c.work)
	}
}

// start runs f in a goroutine that counts as under way.
func (c *cleaner) start(f func()) {
	c.door.flight.begin()
	go func() {
		defer c.door.flight.end()
		f()
	}()
}

func (c *cleaner) work() {
	for {
		node, due, pause := c.due()
		if pause < 0 {
			return
		}
		if len(due) == 0 {
			timer := time.NewTimer(pause)
			select {
			case <-c.kick:
			case <-timer.C:
			}
			timer.Stop()
			continue
		}
		c.start(func() { c.release(node, due) })
	}
}

// due returns what is to be released now, on one server, or how long until something
// is. A negative time means never: the goroutine has ended.
func (c *cleaner) due() (node any, due []*job, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.jobs) == 0 {
		c.running = false
		return nil, nil, -1
	}
	now := time.Now()
	pause = time.Hour
	for _, j := range c.jobs {
		if left := j.next.Sub(now); left > 0 {
			pause = min(pause, left)
			continue
		}
		at := c.door.nodeOf(j.call.argv[firstKey])
		if len(due) == 0 && !c.asked[at] {
			node = at
		}
		if at == node && !c.asked[at] && len(due) < chunk {
			due = append(due, j)
			j.next = now.Add(cleanFor) // not again while it is under way, wherever its key may move
		}
	}
	if len(due) > 0 {
		c.asked[node] = true
	}
	return node, due, pause
}

// release tries each job once, and dates or drops it by what came of it.
func (c *cleaner) release(node any, due []*job) {
	calls := make([]call, len(due))
	for i, j := range due {
		calls[i] = j.call
	}
	results := c.door.sendAll(context.Background(), calls)

	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.asked, node)
	signal(c.kick)
	now := time.Now()
	for i, j := range due {
		if c.jobs[j.token] != j {
			continue // added anew meanwhile
		}
		switch {
		case results[i].err != nil && now.Before(j.giveUp):
			j.next = now.Add(cleanRetry)
		case results[i].err == nil && j.answers == 0:
			j.answers++
			j.next = now.Add(cleanAgain)
		case results[i].err == nil && j.answers == 1:
			j.answers++
			j.next = now.Add(c.commandTime)
		default:
			delete(c.jobs, j.token)
		}
	}
}

// close tries once more what is left, in the background, and ends the goroutine.
func (c *cleaner) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	signal(c.kick)
	calls := make([]call, 0, len(c.jobs))
	for _, j := range c.jobs {
		calls = append(calls, j.call)
	}
	c.jobs = nil
	for part := range slices.Chunk(calls, chunk) {
		c.start(func() { c.door.sendAll(context.Background(), part) })
	}
}

// signal wakes whoever reads c, which has room for one signal.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
