package sluice

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// lingering is how long a subscription outlives its last listener, so that a
	// loop of short waits subscribes once.
	lingering = 5 * time.Second
	// silence is how long the connection may owe us an answer before it is
	// taken for dead.
	silence = 2 * time.Second
	// askAgain is when a subscription that access rules forbid is tried again: an
	// operator may have mended them.
	askAgain = 10 * time.Second
)

// hub is the pub/sub connection of a Locker or a Queue. It exists while somebody
// listens, and for a short time after. A wake-up is a hint to look again: losing
// the connection costs latency and nothing else, and the hub never returns an
// error.
//
// A half-open connection is noticed by a PING that stays without answer. One is
// sent when a listener found by itself what it should have been told (suspect),
// and not in regular intervals, because an idle process is to send no more than
// its listeners' own looks.
//
// Two goroutines serve it: work, which writes, and receive, which reads. work is
// started by join, ends when nothing is subscribed any more, or in close, and
// waits for receive.
type hub struct {
	rdb redis.UniversalClient

	mu      sync.Mutex // guards what follows
	topics  map[string]*topic
	running bool
	closed  bool
	doubt   bool          // a PING is to be sent
	owed    time.Time     // since when the connection owes us an answer; zero if it doesn't
	conn    *redis.PubSub // the one that work serves
	broken  bool          // receive has failed on it
	worked  bool          // receive has got something from it
	refused time.Time     // when the server last said that access rules forbid what we asked for
	kick    chan struct{}
	ended   sync.WaitGroup
	ctx     context.Context // ends in close, and with it what blocks in go-redis
	cancel  context.CancelFunc
}

// topic is a channel and those who listen to it.
type topic struct {
	listeners []*listener
	asked     bool // SUBSCRIBE has been written
	confirmed bool // and answered
	heard     int  // messages so far
	idle      time.Time
}

// listener gets a signal when there is reason to look.
type listener struct {
	C chan struct{} // cap 1
}

func newHub(rdb redis.UniversalClient) *hub {
	h := &hub{rdb: rdb, topics: map[string]*topic{}, kick: make(chan struct{}, 1)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// join makes a listener on a channel. It never blocks. The listener is signalled
// once when the subscription stands: what was published before that is lost, so
// it has to look again then.
func (h *hub) join(channel string) *listener {
	l := &listener{C: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil {
		t = &topic{}
		h.topics[channel] = t
	}
	t.listeners = append(t.listeners, l)
	if t.confirmed {
		signal(l.C)
	}
	if !t.asked {
		signal(h.kick)
	}
	if !h.running && !h.closed {
		h.running = true
		h.ended.Go(h.work)
	}
	return l
}

// leave ends a listener. A signal that it made no use of is nobody's loss: of the
// callers of a Locker or a Queue one listens for all, and the next begins with a
// look.
func (h *hub) leave(channel string, l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil {
		return
	}
	t.listeners = slices.DeleteFunc(t.listeners, func(other *listener) bool { return other == l })
	if len(t.listeners) == 0 {
		t.idle = time.Now()
		signal(h.kick)
	}
}

// subscribers is how many of those who are told on a channel are this hub: 0 or 1.
func (h *hub) subscribers(channel string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[channel]; t != nil && t.confirmed {
		return 1
	}
	return 0
}

// heard is how many messages have come on a channel since it was subscribed to.
func (h *hub) heard(channel string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[channel]; t != nil {
		return t.heard
	}
	return 0
}

func (t *topic) wake() {
	for _, l := range t.listeners {
		signal(l.C)
	}
}

// suspect says that a listener found what it should have been told.
func (h *hub) suspect() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubt = true
	signal(h.kick)
}

func (h *hub) work() {
	for try := 0; ; try++ {
		if !h.serve() {
			return
		}
		if h.hasWorked() {
			try = 0
		}
		pause(h.ctx, try)
	}
}

// hasWorked says whether anything has come over the connection. That it could be
// written to says little: one that is closed at once must not be followed by another
// at once.
func (h *hub) hasWorked() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.worked
}

// serve runs one connection. It says whether another one is needed.
func (h *hub) serve() (again bool) {
	conn := h.rdb.Subscribe(h.ctx)
	h.begin(conn)
	var receiver sync.WaitGroup
	defer func() {
		_ = conn.Close()
		receiver.Wait()
	}()
	reading := false
	for {
		plan := h.plan()
		switch {
		case plan.end:
			return false
		case plan.fresh:
			return true
		}
		// One by one: where access rules forbid one channel, Redis refuses the others
		// that are in the same command, too.
		for _, channel := range plan.subscribe {
			if conn.Subscribe(h.ctx, channel) != nil {
				return true
			}
			if !reading {
				reading = true
				receiver.Go(func() { h.receive(conn) })
			}
		}
		if len(plan.unsubscribe) > 0 && conn.Unsubscribe(h.ctx, plan.unsubscribe...) != nil {
			return true
		}
		if plan.ping && conn.Ping(h.ctx) != nil {
			return true
		}
		h.sleep(plan.pause)
	}
}

// sleep waits for something to do, for d at most, or for ever if d is 0.
func (h *hub) sleep(d time.Duration) {
	var timeout <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-h.kick:
	case <-timeout:
	}
}

// plan is what serve has to do next.
type plan struct {
	subscribe, unsubscribe []string
	ping                   bool
	end                    bool          // nobody listens: the goroutine has ended
	fresh                  bool          // this connection is dead
	pause                  time.Duration // until something is due; 0 for never
}

func (h *hub) plan() plan {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var p plan
	later := func(at time.Time) {
		if left := max(at.Sub(now), time.Millisecond); p.pause == 0 || left < p.pause {
			p.pause = left
		}
	}
	retry := !h.refused.IsZero() && now.Sub(h.refused) >= askAgain
	if retry {
		h.refused = time.Time{}
	} else if !h.refused.IsZero() {
		later(h.refused.Add(askAgain))
	}
	for channel, t := range h.topics {
		t.asked = t.asked && (t.confirmed || !retry)
		switch {
		case len(t.listeners) == 0 && now.Sub(t.idle) >= lingering:
			delete(h.topics, channel)
			if t.asked {
				p.unsubscribe = append(p.unsubscribe, channel)
			}
			continue
		case len(t.listeners) == 0:
			later(t.idle.Add(lingering))
		}
		if !t.asked {
			t.asked = true
			p.subscribe = append(p.subscribe, channel)
		}
	}
	if h.closed || len(h.topics) == 0 {
		h.running = false
		return plan{end: true}
	}
	if h.broken || (!h.owed.IsZero() && now.Sub(h.owed) >= silence) {
		return plan{fresh: true}
	}
	if h.doubt && h.owed.IsZero() && len(p.subscribe) == 0 {
		h.doubt = false
		p.ping = true
	}
	if h.owed.IsZero() && (p.ping || len(p.subscribe) > 0) {
		h.owed = now
	}
	if !h.owed.IsZero() {
		later(h.owed.Add(silence))
	}
	return p
}

// begin forgets what another connection had been told.
func (h *hub) begin(conn *redis.PubSub) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn = conn
	for _, t := range h.topics {
		t.asked, t.confirmed = false, false
	}
	h.doubt, h.broken, h.worked, h.owed, h.refused = false, false, false, time.Time{}, time.Time{}
}

// receive reads until the connection fails, which Close makes it do.
func (h *hub) receive(conn *redis.PubSub) {
	for {
		message, err := conn.Receive(h.ctx)
		h.mu.Lock()
		if h.conn != conn {
			err = redis.ErrClosed // another one has taken over
		} else if err != nil && redis.HasErrorPrefix(err, "NOPERM") {
			// An answer like any other: the connection is all right, and another
			// would be told the same.
			h.owed, h.refused, h.worked, err = time.Time{}, time.Now(), true, nil
			signal(h.kick)
		} else if err != nil {
			h.broken = true
			signal(h.kick)
		} else {
			h.owed, h.worked = time.Time{}, true
			h.handle(message)
		}
		h.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (h *hub) handle(message any) {
	switch m := message.(type) {
	case *redis.Subscription:
		if t := h.topics[m.Channel]; t != nil && t.asked && m.Kind == "subscribe" {
			t.confirmed = true
			t.wake()
		}
	case *redis.Message:
		if t := h.topics[m.Channel]; t != nil {
			t.heard++
			t.wake()
		}
	}
}

// close ends the goroutines and the connection, waiting until ctx ends at most.
func (h *hub) close(ctx context.Context) {
	h.mu.Lock()
	h.closed = true
	signal(h.kick)
	h.mu.Unlock()
	h.cancel()
	quiet := make(chan struct{})
	go func() { h.ended.Wait(); close(quiet) }()
	select {
	case <-quiet:
	case <-ctx.Done():
	}
}
