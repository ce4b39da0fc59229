// Package notify keeps the pub/sub connection on which waiters are notified.
//
// A notification is a hint to poll Redis again, never a fact: to lose the connection
// costs latency and nothing else. So no method returns an error, and none blocks on the
// network.
package notify

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redisexec"
)

const (
	// linger is how long a subscription outlives its last listener, so that a loop of
	// short waits subscribes once.
	linger = 5 * time.Second
	// silence is how long the connection may owe an answer before it is taken for dead.
	silence = 2 * time.Second
	// retryDeniedAfter is when a subscription that access rules forbid is tried again: an
	// operator may have changed them.
	retryDeniedAfter = 10 * time.Second
	// renewAgain is the shortest time between two connections that are made though the first works.
	renewAgain = 10 * time.Second
)

// Notifier is a pub/sub connection or, on a Cluster, one to each server that keeps the slot of
// a channel with a listener: a route. A connection exists while there is a listener, and for a
// short time after. It is safe for concurrent use.
//
// Two goroutines serve a route. Its loop writes to the connection, and the receiver reads from it.
//
// On a Cluster channels are sharded (SSUBSCRIBE): a message on one goes to the servers of its
// slot, and not to all. Where the server does not know that, or denies it, the same connection
// subscribes classically: so the scripts, which run on that server, see by PUBSUB who listens how.
//
// A connection that is half open is noticed by a PING that stays without an answer. One
// is sent when a listener has found by itself what it should have been notified of (see
// RequestPing), and not at regular intervals, so that an idle process sends no more than
// its listeners' own polls.
type Notifier struct {
	rdb     redis.UniversalClient
	cluster *redisexec.Executor // which knows the servers of a Cluster; nil without one
	group   background.Group    // the loops
	ctx     context.Context     // ends in Close, and with it what blocks in go-redis
	cancel  context.CancelFunc

	mu            sync.Mutex // guards what follows, and of each route what its comment says; held while Listener.heard is called
	subscriptions map[string]*subscription
	peak          int            // the most of them so far, see shrink.Map
	routes        map[any]*route // by server; one on which nothing is subscribed is forgotten when its loop ends
	subscribed    int            // how often a subscription was confirmed
	closed        bool
}

// Listener is notified through C when there is reason to poll.
type Listener struct {
	C chan struct{} // cap 1

	heard func(Mark) bool // says whether a message is worth a notification; nil if each is
}

// messagesKept is how many messages a listener may be behind; those that come then are lost.
const messagesKept = 100

// subscription is a channel and its listeners.
type subscription struct {
	route     *route
	state     subscriptionState
	listeners []*Listener
	mark      Mark          // but for whether it is confirmed
	idleSince time.Time     // when the last listener left
	idle      *list.Element // of its route's idle; nil while it has a listener
}

// Mark is what has come on a channel by a certain time. Between two marks that are equal and
// Confirmed, nothing that was published was lost, and nothing has come.
type Mark struct {
	Confirmed bool
	Sharded   bool      // subscribed by SSUBSCRIBE or, if it is not confirmed, to be
	Message   string    // the last one
	At        time.Time // when it came

	subscribed int // subscriptions of the notifier that were confirmed when this one was
	received   int // messages since the subscription was made
}

// IsFirst reports whether the subscription has not been confirmed so far.
func (m Mark) IsFirst() bool { return m.subscribed == 0 }

// Follows reports whether a mark is of the same subscription as an earlier one, with no
// messages lost between.
func (m Mark) Follows(earlier Mark) bool {
	return m.Confirmed && earlier.Confirmed && m.subscribed == earlier.subscribed
}

// Since returns how many messages have come since an earlier mark, which m Follows.
func (m Mark) Since(earlier Mark) int { return m.received - earlier.received }

type subscriptionState int

const (
	wanted    subscriptionState = iota // not asked for on this connection
	requested                          // SUBSCRIBE or SSUBSCRIBE has been written
	confirmed                          // and answered
)

// New returns a notifier on rdb. It starts nothing.
func New(rdb redis.UniversalClient) *Notifier {
	n := &Notifier{rdb: rdb, subscriptions: map[string]*subscription{}, routes: map[any]*route{}}
	if redisexec.IsCluster(rdb) {
		n.cluster = redisexec.New(rdb)
	}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// Argument returns a channel as scripts are given it that publish on it, or count its subscribers:
// on a Cluster with a '*' behind it.
func (n *Notifier) Argument(channel string) string {
	if n.cluster != nil {
		return channel + "*"
	}
	return channel
}

// Join adds a listener to a channel. It never blocks. The listener is notified once when
// the subscription is confirmed: a message that was published before that is lost, so
// the caller has to poll again then.
//
// heard, if it is not nil, is called for each message, and says whether the listener is to be
// notified of it. It spares a goroutine's being woken for those of no interest. It must not block,
// or call the notifier.
func (n *Notifier) Join(channel string, heard func(Mark) bool) *Listener {
	return n.join(channel, &Listener{C: make(chan struct{}, 1), heard: heard})
}

// NewMessages returns a channel for JoinMessages.
func NewMessages() chan string { return make(chan string, messagesKept) }

// JoinMessages is Join for a listener that is given the messages themselves, as far as it reads
// them. Several listeners may have the same channel.
func (n *Notifier) JoinMessages(messages chan<- string, channel string) *Listener {
	return n.Join(channel, func(m Mark) bool {
		select {
		case messages <- m.Message:
		default:
		}
		return false
	})
}

func (n *Notifier) join(channel string, l *Listener) *Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subscriptions[channel]
	if s == nil {
		s = &subscription{mark: Mark{Sharded: n.cluster != nil}}
		n.subscriptions[channel] = s
	}
	s.listeners = append(s.listeners, l)
	n.bind(channel, s)
	s.route.unqueueIdle(s)
	if s.state == confirmed {
		background.Signal(l.C)
	}
	if s.state == wanted && !n.closed {
		s.route.loop.Wake()
	}
	return l
}

// Leave removes a listener. A notification that it has not used is dropped, which is
// safe: of the callers of a Locker or a Queue one listens for all, and the next listener
// polls first.
func (n *Notifier) Leave(channel string, l *Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subscriptions[channel]
	if s == nil {
		return
	}
	s.listeners = slices.DeleteFunc(s.listeners, func(other *Listener) bool { return other == l })
	if len(s.listeners) == 0 {
		s.route.queueIdle(channel, s)
		if !n.closed && s.idleSince.Add(linger).Before(s.route.nextTurn) {
			s.route.loop.Wake()
		}
	}
}

// Mark returns what has come on a channel so far.
func (n *Notifier) Mark(channel string) Mark {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subscriptions[channel]
	if s == nil {
		return Mark{}
	}
	return s.marked()
}

// RequestPing has a channel's connection tested. Call it when a listener has found by polling
// what it should have been notified of. On a Cluster the connection may be well, and to the wrong server: a
// replica accepts SSUBSCRIBE without MOVED, and so does a primary that has just become one.
func (n *Notifier) RequestPing(channel string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subscriptions[channel]
	if s == nil {
		return
	}
	n.bind(channel, s)
	s.route.pingWanted = true
	if !n.closed {
		s.route.loop.Wake()
	}
}

// Renew has a channel's connection made anew: call it when a server of scripts knows of no subscription
// to the channel, though it was confirmed before, at a mark. Either the connection is dead, or it goes to
// another server. Within renewAgain of the last time it is only tested: it may be a proxy that leads
// elsewhere each time. So it is on a Cluster, which says itself where a channel belongs.
func (n *Notifier) Renew(channel string, at Mark) {
	n.mu.Lock()
	s := n.subscriptions[channel]
	old := n.cluster == nil && s != nil && s.marked().Follows(at) && time.Since(s.route.renewed) >= renewAgain
	if old {
		s.route.renewed, s.route.renew = time.Now(), true
	}
	n.mu.Unlock()
	n.RequestPing(channel)
}

// Close ends the goroutines and the connection, and waits for that until ctx ends.
func (n *Notifier) Close(ctx context.Context) {
	n.mu.Lock()
	n.closed = true
	for _, r := range n.routes {
		r.loop.Wake()
	}
	n.mu.Unlock()
	n.cancel()
	n.group.Wait(ctx)
}

func (s *subscription) marked() Mark {
	m := s.mark
	m.Confirmed = s.state == confirmed
	return m
}

// hear notifies the listeners to whom the message is of interest.
func (s *subscription) hear() {
	for _, l := range s.listeners {
		if l.heard == nil || l.heard(s.marked()) {
			background.Signal(l.C)
		}
	}
}

func (s *subscription) notify() {
	for _, l := range s.listeners {
		background.Signal(l.C)
	}
}
