package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/line"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// An acquisition has two stages. First the caller waits for its turn among the callers of its
// Engine, without a request to Redis. It may be handed the lock then. Otherwise it becomes the head
// of its name's queue, and acquires the lock from Redis. If another process holds the lock, the
// head joins the line of the processes that wait for it, on behalf of all callers behind it: see
// line.Place.
//
// While callers wait behind a holder, the Engine has its key inspected once in a retry interval:
// see waitqueue.
//
// However an acquisition ends, the next waiter is notified: by Hold, GiveUp or PromoteNext of the
// Set. A path without one of them would leave the name's waiters asleep.

// Acquire takes the lock. With try it does not wait. ctx is the caller's, and bounded the same with
// a limit for the wait.
func (h *Hold) Acquire(ctx, bounded context.Context, try bool) error {
	h.observe()
	how, err := h.acquireInOrder(bounded, try)
	if err != nil {
		if !try && !errors.Is(err, store.ErrInvalid) {
			h.tellWaitFailed(ctx, err)
		}
		return err
	}
	if h.options.Renew {
		h.engine.renewer.Add(h)
	}
	h.tellAcquired(ctx, how) // last: the hook may take its time
	return nil
}

// acquireInOrder takes the lock when h's turn has come among the callers of its Engine. With try it
// does not wait: behind another caller of the Engine it sends nothing. how is Acquired or
// TakenOver.
func (h *Hold) acquireInOrder(ctx context.Context, try bool) (how What, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	turn, err := h.join(try)
	if err != nil {
		return 0, err
	}
	a := acquisition{hold: h, try: try}
	if h.address != nil { // it is not closed
		a.arrived = h.address.outage.Arrival()
	}
	if turn == waitqueue.Queued {
		a.waited = true
		turn, err = h.awaitTurn(ctx)
	}
	switch {
	case err != nil:
		return 0, err
	case turn == waitqueue.Closed:
		return 0, ErrClosed
	case turn == waitqueue.Busy:
		return 0, ErrLocked
	case turn == waitqueue.Granted:
		return TakenOver, nil
	}
	if err := a.run(ctx); err != nil {
		h.giveUp(errors.Is(err, redisexec.ErrUnknown))
		if errors.Is(err, line.ErrTooLate) {
			err = h.awaitEnd(ctx)
		}
		return 0, a.failure(ctx, err)
	}
	return Acquired, nil
}

// join puts h into its name's queue.
func (h *Hold) join(try bool) (turn waitqueue.Turn, err error) {
	// A prefix and a name that are too long or empty may make a key that is known.
	if err := keyspace.CheckLengths(h.options.Prefix, h.name); err != nil {
		return 0, fmt.Errorf("%w: %w", store.ErrInvalidName, err)
	}
	return h.queues().Join(h.queuePrefix(), h.name, &h.waiter, h, try, &h.address)
}

// awaitTurn waits until h is granted the lock or is the head of its queue.
func (h *Hold) awaitTurn(ctx context.Context) (turn waitqueue.Turn, err error) {
	queues := h.queues()
	select { // of two: the end of the Engine is a turn too
	case turn = <-h.waiter.Turn():
		return turn, nil
	case <-ctx.Done():
		err = h.waitedInVain(ctx.Err())
	}
	if queues.Leave(&h.waiter) {
		return 0, err
	}
	// The turn came at the same moment, and is in the channel. A lock that was handed over
	// is taken: to give it back would cost as much as the caller's own Unlock does. A turn
	// to acquire is passed on.
	turn = <-h.waiter.Turn()
	if turn == waitqueue.Acquire {
		h.giveUp(false)
		return 0, err
	}
	return turn, nil
}

// awaitEnd waits until ctx ends, or the Engine is closed, and returns the error of ctx: with the
// outage in which nothing was sent, if there is one.
func (h *Hold) awaitEnd(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-h.engine.closed:
	}
	if h.address.outage.Lasts() {
		return h.waitedInVain(ctx.Err())
	}
	return ctx.Err()
}

// acquisition is a lock on its way from Redis. Its lock is the head of its queue.
type acquisition struct {
	hold     *Hold
	try      bool
	arrived  time.Time // if in an outage, see redisexec.Outage
	waited   bool      // in line, or was told at the last poll that another one holds the lock
	doubtful bool      // an acquisition stayed without a reply: the key may be taken for a moment
}

// run takes the lock. It acts for all who wait behind it, whenever there is reason to.
func (a *acquisition) run(ctx context.Context) error {
	h := a.hold
	h.grant = new(grant)
	place := &h.address.place
	// If the lock was just passed on to another process, the first try is in vain.
	if waits, passedOn := place.Resume(), h.address.passedOn.Swap(false); a.try || !passedOn && !waits {
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
			place.Listen(h.address.WakeChannel())
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
	h := a.hold
	until, ok := ctx.Deadline()
	if ok {
		until = until.Add(-h.address.trips.expected())
	}
	return h.address.place.Wait(ctx, h.engine.closed, until, left, h.options.RetryInterval)
}

// hasTime returns line.ErrTooLate if ctx ends before so many replies can come: the lock would be
// taken for no caller.
func (a *acquisition) hasTime(ctx context.Context, replies int) error {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < time.Duration(replies)*a.hold.address.trips.expected() {
		return line.ErrTooLate
	}
	return nil
}

// next is every further try. It joins the line, or finds out where the process stands.
//
// A process that was woken tries first without joining. If the lock is another's nevertheless, it
// has come too late: it joins where it stood, with a member that has the lock reserved for as long
// as it takes this process to come, by what it has just seen.
func (a *acquisition) next(ctx context.Context) (taken bool, left time.Duration, err error) {
	h := a.hold
	if err := a.hasTime(ctx, 1); err != nil {
		return false, 0, err
	}
	if woken := h.address.place.Woken(); !woken.IsZero() {
		if taken, left, err = a.byScript(ctx, false); err == nil {
			h.address.trips.note(woken)
		}
		if taken || err != nil {
			return taken, left, err
		}
		// A poll may have joined with it again, before the message came. It leaves once the new
		// member is in line: the process must not be out of line for a moment, in which a release
		// serves others.
		defer h.leaveLine(h.address.place.Renumber())
	}
	if !h.address.place.InLine() { // to join takes a reply, and so does to be served
		if err := a.hasTime(ctx, 2); err != nil {
			return false, 0, err
		}
	}
	return a.byScript(ctx, true)
}

// giveUp lets the next caller of the process acquire, which goes on at its place in line. Without
// one the place is given up. unanswered says that the janitor will take the member out: at any
// time, so that it is not used further.
func (h *Hold) giveUp(unanswered bool) {
	place := &h.address.place
	h.queues().GiveUp(&h.waiter, func(last bool) {
		switch {
		case last && unanswered:
			place.Leave()
		case last:
			place.Linger(h.leaveLine)
		case unanswered:
			place.Renumber()
		}
	})
}

// leaveLine takes a member out of the line. In an Engine that is closed it is a member of a process
// that does not listen any more.
func (h *Hold) leaveLine(member string) {
	if member != "" && !h.engine.Closed() {
		h.engine.janitor.Add(lease.Release{Token: member, Request: h.address.Leave(member, h.isPermit())})
	}
}

// first is the first try, without the line: what is free costs no more. Where that is enough it is
// a bare SET, which is cheaper than a script. That knows nothing of fences nor, if the lock is
// held, for how long. After a lost reply the script tries.
func (a *acquisition) first(ctx context.Context) (taken, held bool, err error) {
	h := a.hold
	if err := a.hasTime(ctx, 1); err != nil {
		return false, false, err
	}
	if a.try || h.options.Fenced || h.isPermit() {
		taken, _, err = a.byScript(ctx, false)
		return taken, !taken, err
	}
	h.grant.token = newToken(h.options.Owner)
	h.chooseWindow()
	began := time.Now()
	reply, err := h.engine.Executor.Run(ctx, a.request(h.address.Set(h.grant.token, h.grant.window.keyTTL(h.options))))
	h.noteTrip(ctx, began, reply, err)
	switch {
	case errors.Is(err, redisexec.ErrUnknown) && ctx.Err() == nil && !errors.Is(err, redisexec.ErrStopped):
		a.doubtful = true
		h.changeToken()
		return false, false, nil
	case err != nil || reply.Value == nil:
		return false, err == nil, err
	case reply.Value != "OK":
		h.releaseInBackground() // the command may have been carried out
		return false, false, redisexec.Unexpected(reply.Value)
	}
	return true, false, h.take(reply, 0)
}

// byScript sends the script once. If the lock is not taken, left is for how long its holder may
// keep it at most.
func (a *acquisition) byScript(ctx context.Context, joins bool) (taken bool, left time.Duration, err error) {
	h := a.hold
	place := &h.address.place
	if h.grant.token == nil {
		h.grant.token = newToken(h.options.Owner)
	}
	// Once for all of grant.lost: they have reserved as many fences each, which the script takes
	// back.
	h.chooseWindow()
	r := a.request(h.script(joins))
	r.Repeat = func() []any {
		h.outcomeUnknown(false)
		h.changeToken()
		return h.script(joins).Args
	}
	began := time.Now()
	reply, err := h.engine.Executor.Run(ctx, r)
	h.noteTrip(ctx, began, reply, err)
	if err == nil {
		h.address.outage.End() // also for a TryLock, which waits out none
		h.grant.lost = nil
	}
	a.doubtful = a.doubtful || reply.Ambiguous
	if err != nil {
		return false, 0, err
	}
	answer, err := store.DecodeAcquired(reply.Value)
	switch {
	case err != nil:
		h.releaseInBackground() // the command may have been carried out
		return false, 0, err
	case answer.HeldFor > 0:
		return false, 0, h.otherKind(answer.HeldFor)
	case !answer.Taken:
		if joins {
			place.Stands(answer.Ahead, answer.Score)
		}
		return false, answer.Left, nil
	}
	place.Served()
	h.grant.member = ""
	return true, 0, h.take(reply, answer.Fence)
}

// noteTrip notes how long the reply to a request took that was begun then, or that ctx has ended
// before.
func (h *Hold) noteTrip(ctx context.Context, began time.Time, reply redisexec.Reply, err error) {
	switch {
	case err == nil:
		h.address.trips.note(reply.Sent)
	case errors.Is(err, redisexec.ErrUnknown) && ctx.Err() != nil:
		h.address.trips.noteNone(began)
	}
}

// changeToken gives the next request a token of its own, after a lost reply. So a token that a hold
// has is in no request that may yet be carried out: what comes late takes the lock for a token of
// which only the janitor knows, whatever has become of the hold's meanwhile. The same goes for the
// member in line.
func (h *Hold) changeToken() {
	g := h.grant
	g.lost, g.token = append(g.lost, g.token), newToken(h.options.Owner)
	h.address.place.Renumber()
}

// script returns the request that takes the lock if it is free or, if joins, has the process in
// line otherwise.
func (h *Hold) script(joins bool) redisexec.Request {
	g, place := h.grant, &h.address.place
	request := store.Acquisition{
		Token: g.token, TTL: g.window.keyTTL(h.options), Permits: h.options.Permits, Fenced: h.options.Fenced,
		Fences: g.window.fences(), Joins: joins, Replaces: g.lost,
	}
	if g.member = place.Member(); joins {
		g.member, request.Score = place.Ask(h.address.trips.longest(), h.options.Owner)
	}
	request.Member = g.member
	return h.address.Acquire(&request)
}

// chooseWindow chooses the hand-over window of an acquisition that is about to be sent.
func (h *Hold) chooseWindow() {
	if h.isPermit() {
		return // it is not handed over
	}
	h.grant.window = windowFor(h.address.trips.shortest(), h.options.TTL)
}

// request adds to a request what all acquisitions have. A caller that waits for the lock
// also waits out an outage of the server.
func (a *acquisition) request(r redisexec.Request) redisexec.Request {
	h := a.hold
	r.OnUnknown, r.Stop, r.Small = h.outcomeUnknown, h.engine.closed, true
	if !a.try {
		r.Outage, r.Arrived = &h.address.outage, a.arrived
	}
	return h.replicated(r)
}

// take makes h the holder of a lock that was acquired by a command with this reply, unless that
// came too late, or too few replicas have acknowledged it.
func (h *Hold) take(reply redisexec.Reply, fence int64) error {
	if reply.Shortfall != nil {
		h.releaseInBackground()
		return reply.Shortfall
	}
	g, ttl, sent := h.grant, h.options.TTL, reply.Sent
	g.sent, g.replicas = sent, h.options.Replicas
	if fence != 0 {
		g.fences = fences{first: fence, block: g.window.fences(), since: time.Now()}
		h.fence = fence
	}
	h.begin(sent, lease.SafeUntil(sent, ttl), lease.SafeUntil(sent, ttl+g.window.margin()))
	switch {
	case !h.lease.Valid():
		h.releaseInBackground()
		return h.cameTooLate()
	case !h.hold():
		h.releaseInBackground()
		return ErrClosed
	case h.noHandOver.Load():
		h.Inspect() // it was forced open while it was being acquired: before, or after
	}
	return nil
}
