// Package notify keeps the pub/sub connection on which waiters are notified.
//
// A notification is a hint to poll Redis again, never a fact: to lose the connection
// costs latency and nothing else. So no method returns an error, and none blocks on the
// network.
package notify

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
)

const (
	// linger is how long a subscription outlives its last listener, so that a loop of
	// short waits subscribes once.
	linger = 5 * time.Second
	// briefLinger is that of JoinBriefly. It bounds how long a client counts as one that waits
	// after its caller has gone to work, and is longer than a claim takes.
	briefLinger = 50 * time.Millisecond
	// silence is how long the connection may owe an answer before it is taken for dead.
	silence = 2 * time.Second
	// retryDeniedAfter is when a subscription that access rules forbid is tried again: an
	// operator may have changed them.
	retryDeniedAfter = 10 * time.Second
)

// Notifier is one pub/sub connection. The connection exists while there is a listener,
// and for a short time after. It is safe for concurrent use.
//
// Two goroutines serve it. The loop writes to the connection: it is started by Join, and
// ends when nothing is subscribed any more, or in Close. The receiver reads from the
// connection: the loop starts it, stops it by closing the connection, and waits for it.
//
// A connection that is half open is noticed by a PING that stays without an answer. One
// is sent when a listener has found by itself what it should have been notified of (see
// RequestPing), and not at regular intervals, so that an idle process sends no more than
// its listeners' own polls.
type Notifier struct {
	rdb    redis.UniversalClient
	loop   *background.Loop
	group  background.Group // the loop
	ctx    context.Context  // ends in Close, and with it what blocks in go-redis
	cancel context.CancelFunc

	conn     *connection // what the loop writes to, nil for none; the loop's own
	failures int         // of connections, in a row; the loop's own

	mu            sync.Mutex // guards what follows
	subscriptions map[string]*subscription
	peak          int       // the most of them so far, see shrink.Map
	subscribed    int       // how often a subscription was confirmed
	nextTurn      time.Time // when the loop's next turn comes by itself; zero for at once
	pingWanted    bool
	closed        bool
}

// Listener is notified through C when there is reason to poll.
type Listener struct {
	C        chan struct{} // cap 1
	Messages chan string   // what was published; nil unless made by JoinMessages

	heard func(Mark) bool // says whether a message is worth a notification; nil if each is
}

// messagesKept is how many messages a listener may be behind; those that come then are lost.
const messagesKept = 100

// subscription is a channel and its listeners.
type subscription struct {
	state     subscriptionState
	listeners []*Listener
	linger    time.Duration
	mark      Mark      // but for whether it is confirmed
	idleSince time.Time // when the last listener left
}

// Mark is what has come on a channel by a certain time. Between two marks that are equal and
// Confirmed, nothing that was published was lost, and nothing has come.
type Mark struct {
	Confirmed bool
	Message   string    // the last one
	At        time.Time // when it came

	subscribed int // subscriptions of the notifier that were confirmed when this one was
	received   int // messages since the subscription was made
}

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
	requested                          // SUBSCRIBE has been written
	confirmed                          // and answered
)

// New returns a notifier on rdb. It starts nothing.
func New(rdb redis.UniversalClient) *Notifier {
	n := &Notifier{rdb: rdb, subscriptions: map[string]*subscription{}}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.loop = background.NewLoop(n.group.Go, n.turn)
	return n
}

// Join adds a listener to a channel. It never blocks. The listener is notified once when
// the subscription is confirmed: a message that was published before that is lost, so
// the caller has to poll again then.
func (n *Notifier) Join(channel string) *Listener {
	return n.join(channel, linger, &Listener{C: make(chan struct{}, 1)})
}

// JoinHearing is Join for a listener that makes its own mind up about messages: heard is called
// for each, and says whether the listener is to be notified. It spares a goroutine's being woken
// for those that are not. It must not block, or call the notifier.
func (n *Notifier) JoinHearing(channel string, heard func(Mark) bool) *Listener {
	return n.join(channel, linger, &Listener{C: make(chan struct{}, 1), heard: heard})
}

// JoinBriefly is Join on a channel that no listener needs for long after it has left: one whose
// subscribers are counted.
func (n *Notifier) JoinBriefly(channel string) *Listener {
	return n.join(channel, briefLinger, &Listener{C: make(chan struct{}, 1)})
}

// JoinMessages is Join for a listener that is given the messages too, as far as it reads
// them.
func (n *Notifier) JoinMessages(channel string) *Listener {
	return n.join(channel, linger, &Listener{C: make(chan struct{}, 1), Messages: make(chan string, messagesKept)})
}

func (n *Notifier) join(channel string, linger time.Duration, l *Listener) *Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subscriptions[channel]
	if s == nil {
		s = &subscription{linger: linger}
		n.subscriptions[channel] = s
	}
	s.listeners = append(s.listeners, l)
	if s.state == confirmed {
		background.Signal(l.C)
	}
	if s.state == wanted && !n.closed {
		n.loop.Wake()
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
		s.idleSince = time.Now()
		if !n.closed && s.idleSince.Add(s.linger).Before(n.nextTurn) {
			n.loop.Wake()
		}
	}
}

// Subscribers returns how many of a channel's subscribers are this notifier: 0 or 1.
func (n *Notifier) Subscribers(channel string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.subscriptions[channel]; s != nil && s.state == confirmed {
		return 1
	}
	return 0
}

// Received returns how many messages have come on a channel since its subscription was
// made. The count starts anew after the subscription has ended.
func (n *Notifier) Received(channel string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.subscriptions[channel]; s != nil {
		return s.mark.received
	}
	return 0
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

// RequestPing has the connection tested. Call it when a listener has found by polling
// what it should have been notified of.
func (n *Notifier) RequestPing() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pingWanted = true
	if len(n.subscriptions) > 0 && !n.closed {
		n.loop.Wake()
	}
}

// Close ends the goroutines and the connection, and waits for that until ctx ends.
func (n *Notifier) Close(ctx context.Context) {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel()
	n.loop.Wake()
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

// pass gives a message to the listeners that want it. It does not wait for them.
func (s *subscription) pass(message string) {
	for _, l := range s.listeners {
		select {
		case l.Messages <- message: // never, if it is nil
		default:
		}
	}
}
