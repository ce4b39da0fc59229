package virtualtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// outage is a bubble whose server can go down: connections end, and new ones are refused.
type outage struct {
	*testing.T
	server *miniredis.Miniredis
	clean  redis.UniversalClient
	rdb    redis.UniversalClient
	faults *redistest.Faults
	down   atomic.Bool
	silent atomic.Bool  // connections are not refused, but have no answer
	dials  atomic.Int64 // that were refused
}

func outages(t *testing.T, test func(o *outage)) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, clean redis.UniversalClient) {
		o := &outage{T: t, server: m, clean: clean}
		dial := systest.BubbleDialer(m)
		o.faults = redistest.NewFaults(func(ctx context.Context, network, addr string) (net.Conn, error) {
			if o.down.Load() {
				o.dials.Add(1)
				if o.silent.Load() {
					<-ctx.Done()
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
				}
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}
			return dial(ctx, network, addr)
		})
		o.rdb = systest.BubbleClient(t, o.faults.Dial)
		defer func() {
			require.NoError(t, o.rdb.Close())
			time.Sleep(5 * time.Second) // for what go-redis does once a second after failed dials
		}()
		test(o)
	})
}

// begin takes the server down.
func (o *outage) begin() {
	o.down.Store(true)
	o.faults.Cut()
}

func (o *outage) within(d time.Duration) context.Context { return systest.Within(o.T, d) }

// TestLocker_WaitsOutAnOutage: a Lock that no server answers to goes on until one does, for
// ten seconds or until its context ends. TryLock does not.
func TestLocker_WaitsOutAnOutage(t *testing.T) {
	outages(t, func(o *outage) {
		l, done := systest.BubbleLocker(o.T, o.rdb)
		defer done()
		o.begin()
		start := time.Now()
		time.AfterFunc(5*time.Second, func() { o.down.Store(false) })
		k, err := l.Lock(o.Context(), "a")
		require.NoError(o, err)
		require.GreaterOrEqual(o, time.Since(start), 5*time.Second)
		require.Less(o, time.Since(start), 7*time.Second, "and a second for the client to dial again")
		require.NoError(o, k.Unlock(o.Context()))
	})
	for name, options := range map[string][]sluice.LockOption{"bare": nil, "fenced": {sluice.WithFencing()}} {
		t.Run(name, func(t *testing.T) {
			outages(t, func(o *outage) {
				l, done := systest.BubbleLocker(o.T, o.rdb, options...)
				defer done()
				o.begin()
				start := time.Now()
				_, err := l.TryLock(o.Context(), "a")
				require.ErrorIs(o, err, sluice.ErrUnavailable)
				require.ErrorIs(o, err, syscall.ECONNREFUSED)
				require.NotErrorIs(o, err, sluice.ErrUnknown)
				require.Less(o, time.Since(start), 3*time.Second, "what the client's own dials take")

				start = time.Now()
				_, err = l.Lock(o.Context(), "a")
				require.ErrorIs(o, err, sluice.ErrUnavailable)
				require.ErrorIs(o, err, syscall.ECONNREFUSED)
				require.NotErrorIs(o, err, sluice.ErrUnknown)
				require.Greater(o, time.Since(start), 10*time.Second)
				require.Less(o, time.Since(start), 13*time.Second)

				start = time.Now()
				_, err = l.Lock(o.within(4*time.Second), "a")
				require.ErrorIs(o, err, context.DeadlineExceeded)
				require.ErrorIs(o, err, sluice.ErrUnavailable)
				require.NotErrorIs(o, err, sluice.ErrUnknown)
				require.NotErrorIs(o, err, sluice.ErrLocked)
				require.InDelta(o, 4*time.Second, time.Since(start), float64(20*time.Millisecond))
			})
		})
	}
}

// TestLocker_ALineDoesNotWaitOutAnOutageOneByOne: those who wait behind a head that has
// given up have waited as long as it has.
func TestLocker_ALineDoesNotWaitOutAnOutageOneByOne(t *testing.T) {
	outages(t, func(o *outage) {
		l, done := systest.BubbleLocker(o.T, o.rdb)
		defer done()
		o.begin()
		start := time.Now()
		var all sync.WaitGroup
		lock := func() {
			began := time.Now()
			_, err := l.Lock(o.Context(), "a")
			require.ErrorIs(o, err, sluice.ErrUnavailable)
			require.Greater(o, time.Since(began), 10*time.Second, "less than its ten seconds")
		}
		for range 200 {
			all.Go(lock)
		}
		time.Sleep(5 * time.Second)
		for range 50 { // these come in the middle of it
			all.Go(lock)
		}
		all.Wait()
		require.Less(o, time.Since(start), 22*time.Second)
	})
}

// TestLocker_ALineWaitsForOneSlowAttempt: to connect to a host that drops what it gets takes
// go-redis half a minute. Those behind the one that has tried do not do so one after the other.
func TestLocker_ALineWaitsForOneSlowAttempt(t *testing.T) {
	outages(t, func(o *outage) {
		l, done := systest.BubbleLocker(o.T, o.rdb)
		defer done()
		o.silent.Store(true)
		o.begin()
		start := time.Now()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				_, err := l.Lock(o.Context(), "a")
				require.ErrorIs(o, err, sluice.ErrUnavailable)
				require.Greater(o, time.Since(start), 10*time.Second)
			})
		}
		all.Wait()
		require.Less(o, time.Since(start), 40*time.Second)
		o.down.Store(false)
		_, err := l.Lock(o.Context(), "a")
		require.NoError(o, err, "the next one tries")
	})
}

// TestLocker_ALineLearnsOfAnOutage: those behind the head are told of an outage as it is, and not
// that the lock is taken, if their wait ends in it; also those who had been told before that
// another one holds the lock.
func TestLocker_ALineLearnsOfAnOutage(t *testing.T) {
	outages(t, func(o *outage) {
		l, done := systest.BubbleLocker(o.T, o.rdb, sluice.WithMaxWait(8*time.Second))
		defer done()
		line := func(want, wantNot error, during func()) {
			var all sync.WaitGroup
			var unknown atomic.Int64
			for range 20 {
				all.Go(func() {
					_, err := l.Lock(o.Context(), "a")
					require.ErrorIs(o, err, context.DeadlineExceeded)
					if errors.Is(err, sluice.ErrUnknown) {
						unknown.Add(1)
						return
					}
					require.ErrorIs(o, err, want)
					require.NotErrorIs(o, err, wantNot)
				})
			}
			time.Sleep(time.Second)
			during()
			all.Wait()
			require.LessOrEqual(o, unknown.Load(), int64(1), "the head, of a request without a reply")
		}
		nothing := func() {}
		require.NoError(o, o.clean.Set(o.Context(), "Lock:a", "another", time.Hour).Err())
		line(sluice.ErrLocked, sluice.ErrUnavailable, nothing)
		line(sluice.ErrUnavailable, sluice.ErrLocked, o.begin)
		line(sluice.ErrUnavailable, sluice.ErrLocked, nothing)
		o.down.Store(false)
		line(sluice.ErrLocked, sluice.ErrUnavailable, nothing)
	})
}

// TestLocker_AHerdDoesNotStormADeadServer: thousands of waiting callers, of as many names,
// make no more dials than the client allows, and find the server soon when it is back.
func TestLocker_AHerdDoesNotStormADeadServer(t *testing.T) {
	outages(t, func(o *outage) {
		l, done := systest.BubbleLocker(o.T, o.rdb)
		defer done()
		o.begin()
		const n = 400
		var all sync.WaitGroup
		var last atomic.Int64
		start := time.Now()
		for i := range n {
			all.Go(func() {
				k, err := l.Lock(o.Context(), fmt.Sprint(i))
				require.NoError(o, err)
				last.Store(int64(time.Since(start)))
				require.NoError(o, k.Unlock(o.Context()))
			})
		}
		time.Sleep(6 * time.Second)
		require.Less(o, o.dials.Load(), int64(n), "less than one dial per caller, in six seconds")
		o.down.Store(false)
		all.Wait()
		require.Less(o, time.Duration(last.Load()), 8*time.Second)
	})
}

// TestLocker_ALostReplyBeforeAnOutageIsUnknown: the key may be taken, whatever became of
// the tries after it, and it is released when the server is back.
func TestLocker_ALostReplyBeforeAnOutageIsUnknown(t *testing.T) {
	outages(t, func(o *outage) {
		l, done := systest.BubbleLocker(o.T, o.rdb, sluice.WithTTL(time.Hour))
		defer done()
		require.NoError(o, o.rdb.Ping(o.Context()).Err()) // a connection for the SET
		o.faults.DropReply(1)
		o.begin()
		_, err := l.Lock(o.Context(), "a")
		require.ErrorIs(o, err, sluice.ErrUnknown)
		require.NotErrorIs(o, err, sluice.ErrUnavailable, "something may have been carried out")
		require.EqualValues(o, 1, o.clean.Exists(o.Context(), "Lock:a").Val())
		o.down.Store(false)
		time.Sleep(5 * time.Second)
		require.Zero(o, o.clean.Exists(o.Context(), "Lock:a").Val())
	})
}

// TestLocker_ClosesAtOnceOnAServerThatHangs: whether a caller waits in line, or for a
// reply, or for the next try. What was acquired for no caller is released.
func TestLocker_ClosesAtOnceOnAServerThatHangs(t *testing.T) {
	for name, fault := range map[string]func(o *outage){
		"hangs":   func(o *outage) { o.faults.Stall() },
		"is down": func(o *outage) { o.begin() },
	} {
		t.Run(name, func(t *testing.T) {
			outages(t, func(o *outage) {
				l, err := sluice.NewLocker(o.rdb, sluice.WithTTL(time.Hour))
				require.NoError(o, err)
				systest.Warm(o.T, l, "warm") // one of the commands is sent, the others find no connection
				fault(o)
				var all sync.WaitGroup
				var closing time.Time
				lock := func(ctx context.Context, name string, options ...sluice.LockOption) {
					all.Go(func() {
						_, err := l.Lock(ctx, name, options...)
						require.ErrorIs(o, err, sluice.ErrClosed)
						require.NotErrorIs(o, err, sluice.ErrUnknown)
						require.LessOrEqual(o, time.Since(closing), 15*time.Millisecond)
					})
				}
				for i := range 3 {
					lock(o.Context(), "a")
					lock(context.Background(), fmt.Sprint(i))
					lock(o.within(time.Hour), "fenced", sluice.WithFencing())
				}
				time.Sleep(1500 * time.Millisecond)
				closing = time.Now()
				require.NoError(o, l.Close())
				require.LessOrEqual(o, time.Since(closing), time.Second)
				all.Wait()
				o.down.Store(false)
				o.faults.Resume()
				time.Sleep(time.Minute)
				require.Empty(o, o.clean.Keys(o.Context(), "Lock:*").Val())
			})
		})
	}
}

// TestLocker_ATimeoutIsOneError: a caller that has waited in line, or was told that the lock
// is held, gets ErrLocked joined with its context's error, whatever it was doing when that
// ended, and however the server was; or ErrUnavailable, if the last thing that its Locker has
// learnt is that no server is there.
func TestLocker_ATimeoutIsOneError(t *testing.T) {
	outages(t, func(o *outage) {
		other, done := systest.BubbleLocker(o.T, o.clean, sluice.WithTTL(time.Hour))
		defer done()
		k, err := other.Lock(o.Context(), "a")
		require.NoError(o, err)
		l, done := systest.BubbleLocker(o.T, o.rdb)
		defer done()
		kinds := map[string]int{}
		var mu sync.Mutex
		wait := func(d time.Duration) {
			_, err := l.Lock(o.within(d), "a")
			require.ErrorIs(o, err, context.DeadlineExceeded)
			kind := "in vain"
			switch {
			case errors.Is(err, sluice.ErrUnknown):
				kind = "unknown"
			case o.down.Load() && errors.Is(err, sluice.ErrUnavailable) && !errors.Is(err, sluice.ErrLocked):
			case !errors.Is(err, sluice.ErrLocked):
				kind = "bare"
			}
			mu.Lock()
			defer mu.Unlock()
			kinds[kind]++
		}
		for _, fault := range []func(){
			func() {}, func() { o.faults.Delay(40 * time.Millisecond) }, o.faults.Stall, o.begin,
		} {
			var all sync.WaitGroup
			for i := range 100 {
				all.Go(func() { wait(200*time.Millisecond + time.Duration(i)*7*time.Millisecond) })
			}
			time.Sleep(150 * time.Millisecond)
			fault()
			all.Wait()
			o.faults.Delay(0)
			o.faults.Resume()
			o.down.Store(false)
			time.Sleep(10 * time.Second)
		}
		require.Equal(o, map[string]int{"in vain": 400}, kinds)
		require.NoError(o, k.Unlock(o.Context()))
	})
}

// TestLocker_TryLockBehindACallerIsLockedAtOnce: whatever that one does, and whatever becomes of
// the server. It sends nothing, and takes no time.
func TestLocker_TryLockBehindACallerIsLockedAtOnce(t *testing.T) {
	for doing, begin := range map[string]func(o *outage, l, other *sluice.Locker){
		"asks a server that is silent": func(o *outage, _, _ *sluice.Locker) { o.faults.StallRequests() },
		"waits out an outage":          func(o *outage, _, _ *sluice.Locker) { o.begin() },
		"waits for another process": func(o *outage, _, other *sluice.Locker) {
			_, err := other.Lock(o.Context(), "a")
			require.NoError(o, err)
		},
		"waits for the holder": func(o *outage, l, _ *sluice.Locker) {
			_, err := l.Lock(o.Context(), "a")
			require.NoError(o, err)
		},
	} {
		t.Run(doing, func(t *testing.T) {
			outages(t, func(o *outage) {
				l, done := systest.BubbleLocker(o.T, o.rdb)
				defer done()
				other, closeOther := systest.BubbleLocker(o.T, o.clean)
				defer closeOther()
				systest.Warm(o.T, l, "a")
				begin(o, l, other)
				ctx, leave := context.WithCancel(o.Context())
				var all sync.WaitGroup
				all.Go(func() {
					_, err := l.Lock(ctx, "a")
					require.ErrorIs(o, err, context.Canceled)
				})
				synctest.Wait() // it is before what follows
				start, sent, dials := time.Now(), o.faults.Bytes(), o.dials.Load()
				_, err := l.TryLock(o.Context(), "a")
				require.ErrorIs(o, err, sluice.ErrLocked)
				require.NotErrorIs(o, err, sluice.ErrUnavailable)
				require.Zero(o, time.Since(start))
				require.Equal(o, sent, o.faults.Bytes())
				require.Equal(o, dials, o.dials.Load())
				leave()
				all.Wait()
				o.down.Store(false)
				o.faults.Resume()
				time.Sleep(5 * time.Second) // go-redis dials again
			})
		})
	}
}

// TestLock_ALossIsKnownWithoutAServer: past the deadline, the error of a release that could
// not be sent says that the lock is not held.
func TestLock_ALossIsKnownWithoutAServer(t *testing.T) {
	outages(t, func(o *outage) {
		l, done := systest.BubbleLocker(o.T, o.rdb, sluice.WithTTL(time.Second))
		k, err := l.Lock(o.Context(), "a")
		require.NoError(o, err)
		o.begin()
		time.Sleep(2 * time.Second)
		err = k.Unlock(o.within(time.Minute))
		require.ErrorIs(o, err, sluice.ErrNotHeld)
		o.down.Store(false)
		time.Sleep(10 * time.Second)
		done()
	})
}

// TestLocker_ATryLockThatSucceedsEndsAnOutage: who waits behind its holder is told that the lock is
// held.
func TestLocker_ATryLockThatSucceedsEndsAnOutage(t *testing.T) {
	outages(t, func(o *outage) {
		l, done := systest.BubbleLocker(o.T, o.rdb)
		defer done()
		o.begin()
		_, err := l.Lock(o.within(4*time.Second), "a")
		require.ErrorIs(o, err, sluice.ErrUnavailable)
		o.down.Store(false)
		time.Sleep(5 * time.Second) // go-redis dials again
		k, err := l.TryLock(o.Context(), "a")
		require.NoError(o, err)
		_, err = l.Lock(o.within(time.Second), "a")
		require.ErrorIs(o, err, sluice.ErrLocked)
		require.NotErrorIs(o, err, sluice.ErrUnavailable)
		require.NoError(o, k.Unlock(o.Context()))
	})
}
