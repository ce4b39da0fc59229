package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	rueidislocks "github.com/redis/rueidis/rueidislock"
)

const (
	redislockSettings   = "v0.10.0, TTL 15s, LinearBackoff of the retry delay"
	redsyncSettings     = "v4.18.1, expiry 15s, the retry delay, unlimited tries"
	rueidislockSettings = "rueidis v1.0.79, KeyMajority 1, NoLoopTracking as its README has it, TryNextAfter 1s, KeyValidity 5s (its default); one multiplexed connection; in fleets buffers of 4 KiB instead of 512"
)

// The retry delays of the peers that poll, redislock and redsync, are the best for each
// scenario of 0.5, 1, 2, 5, 10, 20, 50 and 100ms and ExponentialBackoff(16ms, 128ms). A longer
// delay gives more sections per second, because the goroutine that unlocks is then the next
// to lock; with more than 20ms some goroutines never get the lock.
//
// The delay for fleets is the one of redislock's examples, and how often Sluice's waiters poll.
// With 20ms or 50ms the polls of hundreds of clients leave the server little time for the one that
// holds the lock; 200ms gives more sections with 1,000 clients, no more with 300, and longer waits
// in small fleets.
const (
	retryForThroughput = 20 * time.Millisecond
	retryForCrowds     = 10 * time.Millisecond
	retryForLatency    = time.Millisecond
	retryForFleets     = 100 * time.Millisecond
)

// key returns the key that Sluice uses for a lock, so that no contender sends shorter keys.
func key(name string) string { return "Lock:" + name }

func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// bsmLock is github.com/bsm/redislock.
type bsmLock struct {
	*redislock.Client
	retry time.Duration
}

func newRedislock(rdb redis.UniversalClient, s setup) (contender, error) {
	return bsmLock{redislock.New(rdb), s.Retry}, nil
}

func (l bsmLock) Lock(ctx context.Context, name string) (unlock, error) {
	lock, err := l.Obtain(ctx, key(name), ttl, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(l.retry),
	})
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

func (l bsmLock) Close() error { return nil }

// redsyncLock is github.com/go-redsync/redsync.
type redsyncLock struct {
	*redsync.Redsync
	retry time.Duration
}

func newRedsync(rdb redis.UniversalClient, s setup) (contender, error) {
	return redsyncLock{redsync.New(goredis.NewPool(rdb)), s.Retry}, nil
}

func (l redsyncLock) Lock(ctx context.Context, name string) (unlock, error) {
	mutex := l.NewMutex(key(name),
		redsync.WithExpiry(ttl),
		redsync.WithRetryDelay(l.retry),
		redsync.WithTries(1<<30))
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		ok, err := mutex.UnlockContext(ctx)
		if err == nil && !ok {
			err = errLost
		}
		return err
	}, nil
}

func (l redsyncLock) Close() error { return nil }

// rueidisLock is github.com/redis/rueidis/rueidislock. TryNextAfter is its timeout for a reply:
// with the default, 20ms, a slow reply can make a waiter wait forever; with one server, a
// longer timeout costs nothing.
type rueidisLock struct{ rueidislocks.Locker }

// smallBuffer is the size of the buffers of a client in a fleet, in bytes.
const smallBuffer = 4 << 10

func newRueidislock(s setup) (contender, error) {
	client := rueidis.ClientOption{InitAddress: []string{s.Addr}}
	if s.Pool > 0 { // its client has no pool; hundreds of them need small buffers
		client.ReadBufferEachConn, client.WriteBufferEachConn, client.PipelineMultiplex = smallBuffer, smallBuffer, -1
	}
	if s.sent != nil {
		client.DialCtxFn = func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dialCounted(ctx, addr, s.sent)
		}
	}
	l, err := rueidislocks.NewLocker(rueidislocks.LockerOption{
		ClientOption:   client,
		KeyPrefix:      "Lock",
		KeyMajority:    1,
		NoLoopTracking: true,
		TryNextAfter:   time.Second,
	})
	return rueidisLock{l}, err
}

func (l rueidisLock) Lock(ctx context.Context, name string) (unlock, error) {
	// rueidislock releases a lock when the context of its acquisition ends. Here ctx bounds
	// the wait only, so it is detached once the lock is held.
	waiting, stop := ctx, func() bool { return true }
	if ctx.Done() != nil {
		var cancel context.CancelFunc
		waiting, cancel = context.WithCancel(context.WithoutCancel(ctx))
		stop = context.AfterFunc(ctx, cancel)
	}
	held, release, err := l.WithContext(waiting, name)
	if !stop() {
		if err == nil {
			release()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return func(context.Context) error {
		lost := errors.Is(held.Err(), context.Canceled)
		release() // waits for the key to be gone
		if lost {
			return errLost
		}
		return nil
	}, nil
}

func (l rueidisLock) Close() error {
	l.Locker.Close()
	return nil
}
