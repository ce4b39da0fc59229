package watch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/notify"
)

const (
	// firstPause and lastPause bound the pause before a head is told again.
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
	// passOnAfter is when the next caller is told of a task, if the one that was told before
	// says nothing. It is longer than a claim takes.
	passOnAfter = 20 * time.Millisecond
)

// Queue is a queue, or a shard of one, whose tasks are waited for.
type Queue struct {
	Key, Pause any           // its main key, and that of its pause
	Channel    string        // on which scripts announce its head
	Argument   string        // the channel, as scripts are given it
	Idle       string        // the channel whose subscribers are counted as clients that wait
	Poll       time.Duration // how often it is looked at, whatever is announced
}

// Watcher waits for the tasks of a queue, for all callers of [Wait]. It has one goroutine, that of the
// current watch. The first caller starts it. It ends with the last one.
type Watcher struct {
	client *Client
	queue  Queue

	mu        sync.Mutex // guards what follows; the notifier, which calls heard with its own mutex held, is not called with it
	current   *watch     // nil if no caller waits
	waiters   []waiter   // in the order in which they came
	outlook   outlook
	toldLast  telling
	share     share
	claimedAt time.Time // when the last claim was sent that was carried out
}

// telling is the head of which callers were told.
type telling struct {
	head  string // empty if it is not known
	times int    // in a row
	at    time.Time
}

// waiter is a caller of Wait, which is told here. It has room for a notice of each of its watchers.
type waiter chan notice

// notice says that a task may be due, or what has gone wrong.
type notice struct {
	from *Watcher
	err  error
}

// Wait waits until a task may be due at the queue of any watcher, and returns which. If one fails, tasks of the
// others still count: their errors are returned if all fail, or if no task has come a poll interval after
// the first. If ctx ends, the only error is ctx.Err().
func Wait(ctx context.Context, watchers ...*Watcher) (which int, errs []error) {
	caller := make(waiter, len(watchers))
	for _, w := range watchers {
		w.enter(caller)
	}
	return caller.wait(ctx, watchers)
}

func (caller waiter) wait(ctx context.Context, watchers []*Watcher) (which int, errs []error) {
	defer caller.leave(watchers)
	var late <-chan time.Time
	for len(errs) < len(watchers) {
		select {
		case n := <-caller:
			if n.err == nil {
				return slices.Index(watchers, n.from), nil
			}
			errs = append(errs, n.err)
			if late == nil {
				timer := time.NewTimer(n.from.queue.Poll)
				defer timer.Stop()
				late = timer.C
			}
		case <-late:
			return 0, errs
		case <-ctx.Done():
			return 0, []error{ctx.Err()}
		}
	}
	return 0, errs
}

// leave takes a caller out of all watchers, and passes on what it was told and makes no use of.
func (caller waiter) leave(watchers []*Watcher) {
	for _, w := range watchers {
		w.exit(caller)
	}
	for len(caller) > 0 { // and nothing more comes
		if n := <-caller; n.err == nil {
			n.from.tellNext()
		}
	}
}

// enter adds a caller, and starts a watch if there is none.
func (w *Watcher) enter(caller waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiters = append(w.waiters, caller)
	if w.current == nil {
		w.start()
	}
}

// exit takes a caller out, unless it was told. The last one stops the watch.
func (w *Watcher) exit(caller waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.waiters, caller); i >= 0 {
		w.waiters = slices.Delete(w.waiters, i, i+1)
		w.stopIfDone()
	}
}

// stopIfDone stops the watch if there is no caller left. The mutex is held.
func (w *Watcher) stopIfDone() {
	if len(w.waiters) == 0 && w.current != nil {
		w.current.stop()
		w.current = nil
	}
}

// tell tells the first callers, n at most. The mutex is held.
func (w *Watcher) tell(n int, err error) {
	n = min(n, len(w.waiters))
	for _, caller := range w.waiters[:n] {
		caller <- notice{w, err}
	}
	w.waiters = slices.Delete(w.waiters, 0, n)
	w.stopIfDone()
}

// tellNext passes on what a caller was told and makes no use of.
func (w *Watcher) tellNext() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell(1, nil)
}

// fail tells all callers of an error, if the watch is the current one.
func (w *Watcher) fail(this *watch, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == this {
		w.outlook.known = false
		w.tell(len(w.waiters), err)
	}
}

// next tells as many callers to ask as the outlook says, if it is time, and returns the outlook.
// It reports whether the watch is the current one. Until a caller that was told has asked, the head is not
// known.
func (w *Watcher) next(this *watch) (outlook, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &w.outlook
	now := time.Now()
	if w.current == this && o.known && !o.askAt.IsZero() && !now.Before(o.askAt) {
		if o.head == "" || o.head != w.toldLast.head {
			w.toldLast = telling{head: o.head}
		}
		w.toldLast.times++
		w.toldLast.at = now
		w.share.late = o.due.After(this.began) && now.Sub(o.due) > lateAfter
		o.known, o.askAt = false, time.Time{}
		o.lookAt = now.Add(min(max(passOnAfter, w.pause()), w.queue.Poll))
		w.tell(o.callers, nil)
	}
	return *o, w.current == this
}

// pause returns the pause before the head that was told last is told again. The mutex is held.
func (w *Watcher) pause() time.Duration {
	if w.toldLast.head == "" {
		return 0
	}
	return backoff.Exponential(firstPause, min(lastPause, w.queue.Poll), w.toldLast.times-1)
}

// claimsWork reports whether a look was refused where claims are not, as access rules may have
// it. Then a caller is told now, and again in a poll interval: its claim is the look.
func (w *Watcher) claimsWork(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	var refusal redis.Error
	if !errors.As(err, &refusal) || now.Sub(w.claimedAt) > 2*w.queue.Poll {
		return false
	}
	w.outlook.known, w.outlook.lookAt = false, now.Add(w.queue.Poll)
	w.tell(1, nil)
	return true
}

// Mark returns what was published so far. It is taken before a claim or a look is sent.
func (w *Watcher) Mark() notify.Mark { return w.client.Notifier.Mark(w.queue.Channel) }
