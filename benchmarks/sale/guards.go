package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/examples/seckill/shophttp"
)

const (
	// ttl is how long buyers wait if a process dies while it holds the lock.
	ttl = 2 * time.Second
	// retry is the delay that gives the peers the most holds a second on a hot name: see
	// retryForThroughput in the benchmarks of locks.
	retry = 20 * time.Millisecond
)

// turn is what a buyer does. The fence is higher than that of each turn before, or 0 in all turns.
type turn func(ctx context.Context, fence uint64) error

// guard has buyers take turns.
type guard interface {
	// do calls fn when it is the caller's turn, and returns fn's error, or why there was no turn.
	// The wait ends with ctx.
	do(ctx context.Context, fn turn) error
	close()
}

// unguarded lets all buyers in at once.
type unguarded struct{}

func openUnguarded(shophttp.Site) (guard, error)        { return unguarded{}, nil }
func (unguarded) do(ctx context.Context, fn turn) error { return fn(ctx, 0) }
func (unguarded) close()                                {}

// locked is a Locker, which renews the lock during a turn, and ends the turn's ctx if it is lost.
type locked struct {
	*sluice.Locker
	name string
}

func openLocked(s shophttp.Site) (guard, error) {
	locker, err := sluice.NewLocker(s.Redis, sluice.WithTTL(ttl), sluice.WithMaxWait(shophttp.AnswerWithin), sluice.WithFencing())
	return locked{locker, s.Name}, err
}

func (l locked) close() { _ = l.Close() }

func (l locked) do(ctx context.Context, fn turn) error {
	return l.Do(ctx, l.name, func(ctx context.Context) error {
		return fn(ctx, uint64(sluice.LockFromContext(ctx, l.name).Fence()))
	})
}

// take takes the turn of a lock that is held. It takes milliseconds, so nothing renews the lock:
// the turn's ctx ends with the TTL, counted from before the lock was asked for.
func (fn turn) take(ctx context.Context, unlock func(ctx context.Context) error) error {
	held, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	err := fn(held, 0)
	return errors.Join(err, unlock(context.WithoutCancel(ctx)))
}

// bsmGuard is github.com/bsm/redislock.
type bsmGuard struct {
	*redislock.Client
	key string
}

func openBSM(s shophttp.Site) (guard, error) {
	return bsmGuard{redislock.New(s.Redis), "Lock:" + s.Name}, nil
}

func (bsmGuard) close() {}

func (g bsmGuard) do(ctx context.Context, fn turn) error {
	waiting, cancel := context.WithTimeout(ctx, shophttp.AnswerWithin)
	defer cancel()
	lock, err := g.Obtain(waiting, g.key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)})
	if err != nil {
		return err
	}
	return fn.take(ctx, lock.Release)
}

// redsyncGuard is github.com/go-redsync/redsync.
type redsyncGuard struct {
	*redsync.Redsync
	key string
}

func openRedsync(s shophttp.Site) (guard, error) {
	return redsyncGuard{redsync.New(goredis.NewPool(s.Redis)), "Lock:" + s.Name}, nil
}

func (redsyncGuard) close() {}

func (g redsyncGuard) do(ctx context.Context, fn turn) error {
	waiting, cancel := context.WithTimeout(ctx, shophttp.AnswerWithin)
	defer cancel()
	mutex := g.NewMutex(g.key, redsync.WithExpiry(ttl), redsync.WithRetryDelay(retry), redsync.WithTries(1<<30))
	if err := mutex.LockContext(waiting); err != nil {
		return err
	}
	return fn.take(ctx, func(ctx context.Context) error {
		_, err := mutex.UnlockContext(ctx)
		return err
	})
}
