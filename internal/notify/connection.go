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

	// The notifier's mutex guards what follows.
	sharded       bool      // channels are asked for by SSUBSCRIBE
	broken        bool      // reading from it has failed
	hasWorked     bool      // something has come over it: that it could be written to says little
	awaitingSince time.Time // since when it owes an answer; zero if it owes none
	deniedAt      time.Time // when the server last refused a channel
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
