// Moving shows a service that moves to Sluice process by process: redislock, redsync, the PHP
// classes' commands and Sluice guard one stock by one key, and a task that PHP has put into the
// queue is handled in Go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// key is what all of them lock. Sluice makes it of the name "stock" and its default prefix; with
// WithLockPrefix("") the name would be the key.
const (
	key = "Lock:stock"
	ttl = 10 * time.Second
)

// Guard calls fn while it holds the lock.
type Guard func(ctx context.Context, fn func() error) error

// ByRedislock is the guard before the move: it polls, and nothing renews the lock.
func ByRedislock(rdb *redis.Client) Guard {
	client := redislock.New(rdb)
	return func(ctx context.Context, fn func() error) error {
		lock, err := client.Obtain(ctx, key, ttl, &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)})
		if err != nil {
			return err
		}
		defer lock.Release(context.WithoutCancel(ctx))
		return fn()
	}
}

// ByRedsync is another one.
func ByRedsync(rdb *redis.Client) Guard {
	client := redsync.New(redsyncredis.NewPool(rdb))
	return func(ctx context.Context, fn func() error) error {
		mutex := client.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(2000), redsync.WithRetryDelay(5*time.Millisecond))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		defer mutex.UnlockContext(context.WithoutCancel(ctx))
		return fn()
	}
}

// ByPHP sends what the PHP classes send: SETNX and EXPIRE, and DEL.
func ByPHP(rdb *redis.Client) Guard {
	return func(ctx context.Context, fn func() error) error {
		for {
			taken, err := rdb.SetNX(ctx, key, 1, 0).Result()
			if err != nil {
				return err
			}
			if taken {
				break
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := rdb.Expire(ctx, key, ttl).Err(); err != nil {
			return err
		}
		defer rdb.Del(context.WithoutCancel(ctx), key)
		return fn()
	}
}

// BySluice is the guard after the move: it waits in order, renews the lock while fn runs, and says
// if it was lost.
func BySluice(locker *sluice.Locker) Guard {
	return func(ctx context.Context, fn func() error) error {
		return locker.Do(ctx, "stock", func(context.Context) error { return fn() })
	}
}

func main() {
	m, err := miniredis.Run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "moving:", err)
		os.Exit(1)
	}
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	err = run(context.Background(), rdb, os.Stdout)
	_ = rdb.Close()
	m.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "moving:", err)
		os.Exit(1)
	}
}

// run sells ten units to fifteen buyers of each guard, and cancels an order that PHP has enqueued.
func run(ctx context.Context, rdb *redis.Client, out io.Writer) error {
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(ttl))
	if err != nil {
		return err
	}
	defer locker.Close()
	var stock, sold atomic.Int64 // atomic for the race detector, which does not see a lock in Redis
	stock.Store(10)
	var buyers sync.WaitGroup
	failed := make(chan error, 60)
	for _, guard := range []Guard{ByRedislock(rdb), ByRedsync(rdb), ByPHP(rdb), BySluice(locker)} {
		for range 15 {
			buyers.Go(func() {
				failed <- guard(ctx, func() error {
					left := stock.Load()
					time.Sleep(time.Millisecond) // time for another buyer, if the lock let one in
					if left > 0 {
						stock.Store(left - 1)
						sold.Add(1)
					}
					return nil
				})
			})
		}
	}
	buyers.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "sold %d, left %d\n", sold.Load(), stock.Load())

	// $redis->zAdd('Queue:unpaid', microtime(true), 'order-1')
	now := float64(time.Now().UnixMicro()) / 1e6
	if err := rdb.ZAdd(ctx, "Queue:unpaid", redis.Z{Score: now, Member: "order-1"}).Err(); err != nil {
		return err
	}
	queue, err := sluice.NewQueue(rdb, "unpaid")
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	worker := &sluice.Worker{Queue: queue, Handler: func(_ context.Context, e sluice.Entry) error {
		fmt.Fprintln(out, "canceled", e.ID)
		stop() // the example is over
		return nil
	}}
	if err := worker.Run(ctx); err != nil {
		return err
	}
	stats, err := queue.Stats(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	if n := stats.Due + stats.Scheduled + stats.Leased + stats.Dead; n > 0 {
		return errors.New("a task is left")
	}
	return nil
}
