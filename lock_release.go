package sluice

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
)

const (
	// closeWait is how long Close waits.
	closeWait = time.Second
	// maxReleases is the most locks that one pipeline releases.
	maxReleases = 250
)

// releaseRequest releases what the token holds, and takes the entry out of the line that the acquisition may have made.
func (k *Lock) releaseRequest() redisexec.Request {
	g := k.grant
	if !k.isPermit() && (k.options.fenced || g.fences.first != 0) {
		return k.address.ReleaseFenced(g.token, g.entry, k.unusedFences(), g.fences.last())
	}
	return k.address.Release(g.token, g.entry, k.isPermit())
}

// handOver hands the lock over to the next caller of its Locker, if that is possible.
func (k *Lock) handOver() bool { return !k.grant.apart && k.locker.queues.HandOver(&k.waiter) }

// handleRelease takes the reply to a release, or its error, and lets the next waiter acquire. It returns what Unlock does.
// ambiguous says that an earlier attempt of it has no reply.
func (k *Lock) handleRelease(value any, ambiguous bool, err error) error {
	var answer int64 // 0 if the token did not hold the lock, else how many processes were woken, and one more
	if err != nil {
		k.releaseInBackground()
	} else {
		answer, err = redisexec.Int(value)
	}
	err = k.whyNotReleased(answer > 0, ambiguous, err)
	k.address.passedOn.Store(answer > 1)
	k.leave()
	k.tellEnded(k.releasedOrLost(err))
	return err
}

// leave ends what k is to the Locker that held it: the next waiter acquires.
func (k *Lock) leave() {
	if k.grant.apart {
		k.locker.apart.remove(k)
	}
	k.queues().PromoteNext(&k.waiter)
}

// releaseInBackground leaves the release to the janitor.
func (k *Lock) releaseInBackground() { k.locker.janitor.Add(k.backgroundRelease()) }

// backgroundRelease is k's release, as the janitor is given it.
func (k *Lock) backgroundRelease() lease.Release {
	_, covered, asked := k.lease.Bounds()
	return lease.Release{
		Token: k.grant.token, Request: k.releaseRequest(),
		Life: max(k.options.ttl, asked, time.Until(covered)) + k.grant.window.margin(),
	}
}

// closeAll releases every lock that is held. The locks' contexts end with ErrClosed.
func (l *Locker) closeAll(ctx context.Context, op string) error {
	locks := slices.DeleteFunc(l.held(), func(k *Lock) bool { return !k.lease.End(ErrClosed) })
	errs := l.giveBackAll(ctx, locks, true)
	for i, k := range locks {
		if errs[i] == ErrNotHeld { //nolint:errorlint // it is wrapped if the server has not answered
			k.lease.Lose() // its holder is told, and UnlockAll has released what there was
			errs[i] = nil
		}
	}
	return joinKinds(op, locks, errs)
}

// held returns the locks that are held.
func (l *Locker) held() []*Lock {
	locks := l.apart.all("")
	for _, holder := range l.queues.Holders() {
		m, _ := holder.(*member)
		locks = append(locks, m.lock())
	}
	return locks
}

// giveBackAll hands over or releases locks whose leases have just ended, and returns what Unlock says of each. closing says
// that none is handed over. Those of different servers are released at the same time: one that hangs delays its own. It waits for
// these goroutines, which end with the answers, or at the end of the last of the locks.
func (l *Locker) giveBackAll(ctx context.Context, locks []*Lock, closing bool) []error {
	graced, cancel := withGrace(ctx, redisexec.ReplyGrace)
	defer cancel()
	graced, stop := context.WithDeadline(graced, releasesUntil(locks))
	defer stop()
	errs := make([]error, len(locks))
	var all sync.WaitGroup
	for _, at := range l.executor.ByNode(len(locks), func(i int) any { return locks[i].address.RoutingKey() }) {
		all.Go(func() {
			l.stopRenewals(graced, locks, at)
			for some := range slices.Chunk(at, maxReleases) {
				l.giveBackSome(graced, locks, some, closing, errs)
			}
		})
	}
	all.Wait()
	return errs
}

// stopRenewals ends the renewals of those of the locks that are at these places, and waits for those under way.
func (l *Locker) stopRenewals(ctx context.Context, locks []*Lock, at []int) {
	var renewed []lease.Renewable
	for _, i := range at {
		if k := locks[i]; k.options.renew {
			renewed = append(renewed, k.member())
		}
	}
	l.renewer.RemoveAll(ctx, renewed)
}

// giveBackSome is giveBackAll for those of the locks that are at these places, in one pipeline, which is sent twice if it
// must be. The error of each goes to its place in errs.
func (l *Locker) giveBackSome(ctx context.Context, locks []*Lock, at []int, closing bool, errs []error) {
	var requests []redisexec.Request
	var sent []int // which of the locks go back to Redis
	for _, i := range at {
		k := locks[i]
		if !closing && k.handOver() {
			k.tellEnded(lockHandedOver)
			continue
		}
		requests, sent = append(requests, k.releaseRequest()), append(sent, i)
	}
	results, repeated := l.pipelineTwice(ctx, requests)
	for j, i := range sent {
		errs[i] = locks[i].handleRelease(results[j].Value, repeated[j], results[j].Final())
	}
}

// pipelineTwice sends requests that may be repeated, and those without an answer once more: the connection may have been
// an old one. repeated says which were.
func (l *Locker) pipelineTwice(ctx context.Context, requests []redisexec.Request) (results []redisexec.Result, repeated []bool) {
	repeated = make([]bool, len(requests))
	if len(requests) == 0 {
		return nil, repeated
	}
	results = l.executor.Pipeline(ctx, requests)
	var again []redisexec.Request
	var of []int
	for i, r := range results {
		if r.Outcome == redisexec.Unknown {
			again, of = append(again, requests[i]), append(of, i)
			repeated[i] = true
		}
	}
	if len(again) > 0 && ctx.Err() == nil {
		for j, r := range l.executor.Pipeline(ctx, again) {
			results[of[j]] = r
		}
	}
	return results, repeated
}

// releasesUntil returns until when the releases of locks are waited for: for a second or,
// if that is later, until the last of them is over. If all are over, only a reply that comes
// within ReplyGrace is worth waiting for.
func releasesUntil(locks []*Lock) time.Time {
	now := time.Now()
	longest := redisexec.ReplyGrace
	for _, k := range locks {
		if left := k.lease.Over().Sub(now); left > 0 {
			longest = max(longest, left, closeWait)
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
