package notify

import (
	"container/list"
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
)

// route is a connection and the channels that are subscribed over it: all of them or, on a
// Cluster, those whose slot one server keeps. A channel moves to another route when its slot
// has moved: the server says so (MOVED, or an end of the subscription that was not asked for),
// or the client knows it when a listener joins. Then the whole connection is made anew, and each
// of its channels goes where the client says that it belongs: that is seldom, and needs no rule
// for what is on its way.
type route struct {
	notifier *Notifier
	server   any // see redisexec.Executor.NodeOf; nil without a Cluster
	loop     *background.Loop
	conn     *connection // what the loop writes to, nil for none; the loop's own
	failures int         // of connections, in a row; the loop's own

	// What follows is the notifier's, and its mutex guards it.
	subscriptions map[string]*subscription
	peak          int       // the most of them so far, see shrink.Map
	wanted        []string  // channels that may be in the state wanted: all that are, and maybe others
	idle          list.List // the channels without a listener, that which was left first in front
	nextTurn      time.Time // when the loop's next turn comes by itself; zero for at once
	pingWanted    bool
	renew         bool      // the connection is to be made anew: a channel belongs to another route, for one
	renewed       time.Time // when Renew last had that done
}

// add gives a subscription, which is not asked for there, to the route. The mutex is held, as for
// the next ones.
func (r *route) add(channel string, s *subscription) {
	s.route, s.state = r, wanted
	r.subscriptions[channel] = s
	r.wanted = append(r.wanted, channel)
}

// queueIdle has the loop drop a channel without a listener when it has lingered, from now on.
func (r *route) queueIdle(channel string, s *subscription) {
	r.unqueueIdle(s)
	s.idleSince, s.idle = time.Now(), r.idle.PushBack(channel)
}

func (r *route) unqueueIdle(s *subscription) {
	if s.idle != nil {
		r.idle.Remove(s.idle)
		s.idle = nil
	}
}

// routeOf returns the route of a channel. The mutex is held.
func (n *Notifier) routeOf(channel string) *route {
	var server any
	if n.cluster != nil {
		server = n.cluster.NodeOf(channel)
	}
	r := n.routes[server]
	if r == nil {
		r = &route{notifier: n, server: server, subscriptions: map[string]*subscription{}}
		// Join wakes it. It ends when nothing is subscribed there any more, or in Close, which
		// waits for it.
		r.loop = background.NewLoop(n.group.Go, r.turn)
		n.routes[server] = r
	}
	return r
}

// bind gives a subscription its route. If it has one and belongs to another, the old one is
// told. The mutex is held.
func (n *Notifier) bind(channel string, s *subscription) {
	if s.route != nil && n.cluster == nil {
		return
	}
	r := n.routeOf(channel)
	switch {
	case s.route == nil:
		r.add(channel, s)
	case s.route != r && !s.route.renew && n.cluster.NodeOf(channel) != nil:
		s.route.renew = true
		s.route.loop.Wake()
	}
}

// forgetConnection forgets what the last connection was asked for and answered, and moves the
// channels that belong to another route.
func (r *route) forgetConnection() {
	n := r.notifier
	n.mu.Lock()
	defer n.mu.Unlock()
	r.pingWanted, r.renew = false, false
	r.wanted = nil
	for channel, s := range r.subscriptions {
		if n.cluster != nil {
			if to := n.routeOf(channel); to != r {
				delete(r.subscriptions, channel)
				to.add(channel, s)
				if s.idle != nil { // it lingers anew
					r.unqueueIdle(s)
					to.queueIdle(channel, s)
				}
				to.loop.Wake()
				continue
			}
		}
		s.state = wanted
		r.wanted = append(r.wanted, channel)
	}
}

// wantUnanswered has what was requested, and not confirmed, requested again. The mutex is held.
func (r *route) wantUnanswered() {
	for channel, s := range r.subscriptions {
		if s.state == requested {
			s.state = wanted
			r.wanted = append(r.wanted, channel)
		}
	}
}

// subscribe writes a request for a channel.
func (c *connection) subscribe(ctx context.Context, channel string, sharded bool) error {
	return c.write(func() error {
		if sharded {
			return c.pubsub.SSubscribe(ctx, channel)
		}
		return c.pubsub.Subscribe(ctx, channel)
	})
}

// unsubscribe writes a request to end subscriptions, of either kind: they may have been made
// before the connection became classic.
func (c *connection) unsubscribe(n *Notifier, channels []string, sharded bool) error {
	if n.cluster != nil {
		for _, channel := range channels { // which are of several slots
			if err := c.write(func() error { return c.pubsub.SUnsubscribe(n.ctx, channel) }); err != nil {
				return err
			}
		}
	}
	if sharded {
		return nil
	}
	return c.write(func() error { return c.pubsub.Unsubscribe(n.ctx, channels...) })
}

// refuses reports whether an error says that access rules deny a command, or that the server does
// not know it: Redis 6 knows no sharded channels. HasErrorPrefix looks behind "ERR".
func refuses(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") || redis.HasErrorPrefix(err, "unknown command")
}
