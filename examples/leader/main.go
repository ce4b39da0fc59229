// Leader shows how one of several processes does what only one may do, and how another one takes
// over when it ends: a Do in a loop.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// pause is how long a candidate waits after an error, when Redis is away for instance.
const pause = time.Second

// Campaign has this process lead whenever no other one does, until ctx ends. While it leads, it
// calls lead, whose context ends as soon as it must stop: before another process can lead. Lead
// must return then.
func Campaign(ctx context.Context, locker *sluice.Locker, name string, lead func(ctx context.Context) error) error {
	for {
		err := locker.Do(ctx, name, lead)
		switch {
		case ctx.Err() != nil:
			return nil // the lock is released: another process leads at once
		case errors.Is(err, sluice.ErrClosed):
			return err
		case errors.Is(err, sluice.ErrLost), err == nil:
			continue // it has led, and stands again at the end of the line
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

// run has three candidates, each of which leads for a while and ends.
func run(ctx context.Context, out io.Writer) error {
	rdb, done, err := connect()
	if err != nil {
		return err
	}
	defer done()
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i := range 3 {
		all.Go(func() {
			if err := candidate(ctx, rdb, fmt.Sprint("process ", i+1), out, &mu); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = err
			}
		})
	}
	all.Wait()
	return failed
}

// candidate is one process. It ends after it has led for a while.
func candidate(ctx context.Context, rdb *redis.Client, name string, out io.Writer, mu *sync.Mutex) error {
	// The TTL is how long no process leads after a crash. It has to be longer than what lead takes
	// to stop.
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(5*time.Second), sluice.WithOwner(name))
	if err != nil {
		return err
	}
	defer locker.Close()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	return Campaign(ctx, locker, "leader", func(ctx context.Context) error {
		mu.Lock()
		fmt.Fprintln(out, name, "leads")
		mu.Unlock()
		select {
		case <-time.After(100 * time.Millisecond): // its work
		case <-ctx.Done():
		}
		leave()
		return nil
	})
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
