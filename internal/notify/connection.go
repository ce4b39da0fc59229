package notify

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// connection is one pub/sub connection, as the loop and the receiver know it.
type connection struct {
	pubsub   *redis.PubSub
	receiver sync.WaitGroup
	reading  bool // the receiver has been started; the loop's own

	mu            sync.Mutex // guards what follows
	sharded       bool       // channels are asked for by SSUBSCRIBE
	broken        bool       // reading from it has failed
	hasWorked     bool       // something has come over it
	awaitingSince time.Time  // since when it owes an answer; zero if it owes none
	deniedAt      time.Time  // when the server last refused a channel
}

// errNoPubSub is the error of a client that gives no connection to subscribe on.
var errNoPubSub = errors.New("the client cannot subscribe")

// open returns a connection that go-redis makes when it is first written to.
func (n *Notifier) open() (c *connection, err error) {
	defer redisexec.Contain(&err)
	pubsub := n.rdb.Subscribe(n.ctx)
	if pubsub == nil {
		return nil, errNoPubSub
	}
	return &connection{pubsub: pubsub, sharded: n.cluster != nil}, nil
}

// close closes it and waits for the receiver.
func (c *connection) close() {
	_ = c.write(c.pubsub.Close)
	c.receiver.Wait()
}

// write calls the client.
func (c *connection) write(call func() error) (err error) {
	defer redisexec.Contain(&err)
	return call()
}

// read returns the next message. go-redis panics over some that no server should send.
func (c *connection) read(ctx context.Context) (message any, err error) {
	defer redisexec.Contain(&err)
	return c.pubsub.Receive(ctx)
}

// expectAnswer notes that something was, or is about to be, written that the server
// answers.
func (c *connection) expectAnswer(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awaitingSince.IsZero() {
		c.awaitingSince = now
	}
}

// owesAnswer returns since when the connection owes an answer, or zero.
func (c *connection) owesAnswer() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.awaitingSince
}

// noteAnswer notes that something has come.
func (c *connection) noteAnswer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaitingSince, c.hasWorked = time.Time{}, true
}

// noteDenied notes that the server refuses a channel. That is an answer like any other:
// the connection works, and another one would be given the same answer.
func (c *connection) noteDenied() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaitingSince, c.hasWorked, c.deniedAt = time.Time{}, true, time.Now()
}

// isSharded reports whether channels are asked for by SSUBSCRIBE.
func (c *connection) isSharded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sharded
}

// becomeClassic has channels asked for by SUBSCRIBE, and reports whether that is new.
func (c *connection) becomeClassic() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.sharded
	c.sharded = false
	return was
}

func (c *connection) noteBroken() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = true
}

// isDead reports whether reading has failed, or an answer is overdue.
func (c *connection) isDead(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken || !c.awaitingSince.IsZero() && now.Sub(c.awaitingSince) >= silence
}

// worked reports whether anything has come over the connection. That it could be written
// to says little.
func (c *connection) worked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hasWorked
}

// retryDenied returns whether it is time to try forbidden channels again and, if not,
// when that will be (zero if none is forbidden).
func (c *connection) retryDenied(now time.Time) (retry bool, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.deniedAt.IsZero():
		return false, time.Time{}
	case now.Sub(c.deniedAt) >= retryDeniedAfter:
		c.deniedAt = time.Time{}
		return true, time.Time{}
	}
	return false, c.deniedAt.Add(retryDeniedAfter)
}
