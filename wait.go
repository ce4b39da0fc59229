package sluice

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/notify"
)

// Wait sleeps until a task may be due, and returns nil then. It ends when the queue's earliest
// task is due, when it is notified of an earlier one, and when a poll has found one. Redis is
// polled when a caller begins to wait, unless a Claim has just said when the earliest task is
// due, and once in each poll interval. All callers on one Queue share these polls, and all Queues
// on one client share those that find nothing.
//
// It is a hint: others wait for the same task, so that Claim or Pop may find nothing, and
// the caller comes back. Of the callers on one Queue, as many return as there are tasks due, as
// far as is known, in the order in which they came. Of the clients that wait for one task, about
// four return at once, and the one whose last Claim or Pop has brought a task; the others return
// later, one by one and ever more seldom, in case the first do not take it, and the last after a
// poll interval. A client that finds tasks late in this way asks more often from then on.
//
// If the earliest task is still the one that Wait has returned for before, because Claim fails for instance,
// Wait pauses before it returns for it again: for 1ms the first time, then twice as long each time, up to
// 100ms or the poll interval. For another task, it returns at once. So a loop around it never spins on a task
// that stays and that nothing takes. One that claims the task and releases it again does spin: Retry it.
//
// With several shards, a task of any ends it. The error of one is returned if nothing is due in the
// others for a poll interval.
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
	err := q.ready(ctx)
	if err == nil && len(q.shards) == 1 {
		err = q.shards[0].watcher.wait(ctx)
	} else if err == nil {
		err = q.waitForAny(ctx)
	}
	return q.wrap(ctx, "wait", err)
}

const (
	// firstPause and lastPause bound the pause before a head is told again.
	firstPause = time.Millisecond
	lastPause  = 100 * time.Millisecond
	// passOnAfter is when the next caller is told of a task, if the one that was told before
	// says nothing. It is longer than a claim takes.
	passOnAfter = 20 * time.Millisecond
	// lookAgain is when a client looks again that has heard of a task and did not ask for it,
	// or a poll interval if that is shorter.
	lookAgain = time.Second
	// farOff is what the scripts say of a head that is due later, or of none.
	farOff = time.Hour
	// clockMargin is added to when a head is due, for what a double of the server's loses.
	clockMargin = time.Microsecond
)

// watcher waits for the tasks of a shard, for all callers of Wait: one goroutine, that of the
// current watch. The first caller starts it. It ends with the last one.
type watcher struct {
	shard  *shard
	client *client

	mu        sync.Mutex // guards what follows
	current   *watch     // nil if no caller waits
	waiters   []*waiter  // in the order in which they came
	told      told
	outlook   outlook
	share     share
	claimedAt time.Time // when the last claim was sent that was carried out
}

// waiter is a caller of Wait.
type waiter struct {
	told chan<- notice // with room for one of each shard
}

// notice is what a caller is told: of a task that may be due, or of an error.
type notice struct {
	from *watcher
	err  error
}

// told is the head for which callers were told last.
type told struct {
	head  string // empty if it is not known
	times int    // in a row
	at    time.Time
}

// outlook is what is known of a queue's head, and what this client makes of it. It is good as
// long as nothing has come on the queue's channel since mark.
type outlook struct {
	known   bool // else the queue has to be looked at
	mark    notify.Mark
	due     time.Time // when the head is
	head    string    // tells it from others; empty if that is not known
	askAt   time.Time // when a caller is told to ask for it; zero for never
	callers int       // how many are
	lookAt  time.Time // when the queue is looked at, whatever happens
}

// watch is the goroutine of a watcher.
type watch struct {
	began   time.Time
	stop    context.CancelFunc
	changed chan struct{} // cap 1: the outlook has
}

func (w *watcher) wait(ctx context.Context) error {
	told := make(chan notice, 1)
	return w.waitFor(ctx, w.enter(told), told)
}

// waitFor waits until a caller is told, or ctx ends.
func (w *watcher) waitFor(ctx context.Context, p *waiter, told <-chan notice) error {
	select {
	case n := <-told:
		return n.err
	case <-ctx.Done():
	}
	if !w.exit(p) && (<-told).err == nil {
		w.tellNext()
	}
	return ctx.Err()
}

// enter adds a caller, and starts a watch if there is none.
func (w *watcher) enter(told chan<- notice) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &waiter{told}
	w.waiters = append(w.waiters, p)
	if w.current == nil {
		ctx, stop := context.WithCancel(context.Background())
		w.current = &watch{began: time.Now(), stop: stop, changed: make(chan struct{}, 1)}
		go w.run(ctx, w.current)
	}
	return p
}

// exit takes a caller out, and reports whether it was still there. The last one stops the watch.
func (w *watcher) exit(p *waiter) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.waiters, p)
	if i < 0 {
		return false
	}
	w.waiters = slices.Delete(w.waiters, i, i+1)
	w.stopIfDone()
	return true
}

// stopIfDone stops the watch if there is no caller left. The mutex is held.
func (w *watcher) stopIfDone() {
	if len(w.waiters) == 0 && w.current != nil {
		w.current.stop()
		w.current = nil
	}
}

// tell tells the first callers, n at most. The mutex is held.
func (w *watcher) tell(n int, err error) {
	n = min(n, len(w.waiters))
	for _, p := range w.waiters[:n] {
		p.told <- notice{w, err}
	}
	w.waiters = slices.Delete(w.waiters, 0, n)
	w.stopIfDone()
}

// tellNext passes on what a caller was told and makes no use of.
func (w *watcher) tellNext() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell(1, nil)
}

// fail tells all callers of an error, if the watch is the current one.
func (w *watcher) fail(this *watch, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current == this {
		w.outlook.known = false
		w.tell(len(w.waiters), err)
	}
}

// next tells as many callers to ask as the outlook says, if it is time, and returns the outlook.
// It reports whether there are callers left. Until one that was told has asked, the head is not
// known.
func (w *watcher) next(this *watch) (outlook, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &w.outlook
	now := time.Now()
	if w.current == this && o.known && !o.askAt.IsZero() && !now.Before(o.askAt) {
		if o.head == "" || o.head != w.told.head {
			w.told = told{head: o.head}
		}
		w.told.times++
		w.told.at = now
		w.share.late = o.due.After(this.began) && now.Sub(o.due) > lateAfter
		o.known, o.askAt = false, time.Time{}
		o.lookAt = now.Add(min(max(passOnAfter, w.pause()), w.shard.options.poll))
		w.tell(o.callers, nil)
	}
	return *o, w.current == this
}

// pause returns the pause before the head that was told last is told again. The mutex is held.
func (w *watcher) pause() time.Duration {
	if w.told.head == "" {
		return 0
	}
	return backoff.Exponential(firstPause, min(lastPause, w.shard.options.poll), w.told.times-1)
}

// popped takes whether a Pop has brought tasks. If it has, the next head is told at once,
// whichever it is: the same ID at the same time is a new one.
func (w *watcher) popped(brought bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.share.claimed(brought)
	if brought {
		w.told = told{}
	}
}

// resume finds out, for a new watch, whether the outlook is good.
func (w *watcher) resume() {
	mark := w.client.notifier.Mark(w.shard.channel)
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := &w.outlook; !o.known || !mark.Follows(o.mark) {
		o.known, o.lookAt = false, time.Now()
	} else {
		w.hear(mark)
	}
}

// heard takes an announcement, and reports whether the watch has something to do for it. It is
// called by the notifier's receiver: most clients that hear of a task do nothing about it.
func (w *watcher) heard(mark notify.Mark) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := &w.outlook
	if !mark.Follows(o.mark) {
		return true
	}
	lookAt := o.lookAt
	w.hear(mark)
	return !o.askAt.IsZero() || o.lookAt.Before(lookAt)
}

// notified deals with a notification.
func (w *watcher) notified() {
	mark := w.client.notifier.Mark(w.shard.channel)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := &w.outlook; {
	case mark.Follows(o.mark):
		w.hear(mark)
	case mark.Confirmed: // what was published before is lost
		o.known, o.lookAt = false, time.Now()
	}
}

// hear takes what was announced since the outlook's mark, if anything was. The mutex is held.
func (w *watcher) hear(mark notify.Mark) {
	if mark.Since(w.outlook.mark) <= 0 {
		return
	}
	a := notify.ParseAnnouncement(mark.Message)
	o := outlook{known: true, mark: mark, due: mark.At.Add(a.Off), lookAt: w.outlook.lookAt}
	if a.Off > 0 {
		o.due = o.due.Add(clockMargin)
	}
	w.draw(&o, a)
}

// draw decides whether and when this client asks for a head, and notes that. The mutex is held.
func (w *watcher) draw(o *outlook, a notify.Announcement) {
	a = w.share.of(a)
	within := min(lookAgain, w.shard.options.poll)
	after, asks := a.Ask(rand.Float64(), within)
	o.callers, o.askAt = a.Callers(), o.due.Add(after)
	again := o.due
	switch {
	case a.Off >= farOff:
		o.askAt = time.Time{}
	case !asks:
		o.askAt, again = time.Time{}, o.due.Add(backoff.Half(within))
	default:
		again = o.lookAt
	}
	if again.Before(o.lookAt) {
		o.lookAt = again
	}
	w.outlook = *o
}

// isNewer reports whether the outlook rests on messages that came after the mark. The mutex is held.
func (w *watcher) isNewer(mark notify.Mark) bool {
	return w.outlook.mark.Follows(mark) && w.outlook.mark.Since(mark) > 0
}

// looked takes what a look has found that was sent then.
func (w *watcher) looked(h head, mark notify.Mark, sent time.Time) {
	if w.takeLook(h, mark, sent) {
		w.client.notifier.RequestPing(w.shard.channel)
	}
}

// takeLook is looked, and reports whether what the look has found should have been announced.
func (w *watcher) takeLook(h head, mark notify.Mark, sent time.Time) (missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, now := w.outlook, time.Now()
	lookAt := sent.Add(w.shard.options.poll)
	if w.isNewer(mark) {
		if before.known { // else it is looked at soon, in case that the caller which was told does nothing
			w.outlook.lookAt = lookAt
		}
		return false
	}
	o := outlook{known: true, mark: mark, due: now.Add(h.off), head: h.id, lookAt: lookAt, callers: 1}
	if h.off == 0 && before.known && before.mark.Confirmed && before.due.Before(now) {
		o.due = before.due // it was announced, and none of those who drew a place before has taken it
	}
	if h.off > 0 {
		o.due = o.due.Add(clockMargin)
		w.draw(&o, notify.Announcement{Clients: h.clients, Off: h.off})
		return false
	}
	o.askAt = now
	if again := w.told.at.Add(w.pause()); h.id == w.told.head && again.After(now) {
		o.known, o.askAt, o.lookAt = false, time.Time{}, again // perhaps another one is the head by then
	}
	w.outlook = o
	return before.known && before.mark.Confirmed && before.due.After(now)
}

// claimed takes what the reply to a claim says of the head, and to how many tasks the claim was.
//
// A client that got a task asks for the next one, whatever was announced meanwhile. Of those that
// did not, each second one does: else those that have looked for one task would all look for
// each that follows. The others hear of it as if it had been announced.
func (w *watcher) claimed(mark notify.Mark, sent time.Time, off time.Duration, clients, brought int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if brought > 0 {
		w.told = told{}
	}
	w.share.claimed(brought > 0)
	w.claimedAt = sent
	now := time.Now()
	o := outlook{known: true, mark: mark, due: now.Add(off), lookAt: sent.Add(w.shard.options.poll)}
	if off > 0 {
		o.due = o.due.Add(clockMargin)
	}
	switch before := w.outlook; {
	case brought > 0 && off == 0:
		o.askAt, o.callers = now, 1
		if w.isNewer(mark) {
			o.mark = before.mark
		}
		w.outlook = o
	case !mark.Confirmed || w.isNewer(mark):
		return
	case before.known && before.mark.Follows(mark) && before.due.After(now) && before.due.Before(o.due):
		w.outlook.lookAt = o.lookAt
		return // a claim that was carried out later has seen another head, perhaps
	case off == 0 && brought == 0: // it says that a task is due, and has brought none
		o.known, o.lookAt = false, now
		w.outlook = o
	case brought > 0 || rand.N(2) == 0:
		w.draw(&o, notify.Announcement{Off: off})
	default:
		w.draw(&o, notify.Announcement{Clients: clients, Off: off})
	}
	if w.current != nil {
		background.Signal(w.current.changed)
	}
}

// mark returns what was published so far. It is taken before a claim or a look is sent.
func (w *watcher) mark() notify.Mark { return w.client.notifier.Mark(w.shard.channel) }

// run is the watch.
func (w *watcher) run(ctx context.Context, this *watch) {
	defer this.stop()
	s, n := w.shard, w.client.notifier
	listener := n.JoinHearing(s.channel, w.heard)
	defer n.Leave(s.channel, listener)
	counted := n.JoinBriefly(s.idle)
	defer n.Leave(s.idle, counted)
	look := &idleLook{shard: s, found: make(chan lookResult, 1)}
	defer w.client.looker.cancel(look)
	select {
	case <-listener.C: // the mark that resume takes has it
	default:
	}
	w.resume()
	for err := error(nil); err == nil; {
		err = w.turn(ctx, this, look, listener)
		if err != nil && ctx.Err() == nil {
			w.fail(this, err)
		}
	}
}

// turn does what is due, and waits for one event. The error is that of a look, or ctx's.
func (w *watcher) turn(ctx context.Context, this *watch, look *idleLook, listener *notify.Listener) error {
	o, current := w.next(this)
	if !current {
		return context.Canceled
	}
	alarm := o.askAt
	switch {
	case o.known: // nothing else is expected: others' queues may be looked at at the same time
		w.client.looker.plan(look, plan{o.lookAt, w.shard.options.poll / 2})
	case !o.lookAt.After(time.Now()):
		return w.lookAlone(ctx)
	default:
		alarm = o.lookAt
	}
	var due <-chan time.Time
	if !alarm.IsZero() {
		timer := time.NewTimer(time.Until(alarm))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-listener.C:
		w.notified()
	case <-this.changed:
	case <-due:
	case r := <-look.found:
		if r.failed {
			return w.lookAlone(ctx)
		}
		w.looked(r.head, r.mark, r.sent)
	case <-ctx.Done():
	}
	return ctx.Err()
}

// lookAlone looks at the queue, and tries again where that may help.
func (w *watcher) lookAlone(ctx context.Context) error {
	mark, sent := w.mark(), time.Now()
	request := w.shard.nextRequest()
	request.Bounded = true
	reply, err := w.shard.executor.Run(ctx, request)
	if err != nil {
		if w.claimsWork(err) {
			return nil
		}
		return err
	}
	heads, err := decodeNext(reply.Value, 1)
	if err != nil {
		return err
	}
	w.looked(heads[0], mark, sent)
	return nil
}
