package taskloop

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/lease"

	"github.com/sluice-go/sluice/internal/store"
)

const (
	// lastWait is how long Run still waits when Grace is over and the handlers' contexts
	// have ended.
	lastWait = time.Second

	// halvesFrom is from how many runners on they are given work by halves: while the
	// handlers have one half of the tasks, Redis deals with the other.
	halvesFrom = 8

	// briefly is the time in which handlers are so quick that it pays to wait for the
	// others of their group.
	briefly = time.Millisecond
)

// loop is one Run. What its goroutine, the run loop, waits for:
//
//	completions.ready  runners have put in deliveries whose handlers have returned
//	exchanged          an exchange is over: dispositions, and a claim for runners that are
//	                   free. There are few at a time, two of a queue at most, so that groups
//	                   form meanwhile
//	extended           a batch of lease extensions is over. There are few at a time (see
//	                   extensionSlots); they do not hold up an exchange, nor an exchange them
//	waited             Source.Wait has returned. It runs for each queue in which nothing is
//	                   due while a runner is free
//	Canceled           a task was cancelled, perhaps one of those that are handled here
//	Sizes.changed      there may be more handlers, or fewer
//	alarm              a lease needs an extension or is lost, a try after a failure is due,
//	                   an exchange has had no answer in time, or Grace is over
//	end                Run's ctx has ended
//
// Goroutines: the runners; those of exchanges, which Source.Start runs and nothing waits for; one
// for each extension; one for each Source.Wait.
type loop struct {
	Config
	end      <-chan struct{} // of Run's ctx; nil once it was seen
	handlers context.Context // the handlers' contexts descend from it

	work        chan *delivery // to the runners
	completions completions    // from the runners
	exchanged   chan *exchange
	extended    chan *extension
	waited      chan *waiting
	over        chan struct{} // closed when the loop has ended: nothing reads exchanged any more
	alarm       *time.Timer

	runners      int         // goroutines
	handling     bag         // deliveries whose handlers have not returned
	replaced     int         // those of them whose places others have, see replace
	pending      int         // deliveries whose dispositions are to be sent, of all queues
	spare        []*delivery // a slice to be used again
	dispatchedAt time.Time   // when deliveries were last given to the runners

	queues    []*queue
	lists     [lists][]*queue
	claimNext bool // of dispositions and a claim that cannot go together, the claim had its turn
	clients   []*client
	opened    time.Time // when it began
	dealt     float64   // the turn of the last claim,
	last      *queue    // and whose it was
	wanting   int       // how many queues have turns,
	weights   int       // and their weights

	exchanges     []*exchange // that are waited for, in the order in which they were sent
	late          []*exchange // that were given up, and may yet bring tasks: until their leases would end
	reserved      int         // runners that are kept for what claims may bring
	extensions    int         // under way
	waits         int         // likewise, of Source.Wait
	nextCheck     time.Time   // when a lease has to be checked; zero for never
	nextTry       time.Time   // when something may be sent that had to wait; zero for never
	extendedAt    time.Time   // when an extension was last sent
	nextExtension time.Time   // when one may be that had to wait; zero for never
	stopBy        time.Time   // when Grace is over or, once that is, lastWait; zero until ctx has ended
	interrupted   bool        // Grace is over: the handlers' contexts have been ended
}

// isStopping reports whether Run's ctx has ended.
func (l *loop) isStopping() bool { return !l.stopBy.IsZero() }

func newLoop(ctx context.Context, c Config) *loop {
	l := &loop{
		Config: c, end: ctx.Done(), handlers: context.WithoutCancel(ctx),
		work:        make(chan *delivery, min(c.Concurrency, store.MaxGroup)),
		completions: completions{ready: make(chan struct{}, 1)},
		exchanged:   make(chan *exchange),
		extended:    make(chan *extension, mostExtensions),
		waited:      make(chan *waiting, 1),
		over:        make(chan struct{}),
		alarm:       time.NewTimer(time.Hour),
	}
	l.opened = time.Now()
	l.open()
	if ctx.Err() != nil {
		l.stop(time.Now())
	}
	return l
}

// run returns when nothing is left to do after ctx has ended, or at the last moment.
func (l *loop) run() *Unfinished {
	defer l.close()
	for {
		now := time.Now()
		l.doWhatIsDue(now)
		for l.exchange(now) {
		}
		l.wait()
		switch {
		case l.isStopping() && l.isQuiet():
			return nil
		case l.interrupted && !now.Before(l.stopBy):
			return l.unfinished()
		}
		if at := l.nextWake(); at.IsZero() {
			l.alarm.Stop()
		} else {
			l.alarm.Reset(time.Until(at))
		}
		l.awaitEvent()
	}
}

// awaitEvent waits for one event and deals with it.
func (l *loop) awaitEvent() {
	select {
	case <-l.completions.ready:
		l.gather()
	case x := <-l.exchanged:
		l.settle(x)
	case x := <-l.extended:
		l.handleExtension(x)
	case w := <-l.waited:
		l.woken(w)
	case id := <-l.Canceled:
		l.checkCanceled(id)
	case <-l.Sizes.changed:
		l.resize()
	case <-l.alarm.C:
	case <-l.end:
		l.stop(time.Now())
	}
}

// doWhatIsDue does what the alarm was set for.
func (l *loop) doWhatIsDue(now time.Time) {
	if l.isStopping() && !l.interrupted && !now.Before(l.stopBy) {
		l.interrupted, l.stopBy = true, l.stopBy.Add(lastWait)
		for _, d := range l.handling {
			d.cancel(context.Canceled)
		}
	}
	for len(l.exchanges) > 0 && !now.Before(l.exchanges[0].giveUp) {
		l.giveUp(l.exchanges[0])
	}
	for len(l.late) > 0 && !now.Before(l.late[0].leaseEnds()) {
		l.late = slices.Delete(l.late, 0, 1) // what it leased is due again
	}
	l.lapse(now)
	if !l.nextCheck.IsZero() && !now.Before(l.nextCheck) {
		l.checkLeases(now)
	}
	l.extend()
}

// nextWake is when something is due by the clock; zero for never.
func (l *loop) nextWake() time.Time {
	at := backoff.Sooner(l.nextCheck, l.stopBy)
	for _, x := range l.exchanges {
		at = backoff.Sooner(at, x.giveUp)
		if x.reserved > 0 {
			at = backoff.Sooner(at, x.lapse)
		}
	}
	if len(l.late) > 0 {
		at = backoff.Sooner(at, l.late[0].leaseEnds())
	}
	return backoff.Sooner(at, backoff.Sooner(l.nextTry, l.nextExtension))
}

// dispatch gives a delivery to a runner. There is always one free, or on its way.
func (l *loop) dispatch(d *delivery) {
	l.handling.add(d)
	d.queue.active++
	d.queue.handling++
	d.hold = &lease.Hold{Receipt: d.task.Score, Handlers: &d.queue.Counters.Most}
	d.hold.Last(d.until)
	d.ctx, d.cancel = context.WithCancelCause(lease.WithHolding(l.handlers, d.hold))
	d.began = l.dispatchedAt
	l.countRunning(d, 1)
	if l.runners < len(l.handling) {
		l.runners++
		// It ends when close closes work and its handler has returned. Run waits for handlers, for
		// Grace and lastWait.
		go l.runner()
	}
	l.work <- d
}

// gather takes what the runners have done. Where handlers take next to no time it lets
// the others of the group go first: a group costs as much as a single one.
func (l *loop) gather() {
	if len(l.exchanges) == 0 && len(l.handling) > 1 && time.Since(l.dispatchedAt) < briefly {
		runtime.Gosched()
	}
	l.spare = l.completions.take(l.spare)
	for i, d := range l.spare {
		l.spare[i] = nil
		l.handled(d)
		l.conclude(d)
		if d.state == lost { // while its handler ran
			l.tell(d)
		}
	}
}

// handled notes that no runner has a delivery any more.
func (l *loop) handled(d *delivery) {
	l.handling.remove(d)
	d.queue.handling--
	if !d.replaced {
		l.countRunning(d, -1)
		l.settleCost(d, d.took)
	}
	if !d.stuck {
		d.queue.active--
	}
	l.unstick(d)
	if d.queue.demand.claimWanted { // it may have had as many as it may
		l.consider(d.queue)
	}
}

// conclude has a delivery's disposition sent.
func (l *loop) conclude(d *delivery) {
	if d.on(handlerReturned) {
		l.addPending(d)
	}
}

// giveBack has a delivery released that was not begun.
func (l *loop) giveBack(d *delivery) {
	l.settleCost(d, 0)
	d.disposition = store.Disposition{Action: store.Release}
	l.conclude(d)
}

// lose gives up a delivery whose lease is gone, or may be.
func (l *loop) lose(d *delivery) {
	about := []any{slog.String("task", d.task.ID), slog.Int("attempt", d.task.Attempt)}
	if d.state != handling && d.disposition.Reason != "" { // else the runner has it
		about = append(about, slog.String("error", d.disposition.Reason))
	}
	if l.abandon(d, Lost, lease.ErrLost) {
		d.queue.Log.Warn("sluice: lease lost", about...)
	}
}

// cancel gives up a delivery whose task was cancelled.
func (l *loop) cancel(d *delivery) {
	if l.abandon(d, Canceled, ErrCanceled) {
		d.queue.Log.Info("sluice: task canceled", slog.String("task", d.task.ID), slog.Int("attempt", d.task.Attempt))
	}
}

// abandon gives up a delivery, and ends its handler's context. It reports whether there was
// anything to give up.
func (l *loop) abandon(d *delivery, e Ending, cause error) bool {
	isWithRunner := d.state == handling
	if !d.on(leaseLost) {
		return false
	}
	l.decided(d, e)
	if !isWithRunner { // else gather tells
		l.tell(d)
	}
	if d.cancel != nil {
		d.hold.End()
		d.cancel(cause)
	}
	return true
}

// stop begins the end of the loop.
func (l *loop) stop(now time.Time) {
	l.end = nil
	l.stopBy = now.Add(l.Grace)
	l.endWaits()
	for {
		select {
		case d := <-l.work:
			l.handled(d)
			l.giveBack(d)
			continue
		default:
		}
		return
	}
}

// endWaits ends each Source.Wait.
func (l *loop) endWaits() {
	for _, q := range l.queues {
		if w := q.waiting; w != nil {
			w.ended = true
			w.stop()
		}
	}
}

func (l *loop) isQuiet() bool {
	return len(l.handling)+l.pending+len(l.exchanges)+len(l.late)+l.extensions == 0
}

// unreported yields the deliveries whose handlers have returned, and of which Redis has not
// acknowledged what is to become of them.
func (l *loop) unreported(yield func(d *delivery) bool) {
	lists := make([][]*delivery, 0, len(l.lists[reporters])+len(l.exchanges))
	for _, q := range l.lists[reporters] {
		lists = append(lists, q.pending)
	}
	for _, x := range l.exchanges {
		lists = append(lists, x.reported...)
	}
	for _, d := range slices.Concat(lists...) {
		if !yield(d) {
			return
		}
	}
}

// unfinished says what is left at the last moment.
func (l *loop) unfinished() *Unfinished {
	l.gather()
	left := &Unfinished{Running: len(l.handling), Unacknowledged: l.pending, Claims: len(l.late)}
	for _, x := range l.exchanges {
		left.Unacknowledged += x.dispositions()
		left.Claims += min(x.claim, 1)
	}
	return left
}

// close ends the goroutines: runners that are idle now, others when their handlers have
// returned. It leaves the deliveries of which Redis has not acknowledged what is to become of them.
func (l *loop) close() {
	close(l.over)
	l.alarm.Stop()
	for _, d := range l.completions.close() {
		l.leave(d)
	}
	for d := range l.unreported {
		l.leave(d)
	}
	close(l.work)
	l.endWaits()
	for ; l.waits > 0; l.waits-- {
		<-l.waited
	}
}
