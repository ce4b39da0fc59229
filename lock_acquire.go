package sluice

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// yieldFor is how long a Locker that has given a lock back lets the processes that were
// notified of it go first.
const yieldFor = 2 * time.Millisecond

// Taking a lock has two stages. First the caller waits for its turn among the callers of its Locker, who send
// nothing to Redis for that: it may be handed the lock then. (Where they wait behind a holder for a retry
// interval, the Locker has its key inspected, once for all of them; see waitqueue.) Otherwise it is the head
// of its queue, and acquires the lock from Redis, where it competes with the heads of other processes.
// However it ends, the next waiter learns of it: by Hold, or by PromoteNext. A path without either would
// leave a name's waiters asleep.

// acquireInOrder takes the lock when k's turn has come among the callers of its Locker.
// With try it does not wait while another one holds the lock. handedOver says how it was taken.
func (k *Lock) acquireInOrder(ctx context.Context, try bool) (handedOver bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	turn, err := k.join(try)
	if err != nil {
		return false, err
	}
	if turn == waitqueue.Closed {
		return false, ErrClosed // the lock has no address
	}
	a := acquisition{lock: k, try: try, arrived: k.address.outage.Arrival()}
	if turn == waitqueue.Queued {
		a.waited = true
		turn, err = k.awaitTurn(ctx)
	}
	switch {
	case err != nil:
		return false, err
	case turn == waitqueue.Granted:
		return true, nil
	case turn == waitqueue.Refused:
		return false, ErrLocked
	case turn == waitqueue.Closed:
		return false, ErrClosed
	case turn == waitqueue.Unserved:
		return false, fmt.Errorf("%w: it has not answered the caller before this one", ErrUnavailable)
	case turn == waitqueue.YieldThenAcquire:
		backoff.Sleep(ctx, yieldFor)
	}
	if err := a.run(ctx); err != nil {
		if errors.Is(err, ErrUnknown) {
			k.queues().LeaveUnanswered(&k.waiter)
		} else {
			k.queues().PromoteNext(&k.waiter)
		}
		return false, a.failure(ctx, err)
	}
	return false, nil
}

// join puts k into its name's queue.
func (k *Lock) join(try bool) (turn waitqueue.Turn, err error) {
	// A prefix and a name that are too long or empty may make a key that is known.
	if err := keyspace.CheckLengths(k.options.prefix, k.name); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return k.queues().Join(k.queuePrefix(), k.name, &k.waiter, k.member(), try, &k.address)
}

// awaitTurn waits until k is granted the lock or is the head of its queue.
func (k *Lock) awaitTurn(ctx context.Context) (turn waitqueue.Turn, err error) {
	queues := k.queues()
	select { // of two: the end of the Locker is a turn too
	case turn = <-k.waiter.Turn():
		return turn, nil
	case <-ctx.Done():
		err = k.waitedInVain(ctx.Err())
	}
	if queues.Leave(&k.waiter) {
		return 0, err
	}
	// The turn came at the same moment, and is in the channel. A lock that was handed over
	// is taken: to give it back would cost as much as the caller's own Unlock does. A turn
	// to acquire is passed on.
	turn = <-k.waiter.Turn()
	if turn == waitqueue.Acquire || turn == waitqueue.YieldThenAcquire {
		queues.PromoteNext(&k.waiter)
		return 0, err
	}
	return turn, nil
}

// acquisition is a lock on its way from Redis. Its lock is the head of its queue.
type acquisition struct {
	lock     *Lock
	try      bool
	arrived  time.Time // if in an outage, see redisexec.Outage
	waited   bool      // in line, or was told at the last poll that another one holds the lock
	doubtful bool      // an acquisition stayed without a reply: the key may be taken for a moment
	lost     []any     // the tokens of the last requests, if they had no reply: the next one replaces them
}

// run takes the lock. It polls for all who wait behind it, whenever there is reason to.
func (a *acquisition) run(ctx context.Context) error {
	k := a.lock
	k.grant = new(grant)
	queues := k.queues()
	queues.Observed(&k.waiter, waitqueue.Nothing)
	taken, held, err := a.bySet(ctx)
	if taken || err != nil {
		return err
	}
	if held {
		a.waited = true
		queues.Observed(&k.waiter, waitqueue.HeldElsewhere)
	}
	next := poll{lock: k}
	defer next.end()
	for {
		taken, left, err := a.byScript(ctx)
		switch {
		case err != nil:
			return err
		case taken:
			next.succeeded()
			return nil
		}
		queues.Observed(&k.waiter, waitqueue.HeldElsewhere)
		if a.waited = true; a.try {
			return ErrLocked
		}
		if err := next.wait(ctx, left); err != nil {
			return err
		}
		queues.Observed(&k.waiter, waitqueue.Nothing)
	}
}

// poll decides when the head of a queue polls Redis again.
type poll struct {
	lock     *Lock
	listener *notify.Listener // nil until the first wait
	timedOut bool             // the last wait ended without a notification
}

// wait waits until there is reason to poll: a notification, the end of the holder's TTL,
// or the retry interval. left is for how long the holder may keep the lock.
func (p *poll) wait(ctx context.Context, left time.Duration) error {
	k := p.lock
	l, channel := k.locker, k.address.channel
	if p.listener == nil {
		// It is notified when the subscription is confirmed, so that a release between
		// the last poll and the subscription is not missed.
		p.listener = l.notifier.Join(channel)
	}
	timer := time.NewTimer(min(left+time.Millisecond, backoff.Half(k.options.retry)))
	defer timer.Stop()
	select {
	case <-p.listener.C:
		p.timedOut = false
		backoff.Sleep(ctx, k.queues().HeadStart(&k.waiter, l.notifier.Received(channel)))
	case <-timer.C:
		p.timedOut = true
	case <-ctx.Done():
		return ctx.Err()
	case <-l.closed:
		return ErrClosed
	}
	return nil
}

// succeeded notes that the lock was free. If no notification said so, then either it has
// expired, or the connection for notifications is dead.
func (p *poll) succeeded() {
	if p.timedOut {
		p.lock.locker.notifier.RequestPing(p.lock.address.channel)
	}
}

func (p *poll) end() {
	if p.listener != nil {
		p.lock.locker.notifier.Leave(p.lock.address.channel, p.listener)
	}
}

// bySet is the first try, by a bare SET: cheaper than a script, if the lock is free. It
// knows nothing of fences nor, if the lock is held, for how long. After a lost reply the
// script tries.
func (a *acquisition) bySet(ctx context.Context) (taken, held bool, err error) {
	k := a.lock
	if a.try || k.options.fenced || k.isPermit() {
		return false, false, nil
	}
	k.grant.token = newToken(k.options.owner)
	k.chooseWindow()
	reply, err := k.locker.executor.Run(ctx, a.request(redisexec.Request{
		Args: []any{"set", k.address.keys[0], k.grant.token, "px", k.grant.window.px(k.options), "nx"},
	}))
	if err == nil {
		k.address.trips.note(reply.Sent)
	}
	switch {
	case errors.Is(err, ErrUnknown) && ctx.Err() == nil && !errors.Is(err, redisexec.ErrStopped):
		a.doubtful = true
		a.changeToken()
		return false, false, nil
	case err != nil || reply.Value == nil:
		return false, err == nil, err
	case reply.Value != "OK":
		return false, false, a.unexpected(redisexec.Unexpected(reply.Value))
	}
	return true, false, k.take(reply, 0)
}

// byScript tries once. If the lock is not taken, left is for how long its holder may keep
// it at most.
func (a *acquisition) byScript(ctx context.Context) (taken bool, left time.Duration, err error) {
	k := a.lock
	if k.grant.token == nil {
		k.grant.token = newToken(k.options.owner)
	}
	k.chooseWindow() // once for all of a.lost: they have reserved as many fences each, which the script takes back
	r := a.request(a.script())
	r.Repeat = func() []any {
		k.member().OutcomeUnknown(false)
		a.changeToken()
		return a.script().Args
	}
	reply, err := k.locker.executor.Run(ctx, r)
	if err == nil {
		k.address.outage.End() // also for a TryLock, which waits out none
		a.lost = nil
	}
	a.doubtful = a.doubtful || reply.Ambiguous
	if err == nil {
		err = k.otherKind(reply.Value)
	}
	if err != nil {
		return false, 0, err
	}
	k.address.trips.note(reply.Sent)
	left, fence, err := decodeAcquired(reply.Value)
	if err != nil {
		return false, 0, a.unexpected(err)
	}
	if left > 0 {
		return false, left, nil
	}
	return true, 0, k.take(reply, fence)
}

// changeToken gives the next request a token of its own, after a lost reply. So a token that a
// handle has is in no request that may yet be carried out: what comes late takes the lock for a
// token of which only the janitor knows, whatever has become of the handle's meanwhile.
func (a *acquisition) changeToken() {
	g := a.lock.grant
	a.lost, g.token = append(a.lost, g.token), newToken(a.lock.options.owner)
}

// script is the script that acquires. Its last arguments are the tokens that it replaces.
func (a *acquisition) script() (r redisexec.Request) {
	k := a.lock
	keys, px := k.address.keys, k.grant.window.px(k.options)
	if k.options.fenced {
		keys = k.address.fencedKeys()
	}
	switch {
	case k.isPermit():
		r = scriptPermitAcquire.Request(keys, k.grant.token, px, k.options.permits, fenceLife.Milliseconds())
	case k.options.fenced:
		r = scriptAcquire.Request(keys, k.grant.token, px, k.grant.window.fences(), fenceLife.Milliseconds())
	default:
		r = scriptAcquire.Request(keys, k.grant.token, px)
	}
	r.Args = append(r.Args, a.lost...)
	return r
}

// chooseWindow chooses the hand-over window of an acquisition that is about to be sent.
func (k *Lock) chooseWindow() {
	if k.isPermit() {
		return // it is not handed over
	}
	k.grant.window = windowFor(k.address.trips.shortest(), k.options.ttl)
}

// request adds to a request what all acquisitions have. A caller that waits for the lock
// also waits out an outage of the server.
func (a *acquisition) request(r redisexec.Request) redisexec.Request {
	k := a.lock
	r.OnUnknown, r.OnUnserved, r.Stop, r.Small = k.member(), k.member(), k.locker.closed, true
	r.Replicas, r.ReplicaWait = k.options.replicas, k.options.replicaWait()
	if !a.try {
		r.Outage, r.Arrived = &k.address.outage, a.arrived
	}
	return r
}

// decodeAcquired decodes the reply to an acquisition: how long another holder may still
// keep the lock, or 0 and the fence, if one was asked for.
func decodeAcquired(value any) (left time.Duration, fence int64, err error) {
	switch v := value.(type) {
	case int64:
		if v < 0 {
			return 0, 0, fmt.Errorf("%w: the last fence", ErrCorrupt)
		}
		return duration(v), 0, nil
	case string:
		if fence, err = strconv.ParseInt(v, 10, 64); err == nil && fence > 0 {
			return 0, fence, nil
		}
	}
	return 0, 0, redisexec.Unexpected(value)
}

// unexpected has the lock released after a reply of a kind that the server does not give:
// the command may have been carried out.
func (a *acquisition) unexpected(err error) error {
	a.lock.releaseInBackground()
	return err
}

// take makes k the holder of a lock that was acquired by a command with this reply, unless that
// came too late, or too few replicas have acknowledged it.
func (k *Lock) take(reply redisexec.Reply, fence int64) error {
	if reply.Shortfall != nil {
		k.releaseInBackground()
		return reply.Shortfall
	}
	g, ttl, sent := k.grant, k.options.ttl, reply.Sent
	g.sent, g.replicas = sent, k.options.replicas
	if fence != 0 {
		g.fences = fences{first: fence, block: g.window.fences(), since: time.Now()}
		k.fence = fence
	}
	k.begin(sent, lease.SafeUntil(sent, ttl), lease.SafeUntil(sent, ttl+g.window.margin()))
	switch {
	case !k.lease.Valid():
		k.releaseInBackground()
		return k.cameTooLate()
	case !k.hold():
		k.releaseInBackground()
		return ErrClosed
	case k.noHandOver.Load():
		k.member().Inspect() // it was forced open while it was being acquired: before, or after
	}
	return nil
}

// address is where a lock is on Redis. It is made once per name and shared by the handles
// of that name.
type address struct {
	key     string
	channel string // on which its release is announced
	keys    []any  // the key, as the arguments of scripts
	wake    any    // the channel, as scripts are given it
	outage  redisexec.Outage
	trips   roundTrips
	fenced  atomic.Pointer[[]any]
}

func newAddress(n *notify.Notifier, prefix, name string) (*address, error) {
	key, err := mainKey(prefix, name)
	if err != nil {
		return nil, err
	}
	channel := keyspace.Companion(key, keyspace.Wake)
	return &address{key: key, channel: channel, keys: []any{key}, wake: n.Argument(channel)}, nil
}

// fencedKeys returns the lock's key and that of its last fence. They are made when they
// are first needed: most locks have no fences.
func (a *address) fencedKeys() []any {
	if keys := a.fenced.Load(); keys != nil {
		return *keys
	}
	keys := []any{a.key, keyspace.Companion(a.key, keyspace.Fence)}
	a.fenced.Store(&keys)
	return keys
}
