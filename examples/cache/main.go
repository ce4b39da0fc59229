// Cache shows how an expensive value is computed once, and not by each of the thousand callers who
// find that it is missing.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

// Cache keeps values in Redis.
type Cache struct {
	Redis  *redis.Client
	Locker *sluice.Locker
	TTL    time.Duration
	Load   func(ctx context.Context, key string) (string, error) // expensive
}

// Get returns a value from the cache, or loads it. Of all callers in all processes that miss it at
// the same time one loads it, and the others wait for that one.
func (c *Cache) Get(ctx context.Context, key string) (value string, err error) {
	if value, err = c.Redis.Get(ctx, key).Result(); !errors.Is(err, redis.Nil) {
		return value, err
	}
	err = c.Locker.Do(ctx, "refresh:"+key, func(ctx context.Context) error {
		// Look again: another caller may have loaded it while this one waited for the lock.
		if value, err = c.Redis.Get(ctx, key).Result(); !errors.Is(err, redis.Nil) {
			return err
		}
		if value, err = c.Load(ctx, key); err != nil {
			return err // the next in line tries
		}
		return c.Redis.Set(ctx, key, value, c.TTL).Err()
	}, sluice.WithMaxWait(5*time.Second)) // no caller waits for longer: it gets ErrLocked
	return value, err
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cache:", err)
		os.Exit(1)
	}
}

// run has a thousand callers ask for one key.
func run(ctx context.Context, out io.Writer) error {
	rdb, done, err := connect()
	if err != nil {
		return err
	}
	defer done()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		return err
	}
	defer locker.Close()
	var loads atomic.Int64
	cache := &Cache{Redis: rdb, Locker: locker, TTL: time.Minute, Load: func(context.Context, string) (string, error) {
		loads.Add(1)
		time.Sleep(100 * time.Millisecond) // the database
		return "a report", nil
	}}
	var callers errgroup.Group
	for range 1000 {
		callers.Go(func() error {
			_, err := cache.Get(ctx, "report:today")
			return err
		})
	}
	err = callers.Wait()
	fmt.Fprintf(out, "1000 callers, loaded %d time(s)\n", loads.Load())
	return err
}

// connect starts a Redis within this process. A real program connects to its own.
func connect() (rdb *redis.Client, done func(), err error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, nil, err
	}
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { _ = rdb.Close(); m.Close() }, nil
}
