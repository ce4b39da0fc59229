package systest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// LagOf is Lag, or how long a server takes to answer, if that is longer.
func LagOf(t testing.TB, rdb redis.UniversalClient) func() time.Duration {
	var longest atomic.Int64
	var sent atomic.Pointer[time.Time] // nil between two
	lag, ctx, stop, stopped := Lag(t), context.Background(), make(chan struct{}), make(chan struct{})
	go func() { // ends with the test
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			begun := time.Now()
			sent.Store(&begun)
			_ = rdb.Ping(ctx).Err()
			longest.Store(max(longest.Load(), int64(time.Since(begun))))
			sent.Store(nil)
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return func() time.Duration {
		most := max(lag(), time.Duration(longest.Load()))
		if begun := sent.Load(); begun != nil { // its answer is late, too
			most = max(most, time.Since(*begun))
		}
		return most
	}
}

// Lag watches how late this machine lets a goroutine run, from now until the test ends.
// The function that it returns is the longest delay so far. A test on the real clock
// adds a few times that to what it allows: so a bound is tight on a quiet machine and
// holds on a busy one.
func Lag(t testing.TB) func() time.Duration {
	const nap = 2 * time.Millisecond
	var longest atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			begun := time.Now()
			select {
			case <-stop:
				return
			case <-time.After(nap):
			}
			if late := time.Since(begun) - nap; late > time.Duration(longest.Load()) {
				longest.Store(int64(late))
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
	return func() time.Duration { return time.Duration(longest.Load()) }
}
