package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLocker_CloseLeavesNothing closes a Locker in the middle of all that it does: the
// goroutines and the connections that remain are those from before NewLocker, and
// so are the keys. Once more on a server that has stopped to answer.
func TestLocker_CloseLeavesNothing(t *testing.T) {
	redistest.NotShort(t)
	lag := systest.Lag(t)
	// Not parallel: it counts the process's goroutines.
	for _, auto := range []bool{false, true} {
		for _, stalled := range []bool{false, true} {
			t.Run(fmt.Sprintf("autopipeline %v, stalled %v", auto, stalled), func(t *testing.T) {
				s := *redistest.Start(t)
				s.AutoPipeline = auto
				rdb, faults := s.Faulty(t)
				observer := redis.NewClient(&redis.Options{Addr: s.Addr})
				t.Cleanup(func() { _ = observer.Close() })
				require.NoError(t, observer.Ping(t.Context()).Err())
				ping(t, rdb, 20)
				before := runtime.NumGoroutine()

				l, err := sluice.NewLocker(rdb, sluice.WithFencing())
				require.NoError(t, err)
				other, err := sluice.NewLocker(rdb, sluice.WithFencing())
				require.NoError(t, err)
				stop := workout(t, l, other, faults)
				require.NotZero(t, subscribers(t, observer))
				if stalled {
					faults.Stall()
				}
				start := time.Now()
				var closing sync.WaitGroup
				closing.Go(func() { _ = other.Close() })
				err = l.Close()
				closing.Wait()
				require.Less(t, time.Since(start), 1200*time.Millisecond+10*lag())
				faults.Resume()
				if !errors.Is(err, sluice.ErrUnknown) { // as after a lost reply
					require.NoError(t, err)
				}
				stop()
				// What was under way comes to its end in the background.
				left := func() bool { return runtime.NumGoroutine() > before || len(systest.Goroutines()) > 0 }
				for left() && time.Since(start) < 20*time.Second {
					time.Sleep(10 * time.Millisecond) // not require.Eventually: its own goroutine would be counted
				}
				if left() {
					_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
					require.FailNow(t, "goroutines were left", "there were %d", before)
				}
				require.Eventually(t, func() bool { return subscribers(t, observer) == 0 }, 10*time.Second, 10*time.Millisecond)
				require.Eventually(t, func() bool { return len(observer.Keys(t.Context(), "Lock:*").Val()) == 0 },
					10*time.Second, 10*time.Millisecond, "locks stayed")
			})
		}
	}
}

// ping makes connections, so that the client's own goroutines are there.
func ping(t *testing.T, rdb redis.UniversalClient, n int) {
	t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() { _ = rdb.Ping(t.Context()).Err() })
	}
	all.Wait()
}

// subscribers is how many connections of the server are for pub/sub.
func subscribers(t *testing.T, rdb *redis.Client) int {
	t.Helper()
	list, err := rdb.Do(t.Context(), "CLIENT", "LIST", "TYPE", "pubsub").Text()
	require.NoError(t, err)
	return strings.Count(list, "addr=") - strings.Count(list, "laddr=")
}

// workout has two Lockers contend in all ways, losing replies now and then, and
// returns while they do. They end with the first; stop waits for that.
func workout(t *testing.T, l, other *sluice.Locker, faults *redistest.Faults) (stop func()) {
	t.Helper()
	var all sync.WaitGroup
	var done atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	work := func(l *sluice.Locker, i int) {
		ttl := sluice.WithTTL(50*time.Millisecond + rand.N(50*time.Millisecond))
		name := fmt.Sprint("name ", rand.IntN(4))
		bounded, cancel := context.WithTimeout(ctx, rand.N(200*time.Millisecond))
		defer cancel()
		switch i % 5 {
		case 0:
			_ = l.Do(bounded, name, func(context.Context) error {
				_, err := l.Inspect(bounded, name) // the work
				return err
			}, ttl)
		case 1:
			if k, err := l.TryLock(ctx, fmt.Sprint("forgotten ", rand.Int()), ttl); err == nil {
				_ = k.Context()
			}
			faults.DropReply(1 + rand.IntN(20))
			time.Sleep(time.Millisecond) // so that the others have their turn
		case 2:
			if k, err := l.Lock(ctx, fmt.Sprint("renewed ", rand.Int()), ttl, sluice.WithAutoRenew()); err == nil {
				_ = k.Context()
			}
			time.Sleep(5 * time.Millisecond) // so that the others have their turn
		default:
			if k, err := l.Lock(bounded, name, ttl); err == nil {
				_, _ = k.TTL(bounded) // the work
				_ = k.Unlock(bounded)
			}
		}
		done.Add(1)
	}
	for i := range 40 {
		l := []*sluice.Locker{l, other}[i%2]
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := l.Inspect(ctx, "open"); err != nil && strings.HasSuffix(err.Error(), sluice.ErrClosed.Error()) {
					return
				}
				work(l, i)
			}
		})
	}
	time.Sleep(400 * time.Millisecond) // the workout: every kind of goroutine has its turn
	require.Eventually(t, func() bool { return done.Load() > 200 }, 20*time.Second, 10*time.Millisecond)
	return all.Wait
}
