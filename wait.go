package sluice

import (
	"context"
	"sync"
	"time"
)

// Wait sleeps until something is due, and returns nil then. It asks Redis when
// the queue's earliest task is due, and looks again at that time, when it is
// told of an earlier one, and after the poll interval. All callers on one Queue
// share these looks.
//
// It is a hint: others wait for the same task, so that Claim or Pop may find
// nothing, and the caller comes back. The error is ctx.Err() when ctx ends, or
// what a look that failed said: the caller comes back after a pause.
func (q *Queue) Wait(ctx context.Context) error {
	if err := q.check("wait", ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return wrap("wait", q.name, err)
	}
	return wrap("wait", q.name, q.watcher.wait(ctx))
}

// watcher looks at a queue for all who wait for it: one goroutine, there while
// somebody waits. It is started by the first to come and ended by the last to
// leave, and its result is for all who were there.
type watcher struct {
	queue *Queue
	wake  *hub

	mu    sync.Mutex // guards watch
	watch *watch
}

// watch is one wait, shared.
type watch struct {
	waiting int // guarded by the watcher's mu
	stop    context.CancelFunc
	over    chan struct{} // closed when err is set
	err     error
}

func (w *watcher) wait(ctx context.Context) error {
	current := w.enter()
	defer w.exit(current)
	select {
	case <-current.over:
		return current.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *watcher) enter() *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watch == nil {
		ctx, stop := context.WithCancel(context.Background())
		started := &watch{stop: stop, over: make(chan struct{})}
		w.watch = started
		go func() {
			err := w.look(ctx)
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.watch == started {
				w.watch = nil // who comes now needs a new look
			}
			started.err = err
			close(started.over)
		}()
	}
	w.watch.waiting++
	return w.watch
}

func (w *watcher) exit(current *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	current.waiting--
	if current.waiting == 0 {
		current.stop()
		if w.watch == current {
			w.watch = nil
		}
	}
}

// look returns when something is due, when a look fails, or when ctx ends.
func (w *watcher) look(ctx context.Context) error {
	q := w.queue
	// Before the first look, so that what is published after it is not missed
	// where the subscription stands already.
	listener := w.wake.join(q.channel)
	defer w.wake.leave(q.channel, listener)
	select {
	case <-listener.C: // it stood: the first look is still to come
	default:
	}
	missed := false
	for {
		a, err := q.run(ctx, scriptNext.call(q.keys[:1]))
		if err != nil {
			return err
		}
		off, err := decodeNext(a.reply)
		if err != nil || off == 0 {
			if missed && err == nil {
				w.wake.suspect()
			}
			return err
		}
		timer := time.NewTimer(min(off, q.options.poll))
		select {
		case <-listener.C:
			missed = false
		case <-timer.C:
			// Whatever is due now was not when we looked, nor expected.
			missed = off > q.options.poll
		case <-ctx.Done():
			err = ctx.Err()
		}
		timer.Stop()
		if err != nil {
			return err
		}
	}
}
