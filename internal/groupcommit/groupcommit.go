// Package groupcommit merges the calls that many goroutines make at the same time, as
// databases do with their commits. While little is under way, a call goes out at once and
// alone. What comes while enough is under way waits, and goes out as one group when
// something returns. No timer adds to the time of a call, and there is nothing to tune: the
// busier the server, the larger the groups.
//
// It does not know what is sent: its owner sends a group, and settles each of its calls.
package groupcommit

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Config says how calls are merged.
type Config[A, R any] struct {
	// Alone is how many calls may be under way alone before calls wait. None goes out alone
	// beside a group that does not hang.
	Alone int
	// Items and Bytes are the most that a group has. A call that is larger goes out in a
	// group of its own.
	Items, Bytes int
	// Patience is how long calls wait at least before they are sent although enough is under
	// way, and twice as long at most: a connection may hang for as long as its timeout is, and
	// what is under way on others would return sooner; or the server is far. It bounds what calls
	// lose by waiting for each other.
	Patience time.Duration
	// Grace is how long a caller whose context has ended waits for the result of a call that
	// was sent.
	Grace time.Duration
	// Start has f run in a goroutine.
	Start func(f func())
	// Commit sends a group, and settles each of its calls. It blocks until it has. It runs
	// in a goroutine that Start has started, with several others of the same kind.
	Commit func(calls []*Call[A, R])
	// Lost is the result of the calls that Commit has not settled, because it did not
	// return.
	Lost R
}

// Committer merges calls of one kind. It is safe for concurrent use. New makes one.
//
// Its goroutines are those that send groups: see [Committer.run]. Each ends when nothing waits.
type Committer[A, R any] struct {
	config Config[A, R]

	mu           sync.Mutex // guards what follows, and the places of those that wait: Call.next
	alone        int        // calls that went out alone and have not returned
	hanging      int        // so many of these seem to hang
	groups       []*group   // under way
	first, last  *Call[A, R]
	items, bytes int    // of those that wait
	joined       uint64 // calls that have waited since the beginning; the number of the last one
	joinedThen   uint64 // the same, when the timer fired last or was set
	watching     bool   // a timer is set; while calls wait it is
}

// New returns a committer. It starts nothing.
func New[A, R any](config Config[A, R]) *Committer[A, R] {
	return &Committer[A, R]{config: config}
}

// Enter asks for a call to be sent. It returns nil if the caller is to send it itself, at
// once and alone; it must call Exit when that has returned, and before it tries again.
// Otherwise the call waits, and the caller calls its Wait.
func (c *Committer[A, R]) Enter(ctx context.Context, arg A, items, bytes int) *Call[A, R] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alone-c.hanging < c.config.Alone && c.prompt(nil) == 0 {
		c.alone++
		return nil
	}
	c.joined++
	call := &Call[A, R]{
		Arg: arg, Ctx: ctx, items: items, bytes: bytes, grace: c.config.Grace,
		done: make(chan struct{}, 1), number: c.joined,
	}
	if c.first == nil {
		c.first = call
	} else {
		c.last.next = call
	}
	c.last = call
	c.items, c.bytes = c.items+items, c.bytes+bytes
	c.watch()
	if c.isFull() && c.prompt(nil) == 1 {
		c.begin()
	}
	return call
}

// group is a group under way: a run, which sends one after the other.
type group struct {
	sent time.Time // when the newest was
}

// begin has groups sent. The committer's mutex is held.
func (c *Committer[A, R]) begin() {
	g := &group{sent: time.Now()}
	c.groups = append(c.groups, g)
	c.config.Start(func() { c.run(g) })
}

// prompt returns how many groups are under way that do not hang, so far, except one. The
// committer's mutex is held.
func (c *Committer[A, R]) prompt(except *group) (n int) {
	for _, g := range c.groups {
		if g != except && time.Since(g.sent) < c.config.Patience {
			n++
		}
	}
	return n
}

// isFull reports whether a whole group waits. The committer's mutex is held.
func (c *Committer[A, R]) isFull() bool {
	return c.items >= c.config.Items || c.bytes >= c.config.Bytes
}

// Exit says that a call which went out alone has returned. If others wait, a group of them
// goes out, unless one is under way.
func (c *Committer[A, R]) Exit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone--
	c.hanging = min(c.hanging, c.alone)
	if c.first != nil && c.prompt(nil) == 0 {
		c.begin()
	}
}

// handOn reports whether another group follows one that has returned: if others wait, and no
// other group is under way, or one and a whole one waits.
func (c *Committer[A, R]) handOn(g *group) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first != nil {
		if others := c.prompt(g); others == 0 || others == 1 && c.isFull() {
			return true
		}
	}
	c.groups = slices.DeleteFunc(c.groups, func(other *group) bool { return other == g })
	return false
}

// run sends groups until nothing waits.
func (c *Committer[A, R]) run(g *group) {
	var calls []*Call[A, R]
	for more := true; more; more = c.handOn(g) {
		calls = c.take(g, calls[:0])
		if len(calls) > 0 && !c.commit(g, calls) {
			return
		}
		clear(calls) // which may be large
		// The callers of this group are about to run, and many of them come back at once. If
		// the next group were taken before, it would be small, and so would all later ones.
		runtime.Gosched()
	}
}

// commit sends a group. If the owner's function ends the goroutine, by [runtime.Goexit] in a
// hook of the Redis client, its calls are lost, and another goroutine goes on.
func (c *Committer[A, R]) commit(g *group, calls []*Call[A, R]) (returned bool) {
	defer func() {
		for _, call := range calls {
			call.Settle(c.config.Lost)
		}
		if !returned && c.handOn(g) {
			c.config.Start(func() { c.run(g) })
		}
	}()
	c.config.Commit(calls)
	return true
}

// take takes the calls that have waited longest, as many as a group has, and appends them.
func (c *Committer[A, R]) take(g *group, calls []*Call[A, R]) []*Call[A, R] {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.sent = time.Now()
	items, bytes := 0, 0
	for call := c.first; call != nil; call = c.first {
		if len(calls) > 0 && (items+call.items > c.config.Items || bytes+call.bytes > c.config.Bytes) {
			break
		}
		if c.removeFirst() {
			calls = append(calls, call)
			items, bytes = items+call.items, bytes+call.bytes
		}
	}
	return calls
}

// removeFirst takes the first call out of the list, and reports whether it is to be sent: its
// caller has not left. The committer's mutex is held.
func (c *Committer[A, R]) removeFirst() bool {
	call := c.first
	c.first, call.next = call.next, nil
	c.items, c.bytes = c.items-call.items, c.bytes-call.bytes
	if c.first == nil {
		c.last = nil
	}
	return call.state.CompareAndSwap(waiting, sent)
}

// watch sets a timer, if none is set. The committer's mutex is held.
func (c *Committer[A, R]) watch() {
	if !c.watching {
		c.watching, c.joinedThen = true, c.joined
		time.AfterFunc(c.config.Patience, c.checkStalled)
	}
}

// checkStalled starts another group if a call waits that did so when the timer fired last: what
// is under way hangs.
func (c *Committer[A, R]) checkStalled() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watching = c.first != nil
	if !c.watching {
		return
	}
	stalled := c.first.number <= c.joinedThen
	c.joinedThen = c.joined
	time.AfterFunc(c.config.Patience, c.checkStalled)
	if stalled {
		c.hanging = c.alone
		c.begin()
	}
}
