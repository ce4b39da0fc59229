package sluice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/line"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// Taking a lock has two stages. First the caller waits for its turn among the callers of its Locker, who send
// nothing to Redis for that: it may be handed the lock then. (Where they wait behind a holder for a retry
// interval, the Locker has its key inspected, once for all of them; see waitqueue.) Otherwise it is the head
// of its queue, and acquires the lock from Redis. If another process holds the lock, the head joins the line of
// processes that wait for it, for all callers behind it; see line.Place.
// However it ends, the next waiter learns of it: by Hold, or by PromoteNext. A path without either would
// leave a name's waiters asleep.

// acquireInOrder takes the lock when k's turn has come among the callers of its Locker. With try it
// does not wait: behind another caller of the Locker it sends nothing. handedOver says how it was
// taken.
func (k *Lock) acquireInOrder(ctx context.Context, try bool) (handedOver bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	turn, err := k.join(try)
	switch {
	case err != nil:
		return false, err
	case turn == waitqueue.Closed:
		return false, ErrClosed // the lock has no address
	case turn == waitqueue.Busy:
		return false, ErrLocked
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
	case turn == waitqueue.Closed:
		return false, ErrClosed
	}
	if err := a.run(ctx); err != nil {
		k.giveUp(errors.Is(err, ErrUnknown))
		if errors.Is(err, errTooShort) {
			err = k.awaitEnd(ctx)
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
	if turn == waitqueue.Acquire {
		k.giveUp(false)
		return 0, err
	}
	return turn, nil
}

// awaitEnd waits until ctx ends, or the Locker is closed, and returns the error: with the outage in which nothing was sent, if there
// is one.
func (k *Lock) awaitEnd(ctx context.Context) error {
	select {
	case <-ctx.Done():
		if why := k.address.outage.Why(); why != nil {
			return fmt.Errorf("%w: %w: %w", ErrUnavailable, ctx.Err(), why)
		}
		return ctx.Err()
	case <-k.locker.closed:
		return ErrClosed
	}
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

// errTooShort is the error of an acquisition that was not sent: its context would have ended before the reply, so that the lock
// would have been taken for no caller.
var errTooShort = errors.New("the context ends sooner than a reply can come")

// run takes the lock. It acts for all who wait behind it, whenever there is reason to.
func (a *acquisition) run(ctx context.Context) error {
	k := a.lock
	k.grant = new(grant)
	place := &k.address.place
	// If the lock was just passed on to another process, the first try is in vain.
	if waits, passedOn := place.Resume(), k.address.passedOn.Swap(false); a.try || !passedOn && !waits {
		taken, held, err := a.first(ctx)
		switch {
		case taken || err != nil:
			return err
		case a.try:
			return ErrLocked
		}
		a.waited = a.waited || held
	}
	for inLine := place.InLine(); ; inLine = false {
		var left time.Duration
		if !inLine { // else the caller before has just asked
			var taken bool
			var err error
			place.Listen(k.address.WakeChannel())
			if taken, left, err = a.next(ctx); taken || err != nil {
				return err
			}
		}
		a.waited = true
		if err := a.wait(ctx, left); err != nil {
			return err
		}
	}
}

// wait waits in line, for as long as a reply can still come in time once the process is woken.
func (a *acquisition) wait(ctx context.Context, left time.Duration) error {
	k := a.lock
	until, ok := ctx.Deadline()
	if ok {
		until = until.Add(-k.address.trips.expected())
	}
	err := k.address.place.Wait(ctx, k.locker.closed, until, left, k.options.retry)
	switch {
	case errors.Is(err, line.ErrStopped):
		return ErrClosed
	case errors.Is(err, line.ErrTooLate):
		return errTooShort
	}
	return err
}

// hasTime returns errTooShort if ctx ends before so many replies can come.
func (a *acquisition) hasTime(ctx context.Context, replies int) error {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < time.Duration(replies)*a.lock.address.trips.expected() {
		return errTooShort
	}
	return nil
}

// first is the first try, without the line: what is free costs no more.
func (a *acquisition) first(ctx context.Context) (taken, held bool, err error) {
	if err := a.hasTime(ctx, 1); err != nil {
		return false, false, err
	}
	if !a.try && !a.lock.options.fenced && !a.lock.isPermit() {
		return a.bySet(ctx)
	}
	taken, _, err = a.byScript(ctx, false)
	return taken, !taken, err
}

// next is every further try. It joins the line, or finds out where the process stands.
//
// A process that was woken tries first without joining. If the lock is another's nevertheless, it has come too late: it joins where it
// stood, with an entry that has the lock reserved for as long as it takes this process to come, by what it has just seen.
func (a *acquisition) next(ctx context.Context) (taken bool, left time.Duration, err error) {
	k := a.lock
	if err := a.hasTime(ctx, 1); err != nil {
		return false, 0, err
	}
	if woken := k.address.place.Woken(); !woken.IsZero() {
		if taken, left, err = a.byScript(ctx, false); err == nil {
			k.address.trips.note(woken)
		}
		if taken || err != nil {
			return taken, left, err
		}
		// A poll may have joined with it again, before the message came. It leaves once the new entry is in line: the
		// process must not be out of line for a moment, in which a release serves others.
		defer k.leaveLine(k.address.place.Renumber())
	}
	if !k.address.place.InLine() { // to join takes a reply, and so does to be served
		if err := a.hasTime(ctx, 2); err != nil {
			return false, 0, err
		}
	}
	return a.byScript(ctx, true)
}

// giveUp lets the next caller of the process acquire, which goes on at its place in line. Without one the place is given up.
// unanswered says that the janitor will take the entry out: at any time, so that it is not used further.
func (k *Lock) giveUp(unanswered bool) {
	place := &k.address.place
	k.queues().GiveUp(&k.waiter, func(last bool) {
		switch {
		case last && unanswered:
			place.Leave()
		case last:
			place.Linger(k.leaveLine)
		case unanswered:
			place.Renumber()
		}
	})
}

// leaveLine takes an entry out of the line. In a Locker that is closed it is an entry of a process that does not listen any more.
func (k *Lock) leaveLine(entry string) {
	if entry != "" && !background.IsClosed(k.locker.closed) {
		k.locker.janitor.Add(lease.Release{Token: entry, Request: k.address.Leave(entry, k.isPermit())})
	}
}

// bySet is the first try, by a bare SET: cheaper than a script, if the lock is free. It
// knows nothing of fences nor, if the lock is held, for how long. After a lost reply the
// script tries.
func (a *acquisition) bySet(ctx context.Context) (taken, held bool, err error) {
	k := a.lock
	k.grant.token = newToken(k.options.owner)
	k.chooseWindow()
	began := time.Now()
	reply, err := k.locker.executor.Run(ctx, a.request(k.address.Set(k.grant.token, k.grant.window.px(k.options))))
	k.noteTrip(ctx, began, reply, err)
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

// byScript sends the script once. If the lock is not taken, left is for how long its holder may keep it at most.
func (a *acquisition) byScript(ctx context.Context, joins bool) (taken bool, left time.Duration, err error) {
	k := a.lock
	place := &k.address.place
	if k.grant.token == nil {
		k.grant.token = newToken(k.options.owner)
	}
	k.chooseWindow() // once for all of a.lost: they have reserved as many fences each, which the script takes back
	r := a.request(a.script(joins))
	r.Repeat = func() []any {
		k.member().OutcomeUnknown(false)
		a.changeToken()
		return a.script(joins).Args
	}
	began := time.Now()
	reply, err := k.locker.executor.Run(ctx, r)
	k.noteTrip(ctx, began, reply, err)
	if err == nil {
		k.address.outage.End() // also for a TryLock, which waits out none
		a.lost = nil
	}
	a.doubtful = a.doubtful || reply.Ambiguous
	if err != nil {
		return false, 0, err
	}
	answer, err := store.DecodeAcquired(reply.Value)
	switch {
	case err != nil:
		return false, 0, a.unexpected(err)
	case answer.HeldFor > 0:
		return false, 0, k.otherKind(answer.HeldFor)
	case !answer.Taken:
		if joins {
			place.Stands(answer.Ahead, answer.Score)
		}
		return false, answer.Left, nil
	}
	place.Served()
	k.grant.entry = ""
	return true, 0, k.take(reply, answer.Fence)
}

// noteTrip notes how long the reply to a request took that was begun then, or that ctx has ended before.
func (k *Lock) noteTrip(ctx context.Context, began time.Time, reply redisexec.Reply, err error) {
	switch {
	case err == nil:
		k.address.trips.note(reply.Sent)
	case errors.Is(err, ErrUnknown) && ctx.Err() != nil:
		k.address.trips.noteNone(began)
	}
}

// changeToken gives the next request a token of its own, after a lost reply. So a token that a
// handle has is in no request that may yet be carried out: what comes late takes the lock for a
// token of which only the janitor knows, whatever has become of the handle's meanwhile. The same goes for the entry in line.
func (a *acquisition) changeToken() {
	g := a.lock.grant
	a.lost, g.token = append(a.lost, g.token), newToken(a.lock.options.owner)
	a.lock.address.place.Renumber()
}

// script returns the request that takes the lock if it is free or, if joins, has the process in line otherwise.
func (a *acquisition) script(joins bool) redisexec.Request {
	k := a.lock
	g, place := k.grant, &k.address.place
	request := store.Acquisition{
		Token: g.token, PX: g.window.px(k.options), Permits: k.options.permits, Fenced: k.options.fenced,
		Fences: g.window.fences(), Joins: joins, Replaces: a.lost,
	}
	if g.entry = place.Entry(); joins {
		g.entry, request.Score = place.Ask(k.address.trips.longest())
	}
	request.Entry = g.entry
	return k.address.Acquire(&request)
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
	r.OnUnknown, r.Stop, r.Small = k.member(), k.locker.closed, true
	r.Replicas, r.ReplicaWait = k.options.replicas, k.options.replicaWait()
	if !a.try {
		r.Outage, r.Arrived = &k.address.outage, a.arrived
	}
	return r
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
