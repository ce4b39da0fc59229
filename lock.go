package sluice

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"
)

// Lock is a lock that is, or was, held. It is safe for concurrent use.
type Lock struct {
	locker *Locker
	name   string
	at     *address
	lockOptions

	place place  // in line; guarded by lines.mu
	round *round // of a renewal that is under way; guarded by renewer.mu
	node  any    // where it is renewed, see door.nodeOf; guarded by renewer.mu

	mu       sync.Mutex // guards what follows
	deadline time.Time  // when it is lost, unless extended; zero until it is taken
	last     time.Time  // the deadline is not moved beyond; zero for never
	over     bool       // released, lost or closed; never false again
	cause    error      // with which ctx ends, or would, once over; nil for context.Canceled
	fence    int64
	unsure   bool // an acquisition of it stayed without a reply
	hold     hold
	ctx      context.Context
	cancel   context.CancelCauseFunc
	alarm    *time.Timer // ends ctx at the deadline
}

// hold is what a Locker knows of a key that it holds. It goes from hand to hand.
type hold struct {
	token     any       // a string, as scripts are given it
	keyUntil  time.Time // the key lives until then, safely
	passUntil time.Time // from then on it goes back to Redis
	forced    bool      // it was forced open: not to be handed on
	fences    fences
}

// stand takes the lock when k's turn has come.
func (k *Lock) stand(ctx context.Context, try bool) error {
	err := k.turn(ctx, try)
	if err == nil && k.renew {
		k.locker.renewer.add(k)
	}
	return err
}

func (k *Lock) turn(ctx context.Context, try bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ls := &k.locker.lines
	t, wait, err := ls.enter(k, try)
	if wait {
		t, err = k.await(ctx)
	}
	switch {
	case err != nil || t == granted:
		return err
	case t == busyTurn:
		return ErrLocked
	case t == askLater:
		sleep(ctx, yieldFor)
	}
	if err := k.ask(ctx, try); err != nil {
		k.abandon()
		ls.advance(&k.place)
		return err
	}
	return nil
}

// await waits for k's turn.
func (k *Lock) await(ctx context.Context) (turn, error) {
	p, ls, err := &k.place, &k.locker.lines, error(nil)
	select {
	case t := <-p.turn:
		return t, nil
	case <-k.locker.closed:
		err = ErrClosed
	case <-ctx.Done():
		if err = ctx.Err(); ls.known(p) {
			err = fmt.Errorf("%w: %w", ErrLocked, err)
		}
	}
	if ls.leave(p) {
		return 0, err
	}
	// The turn came at the same moment. A lock is taken, a turn to ask passed on.
	if t := <-p.turn; t == granted || t == busyTurn {
		return t, nil
	}
	ls.advance(p)
	return 0, err
}

// ask takes the lock from Redis, looking again whenever there is reason to.
func (k *Lock) ask(ctx context.Context, try bool) error {
	ls := &k.locker.lines
	ls.looked(&k.place, false)
	taken, held, err := k.grab(ctx, try)
	if taken || err != nil {
		return err
	}
	if held {
		ls.looked(&k.place, true)
	}
	var listener *listener
	var left time.Duration
	woken := true
	for {
		taken, left, err = k.acquire(ctx)
		switch {
		case err != nil && held && errors.Is(err, ctx.Err()) && !errors.Is(err, ErrUnknown):
			return fmt.Errorf("%w: %w", ErrLocked, err) // as it was at the last look
		case err != nil:
			return err
		case taken:
			if !woken {
				k.locker.wake.suspect() // free, and we were not told: expired, or is nobody talking to us?
			}
			return nil
		}
		ls.looked(&k.place, true)
		if held = true; try {
			return ErrLocked
		}
		if listener == nil {
			// Subscribing is confirmed by a wake-up, so that a release between
			// the look above and the subscription is not missed.
			listener = k.locker.wake.join(k.at.channel)
			defer k.locker.wake.leave(k.at.channel, listener)
		}
		pause := min(left+time.Millisecond, k.retry/2+mathrand.N(k.retry/2+1))
		timer := time.NewTimer(pause)
		select {
		case <-listener.C:
			woken = true
			sleep(ctx, ls.courtesy(&k.place, k.locker.wake.heard(k.at.channel)))
		case <-timer.C:
			woken = false
		case <-ctx.Done():
			err = fmt.Errorf("%w: %w", ErrLocked, ctx.Err())
		case <-k.locker.closed:
			err = ErrClosed
		}
		timer.Stop()
		if err != nil {
			return err
		}
		ls.looked(&k.place, false)
	}
}

// abandon sees to it that nothing is left of a lock that was not taken, or was
// lost, if an attempt to take it stayed without a reply.
func (k *Lock) abandon() {
	if k.unsure {
		k.cleanUp()
	}
}

// grab is the first try, by a bare SET: cheaper than a script, if nobody holds the
// lock. It knows nothing of fences nor, if somebody does hold the lock, for how
// long. After a lost reply the lock goes on as another one, with a token of its
// own, and what may have become of this one is released.
func (k *Lock) grab(ctx context.Context, try bool) (taken, held bool, err error) {
	if try || k.fenced {
		return false, false, nil
	}
	k.hold.token = rand.Text()
	a, err := k.locker.door.run(ctx, call{
		argv: []any{"set", k.at.keys[0], k.hold.token, "px", k.px, "nx"},
		late: k,
	})
	switch {
	case errors.Is(err, ErrUnknown) && ctx.Err() == nil:
		k.hold.token = nil
		return false, false, nil
	case err != nil || a.reply == nil:
		return false, err == nil, err
	}
	return true, false, k.take(a, 0)
}

// acquire tries once. If the lock is not taken, left is how long its holder may
// keep it at most.
func (k *Lock) acquire(ctx context.Context) (taken bool, left time.Duration, err error) {
	if k.hold.token == nil {
		k.hold.token = rand.Text()
	}
	a, err := k.locker.door.run(ctx, k.acquireCall())
	k.unsure = k.unsure || a.unsure
	if err != nil {
		return false, 0, err
	}
	left, fence, err := decodeAcquired(a.reply)
	if err != nil || left > 0 {
		return false, left, err
	}
	return true, 0, k.take(a, fence)
}

// take makes k the holder of a lock that was acquired, unless it came too late.
func (k *Lock) take(a answer, fence int64) error {
	k.hold.keyUntil, k.hold.passUntil = deadline(a.sent, k.ttl+slack), a.sent.Add(passFor)
	k.hold.fences = fences{first: fence, current: fence, since: time.Now()}
	k.begin(a.sent, deadline(a.sent, k.ttl))
	switch {
	case !time.Now().Before(k.deadline):
		k.cleanUp()
		return fmt.Errorf("%w: the reply took longer than the TTL", ErrLost)
	case !k.locker.lines.hold(&k.place, k.locker.closed):
		k.cleanUp()
		return ErrClosed
	}
	return nil
}

func (k *Lock) acquireCall() call {
	c := scriptAcquire.call(k.at.keys, k.hold.token, k.px)
	if k.fenced {
		c = scriptAcquireFenced.call(k.at.fenced, k.hold.token, k.px, fenceBlock, fenceLife.Milliseconds())
	}
	c.late = k
	return c
}

// inherit makes k the holder of what from has just given up, if that is safe:
// from is not past its deadline, and the key outlives all of k's TTL. What from
// may have under way does no harm: its extensions never make a TTL shorter.
func (k *Lock) inherit(from *Lock) bool {
	now := time.Now()
	until := deadline(now, k.ttl)
	from.mu.Lock()
	h, unsure := from.hold, from.unsure
	cover := h.keyUntil.Sub(until) // beyond slack, a crash of k's process would block others for from's TTL
	ok := now.Before(from.deadline) && now.Before(h.passUntil) && cover >= 0 && cover <= slack && !h.forced
	from.mu.Unlock()
	if ok && k.fenced {
		h.fences, ok = h.fences.next()
	}
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold, k.unsure = h, unsure
	k.begin(now, until)
	return true
}

// begin sets the first deadline of a lock that is taken now.
func (k *Lock) begin(now, until time.Time) {
	if k.fenced {
		k.fence = k.hold.fences.current
	}
	if k.maxHold > 0 {
		k.last = now.Add(k.maxHold)
	}
	k.deadline = k.capped(until)
}

// capped is until, or the longest hold's end if that is sooner.
func (k *Lock) capped(until time.Time) time.Time {
	if !k.last.IsZero() && k.last.Before(until) {
		return k.last
	}
	return until
}

// deadline is until when a lock whose key was given its TTL by a command sent at
// that time is safely held: monotonic time before the send, less 1% for clocks
// that run at different speeds and 2ms for the server's rounding. Of a TTL too
// short for that, half is left.
func deadline(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(max(ttl-ttl/100-2*time.Millisecond, ttl/2))
}

// Unlock releases the lock and ends its Context. It works with a context that
// has ended: it then waits 15ms for an answer.
//
// nil: it was still ours, and is free or the next caller's in line. (If Context had ended before that, the
// lock was lost all the same, though nobody else has had it.) ErrNotHeld: it was
// released before, or lost, or forced open. ErrUnknown: no answer; the release
// goes on in the background, and there is nothing to do. In every case the handle
// is used up.
func (k *Lock) Unlock(ctx context.Context) error {
	if err := k.check("unlock", ctx); err != nil {
		return err
	}
	if err := k.end(nil); err != nil {
		return wrap("unlock", k.name, err)
	}
	if k.renew {
		k.locker.renewer.remove(ctx, k, grace)
	}
	ls := &k.locker.lines
	if ls.pass(&k.place, k.locker.closed) {
		return nil
	}
	heard := k.locker.wake.heard(k.at.channel)
	others, err := k.release(ctx)
	ls.released(&k.place, others, heard+1)
	return wrap("unlock", k.name, err)
}

// release gives the lock back to Redis, and says how many others were told.
func (k *Lock) release(ctx context.Context) (others int, err error) {
	l := k.locker
	c := k.releaseCall()
	c.detached = true
	c.late = k
	a, err := l.door.run(ctx, c)
	if err != nil {
		k.cleanUp()
		return 0, err
	}
	if k.unsure {
		// A copy of the acquisition may still be on its way.
		k.cleanUp()
	}
	told, err := integer(a.reply) // and one
	switch {
	case err != nil:
		return 0, err
	case told > 0:
		return max(int(told)-1-l.wake.subscribers(k.at.channel), 0), nil
	case !a.unsure:
		return 0, ErrNotHeld
	case time.Now().Before(k.deadline):
		// The key cannot have expired yet: it was our own release, whose reply
		// was lost, that removed it.
		return 0, nil
	default:
		return 0, fmt.Errorf("%w: released or expired before", ErrUnknown)
	}
}

func (k *Lock) releaseCall() call {
	if k.fenced || k.hold.fences.first != 0 {
		return scriptReleaseFenced.call(k.at.fenced, k.hold.token, k.at.wake, k.hold.fences.unused())
	}
	return scriptRelease.call(k.at.keys, k.hold.token, k.at.wake)
}

// cleanUp has the lock released in the background.
func (k *Lock) cleanUp() { k.locker.cleaner.add(k.hold.token, k.releaseCall()) }

// end makes the handle useless and ends its Context with cause (nil for
// context.Canceled). It is ErrNotHeld if that had happened before. A lock past
// its deadline, and not told so by the server, still has something to release.
func (k *Lock) end(cause error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return ErrNotHeld
	}
	k.over, k.cause = true, cause
	if !time.Now().Before(k.deadline) {
		k.cause = ErrLost
	}
	if k.alarm != nil {
		k.alarm.Stop()
		k.cancel(k.cause)
	}
	return nil
}

// Extend sees to it that the lock has a TTL of at least ttl from now. It never
// makes a TTL shorter, so that a late copy of an earlier call does no harm.
//
// ErrNotHeld: the lock was released, lost or forced open; its Context has ended.
// After any other error it is held as before, and Extend may be called again.
func (k *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := k.check("extend", ctx); err != nil {
		return err
	}
	if err := checkDuration("TTL", ttl); err != nil {
		return fmt.Errorf("sluice: extend: %w", err)
	}
	return wrap("extend", k.name, k.extend(ctx, ttl))
}

func (k *Lock) extend(ctx context.Context, ttl time.Duration) error {
	if !k.Valid() {
		return ErrNotHeld
	}
	a, err := k.locker.door.run(ctx, k.extendCall(ttl))
	if err != nil {
		return err
	}
	ok, err := yes(a.reply)
	switch {
	case err != nil:
		return err
	case !ok:
		k.lose()
		return ErrNotHeld
	case !k.postpone(a.sent, ttl):
		k.tooLate()
		return ErrNotHeld
	}
	return nil
}

func (k *Lock) extendCall(ttl time.Duration) call {
	return scriptExtend.call(k.at.keys, k.hold.token, millis(ttl+slack))
}

// lose ends a lock of which the server says that it is not ours. The next in line
// may ask for it; an Unlock that is under way must not hand it on.
func (k *Lock) lose() {
	k.distrust()
	if k.end(ErrLost) == nil {
		k.abandon() // a copy of the acquisition may still be on its way
		k.locker.lines.advance(&k.place)
	}
}

// distrust keeps the lock from being handed on.
func (k *Lock) distrust() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold.forced = true
}

// renewable says whether a renewal can do anything for the lock.
func (k *Lock) renewable() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	atLast := !k.last.IsZero() && !k.deadline.Before(k.last)
	return !k.over && !atLast && time.Now().Before(k.deadline)
}

// postpone moves the deadline as an extension says that was sent then, if that is
// later. It says whether the lock is held.
func (k *Lock) postpone(sent time.Time, ttl time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	until, keyUntil := k.capped(deadline(sent, ttl)), deadline(sent, ttl+slack)
	if k.over || !time.Now().Before(k.deadline) {
		return false
	}
	if keyUntil.After(k.hold.keyUntil) {
		k.hold.keyUntil = keyUntil
	}
	if until.After(k.deadline) {
		k.deadline = until
		if k.alarm != nil {
			k.alarm.Reset(time.Until(until))
		}
	}
	return true
}

// tooLate is called when an extension was answered that the lock has not lived to
// see. If its deadline has passed, its holder was told, and it cannot come back:
// the key's new TTL is nobody's. But if somebody has ended it, then whoever did
// has released it or handed it on, or is about to.
func (k *Lock) tooLate() {
	k.mu.Lock()
	over := k.over
	k.mu.Unlock()
	if !over {
		k.cleanUp()
	}
}

// expired says whether the deadline has passed.
func (k *Lock) expired() bool { return !time.Now().Before(k.Deadline()) }

// TTL asks the server how long the key will live if it is not extended.
// ErrNotHeld if it isn't ours any more.
func (k *Lock) TTL(ctx context.Context) (time.Duration, error) {
	if err := k.check("ttl", ctx); err != nil {
		return 0, err
	}
	k.mu.Lock()
	over := k.over
	k.mu.Unlock()
	if over {
		return 0, wrap("ttl", k.name, ErrNotHeld)
	}
	left, err := k.inspect(ctx, k.hold.token)
	if err == nil && left == notHeld {
		err = ErrNotHeld
	}
	if err != nil {
		return 0, wrap("ttl", k.name, err)
	}
	return left, nil
}

// notHeld is what inspect returns for a lock that is not held: like -1, for one
// without TTL, nothing that a TTL could be.
const notHeld = -2 * time.Millisecond

// inspect returns the TTL of the lock if token, or with an empty token anybody,
// holds it.
func (k *Lock) inspect(ctx context.Context, token any) (time.Duration, error) {
	a, err := k.locker.door.run(ctx, scriptInspect.call(k.at.keys, token))
	if err != nil {
		return 0, err
	}
	ms, err := integer(a.reply)
	return duration(ms), err
}

// Valid says whether the lock is held, by the local clock and without I/O. It is
// false from the deadline on. Call it after long pauses, before a step that
// cannot be undone.
func (k *Lock) Valid() bool {
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.over && time.Now().Before(k.deadline)
}

// Deadline is until when the lock is safely held unless it is extended. It lies
// before the end of the key on the server, by 1% of the TTL, 2ms, and the way
// there.
func (k *Lock) Deadline() time.Time {
	if k == nil {
		return time.Time{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.deadline
}

// Context ends when the lock does: with the cause ErrLost at its deadline, or
// when an Extend finds it gone; with ErrClosed in Close; with context.Canceled in
// Unlock. It does not descend from the context given to Lock, which bounds the
// waiting and nothing else. It costs a timer, from the first call on, and no
// goroutine.
func (k *Lock) Context() context.Context {
	if k == nil || k.locker == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrNotHeld)
		return ctx
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx == nil {
		k.ctx, k.cancel = context.WithCancelCause(context.Background())
		left := time.Until(k.deadline)
		switch {
		case k.over:
			k.cancel(k.cause)
		case left <= 0:
			k.cancel(ErrLost)
		default:
			k.alarm = time.AfterFunc(left, k.expire)
		}
	}
	return k.ctx
}

// expire is called at what was the deadline when the alarm was last set.
func (k *Lock) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.over && !time.Now().Before(k.deadline) {
		k.cancel(ErrLost)
	}
}

// Name is the name that the lock was taken by.
func (k *Lock) Name() string {
	if k == nil {
		return ""
	}
	return k.name
}

// Fence is a number that is higher than that of every earlier holder of the name
// with WithFencing, in any process: over a lock that expired, was handed on or
// forced open, a server that restarted without its data, a FLUSHALL. Write it
// beside what the lock guards, and have a write refused where a higher one stands.
// 0 without WithFencing.
//
// It is the server's time in microseconds, or one more than the last where that is
// higher. So it can only go back where the server (or, in a failover, another one)
// has lost the last fence *and* its clock is behind that: because it was set back,
// or by up to 10ms for each time that the lock had just been forced open. Within
// the process of a lock that another process has forced open, it may go from hand to
// hand for up to 10ms more, with fences that are lower than the new holder's.
//
// While two primaries serve side by side, as some failovers have it, a fence is of the
// time at which its primary saw the acquisition, so that it can be lower than one that
// the other has given while the reply was on its way.
func (k *Lock) Fence() int64 {
	if k == nil {
		return 0
	}
	return k.fence
}

// Token is what the key holds while the lock is held: whoever knows it can
// release the lock, so it does not belong into logs. A lock that goes from hand to
// hand keeps its token, so that successive handles may have the same.
func (k *Lock) Token() string {
	if k == nil {
		return ""
	}
	token, _ := k.hold.token.(string)
	return token
}

// Format prints the lock's name, whatever the verb: its fields hold the token.
func (k *Lock) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "sluice.Lock(%q)", k.Name()) }

func (k *Lock) check(op string, ctx context.Context) error {
	if k == nil || k.locker == nil {
		return invalid(op, "Lock not made by a Locker")
	}
	if ctx == nil {
		return invalid(op, "nil context")
	}
	return nil
}

// millis rounds up, so that a key never lives shorter than its holder thinks.
func millis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// duration is a TTL that the server told, within what we can count: a foreign key
// may live for longer.
func duration(ms int64) time.Duration {
	return time.Duration(min(ms, int64(longest/time.Millisecond))) * time.Millisecond
}

// integer and yes decode the replies of the lock's scripts.
func integer(reply any) (int64, error) {
	n, ok := reply.(int64)
	if !ok {
		return 0, fmt.Errorf("%w: unexpected reply of type %T", ErrCorrupt, reply)
	}
	return n, nil
}

func yes(reply any) (bool, error) {
	n, err := integer(reply)
	return n == 1, err
}

// extended returns a context that ends d after ctx does.
func extended(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d, cancel) })
	return out, func() { stop(); cancel() }
}
