package watch

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// clockMargin is added to when a head is due, for what a double of the server's loses.
	clockMargin = time.Microsecond
)

// outlook is what is known of a queue's head, and what this client makes of it. It is good as
// long as nothing has come on the client's channel since mark.
type outlook struct {
	known   bool // else the queue has to be looked at
	mark    notify.Mark
	due     time.Time // when the head is
	head    string    // tells it from others; empty if that is not known
	askAt   time.Time // when callers are told to ask for it; zero for never: others see to it
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

// every returns how often the client looks: the more rarely, the more are in line, and once in
// store.FarOff at least, since Redis does not say when a head is due that is further off. The mutex
// is held.
func (w *Watcher) every() time.Duration {
	return min(w.interval*time.Duration(min(3*manyClients, max(manyClients, w.waiting)))/manyClients, store.FarOff)
}

// manyClients are so many that they look more rarely than once in a poll interval.
const manyClients = 100

// isNewer reports whether the outlook rests on messages that came after the mark. The mutex is
// held.
func (w *Watcher) isNewer(mark notify.Mark) bool {
	return w.outlook.mark.Follows(mark) && w.outlook.mark.Since(mark) > 0
}

// forget has the queue looked at now. The mutex is held.
func (w *Watcher) forget() { w.outlook.known, w.outlook.lookAt = false, time.Now() }

// startOver is forget where the subscription is another one, or may be. What was asked before the
// mark is answered too late to count. The mutex is held.
func (w *Watcher) startOver(mark notify.Mark) { w.outlook = outlook{mark: mark, lookAt: time.Now()} }

// resume finds out, for a new watch, whether the outlook is good.
func (w *Watcher) resume() {
	mark := w.Mark()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.outlook.known || !mark.Follows(w.outlook.mark) {
		w.startOver(mark)
	} else {
		w.hear(mark)
	}
}

// heard takes a message. The notifier's receiver calls it.
func (w *Watcher) heard(mark notify.Mark) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if mark.Follows(w.outlook.mark) {
		w.hear(mark)
	}
	return true
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
		w.startOver(mark)
	}
}

// hear takes what was published since the outlook's mark, if anything was: this client is to see to
// the head. It has left the line if the head is due, and else it is the watchman. A message that it
// does not know is a task that is due. The mutex is held.
func (w *Watcher) hear(mark notify.Mark) {
	if mark.Since(w.outlook.mark) <= 0 {
		return
	}
	var us int64
	callers := 1
	if n, err := fmt.Sscanf(mark.Message, "%d %d", &us, &callers); n != 2 || err != nil || us < 0 {
		us, callers = 0, 1
	}
	off := time.Duration(min(us, store.FarOff.Microseconds())) * time.Microsecond
	if w.place = store.Watchman; off == 0 {
		w.place, w.told = store.Out, true
		if len(w.waiters) == 0 {
			w.aloneSince = w.askedAt // others are told at once, unless a claim may be under way
		}
	}
	due := dueIn(off, mark.At)
	w.outlook = outlook{known: true, mark: mark, due: due, askAt: due, callers: max(callers, 1), lookAt: w.outlook.lookAt}
}

// stand notes what a reply says of the client's place in line: before the messages that have come
// since it was asked for, or after. The mutex is held.
func (w *Watcher) stand(h store.Head, areNewer bool) {
	switch {
	case !areNewer && h.Place != store.NotAsked:
		w.place, w.waiting, w.unsure = h.Place, h.Waiting, false
	case areNewer && h.Place.IsIn():
		w.place, w.unsure = store.InLine, true
	}
}

// makeSure has the queue looked at if the client is not in line, or may not be, and no caller is
// told soon: its claim joins the line. The mutex is held.
func (w *Watcher) makeSure() {
	o := &w.outlook
	if o.known && (w.unsure || !w.place.IsIn()) && (o.askAt.IsZero() || time.Until(o.askAt) > firstPause) {
		w.forget()
	}
}

// expect has callers told when the head is due, if this client sees to that. The mutex is held.
func (w *Watcher) expect(o outlook, off time.Duration) {
	if off < store.FarOff && (w.place.IsWatchman() || !w.place.IsIn()) {
		o.askAt, o.callers = o.due, 1
	}
	w.outlook = o
}

// looked takes what a look has found. If a message should have told of it, the connection is
// tested.
func (w *Watcher) looked(r lookResult) {
	if w.takeLook(r) {
		w.client.Notifier.RequestPing(w.channel)
	}
}

// takeLook is looked, and reports whether a message was lost: the client is not in line where it
// was.
func (w *Watcher) takeLook(r lookResult) (missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, h, newer := time.Now(), r.head, w.isNewer(r.mark)
	missed = w.place.IsIn() && h.Place.IsNew()
	w.stand(h, newer)
	if newer {
		if w.outlook.known { // else it is looked at soon, in case that the caller which was told does nothing
			w.outlook.lookAt = r.sent.Add(w.every())
		}
		return false
	}
	o := outlook{known: true, mark: r.mark, due: dueIn(h.Off, now), head: h.ID, lookAt: r.sent.Add(w.every()), callers: 1}
	if w.failed || h.Place.IsNew() || now.Sub(r.sent) > w.interval/2 { // many that join together, or were held up, do not look together
		w.failed, o.lookAt = false, now.Add(rand.N(w.every())+1)
	}
	if h.Off > 0 {
		w.expect(o, h.Off)
		return missed
	}
	o.askAt = now
	if again := w.toldLast.at.Add(w.pause()); h.ID == w.toldLast.head && again.After(now) {
		o.known, o.askAt, o.lookAt = false, time.Time{}, again // perhaps another one is the head by then
	}
	w.outlook = o
	return missed
}

// Popped takes whether a Pop has brought tasks, and whether a pause or limits have kept others from
// it. After one that has brought some, the next head is told at once, whichever it is: the same ID
// at the same time is a new one. How long others are kept, a look says.
func (w *Watcher) Popped(brought, isLimited bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if brought {
		w.toldLast = telling{}
	}
	if isLimited {
		w.forget()
	}
}

// Claimed takes what the reply to a claim says of the head, and whether the claim has brought
// tasks. The mark was taken before it was sent. A client that got tasks and knows of more asks for
// them.
func (w *Watcher) Claimed(mark notify.Mark, sent time.Time, h store.Head, brought bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if brought {
		w.toldLast = telling{}
	}
	w.claimedAt = sent
	now, newer := time.Now(), w.isNewer(mark)
	if mark.Confirmed {
		w.stand(h, newer)
		w.unsure = w.unsure || w.place.IsIn() && sent.Before(w.leftAt)
	}
	before, o := w.outlook, outlook{known: true, mark: mark, due: dueIn(h.Off, now), lookAt: sent.Add(w.every())}
	switch {
	case brought && h.Off == 0:
		o.askAt, o.callers = now, 1
		if newer {
			o.mark = before.mark
		}
		w.outlook = o
	case newer:
	case !mark.Confirmed:
		return
	case before.known && before.mark.Follows(mark) && before.due.After(now) && before.due.Before(o.due) &&
		(!before.askAt.IsZero() || !w.place.IsWatchman()): // else others saw to that one, and now this client does
		w.outlook.lookAt = o.lookAt // a claim that was carried out later has seen another head, perhaps
	case h.Off == 0: // it says that a task is due, and has brought none
		w.outlook = o
		w.forget()
	default:
		w.expect(o, h.Off)
	}
	if len(w.waiters) > 0 {
		w.makeSure()
	}
	if w.current == nil && w.place.IsIn() {
		w.start() // while it is in line, messages are heard
	}
	if w.current != nil {
		background.Signal(w.current.changed)
	}
}
