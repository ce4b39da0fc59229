package watch

import (
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/notify"
)

const (
	// FarOff is what Redis says of a head that is due later, or of none.
	FarOff = time.Hour
	// lookAgain is when a client looks again that has heard of a task and did not ask for it,
	// or a poll interval if that is shorter.
	lookAgain = time.Second
	// clockMargin is added to when a head is due, for what a double of the server's loses.
	clockMargin = time.Microsecond
)

// Head is what Redis says of the head of a queue, in reply to a claim or a look.
type Head struct {
	Off     time.Duration // until it is due, at most FarOff
	ID      string        // tells it from others; empty if that is not known
	Clients int           // that wait, or 0 for not counted
	Failed  bool          // it could not be read beside others
}

// outlook is what is known of a queue's head, and what this client makes of it. It is good as
// long as nothing has come on the queue's channel since mark.
type outlook struct {
	known   bool // else the queue has to be looked at
	mark    notify.Mark
	due     time.Time // when the head is
	head    string    // tells it from others; empty if that is not known
	askAt   time.Time // when callers are told to ask for it; zero for never
	callers int       // how many are
	lookAt  time.Time // when the queue is looked at, whatever happens
}

// dueIn returns when a head is due that was so far off at a time.
func dueIn(off time.Duration, at time.Time) time.Time {
	if off > 0 {
		off += clockMargin
	}
	return at.Add(off)
}

// isNewer reports whether the outlook rests on messages that came after the mark. The mutex is held.
func (w *Watcher) isNewer(mark notify.Mark) bool {
	return w.outlook.mark.Follows(mark) && w.outlook.mark.Since(mark) > 0
}

// forget has the queue looked at now. The mutex is held.
func (w *Watcher) forget() { w.outlook.known, w.outlook.lookAt = false, time.Now() }

// resume finds out, for a new watch, whether the outlook is good.
func (w *Watcher) resume() {
	mark := w.Mark()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.outlook.known || !mark.Follows(w.outlook.mark) {
		w.forget()
	} else {
		w.hear(mark)
	}
}

// heard takes an announcement, and reports whether the watch has something to do for it. It is
// called by the notifier's receiver: most clients that hear of a task do nothing about it.
func (w *Watcher) heard(mark notify.Mark) bool {
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
func (w *Watcher) notified() {
	mark := w.Mark()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case mark.Follows(w.outlook.mark):
		w.hear(mark)
	case mark.Confirmed: // what was published before is lost
		w.forget()
	}
}

// hear takes what was announced since the outlook's mark, if anything was. The mutex is held.
func (w *Watcher) hear(mark notify.Mark) {
	if mark.Since(w.outlook.mark) <= 0 {
		return
	}
	a := parseAnnouncement(mark.Message)
	w.draw(outlook{known: true, mark: mark, due: dueIn(a.off, mark.At), lookAt: w.outlook.lookAt}, a)
}

// draw decides whether and when this client asks for a head, and notes that. The mutex is held.
func (w *Watcher) draw(o outlook, a announcement) {
	a = w.share.of(a)
	within := min(lookAgain, w.queue.Poll)
	after, asks := a.ask(rand.Float64(), within)
	o.callers = a.callers()
	again := o.lookAt
	switch {
	case a.off >= FarOff:
		again = o.due
	case asks:
		o.askAt = o.due.Add(after)
	default:
		again = o.due.Add(backoff.Half(within))
	}
	if again.Before(o.lookAt) {
		o.lookAt = again
	}
	w.outlook = o
}

// looked takes what a look has found. If that should have been announced, the connection is tested.
func (w *Watcher) looked(r lookResult) {
	if w.takeLook(r) {
		w.client.Notifier.RequestPing(w.queue.Channel)
	}
}

// takeLook is looked, and reports whether what the look has found should have been announced.
func (w *Watcher) takeLook(r lookResult) (missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, now, h := w.outlook, time.Now(), r.head
	lookAt := r.sent.Add(w.queue.Poll)
	if w.isNewer(r.mark) {
		if before.known { // else it is looked at soon, in case that the caller which was told does nothing
			w.outlook.lookAt = lookAt
		}
		return false
	}
	o := outlook{known: true, mark: r.mark, due: dueIn(h.Off, now), head: h.ID, lookAt: lookAt, callers: 1}
	if h.Off > 0 {
		w.draw(o, announcement{clients: h.Clients, off: h.Off})
		return false
	}
	expected := before.known && before.mark.Confirmed
	if expected && before.due.Before(now) {
		o.due = before.due // it was announced, and none of those who drew a place before has taken it
	}
	o.askAt = now
	if again := w.toldLast.at.Add(w.pause()); h.ID == w.toldLast.head && again.After(now) {
		o.known, o.askAt, o.lookAt = false, time.Time{}, again // perhaps another one is the head by then
	}
	w.outlook = o
	return expected && before.due.After(now)
}

// Popped takes whether a Pop has brought tasks. If it has, the next head is told at once,
// whichever it is: the same ID at the same time is a new one.
func (w *Watcher) Popped(brought bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.popped(brought)
}

// popped is Popped. The mutex is held.
func (w *Watcher) popped(brought bool) {
	w.share.claimed(brought)
	if brought {
		w.toldLast = telling{}
	}
}

// Claimed takes what the reply to a claim says of the head, and whether the claim has brought tasks. The mark
// was taken before it was sent.
//
// A client that got a task asks for the next one, whatever was announced meanwhile. Of those that
// did not, each second one does: else those that have looked for one task would all look for
// each that follows. The others hear of it as if it had been announced.
func (w *Watcher) Claimed(mark notify.Mark, sent time.Time, h Head, brought bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.popped(brought)
	w.claimedAt = sent
	now := time.Now()
	o := outlook{known: true, mark: mark, due: dueIn(h.Off, now), lookAt: sent.Add(w.queue.Poll)}
	switch before := w.outlook; {
	case brought && h.Off == 0:
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
	case h.Off == 0: // it says that a task is due, and has brought none
		w.outlook = o
		w.forget()
	default:
		if rand.N(2) == 0 {
			h.Clients = 0 // as if it were alone
		}
		w.draw(o, announcement{clients: h.Clients, off: h.Off})
	}
	if w.current != nil {
		background.Signal(w.current.changed)
	}
}
