package queues

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// periodicTask is a Periodic of a worker's. Its schedule is called in goroutines of their own: one
// call at a time, however long it takes. So neither a handler's goroutine nor another task waits
// for it.
type periodicTask struct {
	Periodic
	worker   *Worker
	expected atomic.Uint64 // the bits of the score with which it was found scheduled, as it is to be

	// doubted is the time up to which occurrences were handled, if that is far ahead of the
	// server's clock, and doubtedSince when that was first seen, by the local clock. Only the
	// goroutine that calls the schedule uses them.
	doubted, doubtedSince time.Time

	mu     sync.Mutex // guards what follows
	last   *planning  // the last question; nil if there was none
	isTold bool       // the log has been told that the schedule does not answer
}

// planning is a question to a schedule: what is to be in the queue instead of an occurrence?
type planning struct {
	of    occurrence // zero if the keeper has asked
	asked time.Time  // by the local clock
	done  chan struct{}
	next  occurrence // the answer, once done is closed: of itself, if that is right
	err   error
}

const (
	// atOnce is how long a handler's goroutine waits for a schedule that it has asked.
	atOnce = 100 * time.Microsecond
	// schedulePatience is after what time the log is told that a schedule does not answer.
	schedulePatience = 3 * time.Second
	// roundedOff is less than any difference that matters between two due times, and more than what
	// is lost of one in the queue.
	roundedOff = time.Millisecond
	// missedAfter is after what time an occurrence that was not begun is a missed one, of which
	// there may be later ones; and skipAfter, after what time SkipsMissed has none handled. Workers
	// that started within missedAfter of each other have the same list.
	missedAfter = time.Second
	skipAfter   = time.Minute
	// aheadMost is how far the time up to which occurrences were handled may be ahead of the
	// server's clock, if it was set back, and doubtFor how long a time that is further ahead is
	// heeded: the clock may be behind for a moment.
	aheadMost = time.Minute
	doubtFor  = keepInterval / 2
)

var (
	// errNoOccurrence says that a schedule has come to its end.
	errNoOccurrence = errors.New("the schedule has come to its end")
	// errNoAnswer says that a schedule did not say, and may the next time.
	errNoAnswer = errors.New("Schedule.Next gives no answer")
	// errOtherTask says that a caller has enqueued a task with the ID, which is no occurrence.
	errOtherTask = errors.New("another task has its ID: enqueue that with another one")
)

// plan returns what is to be in the queue instead of an occurrence, if that is known. Else the
// schedule is asked, unless it is being asked already, perhaps about another occurrence. plan waits
// for a moment only: most schedules answer at once.
func (p *periodicTask) plan(o occurrence, now time.Time) (l *planning, isKnown bool) {
	l = p.ask(o, o.due, now, nil)
	if left := atOnce - time.Since(l.asked); left > 0 {
		select {
		case <-l.done:
		case <-time.After(left):
		}
	}
	return l, background.IsClosed(l.done) && l.of == o
}

// ask has the schedule asked what is to be in the queue instead of an occurrence, which is due
// there at some time. It does nothing if a call is under way, or has answered just that, and does
// not wait. The keeper says what is to be done then, with the answer.
func (p *periodicTask) ask(o occurrence, at, now time.Time, then func(next occurrence) error) *planning {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.last; l != nil && (!background.IsClosed(l.done) || then == nil && l.of == o && l.err == nil) {
		return l
	}
	l := &planning{asked: time.Now(), done: make(chan struct{}), err: fmt.Errorf("%w: it called runtime.Goexit", errNoAnswer)}
	if p.last = l; then == nil {
		l.of = o
	}
	hangs := time.AfterFunc(schedulePatience, func() { p.tell(fmt.Errorf("%w: it does not return", errNoAnswer)) })
	// It ends when Schedule.Next has returned; nothing waits for it.
	go func() {
		defer close(l.done)
		defer func() {
			if v := recover(); v != nil { // its value may be a secret
				l.err = fmt.Errorf("%w: it panicked: %T", errNoAnswer, v)
			}
			hangs.Stop()
			p.tell(l.err)
		}()
		l.next, l.err = p.instead(o, at, now)
		hangs.Stop()
		if l.err == nil && then != nil {
			if l.err = then(l.next); errors.Is(l.err, context.Canceled) { // Run has ended
				l.err = nil
			}
		}
	}()
	return l
}

// tell tells the log that the task has no next occurrence, once until it has.
func (p *periodicTask) tell(err error) {
	p.mu.Lock()
	isNews := err != nil && !p.isTold
	p.isTold = err != nil
	p.mu.Unlock()
	if isNews {
		p.worker.Loop.Log.Warn("sluice: periodic task has no next occurrence", slog.String("task", p.ID), slog.String("error", err.Error()))
	}
}

// instead returns what is to be in the queue instead of an occurrence that is due there at a time,
// which may differ from its own: that very occurrence, if it is right. Only ask calls it, and what
// it calls.
func (p *periodicTask) instead(o occurrence, at, now time.Time) (occurrence, error) {
	o.before = p.credible(o.before, now)
	list, after := p.worker.listed(), backoff.Later(now, o.before)
	isMoved := at.Sub(o.due).Abs() >= roundedOff // a retry, or by an operator
	switch {
	case o.after.After(now), o == occurrence{}: // the server's clock was ahead, or there is no task
	case o.isHandled():
		after = backoff.Later(o.after, o.before)
	case !at.After(now):
		return p.catchUp(o, now)
	case o.list.Sub(list) > missedAfter && !o.list.After(now): // it is of a newer list
		return o, nil
	case !isMoved:
		if own, err := p.first(o.after); err == nil && own.due.Equal(o.due) {
			return o, nil
		}
	}
	next, err := p.first(after)
	sooner := at.Sub(next.due)
	if err == nil && !o.isHandled() && (sooner.Abs() < roundedOff || isMoved && sooner < 0) {
		return o, nil
	}
	next.before, next.list = o.before, list
	return next, err
}

// credible returns the time up to which occurrences were handled. If it has been far ahead of the
// server's clock for a while, and more is still to come than the one that was handled, that clock
// was wrong then: it is the present, and what was handled early is handled again.
func (p *periodicTask) credible(handled, now time.Time) time.Time {
	isCredible := handled.Sub(now) <= aheadMost
	if !isCredible {
		next, err := p.first(now)
		isCredible = err != nil || !next.due.Before(handled)
	}
	if isCredible {
		p.doubted = time.Time{}
		return handled
	}
	if !handled.Equal(p.doubted) {
		p.doubted, p.doubtedSince = handled, time.Now()
	}
	if time.Since(p.doubtedSince) < doubtFor {
		return handled
	}
	p.worker.Loop.Log.Warn("sluice: the server's clock was ahead when a periodic task was handled, goes on by its present time",
		slog.String("task", p.ID), slog.Duration("ahead", handled.Sub(now)))
	return now
}

// catchUp returns what is to be handled instead of an occurrence that is due, and was not begun.
func (p *periodicTask) catchUp(o occurrence, now time.Time) (next occurrence, err error) {
	next = occurrence{due: p.latest(o.due, now), after: now, before: o.due}
	switch {
	case p.SkipsMissed && now.Sub(next.due) > skipAfter:
		next, err = p.first(backoff.Later(now, o.before))
		next.before = o.before
	case next.due.Equal(o.due):
		return o, nil
	}
	next.list = p.worker.listed()
	return next, err
}

// latest returns the last occurrence up to a time; from is one of them. It bisects the time
// between, so that it asks for few of the occurrences, of which there may be millions.
func (p *periodicTask) latest(from, to time.Time) time.Time {
	for last := to; ; { // no occurrence is after last
		next, err := p.first(from)
		if err != nil || next.due.After(to) {
			return from
		}
		from = next.due
		middle := from.Add(last.Sub(from) / 2)
		if next, err = p.first(middle); err != nil || next.due.After(to) {
			last = middle
		} else {
			from = next.due
		}
	}
}

// first returns the first occurrence after a time.
func (p *periodicTask) first(after time.Time) (occurrence, error) {
	o := occurrence{after: after.UTC()}
	o.due = p.Schedule.Next(o.after).UTC()
	if !o.due.After(after) || o.due.After(store.LastTime) {
		return occurrence{}, errNoOccurrence
	}
	return o, nil
}

const (
	// keepInterval is how often a worker looks whether its periodic tasks are there, about, and
	// keepRetry after an error.
	keepInterval = time.Minute
	keepRetry    = 2 * time.Second
	// maxSends is how many requests a worker has under way for its periodic tasks: at its start all
	// may be missing, and a client has few connections.
	maxSends = 4
	// maxKept is how many tasks one look is about at most. It reads those that are not as expected,
	// until it has a megabyte of them (get.lua); of half of that, it asks for the rest.
	maxKept, restFrom = 500, 1 << 19
)

// keepPeriodic looks after all periodic tasks, again and again until ctx ends.
func (w *Worker) keepPeriodic(ctx context.Context) {
	all, failing := slices.Collect(maps.Values(w.tasks)), false
	for ctx.Err() == nil {
		var failed error
		for part := range slices.Chunk(all, maxKept) {
			failed = cmp.Or(failed, w.look(ctx, part))
		}
		pause := keepInterval
		if failed != nil {
			pause = keepRetry
			if !failing && ctx.Err() == nil {
				w.Loop.Log.Warn("sluice: worker cannot see to its periodic tasks", slog.String("error", failed.Error()))
			}
		}
		failing = failed != nil
		backoff.Sleep(ctx, pause/2+backoff.Full(pause))
	}
}

// look asks the server which tasks of a part are not in the queue as expected, and has them mended.
func (w *Worker) look(ctx context.Context, part []*periodicTask) error {
	for len(part) > 0 {
		found, size, err := w.lookOnce(ctx, part)
		if err != nil || size < restFrom {
			return err
		}
		last := slices.IndexFunc(part, func(p *periodicTask) bool { return p.ID == found[len(found)-1].ID })
		part = part[last+1:]
	}
	return nil
}

// lookOnce is one command of look. It returns what it has read, and how many bytes that was.
func (w *Worker) lookOnce(ctx context.Context, part []*periodicTask) (found []store.Info, size int, err error) {
	wanted, ids := make([]store.Wanted, len(part)), make([]string, len(part))
	for i, task := range part {
		ids[i] = task.ID
		wanted[i] = store.Wanted{ID: task.ID, Unless: store.ScoreText(math.Float64frombits(task.expected.Load()))}
	}
	reply, err := w.send(ctx, w.Queue.Store.Get(store.AllPayloads, wanted...))
	if err != nil {
		return nil, 0, err
	}
	now, found, err := store.DecodeGot(reply.Value, ids...)
	if err != nil {
		return nil, 0, err
	}
	w.noteTime(now)
	for _, t := range found {
		w.tasks[t.ID].mend(ctx, t, now)
		size += len(t.Result) + len(store.Pack(t.Kind, t.Header, time.Time{}, t.Payload))
	}
	return found, size, nil
}

// mend has the task put into the queue as its schedule says, once that has answered. What is due, or
// being handled, or soon claimed for an answer that is known here, is left alone: admit and conclude
// see to that.
func (p *periodicTask) mend(ctx context.Context, t store.Info, now time.Time) {
	o, isOne := occurrenceIn(t.ID, t.Header)
	switch {
	case t.State == store.StateScheduled && !isOne:
		p.tell(errOtherTask)
	case t.State == store.StateDue, t.State == store.StateLeased:
	case t.State == store.StateScheduled && p.knows(o) && store.TimeOf(t.Score).Sub(now) <= keepInterval:
	case t.State == store.StateScheduled:
		p.ask(o, store.TimeOf(t.Score), now, func(next occurrence) error { return p.move(ctx, t.Score, o, next) })
	default:
		p.ask(occurrence{}, now, now, func(next occurrence) error { return p.enqueue(ctx, t, next) })
	}
}

// knows reports whether the schedule has said, at the last question, what follows an occurrence that
// was handled.
func (p *periodicTask) knows(o occurrence) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return o.isHandled() && p.last != nil && background.IsClosed(p.last.done) && p.last.of == o && p.last.err == nil
}

// move moves a task that is due at a wrong time, unless it has changed since it was looked at.
func (p *periodicTask) move(ctx context.Context, receipt float64, from, to occurrence) error {
	if from == to {
		if !p.doubted.IsZero() { // it is asked again at the next look
			return nil
		}
		p.expected.Store(math.Float64bits(receipt))
		return nil
	}
	item := store.Item{ID: p.ID, Receipt: store.ScoreText(receipt), Disposition: store.Disposition{Action: store.Again, Next: p.next(to)}}
	_, err := p.worker.send(ctx, p.worker.Queue.Store.Report([]store.Item{item}))
	return err
}

// enqueue enqueues a task that is not there. It was done, since its schedule had ended or no worker
// had it, or was a dead letter, perhaps.
func (p *periodicTask) enqueue(ctx context.Context, was store.Info, o occurrence) error {
	w, d := p.worker, p.draft(o)
	args := w.Queue.Store.NewBatch(1, store.Rules{Duplicates: store.Keep, Anyway: true}, "0", 0)
	e := d.Enqueue()
	args.Add(&e)
	_, err := p.worker.send(ctx, w.Queue.Store.Enqueue(args))
	if err == nil && was.State == store.StateDead {
		w.Loop.Log.Warn("sluice: periodic task was a dead letter, goes on with the next occurrence",
			slog.String("task", p.ID), slog.String("reason", was.Reason))
	}
	return err
}

// send sends a request, in its turn. The keeper, and a schedule's goroutine, wait for the answer no
// longer than a loop may.
func (w *Worker) send(ctx context.Context, r redisexec.Request) (redisexec.Reply, error) {
	select {
	case w.sends <- struct{}{}:
		defer func() { <-w.sends }()
	case <-ctx.Done():
		return redisexec.Reply{}, ctx.Err()
	}
	r.Bounded = true
	return w.Queue.Executor.Run(ctx, r)
}
