package locks

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
)

const (
	// CloseWait is how long Close waits.
	CloseWait = time.Second
	// maxReleases is the most locks that one pipeline releases.
	maxReleases = 250
)

// Unlock gives the lock back: to the next caller of the Engine, or else to the server. It waits for
// an answer until ctx ends, or the lease is over, and for ReplyGrace in any case.
func (h *Hold) Unlock(ctx context.Context) error {
	hadEnded := ctx.Err() != nil
	if !h.lease.End(nil) {
		return h.whyEnded()
	}
	ctx, cancel := outlive(ctx, hadEnded)
	defer cancel()
	e := h.engine
	if h.options.Renew {
		e.renewer.Remove(ctx, redisexec.ReplyGrace, h)
	}
	if h.handOver() {
		h.tellEnded(HandedOver)
		return nil
	}
	request := h.releaseRequest()
	request.Detached, request.Small, request.Until = true, true, h.lease.Over()
	reply, err := e.Executor.Run(ctx, request)
	return h.handleRelease(reply.Value, reply.Ambiguous, err)
}

// outlive returns a context for a release, whose own has ended with the lock, as that of the lock does: it goes on
// to its deadline.
func outlive(ctx context.Context, hadEnded bool) (context.Context, context.CancelFunc) {
	if hadEnded || ctx.Err() == nil {
		return ctx, func() {}
	}
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithoutCancel(ctx), func() {}
}

// releaseRequest releases what the token holds, and takes the member out of the line that the
// acquisition may have made.
func (h *Hold) releaseRequest() redisexec.Request {
	g := h.grant
	if !h.isPermit() && (h.options.Fenced || g.fences.first != 0) {
		return h.address.ReleaseFenced(g.token, g.member, h.unusedFences(), g.fences.last())
	}
	return h.address.Release(g.token, g.member, h.isPermit())
}

// handOver hands the lock over to the next caller of its Engine, if that is possible.
func (h *Hold) handOver() bool { return !h.grant.apart && h.engine.queues.HandOver(&h.waiter) }

// handleRelease takes the reply to a release, or its error, and lets the next waiter acquire. It
// returns what Unlock does. ambiguous says that an earlier attempt of it has no reply.
func (h *Hold) handleRelease(value any, ambiguous bool, err error) error {
	// 0 if the token did not hold the lock, else 1 and the number of processes woken.
	var answer int64
	if err != nil {
		h.releaseInBackground()
	} else {
		answer, err = redisexec.Int(value)
	}
	err = h.whyNotReleased(answer > 0, ambiguous, err)
	h.address.passedOn.Store(answer > 1)
	h.leave()
	h.tellEnded(h.releasedOrLost(err))
	return err
}

// leave has the Engine forget h, and the next waiter acquire.
func (h *Hold) leave() {
	if h.grant.apart {
		h.engine.apart.remove(h)
	}
	h.queues().PromoteNext(&h.waiter)
}

// releaseInBackground leaves the release to the janitor.
func (h *Hold) releaseInBackground() { h.engine.janitor.Add(h.backgroundRelease()) }

// outcomeUnknown has the lock released: it may have been acquired for no caller. over says that the
// server has answered since.
func (h *Hold) outcomeUnknown(over bool) {
	r := h.backgroundRelease()
	r.Late = !over
	h.engine.janitor.Add(r)
}

// backgroundRelease is h's release, as the janitor is given it.
func (h *Hold) backgroundRelease() lease.Release {
	_, covered, asked := h.lease.Bounds()
	return lease.Release{
		Token: h.grant.token, Request: h.releaseRequest(),
		Life: max(h.options.TTL, asked, time.Until(covered)) + h.grant.window.margin(),
	}
}

// UnlockAll releases every lock that the Engine holds, and returns what became of each. Their
// contexts end with ErrClosed.
func (e *Engine) UnlockAll(ctx context.Context) (holds []*Hold, errs []error) {
	holds = slices.DeleteFunc(e.held(), func(h *Hold) bool { return !h.lease.End(ErrClosed) })
	errs = e.giveBackAll(ctx, holds, true)
	for i, h := range holds {
		if errs[i] == ErrNotHeld { //nolint:errorlint // it is wrapped if the server has not answered
			h.lease.Lose() // its holder is told, and UnlockAll has released what there was
			errs[i] = nil
		}
	}
	return holds, errs
}

// held returns the locks that are held.
func (e *Engine) held() []*Hold {
	holds := e.apart.all("")
	for _, holder := range e.queues.Holders() {
		h, _ := holder.(*Hold)
		holds = append(holds, h)
	}
	return holds
}

// giveBackAll hands over or releases locks whose leases have just ended, and returns for each the
// error that Unlock would return. With closing, none is handed over. Servers are served at the same
// time, so that one that hangs delays only its own locks. It waits for these goroutines, which end
// with the answers, or at the end of the last of the locks.
func (e *Engine) giveBackAll(ctx context.Context, holds []*Hold, closing bool) []error {
	graced, cancel := withGrace(ctx, redisexec.ReplyGrace)
	defer cancel()
	graced, stop := context.WithDeadline(graced, releasesUntil(holds))
	defer stop()
	errs := make([]error, len(holds))
	var all sync.WaitGroup
	for _, at := range e.Executor.ByNode(len(holds), func(i int) any { return holds[i].address.RoutingKey() }) {
		all.Go(func() {
			given := make([]lease.Renewable, len(at))
			for i, of := range at {
				given[i] = holds[of]
			}
			e.renewer.Remove(graced, 0, given...)
			for some := range slices.Chunk(at, maxReleases) {
				e.giveBackSome(graced, holds, some, closing, errs)
			}
		})
	}
	all.Wait()
	return errs
}

// giveBackSome is giveBackAll for those of the locks that are at these places. It sends one
// pipeline, and what has no answer then is repeated as Unlock repeats it. The error of each goes to
// its place in errs.
func (e *Engine) giveBackSome(ctx context.Context, holds []*Hold, at []int, closing bool, errs []error) {
	var requests []redisexec.Request
	var sent []int // which of the locks go back to Redis
	for _, i := range at {
		h := holds[i]
		if !closing && h.handOver() {
			h.tellEnded(HandedOver)
			continue
		}
		requests, sent = append(requests, h.releaseRequest()), append(sent, i)
	}
	if len(sent) == 0 {
		return
	}
	results := e.Executor.Pipeline(ctx, requests)
	var all sync.WaitGroup
	for j, i := range sent {
		handle := func() {
			reply, err := e.Executor.Resume(ctx, requests[j], results[j])
			errs[i] = holds[i].handleRelease(reply.Value, reply.Ambiguous, err)
		}
		if results[j].Outcome == redisexec.Done {
			handle()
			continue
		}
		all.Go(handle) // ends with ctx at the latest, and Wait below waits for it
	}
	all.Wait()
}

// releasesUntil returns until when the releases of locks are waited for: for a second or,
// if that is later, until the last of them is over. If all are over, only a reply that comes
// within ReplyGrace is worth waiting for.
func releasesUntil(holds []*Hold) time.Time {
	now := time.Now()
	longest := redisexec.ReplyGrace
	for _, h := range holds {
		if left := h.lease.Over().Sub(now); left > 0 {
			longest = max(longest, left, CloseWait)
		}
	}
	return now.Add(longest)
}

// withGrace returns a context that ends d after ctx does.
func withGrace(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return out, func() { stop(); cancel() }
}
