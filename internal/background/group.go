// Package background is about goroutines that a type starts for itself: it counts what
// is under way, so that Close can wait for it, and runs loops that exist only while
// they have something to do.
package background

import (
	"context"
	"sync"
)

// Group counts what is under way. Unlike a [sync.WaitGroup] its count may rise again
// while a caller waits for it to fall to zero, and the wait ends with a context. The
// zero value is ready for use.
type Group struct {
	mu   sync.Mutex    // guards what follows
	n    int           // under way
	zero chan struct{} // closed when n falls to 0; nil while nothing waits for that
}

// Add counts one more.
func (g *Group) Add() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n++
}

// Done counts one less.
func (g *Group) Done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.n--
	if g.n == 0 && g.zero != nil {
		close(g.zero)
		g.zero = nil
	}
}

// Go runs f in a goroutine and counts it until f returns. It ends with f, and Wait waits for it.
func (g *Group) Go(f func()) {
	g.Add()
	go func() {
		defer g.Done()
		f()
	}()
}

// Wait returns when nothing is under way, or when ctx ends.
func (g *Group) Wait(ctx context.Context) {
	zero := g.reachesZero()
	if zero == nil {
		return
	}
	select {
	case <-zero:
	case <-ctx.Done():
	}
}

// reachesZero returns a channel that is closed when nothing is under way any more, or
// nil if nothing is under way now.
func (g *Group) reachesZero() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n == 0 {
		return nil
	}
	if g.zero == nil {
		g.zero = make(chan struct{})
	}
	return g.zero
}
