package sluice

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

const (
	// attentive is the part of its lease before which a task's extension may go
	// along with another's.
	attentive = 10
	// retryExtension is the part of its lease after which an extension that failed
	// is tried again.
	retryExtension = 20
	// leastPatience and mostPatience bound how long an exchange with Redis is
	// waited for; in between it is a third of the lease. A new connection takes
	// several round trips.
	leastPatience = time.Second
	mostPatience  = 5 * time.Second
	// leastExtension is what an extension is given at the least.
	leastExtension = 20 * time.Millisecond

	// troubleMin and troubleMax bound the pause after an exchange that failed.
	troubleMin = 10 * time.Millisecond
	troubleMax = time.Second

	// many is from how many hands on they are given work by halves.
	many = 8

	// brief is the time in which handlers are so quick that it pays to wait for
	// the others of their group.
	brief = time.Millisecond
)

// shift is one Run of a worker. One goroutine, the caller's, owns all of it; it
// never waits for anything but its channels:
//
//	work       to the hands: tickets to be done
//	outbox     from the hands: tickets whose handlers have returned
//	exchanged  an exchange (verdicts, and a claim for hands that are free) is over;
//	           there are two at a time at the most, so that groups form meanwhile
//	extended   a round of lease extensions is over; likewise one at a time, and not
//	           held up by an exchange nor holding one up
//	waited     Queue.Wait has returned: it runs while nothing is due and a hand free
//	alarm      it is time for an extension, a lost lease, another try, the end of Grace
//
// A ticket is in running while its handler runs, then in pending until an exchange has
// taken its verdict along; should its lease just be in extension, in neither until
// that is over, so that the verdict goes out with the newest receipt.
type shift struct {
	settings
	queue  *Queue
	counts *counts

	end  <-chan struct{} // of Run's ctx
	base context.Context // of the handlers

	work      chan *ticket
	outbox    outbox
	exchanged chan *exchange
	over      chan struct{} // closed when the loop has ended
	extended  chan *extension
	waited    chan error
	alarm     *time.Timer
	alarmAt   time.Time

	hands      int // goroutines
	running    []*ticket
	pending    []*ticket
	held       int // tickets that wait for the end of their extension
	spare      []*ticket
	dispatched time.Time // when tickets were last given to the hands

	exchanges    []*exchange // without an answer
	extending    bool
	waiting      bool
	waitingSince time.Time
	stopWait     context.CancelFunc
	hungry       bool      // a claim may bring something
	news         int       // how often it was learnt that one may
	plenty       bool      // the last one brought all that it asked for
	attention    time.Time // when some lease needs to be looked at

	outage  time.Time  // since when Redis fails; zero if it doesn't
	failing [3]failure // by what fails
	retryAt time.Time

	stopping bool
	graceEnd time.Time
	cut      bool // the handlers' contexts have been ended
}

func newShift(ctx context.Context, w *Worker) (*shift, error) {
	settings, err := w.settings()
	if err != nil {
		return nil, err
	}
	s := &shift{
		settings: settings, queue: w.Queue, counts: &w.counts,
		end: ctx.Done(), base: context.WithoutCancel(ctx),
		work:      make(chan *ticket, min(settings.concurrency, chunk)),
		outbox:    outbox{bell: make(chan struct{}, 1)},
		exchanged: make(chan *exchange),
		over:      make(chan struct{}),
		extended:  make(chan *extension, 1),
		waited:    make(chan error, 1),
		alarm:     time.NewTimer(longest),
		hungry:    true,
	}
	if ctx.Err() != nil {
		s.stop(time.Now())
	}
	return s, nil
}

// run returns when all is quiet after ctx has ended, or at the last moment.
func (s *shift) run() error {
	defer s.close()
	for {
		now := time.Now()
		s.heed(now)
		for s.exchange(now) {
		}
		s.wait()
		if s.stopping && s.quiet() {
			return nil
		}
		if s.stopping && !now.Before(s.graceEnd.Add(lastMoment)) {
			return s.unfinished()
		}
		s.setAlarm(now)
		select {
		case <-s.outbox.bell:
			s.gather()
		case x := <-s.exchanged:
			s.settle(x)
		case x := <-s.extended:
			s.prolong(x)
		case err := <-s.waited:
			s.waiting = false
			s.woken(err)
		case <-s.alarm.C:
			s.alarmAt = time.Time{}
		case <-s.end:
			s.stop(time.Now())
		}
	}
}

func (s *shift) quiet() bool {
	return len(s.running)+len(s.pending)+s.held == 0 && len(s.exchanges) == 0 && !s.extending
}

// unfinished says what is left at the last moment.
func (s *shift) unfinished() error {
	s.gather()
	_, sending, _ := s.underWay()
	left := &UnfinishedError{Running: len(s.running), Untold: len(s.pending) + s.held + sending}
	for _, x := range s.exchanges {
		left.Claims += min(x.asked, 1)
	}
	return left
}

// underWay is what is waited for: exchanges, verdicts in them, and tasks that they
// may bring.
func (s *shift) underWay() (exchanges, verdicts, asked int) {
	for _, x := range s.exchanges {
		if !x.forgotten {
			exchanges++
			verdicts += x.verdicts
			asked += x.asked
		}
	}
	return
}

// close ends the goroutines: hands that are idle now, others when their handlers
// have returned.
func (s *shift) close() {
	close(s.over)
	s.alarm.Stop()
	s.outbox.close()
	close(s.work)
	if s.waiting {
		s.stopWait()
		<-s.waited
	}
}

// stop begins the end of the shift.
func (s *shift) stop(now time.Time) {
	s.end = nil
	s.stopping, s.graceEnd = true, now.Add(s.grace)
	if s.waiting {
		s.stopWait()
	}
	for {
		select {
		case t := <-s.work:
			s.leave(t)
			s.giveBack(t)
			continue
		default:
		}
		return
	}
}

// giveBack has a ticket released that was not begun.
func (s *shift) giveBack(t *ticket) {
	t.verdict = verdict{kind: release}
	t.told = true
	s.conclude(t)
}

// dispatch gives a ticket to a hand. There is always one free, or on its way.
func (s *shift) dispatch(t *ticket) {
	t.place = len(s.running)
	s.running = append(s.running, t)
	t.ctx, t.cancel = context.WithCancelCause(s.base)
	if s.hands < len(s.running) {
		s.hands++
		go s.hand()
	}
	s.work <- t
}

// leave takes a ticket out of running.
func (s *shift) leave(t *ticket) {
	last := len(s.running) - 1
	s.running[t.place] = s.running[last]
	s.running[t.place].place = t.place
	s.running[last] = nil
	s.running = s.running[:last]
}

// gather takes what the hands have done. Where handlers take next to no time it
// lets the others of the group go first: a group costs as much as a single one.
func (s *shift) gather() {
	if exchanges, _, _ := s.underWay(); exchanges == 0 && len(s.running) > 1 && time.Since(s.dispatched) < brief {
		runtime.Gosched()
	}
	s.spare = s.outbox.take(s.spare)
	for i, t := range s.spare {
		s.spare[i] = nil
		s.leave(t)
		t.told = true
		s.conclude(t)
	}
}

// conclude has the verdict on a ticket sent, as soon as its receipt is certain.
func (s *shift) conclude(t *ticket) {
	switch {
	case t.renewing:
		s.held++
	case t.lost:
	default:
		s.pending = append(s.pending, t)
	}
}

// lose gives up a ticket whose lease is gone, or may be. Its handler is told.
func (s *shift) lose(t *ticket) {
	if t.lost {
		return
	}
	t.lost = true
	s.counts.lost.Add(1)
	if t.cancel != nil {
		t.cancel(ErrLost)
	}
	s.log.Warn("sluice: lease lost", slog.String("task", t.entry.ID), slog.Int("attempt", t.entry.Attempt))
}

// heed sees to the leases when it is time, and ends the handlers' contexts when
// Grace is over.
func (s *shift) heed(now time.Time) {
	if s.stopping && !s.cut && !now.Before(s.graceEnd) {
		s.cut = true
		for _, t := range s.running {
			t.cancel(context.Canceled)
		}
	}
	for _, x := range slices.Clone(s.exchanges) {
		if !x.forgotten && !now.Before(x.giveUp) {
			s.forget(x)
		}
	}
	if s.attention.IsZero() || now.Before(s.attention) {
		return
	}
	s.attention = time.Time{}
	var due []*ticket
	for _, t := range s.running {
		switch {
		case t.lost:
			continue
		case !now.Before(t.until):
			s.lose(t)
			continue
		case !t.renewing && !s.extending && !now.Before(t.renewFrom):
			due = append(due, t)
		case !t.renewing && !s.extending:
			s.attend(t.renewAt)
		}
		s.attend(t.until)
	}
	if len(due) > 0 {
		s.extend(now, due)
	}
}

// attend has the leases looked at, at the latest then.
func (s *shift) attend(at time.Time) {
	if s.attention.IsZero() || at.Before(s.attention) {
		s.attention = at
	}
}

// wait has the queue watched, if nothing is due and a hand is free.
func (s *shift) wait() {
	if exchanges, _, _ := s.underWay(); exchanges > 0 || s.waiting || s.hungry || s.stopping || s.free() == 0 {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	s.waiting, s.waitingSince, s.stopWait = true, time.Now(), stop
	go func() {
		defer stop()
		s.waited <- s.queue.Wait(ctx)
	}()
}

// woken: something may be due or, after an error, it is for a claim to find out.
func (s *shift) woken(err error) {
	s.tell()
	switch {
	case s.stopping:
	case err != nil:
		if time.Since(s.waitingSince) > troubleMax {
			s.failing[watching] = failure{} // it has worked in between
		}
		s.trouble(watching, err)
	default:
		s.fine(watching)
	}
}

// free is how many tasks may be claimed. While Redis fails, verdicts that it has
// not taken keep their hands, so that there is a bound to their number.
func (s *shift) free() int {
	_, sending, asked := s.underWay()
	n := s.concurrency - len(s.running) - asked
	if !s.outage.IsZero() {
		n -= len(s.pending) + s.held + sending
	}
	return max(n, 0)
}

// What may fail, one without the other.
const (
	exchanging = iota
	extending
	watching
)

type failure struct {
	times    int  // in a row
	stubborn bool // it went on when something else had succeeded
}

// trouble notes that Redis fails, and has the next try wait.
func (s *shift) trouble(what int, err error) {
	now := time.Now()
	f := &s.failing[what]
	if s.outage.IsZero() {
		s.outage = now
		f.stubborn = f.times > 0
		s.log.Warn("sluice: worker cannot use its queue, trying on", slog.String("queue", s.queue.name), slog.Any("error", err))
	}
	pause := min(troubleMin<<min(f.times, 20), troubleMax)
	f.times++
	s.retryAt = now.Add(pause/2 + rand.N(pause/2))
}

// fine notes that Redis works. The outage is over, unless it is one command that is
// denied where others are not.
func (s *shift) fine(what int) {
	s.failing[what] = failure{}
	if len(s.running) == 0 {
		s.failing[extending] = failure{} // nothing is extended
	}
	stubborn := slices.ContainsFunc(s.failing[:], func(f failure) bool { return f.stubborn })
	if s.outage.IsZero() || stubborn {
		return
	}
	s.log.Info("sluice: worker uses its queue again", slog.String("queue", s.queue.name),
		slog.Duration("after", time.Since(s.outage)))
	s.outage, s.retryAt = time.Time{}, time.Time{}
}

// setAlarm sets the alarm to the next thing that is due by the clock.
func (s *shift) setAlarm(now time.Time) {
	at := s.attention
	sooner := func(when time.Time) {
		if at.IsZero() || when.Before(at) {
			at = when
		}
	}
	if s.stopping && !s.cut {
		sooner(s.graceEnd)
	} else if s.stopping {
		sooner(s.graceEnd.Add(lastMoment))
	}
	if s.retryAt.After(now) {
		sooner(s.retryAt)
	}
	for _, x := range s.exchanges {
		if !x.forgotten {
			sooner(x.giveUp)
		}
	}
	if !at.Equal(s.alarmAt) {
		s.alarmAt = at
		if at.IsZero() {
			s.alarm.Stop()
		} else {
			s.alarm.Reset(time.Until(at))
		}
	}
}
