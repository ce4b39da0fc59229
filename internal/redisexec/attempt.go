package redisexec

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// ReplyGrace is how long a reply is still waited for when the context has ended, or the
// caller is to stop, while the attempt was under way: most come within it, and what they
// say is worth more to the caller than "unknown".
const ReplyGrace = 15 * time.Millisecond

// attempt is a request that is sent once.
type attempt struct {
	executor *Executor
	ctx      context.Context
	request  Request
	command  command
	lane     *lane // in which it is under way alone; nil for none
	// settled is set by the first of two: the sender that has a result, or the caller
	// that leaves. Exactly one of them deals with the result. If both did, OnUnknown
	// could release a lock that its caller believes to hold.
	settled  atomic.Bool
	answered chan struct{} // cap 1: there is a result for the caller
	result   Result
}

// Once sends a request once. If ctx ends, it returns like Run; the result of a request that
// is not sent, because ctx has ended before, is [NotSent]. Without a context that may end, it
// sends from the caller's goroutine.
func (e *Executor) Once(ctx context.Context, r Request) Result {
	if err := r.ended(ctx); err != nil {
		return Result{Outcome: NotSent, Err: err}
	}
	return e.attempt(ctx, r, 0)
}

// attempt sends a request once and waits for the reply, for ctx to end, or for the
// request's Stop or Until, whichever comes first. If it is not the reply, the command goes
// on in a sender, until go-redis's own timeouts at the latest. try is 0 for the first of a request.
func (e *Executor) attempt(ctx context.Context, r Request, try int) Result {
	e.underWay.Add()
	a := &attempt{executor: e, ctx: ctx, request: r.answeredInTime(ctx), result: Result{Outcome: Unknown, Err: ErrPanicked}}
	if ctx.Done() == nil && r.Stop == nil && r.Until.IsZero() && !r.Bounded { // there is nothing to leave for
		return a.sendHere()
	}
	if r.Detached {
		a.ctx = context.WithoutCancel(ctx)
	}
	a.answered, _ = e.answers.Get().(chan struct{})
	var over <-chan time.Time // never, without an Until or a bound
	if until := r.until(try); !until.IsZero() {
		timer, _ := e.timers.Get().(*time.Timer)
		timer.Reset(time.Until(until))
		defer e.stopTimer(timer)
		over = timer.C
	}
	waiting := a.enter()
	if waiting == nil {
		e.Start(a)
	}
	left := errTooLate
	select {
	case <-a.answered:
		e.answers.Put(a.answered) // nothing is sent on it twice
		return a.result
	case <-ctx.Done():
		left = ctx.Err()
	case <-r.Stop:
		left = ErrStopped
	case <-over:
	}
	if waiting != nil && !r.Detached && waiting.Withdraw() {
		e.underWay.Done()
		return Result{Outcome: NotSent, Err: left}
	}
	if a.answersInTime() {
		return a.result
	}
	isBound := r.Bounded && left == errTooLate //nolint:errorlint // compared, not tested
	// Where there is no connection yet, the client may take long to give one up.
	isWithdrawn := waiting == nil && !r.Detached && !isBound && !r.isReplicated() && a.command.withdraw()
	isFirst := a.settled.CompareAndSwap(false, true)
	switch {
	case isWithdrawn:
		return Result{Outcome: NotSent, Err: left}
	case !isFirst:
		return a.result
	case isBound:
		e.sweep()
		return e.refreshTopology(Result{Outcome: Unknown, Err: left})
	}
	return Result{Outcome: Abandoned, Err: left}
}

// enter asks for a place in the next pipeline of the lane. It returns nil if the attempt is to be
// sent at once.
func (a *attempt) enter() *place {
	l := a.executor.laneOf(&a.request)
	if l == nil {
		return nil
	}
	if waiting := l.Enter(a.ctx, a, 1, 1); waiting != nil {
		return waiting
	}
	a.lane = l
	return nil
}

// sendHere sends the request from the caller's goroutine, unless it goes into a pipeline.
func (a *attempt) sendHere() Result {
	a.answered, _ = a.executor.answers.Get().(chan struct{})
	if a.enter() == nil {
		a.Run()
	}
	<-a.answered
	a.executor.answers.Put(a.answered)
	return a.result
}

func (e *Executor) stopTimer(timer *time.Timer) {
	timer.Stop()
	e.timers.Put(timer)
}

// Run sends the request.
func (a *attempt) Run() {
	defer a.end() // also if a hook of the client's ends the goroutine
	if a.request.isReplicated() {
		a.result = a.executor.SendAll(a.ctx, []Request{a.request})[0]
		return
	}
	sent := time.Now()
	err := a.sendScript()
	if a.request.isSplit(err) {
		a.request = a.request.withoutSecond()
		err = a.sendScript()
	}
	a.result = a.executor.refreshTopology(a.command.classify(err))
	a.result.Sent = sent
}

// end deals with the result.
func (a *attempt) end() {
	defer a.executor.underWay.Done()
	if a.lane != nil {
		defer a.lane.Exit()
	}
	switch {
	case a.settled.CompareAndSwap(false, true):
		a.answered <- struct{}{}
	case a.request.OnUnknown != nil && (a.request.ambiguous || a.command.sending.Load() != withdrawn): // the caller has left
		a.request.OnUnknown(a.result.Outcome != Unknown)
	}
}

// answersInTime waits for a reply that comes within ReplyGrace.
func (a *attempt) answersInTime() bool {
	select {
	case <-a.answered:
		return true
	case <-time.After(ReplyGrace):
		return false
	}
}

// sendScript sends the request by the digest of its script, or else in full.
func (a *attempt) sendScript() error {
	err := a.process(a.request.Args)
	if a.request.lacksScript(err) {
		err = a.sendWithSource()
	}
	return err
}

// process sends the command. The error is read from the command, which waits for it
// where the client is an autopipeline that defers it.
func (a *attempt) process(args []any) (err error) {
	defer Contain(&err)
	a.command.sending.CompareAndSwap(written, unsent)
	a.command.Cmd = redis.NewCmd(a.ctx, args...)
	if err := a.executor.rdb.Process(a.ctx, &a.command); err != nil {
		return err
	}
	return a.command.Err()
}
