package notify

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/shrink"
)

// The loop has no state of its own besides the connection. Each turn looks at what is
// subscribed, what the receiver has learnt and what the time is, decides (plan), and does it
// (carryOut). Whatever changes one of these calls Wake, and nothing else has to be
// remembered: a turn too many does nothing.
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
func (n *Notifier) turn() time.Duration {
	now := time.Now()
	p := n.plan(now)
	switch {
	case p.end:
		n.disconnect()
		return background.Idle
	case n.conn == nil:
		var err error
		if n.conn, err = open(n.ctx, n.rdb); err != nil {
			n.reconnect()
		}
		return 0
	case n.conn.isDead(now) || !n.carryOut(p):
		n.reconnect()
		return 0
	}
	return p.pause
}

func (n *Notifier) disconnect() {
	if n.conn != nil {
		n.conn.close()
		n.conn = nil
	}
}

// reconnect drops the connection, and pauses before another one is made: longer each
// time, unless something came over this one. A connection that is closed at once must
// not be followed by another at once.
func (n *Notifier) reconnect() {
	if n.conn != nil && n.conn.worked() {
		n.failures = 0
	}
	n.disconnect()
	n.forgetConnection()
	redisexec.Pause(n.ctx, n.failures)
	n.failures++
}

// forgetConnection forgets what the last connection was asked for and answered.
func (n *Notifier) forgetConnection() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pingWanted = false
	for _, s := range n.subscriptions {
		s.state = wanted
	}
}

// plan is what a turn has to do.
type plan struct {
	end                    bool // nothing is subscribed, or the notifier is closed
	subscribe, unsubscribe []string
	ping                   bool
	pause                  time.Duration // until something is due
}

// foreverPause is the pause when nothing is due. A Wake ends it.
const foreverPause = 24 * time.Hour

// plan decides what to do on the connection, if there is one, and notes it as done.
func (n *Notifier) plan(now time.Time) plan {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := plan{pause: foreverPause}
	n.nextTurn = time.Time{}
	n.dropUnused(now, &p)
	if n.closed || len(n.subscriptions) == 0 {
		return plan{end: true}
	}
	if n.conn == nil {
		return p
	}
	n.requestWanted(now, &p)
	// A PING is needed only if nothing else is on its way that the server answers.
	if n.pingWanted && len(p.subscribe) == 0 && n.conn.owesAnswer().IsZero() {
		n.pingWanted = false
		p.ping = true
	}
	if p.ping || len(p.subscribe) > 0 {
		n.conn.expectAnswer(now)
	}
	if since := n.conn.owesAnswer(); !since.IsZero() {
		p.dueAt(since.Add(silence), now)
	}
	n.nextTurn = now.Add(p.pause)
	return p
}

// dropUnused forgets the subscriptions that have had no listener for a while.
func (n *Notifier) dropUnused(now time.Time, p *plan) {
	for channel, s := range n.subscriptions {
		if len(s.listeners) > 0 {
			continue
		}
		if now.Sub(s.idleSince) < s.linger {
			p.dueAt(s.idleSince.Add(s.linger), now)
			continue
		}
		delete(n.subscriptions, channel)
		if s.state != wanted {
			p.unsubscribe = append(p.unsubscribe, channel)
		}
	}
	n.subscriptions = shrink.Map(n.subscriptions, &n.peak)
}

// requestWanted collects the channels that are not asked for yet and, now and then,
// those that were denied.
func (n *Notifier) requestWanted(now time.Time, p *plan) {
	retry, at := n.conn.retryDenied(now)
	if !at.IsZero() {
		p.dueAt(at, now)
	}
	for channel, s := range n.subscriptions {
		if s.state == requested && retry {
			s.state = wanted
		}
		if s.state == wanted {
			s.state = requested
			p.subscribe = append(p.subscribe, channel)
		}
	}
}

func (p *plan) dueAt(at, now time.Time) { p.pause = min(p.pause, max(at.Sub(now), time.Millisecond)) }

// carryOut writes what is planned. It reports whether the connection could be written
// to.
//
// Channels are subscribed to one by one: where access rules forbid one of them, Redis
// refuses the others in the same command too.
func (n *Notifier) carryOut(p plan) bool {
	c := n.conn
	for _, channel := range p.subscribe {
		if c.write(func() error { return c.pubsub.Subscribe(n.ctx, channel) }) != nil {
			return false
		}
		if !c.reading {
			c.reading = true
			c.receiver.Go(func() { n.receive(c) })
		}
	}
	if len(p.unsubscribe) > 0 && c.write(func() error { return c.pubsub.Unsubscribe(n.ctx, p.unsubscribe...) }) != nil {
		return false
	}
	return !p.ping || c.write(func() error { return c.pubsub.Ping(n.ctx) }) == nil
}

// receive reads until the connection fails, which its close makes it do. It runs in a
// goroutine of its own, that of the receiver.
func (n *Notifier) receive(c *connection) {
	for {
		message, err := c.read(n.ctx)
		switch {
		case err == nil:
			c.noteAnswer()
			n.handle(message)
		case redis.HasErrorPrefix(err, "NOPERM"):
			c.noteDenied()
			n.loop.Wake()
		default:
			c.noteBroken()
			n.loop.Wake()
			return
		}
	}
}

// handle deals with what the server has sent. The connection it came over is the
// current one: the loop waits for the receiver before it makes another.
func (n *Notifier) handle(message any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch m := message.(type) {
	case *redis.Subscription:
		if s := n.subscriptions[m.Channel]; s != nil && s.state != wanted && m.Kind == "subscribe" {
			s.state = confirmed
			n.subscribed++
			s.mark.subscribed = n.subscribed
			s.notify()
		}
	case *redis.Message:
		if s := n.subscriptions[m.Channel]; s != nil {
			s.mark.received++
			s.mark.Message, s.mark.At = m.Payload, time.Now()
			s.hear()
			s.pass(m.Payload)
		}
	}
}
