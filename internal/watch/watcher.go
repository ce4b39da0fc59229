package watch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// firstPause and lastPause bound the pause before a head is told again.
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
	// passOnAfter is when the next caller is told of a task, if the one that was told before
	// says nothing. It is longer than a claim takes.
	passOnAfter = 20 * time.Millisecond
	// leaveAfter is when a client leaves the line after its last caller: that may come back, and if
	// it is told of a task before, it passes that on.
	leaveAfter = 5 * time.Second
)

// Watcher waits for the tasks of a queue, for all callers of [Watcher.Wait]. It has one goroutine,
// that of the current watch.
type Watcher struct {
	client  *Client
	queue   *store.Queue
	channel string // on which this client is told of the head

	mu         sync.Mutex    // guards what follows; the notifier, which calls heard with its own mutex held, is not called with it
	current    *watch        // nil if no caller has waited for a while
	waiters    []waiter      // in the order in which they came
	interval   time.Duration // the least that one of them wants, store.FarOff at most
	aloneSince time.Time     // when the last of them left
	told       bool          // a caller was told of a task, and none has claimed since
	outlook    outlook
	place      store.Place
	unsure     bool // whether it has this place: what is sent at the same time is carried out in any order
	waiting    int  // clients in line, as far as is known
	toldLast   telling
	claimedAt  time.Time // when the last claim was sent that was carried out
	askedAt    time.Time // when the last claim was about to be sent
	leftAt     time.Time // when the client left the line, of its own
	failed     bool      // the last look
}

// telling is the head of which callers were told.
type telling struct {
	head  string // empty if it is not known
	times int    // in a row
	at    time.Time
}

// waiter is a caller of Wait, which is told here that a task may be due, or what has gone wrong. It
// has room for one of these.
type waiter chan error

// Wait waits until a task may be due. The queue is looked at once per poll interval, and more often
// if another caller wants that. The error is that of a look that has failed, or ctx.Err().
func (w *Watcher) Wait(ctx context.Context, poll time.Duration) error {
	caller := make(waiter, 1)
	w.enter(caller, poll)
	return w.await(ctx, caller)
}

// await waits until a caller is told.
func (w *Watcher) await(ctx context.Context, caller waiter) error {
	select {
	case err := <-caller:
		return err
	case <-ctx.Done():
	}
	if w.exit(caller) {
		return ctx.Err()
	}
	if err := <-caller; err == nil { // it was told at the same moment, and makes no use of it
		w.tellNext()
	}
	return ctx.Err()
}

// enter adds a caller, and starts a watch if there is none.
func (w *Watcher) enter(caller waiter, poll time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiters) == 0 || poll < w.interval {
		w.interval = min(poll, store.FarOff)
	}
	w.waiters = append(w.waiters, caller)
	if w.makeSure(); !w.outlook.known && len(w.waiters) == 1 {
		w.forget()
	}
	if w.current == nil {
		w.start()
	} else {
		background.Signal(w.current.changed)
	}
}

// exit takes a caller out, and reports whether it was not told. The last one stops the watch.
func (w *Watcher) exit(caller waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.waiters, caller)
	if i < 0 {
		return false
	}
	w.waiters = slices.Delete(w.waiters, i, i+1)
	w.noteAlone()
	return true
}

// noteAlone notes when the last caller has left. The mutex is held.
func (w *Watcher) noteAlone() {
	if len(w.waiters) == 0 && w.current != nil {
		w.aloneSince = time.Now()
		background.Signal(w.current.changed)
	}
}

// tell tells the first callers, n at most. The mutex is held.
func (w *Watcher) tell(n int, err error) {
	n = min(n, len(w.waiters))
	for _, caller := range w.waiters[:n] {
		caller <- err
	}
	w.waiters = slices.Delete(w.waiters, 0, n)
	w.told = w.told || n > 0 && err == nil
	w.noteAlone()
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
		w.outlook.known, w.place, w.current, w.failed = false, store.Out, nil, true
		w.tell(len(w.waiters), err)
	}
}

// action is what a watch is to do next.
type action int

const (
	waitForTasks  action = iota
	waitForCaller        // until lookAt
	passOn               // it leaves the line, in which no caller waits, and others see to the head
	end
)

// next tells as many callers to ask as the outlook says, if it is time, and returns the outlook and
// what is to be done. Until a caller that was told has asked, the head is not known.
func (w *Watcher) next(this *watch) (outlook, action) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &w.outlook
	now := time.Now()
	asks := o.known && !o.askAt.IsZero() && !now.Before(o.askAt)
	switch {
	case w.current != this:
		return *o, end
	case len(w.waiters) == 0:
		return w.alone(now)
	case asks:
		if o.head == "" || o.head != w.toldLast.head {
			w.toldLast = telling{head: o.head}
		}
		w.toldLast.times++
		w.toldLast.at = now
		o.known, o.askAt = false, time.Time{}
		o.lookAt = now.Add(min(max(passOnAfter, w.pause()), w.interval))
		if w.tell(o.callers, nil); len(w.waiters) == 0 {
			return w.alone(now)
		}
	}
	return *o, waitForTasks
}

// alone says what a watch does for which no caller waits. One that has just been told, or has
// claimed and has room for more, comes back soon. The mutex is held.
func (w *Watcher) alone(now time.Time) (outlook, action) {
	until, o := w.aloneSince.Add(passOnAfter), &w.outlook
	switch {
	case !w.place.IsIn() || w.told:
	case o.known && !o.askAt.IsZero() && o.askAt.Before(w.aloneSince.Add(leaveAfter)):
		until = backoff.Later(until, o.askAt)
	default:
		until = w.aloneSince.Add(leaveAfter)
	}
	switch {
	case until.After(now):
		return outlook{lookAt: until}, waitForCaller
	case w.place.IsIn() || w.told:
		w.told, w.place = false, store.Out
		w.forget()
		return outlook{}, passOn
	}
	w.current = nil
	return outlook{}, end
}

// left notes that the client has left the line, before or after a claim that has joined it
// meanwhile.
func (w *Watcher) left() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leftAt = time.Now()
	if w.unsure = w.place.IsIn(); len(w.waiters) > 0 {
		w.makeSure()
	}
}

// name returns the client's name in line, "" if it cannot be told of tasks.
func (w *Watcher) name(mark notify.Mark) string {
	switch {
	case !mark.Confirmed:
		return ""
	case mark.Sharded:
		return "*" + w.client.id
	}
	return w.client.id
}

// looking returns a look that gives the client a place in line.
func (w *Watcher) looking(mark notify.Mark) store.Looking {
	w.mu.Lock()
	defer w.mu.Unlock()
	return store.Looking{Queue: w.queue, Client: w.name(mark), Watch: 2 * w.every()}
}

// poll returns the poll interval.
func (w *Watcher) poll() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.interval
}

// Pops notes that a Pop is sent: callers that were told make something of it. Unlike a claim it
// does not take the client out of the line, which it leaves soon if none of them comes back.
func (w *Watcher) Pops() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = w.place.IsIn()
}

// Ask returns what a claim of n tasks is to say. keepsRoom says that its caller has room for more
// if it brings fewer.
func (w *Watcher) Ask(n int, keepsRoom bool) store.Asking {
	mark := w.Mark()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told, w.askedAt = false, time.Now()
	a := store.Asking{Client: w.name(mark), Below: 1, Watch: 2 * w.every()}
	switch {
	case len(w.waiters) > 0:
		a.Below = n + 1
	case keepsRoom:
		a.Below = n
	}
	if a.Client == "" {
		return store.Asking{}
	}
	if w.place.IsIn() {
		a.Below = -a.Below
	}
	return a
}

// pause returns the pause before the head that was told last is told again. The mutex is held.
func (w *Watcher) pause() time.Duration {
	if w.toldLast.head == "" {
		return 0
	}
	return backoff.Exponential(firstPause, min(lastPause, w.interval), w.toldLast.times-1)
}

// claimsWork reports whether a look was refused where claims are not, as access rules may have
// it. Then a caller is told now, and again in a poll interval: its claim is the look.
func (w *Watcher) claimsWork(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	var refusal redis.Error
	if !errors.As(err, &refusal) || now.Sub(w.claimedAt) > 2*w.interval {
		return false
	}
	w.outlook.known, w.outlook.lookAt = false, now.Add(w.interval)
	w.tell(1, nil)
	return true
}

// Mark returns what was published so far. It is taken before a claim or a look is sent.
func (w *Watcher) Mark() notify.Mark { return w.client.Notifier.Mark(w.channel) }
