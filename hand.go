package sluice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// ticket is a claimed task on its way through the worker. It belongs to the shift's
// loop, but for the verdict, which the hand that has it writes before it puts it
// into the outbox.
type ticket struct {
	entry     Entry
	receipt   string          // the newest one, as the server wrote it
	until     time.Time       // the task is ours until then, by our clock
	renewAt   time.Time       // when the lease is to be extended
	renewFrom time.Time       // from when it may be, along with another's
	ctx       context.Context // of the handler
	cancel    context.CancelCauseFunc
	verdict   verdict

	place    int  // in shift.running
	told     bool // the handler has returned
	lost     bool // the lease is gone; nothing more is to be said of the task
	renewing bool // an extension is under way: nothing is said of the task meanwhile
	tries    int  // how often the verdict was sent
	unsure   bool // such a try stayed without a reply
	settled  bool // its result has been accepted
	blurred  bool // an extension stayed without a reply, and may have changed the receipt
}

// verdict is what is to become of a task.
type verdict struct {
	kind   kind
	delay  time.Duration // of a retry
	reason string        // of a burial
}

type kind int

const (
	finish kind = iota
	retry
	release
	bury
)

// panicError is a handler's panic.
type panicError struct {
	value string
	stack []byte
}

func (e *panicError) Error() string { return "panic: " + e.value }

var errExited = errors.New("the handler called runtime.Goexit")

// outbox is where hands put what they have done. The loop takes all of it at once.
type outbox struct {
	bell chan struct{} // cap 1; rung by the first one in

	mu      sync.Mutex // guards what follows
	tickets []*ticket
	closed  bool
}

// put says whether the loop is still there to take it.
func (o *outbox) put(t *ticket) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.tickets = append(o.tickets, t)
	if len(o.tickets) == 1 {
		signal(o.bell)
	}
	return true
}

// take empties it into a slice that is not needed any more.
func (o *outbox) take(spare []*ticket) []*ticket {
	o.mu.Lock()
	defer o.mu.Unlock()
	tickets := o.tickets
	o.tickets = spare[:0]
	return tickets
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// hand is a goroutine that runs handlers, one after the other, until the shift
// ends. The loop starts as many as have been needed at once.
func (s *shift) hand() {
	var current *ticket
	handled := false
	defer func() {
		if current == nil {
			return
		}
		// runtime.Goexit, of the handler or of Backoff. It cannot be stopped:
		// another hand takes over.
		defer func() {
			s.deliver(current)
			go s.hand()
		}()
		current.verdict = verdict{kind: retry, delay: fullJitter(current.entry.Attempt, nil)}
		if !handled {
			current.verdict = s.judge(current, errExited)
		}
	}()
	for t := range s.work {
		if t.ctx.Err() != nil { // the lease was lost before anybody began
			t.verdict = verdict{kind: release}
			s.deliver(t)
			continue
		}
		current, handled = t, false
		err := s.handle(t)
		handled = true
		t.verdict = s.judge(t, err)
		current = nil
		s.deliver(t)
	}
}

func (s *shift) deliver(t *ticket) {
	t.cancel(nil)
	if !s.outbox.put(t) && !t.lost { // the loop has ended, and changes nothing any more
		s.counts.lost.Add(1)
	}
}

// handle runs the handler, and makes a panic an error.
func (s *shift) handle(t *ticket) (err error) {
	s.counts.running.Add(1)
	defer s.counts.running.Add(-1)
	ctx := t.ctx
	if s.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, s.timeout)
		defer stop()
	}
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: cut(fmt.Sprint(v), maxReason), stack: debug.Stack()}
		}
	}()
	return s.handler(ctx, t.entry)
}

// judge turns a handler's error into a verdict. An error that panics when it is
// asked for its text, or unwrapped, is one to be retried.
func (s *shift) judge(t *ticket, err error) (v verdict) {
	if err == nil {
		return verdict{kind: finish}
	}
	defer func() {
		if recover() != nil {
			v = verdict{kind: retry, delay: fullJitter(t.entry.Attempt, nil)}
		}
	}()
	reason := cut(fmt.Sprint(err), maxReason)
	about := []any{slog.String("task", t.entry.ID), slog.Int("attempt", t.entry.Attempt), slog.String("error", reason)}
	panicked, isPanic := err.(*panicError) //nolint:errorlint // ours is never wrapped
	if isPanic {
		s.log.Error("sluice: handler panicked", append(about, slog.String("stack", string(panicked.stack)))...)
	}
	switch most := s.queue.options.maxAttempts; {
	case isPermanent(err), most > 0 && t.entry.Attempt >= most && !s.interrupted(t, isPanic):
		s.log.Warn("sluice: task buried", about...)
		return verdict{kind: bury, reason: reason}
	case s.interrupted(t, isPanic):
		return verdict{kind: release}
	}
	delay := s.pause(t.entry.Attempt, err)
	s.log.Info("sluice: attempt failed", append(about, slog.Duration("retry_in", delay))...)
	return verdict{kind: retry, delay: delay}
}

// interrupted says whether a handler's error is the worker's doing: its context was
// ended because the worker is to stop. Only the shift ends it with this cause before
// the handler has returned.
func (s *shift) interrupted(t *ticket, isPanic bool) bool {
	return !isPanic && context.Cause(t.ctx) == context.Canceled //nolint:errorlint // compared, not tested
}

// pause asks Backoff, and survives it.
func (s *shift) pause(attempt int, err error) (d time.Duration) {
	defer func() {
		if recover() != nil {
			d = fullJitter(attempt, err)
		}
	}()
	return min(max(s.backoff(attempt, err), 0), longest)
}
