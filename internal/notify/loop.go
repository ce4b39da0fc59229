package notify

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/shrink"
)

// A write is bounded by go-redis's WriteTimeout, an answer by silence, and the handshake of a new
// connection by go-redis's ReadTimeout. Until then waiters poll.
//
// The loop has no state of its own besides the connection. Each turn looks at what has
// changed of the subscriptions, what the receiver has learnt and what the time is, decides (plan),
// and does it (carryOut). Whatever changes one of these calls Wake, and nothing else has to be
// remembered: a turn too many does nothing. A turn does not look at all subscriptions, of which
// there may be a hundred thousand: a route has lists of those that may be wanted, and of the idle.
//
// Three things are subtle:
//   - plan notes a channel as requested before SUBSCRIBE is written. If the write fails, the
//     connection is dropped, and forgetConnection takes all of that back.
//   - The answer is expected from before the write on, and the receiver clears that. So a
//     server that never answers is noticed even if the first write already hangs in it.
//   - A connection ends before the next one begins (connection.close waits for the
//     receiver). So what the receiver reports is always of the current one.

// turn is one turn of the loop: it does what is to be done on the connection, and
// returns how long there is nothing to do.
func (r *route) turn() time.Duration {
	now := time.Now()
	p := r.plan(now)
	switch {
	case p.end:
		r.disconnect()
		return background.Idle
	case r.conn == nil:
		var err error
		if r.conn, err = r.notifier.open(); err != nil {
			r.reconnect()
		}
		return 0
	case p.renew || !r.carryOut(p):
		r.reconnect()
		return 0
	}
	return p.pause
}

func (r *route) disconnect() {
	if r.conn != nil {
		r.conn.close()
		r.conn = nil
	}
}

// reconnect drops the connection, and pauses before another one is made: longer each
// time, unless something came over this one. A connection that is closed at once must
// not be followed by another at once.
func (r *route) reconnect() {
	n, c := r.notifier, r.conn
	r.disconnect()
	if c != nil && c.hasWorked { // the receiver, which writes that, has ended
		r.failures = 0
	}
	if n.cluster != nil {
		n.cluster.RefreshTopology()
	}
	r.forgetConnection()
	redisexec.Bounds{}.Pause(n.ctx, r.failures)
	r.failures++
}

// plan is what a turn has to do.
type plan struct {
	end                    bool // nothing is subscribed, or the notifier is closed
	subscribe, unsubscribe []string
	ping                   bool
	sharded                bool          // channels are asked for by SSUBSCRIBE
	renew                  bool          // the connection is dead, or a channel belongs to another route
	pause                  time.Duration // until something is due
}

// foreverPause is the pause when nothing is due. A Wake ends it.
const foreverPause = 24 * time.Hour

// plan decides what to do on the connection, if there is one, and notes it as done.
func (r *route) plan(now time.Time) plan {
	n := r.notifier
	n.mu.Lock()
	defer n.mu.Unlock()
	p, c := plan{pause: foreverPause, renew: r.renew}, r.conn
	r.nextTurn = time.Time{}
	r.dropUnused(now, &p)
	if len(r.subscriptions) == 0 && n.routes[r.server] == r {
		delete(n.routes, r.server)
	}
	if n.closed || len(r.subscriptions) == 0 {
		r.wanted = nil
		return plan{end: true}
	}
	if c == nil {
		return p
	}
	r.requestWanted(now, &p)
	// A PING is needed only if nothing else is on its way that the server answers.
	if r.pingWanted && len(p.subscribe) == 0 && c.awaitingSince.IsZero() {
		r.pingWanted = false
		p.ping = true
	}
	if c.awaitingSince.IsZero() && (p.ping || len(p.subscribe) > 0) {
		c.awaitingSince = now
	}
	if since := c.awaitingSince; !since.IsZero() {
		p.dueAt(since.Add(silence), now)
		p.renew = p.renew || now.Sub(since) >= silence
	}
	p.sharded, p.renew = c.sharded, p.renew || c.broken
	r.nextTurn = now.Add(p.pause)
	return p
}

// dropUnused forgets the subscriptions that have had no listener for a while.
func (r *route) dropUnused(now time.Time, p *plan) {
	n := r.notifier
	for first := r.idle.Front(); first != nil; first = r.idle.Front() {
		channel := first.Value.(string)
		s := r.subscriptions[channel]
		if now.Sub(s.idleSince) < linger {
			p.dueAt(s.idleSince.Add(linger), now)
			return
		}
		r.unqueueIdle(s)
		delete(n.subscriptions, channel)
		delete(r.subscriptions, channel)
		if s.state != wanted {
			p.unsubscribe = append(p.unsubscribe, channel)
		}
		n.subscriptions = shrink.Map(n.subscriptions, &n.peak)
		r.subscriptions = shrink.Map(r.subscriptions, &r.peak)
	}
}

// requestWanted collects the channels that are not asked for yet and, now and then,
// those that were denied.
func (r *route) requestWanted(now time.Time, p *plan) {
	switch again := r.conn.deniedAt.Add(retryDeniedAfter); {
	case r.conn.deniedAt.IsZero():
	case now.Before(again):
		p.dueAt(again, now)
	default:
		r.conn.deniedAt = time.Time{}
		r.wantUnanswered()
	}
	for _, channel := range r.wanted {
		if s := r.subscriptions[channel]; s != nil && s.state == wanted {
			s.state = requested
			p.subscribe = append(p.subscribe, channel)
		}
	}
	r.wanted = nil
}

func (p *plan) dueAt(at, now time.Time) { p.pause = min(p.pause, max(at.Sub(now), time.Millisecond)) }

// carryOut writes what is planned. It reports whether the connection could be written
// to.
//
// Channels are subscribed to one by one: where access rules forbid one of them, Redis
// refuses the others in the same command too.
func (r *route) carryOut(p plan) bool {
	c, n := r.conn, r.notifier
	for _, channel := range p.subscribe {
		if c.subscribe(n.ctx, channel, p.sharded) != nil {
			return false
		}
		if !c.reading {
			c.reading = true
			// It ends when connection.close closes the connection, and that waits for it.
			c.receiver.Go(func() { r.receive(c) })
		}
	}
	if len(p.unsubscribe) > 0 && c.unsubscribe(n, p.unsubscribe, p.sharded) != nil {
		return false
	}
	return !p.ping || c.write(func() error { return c.pubsub.Ping(n.ctx) }) == nil
}

// receive reads until the connection fails, which its close makes it do. It runs in a
// goroutine of its own, that of the receiver.
func (r *route) receive(c *connection) {
	for {
		message, err := c.read(r.notifier.ctx)
		if !r.received(c, message, err) {
			return
		}
	}
}

// received deals with what has come over a connection, and reports whether to read on. A refusal is
// an answer like any other: the connection works, and another one would be given the same. Where
// SSUBSCRIBE is refused, channels are asked for by SUBSCRIBE from then on. An error that it does not
// know, MOVED for one, ends the connection.
func (r *route) received(c *connection, message any, err error) (more bool) {
	r.notifier.mu.Lock()
	defer r.notifier.mu.Unlock()
	more = err == nil || refuses(err)
	if more {
		c.awaitingSince, c.hasWorked = time.Time{}, true
	}
	switch {
	case err == nil:
		r.handle(message)
		return true
	case !more:
		c.broken = true
	case c.sharded:
		c.sharded = false
		r.wantUnanswered()
	default:
		c.deniedAt = time.Now()
	}
	r.loop.Wake()
	return more
}

// handle deals with what the server has sent. The connection it came over is the
// current one: the loop waits for the receiver before it makes another. The mutex is held.
func (r *route) handle(message any) {
	n := r.notifier
	switch m := message.(type) {
	case *redis.Subscription:
		s := r.subscriptions[m.Channel]
		switch {
		case s == nil:
		case s.state == confirmed && m.Kind == "sunsubscribe": // not asked for: the slot has moved
			r.renew = true
			r.loop.Wake()
		case s.state != wanted && (m.Kind == "subscribe" || m.Kind == "ssubscribe"):
			s.state = confirmed
			n.subscribed++
			s.mark.subscribed, s.mark.Sharded = n.subscribed, m.Kind == "ssubscribe"
			s.notify()
		}
	case *redis.Message:
		if s := r.subscriptions[m.Channel]; s != nil {
			s.mark.received++
			s.mark.Message, s.mark.At = m.Payload, time.Now()
			s.hear()
		}
	}
}
