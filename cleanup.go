package sluice

import (
	"context"
	"sync"
	"time"
)

const (
	// cleanRetry is the pause after a release that got no answer, and the time
	// it is given.
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
// longest command time. A token is used once, so that no release too many can
// hit anybody else.
//
// One goroutine does it for the whole Locker. It is started by add and ends when
// there is nothing left, or in close, which waits for it.
type cleaner struct {
	door        *door
	commandTime time.Duration

	mu      sync.Mutex // guards what follows
	jobs    map[string]*job
	running bool
	closed  bool
	kick    chan struct{}  // cap 1: jobs or closed have changed
	ended   sync.WaitGroup // the goroutine
}

type job struct {
	call    call
	next    time.Time
	answers int       // so many releases were answered
	giveUp  time.Time // if none is
}

func newCleaner(d *door, commandTime time.Duration) *cleaner {
	return &cleaner{door: d, commandTime: commandTime, jobs: map[string]*job{}, kick: make(chan struct{}, 1)}
}

// add has the release of a token carried out, beginning now.
func (c *cleaner) add(release call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	now := time.Now()
	token, _ := release.args[0].(string)
	c.jobs[token] = &job{call: release, next: now, giveUp: now.Add(cleanFor)}
	signal(c.kick)
	if !c.running {
		c.running = true
		c.ended.Go(c.work)
	}
}

func (c *cleaner) work() {
	for {
		due, pause := c.due()
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
		c.release(due)
	}
}

// due returns what is to be released now, or how long until something is. A
// negative time means never: the goroutine has ended.
func (c *cleaner) due() (due []*job, pause time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.jobs) == 0 {
		c.running = false
		return nil, -1
	}
	now := time.Now()
	pause = time.Hour
	for _, j := range c.jobs {
		if left := j.next.Sub(now); left > 0 {
			pause = min(pause, left)
		} else if len(due) < chunk {
			due = append(due, j)
		}
	}
	return due, pause
}

// release tries each job once, and dates or drops it by what came of it.
func (c *cleaner) release(due []*job) {
	calls := make([]call, len(due))
	for i, j := range due {
		calls[i] = j.call
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanRetry)
	results := c.door.pipeline(ctx, calls)
	cancel()

	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for i, j := range due {
		token, _ := j.call.args[0].(string)
		if c.jobs[token] != j {
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
			delete(c.jobs, token)
		}
	}
}

// close drops what is left after one more try, and ends the goroutine.
func (c *cleaner) close(ctx context.Context) {
	c.mu.Lock()
	c.closed = true
	var calls []call
	for _, j := range c.jobs {
		if len(calls) < chunk {
			calls = append(calls, j.call)
		}
	}
	c.jobs = nil
	signal(c.kick)
	c.mu.Unlock()
	if len(calls) > 0 {
		c.door.pipeline(ctx, calls)
	}
	c.ended.Wait()
}

// signal wakes whoever reads c, which has room for one signal.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
