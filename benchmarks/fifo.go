package main

import (
	"context"
	"slices"
	"sync"
)

// fifo is a lock within one process, first come first served, as channels make it. It is the
// floor of a lock that hands over: a mutex, and a channel for each caller that waits.
type fifo struct{ names sync.Map } // of *fifoQueue

type fifoQueue struct {
	mu      sync.Mutex // guards what follows
	held    bool
	waiting []chan struct{}
}

func (f *fifo) Lock(ctx context.Context, name string) (unlock, error) {
	known, ok := f.names.Load(name)
	if !ok {
		known, _ = f.names.LoadOrStore(name, &fifoQueue{})
	}
	n, _ := known.(*fifoQueue)
	n.mu.Lock()
	if !n.held {
		n.held = true
		n.mu.Unlock()
		return n.unlock, nil
	}
	turn := make(chan struct{}, 1)
	n.waiting = append(n.waiting, turn)
	n.mu.Unlock()
	select {
	case <-turn:
		return n.unlock, nil
	case <-ctx.Done():
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := slices.Index(n.waiting, turn); i >= 0 {
		n.waiting = slices.Delete(n.waiting, i, i+1)
		return nil, ctx.Err()
	}
	return n.unlock, nil // the turn came at the same moment
}

func (n *fifoQueue) unlock(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.waiting) == 0 {
		n.held = false
		return nil
	}
	n.waiting[0] <- struct{}{}
	n.waiting = n.waiting[1:]
	return nil
}

func (f *fifo) Close() error { return nil }
