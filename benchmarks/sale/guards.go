package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/examples/seckill/shophttp"
)

const (
	redislockName = "redislock"
	redsyncName   = "redsync"

	// The TTL and the longest wait are the service's. The retry delay is the one that gives the
	// peers the most holds a second on a hot name: see retryForThroughput in the benchmarks of
	// locks.
	ttl     = 2 * time.Second
	maxWait = 6 * time.Second
	retry   = 20 * time.Millisecond
)

var guards = map[string]shophttp.OpenGuard{
	redislockName: func(rdb *redis.Client, name string) (shophttp.Guard, func(), error) {
		return bsmGuard{redislock.New(rdb), "Lock:" + name}, func() {}, nil
	},
	redsyncName: func(rdb *redis.Client, name string) (shophttp.Guard, func(), error) {
		return redsyncGuard{redsync.New(goredis.NewPool(rdb)), "Lock:" + name}, func() {}, nil
	},
}

// turn is what a buyer does while it holds the lock. It takes milliseconds, so nothing renews the
// lock: the turn's ctx ends with the TTL, counted from before the lock was asked for.
type turn func(ctx context.Context, fence uint64) error

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

func (g bsmGuard) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	waiting, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	lock, err := g.Obtain(waiting, g.key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)})
	if err != nil {
		return err
	}
	return turn(fn).take(ctx, lock.Release)
}

// redsyncGuard is github.com/go-redsync/redsync.
type redsyncGuard struct {
	*redsync.Redsync
	key string
}

func (g redsyncGuard) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	waiting, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	mutex := g.NewMutex(g.key, redsync.WithExpiry(ttl), redsync.WithRetryDelay(retry), redsync.WithTries(1<<30))
	if err := mutex.LockContext(waiting); err != nil {
		return err
	}
	return turn(fn).take(ctx, func(ctx context.Context) error {
		_, err := mutex.UnlockContext(ctx)
		return err
	})
}
