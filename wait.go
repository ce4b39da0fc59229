package sluice

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/notify"
)

// Wait sleeps until a task is due, and returns nil then. It asks Redis when the queue's
// earliest task is due, and polls again at that time, when it is notified of an earlier
// one, and after the poll interval. All callers on one Queue share these polls.
//
// It is a hint: others wait for the same task, so that Claim or Pop may find nothing, and
// the caller comes back. If the earliest task is still the one that Wait has returned for
// before, because Claim fails for instance, Wait pauses before it returns for it again: for
// 1ms the first time, then twice as long each time, up to 100ms or the poll interval. For
// another task, it returns at once. So a loop around it never spins on a task that stays and
// that nothing takes. One that claims the task and releases it again does spin: Retry it.
//
// The error is ctx.Err() when ctx ends, or that of a poll that failed: the caller comes
// back after a pause.
func (q *Queue) Wait(ctx context.Context) error {
	if err := q.check("wait", ctx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return wrap("wait", q.name, err)
	}
	return wrap("wait", q.name, q.watcher.wait(ctx))
}

// watcher polls a queue for all callers that wait for it: one goroutine, that of the
// current watch. The first caller starts it, the last one to leave stops it, and its
// result is for all who were there.
type watcher struct {
	queue    *Queue
	notifier *notify.Notifier

	mu      sync.Mutex // guards what follows
	current *watch     // nil if no caller waits
	waiting int        // callers of the current watch
	told    told
}

// told is the head for which the watches of a queue have returned last.
type told struct {
	head  string // empty if none is due
	times int    // in a row
}

// firstPause and lastPause bound the pause before a head is told again.
const (
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
)

// holdBack returns for how long a wait that began then does not tell its callers of a head
// that is due: 0 if it is to tell them now, which is noted. A head that was told before, and
// is still there, is told again after a pause.
func (w *watcher) holdBack(head string, began time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if head != w.told.head {
		w.told = told{head: head}
	}
	if w.told.times > 0 {
		last := min(lastPause, w.queue.options.poll)
		pause := backoff.Exponential(firstPause, last, w.told.times-1) - time.Since(began)
		if pause > 0 {
			return pause
		}
	}
	w.told.times++
	return 0
}

// forgetTold has the next head told at once, whichever it is: tasks were taken, so that the
// same ID at the same time is a new one.
func (w *watcher) forgetTold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = told{}
}

// watch is one wait, shared.
type watch struct {
	stop context.CancelFunc
	over chan struct{} // closed when err is set
	err  error
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

// enter counts the caller as one of the current watch, which it starts if there is none.
func (w *watcher) enter() *watch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == nil {
		ctx, stop := context.WithCancel(context.Background())
		w.current, w.waiting = &watch{stop: stop, over: make(chan struct{})}, 0
		go w.run(ctx, w.current)
	}
	w.waiting++
	return w.current
}

// exit counts the caller out. The last one stops the watch.
func (w *watcher) exit(of *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != of {
		return // it is over
	}
	w.waiting--
	if w.waiting == 0 {
		of.stop()
		w.current = nil
	}
}

func (w *watcher) run(ctx context.Context, this *watch) {
	defer this.stop()
	this.err = w.poll(ctx)
	w.forget(this) // a caller that comes now needs a new poll
	close(this.over)
}

func (w *watcher) forget(this *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == this {
		w.current = nil
	}
}

// poll returns when something is due, when a poll fails, or when ctx ends.
func (w *watcher) poll(ctx context.Context) error {
	q := w.queue
	// Before the first poll, so that what is published after it is not missed where the
	// subscription is confirmed already.
	listener := w.notifier.Join(q.channel)
	defer w.notifier.Leave(q.channel, listener)
	select {
	case <-listener.C: // it is confirmed: the first poll is still to come
	default:
	}
	began := time.Now()
	missed := false // what is due at the next poll, no notification and no earlier poll has announced
	for {
		off, head, err := w.next(ctx)
		if err != nil {
			return err
		}
		if off == 0 {
			off = w.holdBack(head, began)
		}
		if off == 0 {
			if missed {
				w.notifier.RequestPing()
			}
			return nil
		}
		timer := time.NewTimer(min(off, q.options.poll))
		select {
		case <-listener.C:
			missed = false
		case <-timer.C:
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

// next asks how far off the queue's earliest task is: 0 if it is due, and then which it is.
func (w *watcher) next(ctx context.Context) (off time.Duration, head string, err error) {
	reply, err := w.queue.executor.Run(ctx, scriptNext.Request(w.queue.keys[:1], w.queue.channel))
	if err != nil {
		return 0, "", err
	}
	heads, err := decodeNext(reply.Value, 1)
	if err != nil {
		return 0, "", err
	}
	return heads[0].off, heads[0].id, nil
}
