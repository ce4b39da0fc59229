package virtualtime

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// loop has process i take the lock in a loop until ctx ends, and returns a function that says how
// often it had it, at the end.
func (f *fleet) loop(ctx context.Context, i int, section time.Duration) (turns func() int) {
	f.Helper()
	counted := make(chan int)
	go func() { // which ctx ends, and the caller waits for
		for n := 0; ; n++ {
			k, err := f.lockers[i].Lock(ctx, "a")
			if err != nil {
				counted <- n
				return
			}
			time.Sleep(section)
			require.NoError(f, k.Unlock(context.Background()))
		}
	}()
	return func() int { return <-counted }
}

// TestLine_AThousandDeadCostASection: they stand in line before a process that waits beside another
// one which goes on.
func TestLine_AThousandDeadCostASection(t *testing.T) {
	for kind, opts := range map[string][]sluice.LockOption{"plain": nil, "fenced": {sluice.WithFencing()}} {
		t.Run(kind, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				const section = 400 * time.Millisecond
				f, end := newFleet(t, m, 2, opts...)
				defer end()
				ctx, cancel := context.WithCancel(t.Context())
				turns := f.loop(ctx, 0, section)
				time.Sleep(time.Second)
				for i := range 1000 {
					_, err := m.ZAdd(lineKey, float64(i), fmt.Sprintf("dead%d:1:50", i))
					require.NoError(t, err)
				}
				start := time.Now()
				k := f.hold(1)
				require.LessOrEqual(t, time.Since(start), section+time.Millisecond)
				f.release(k)
				cancel()
				turns()
			})
		})
	}
}

// TestLine_StoppedProcessesCostTheirReservations: fifty are stopped in line. The one behind them,
// beside a process that goes on, waits for as many reservations at most, in two of three fleets: its
// polls, 1.25 s apart, fall into a reservation one time in ten, and twice in a row one time in hundred.
func TestLine_StoppedProcessesCostTheirReservations(t *testing.T) {
	const stopped, section = 50, time.Millisecond
	var took []time.Duration
	for range 3 {
		systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
			f, end := newFleet(t, m, stopped+2)
			defer end()
			k := f.hold(0)
			waiting, giveUp := context.WithCancel(t.Context())
			_ = f.enter(waiting, 1, stopped+1)
			for _, faults := range f.faults[1 : stopped+1] {
				faults.HalfOpen()
				faults.StallRequests()
			}
			f.release(k)
			ctx, cancel := context.WithCancel(t.Context())
			turns := f.loop(ctx, 0, section)
			start := time.Now()
			k = f.hold(stopped + 1)
			took = append(took, time.Since(start))
			f.release(k)
			cancel()
			giveUp()
			turns()
			for _, faults := range f.faults {
				faults.Resume()
			}
		})
	}
	slices.Sort(took)
	require.LessOrEqual(t, took[1], stopped*50*time.Millisecond, took)
}

// TestLine_WhoComesTooLateIsServedNext: a process is slower than it has said, so that its
// reservation ends. It joins where it stood, and says now how long it needs: the next release
// serves it, and not a process in a loop.
func TestLine_WhoComesTooLateIsServedNext(t *testing.T) {
	for kind, opts := range map[string][]sluice.LockOption{"plain": nil, "fenced": {sluice.WithFencing()}} {
		t.Run(kind, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				f, end := newFleet(t, m, 4, append(opts, sluice.WithTTL(time.Minute))...)
				defer end()
				k := f.hold(0)
				got := f.enter(t.Context(), 1, 3)
				f.moveAway(1, 120*time.Millisecond)
				released := f.release(k)
				next := <-got
				require.Equal(t, 2, next.process)
				require.InDelta(t, 50*time.Millisecond, next.at.Sub(released), float64(2*time.Millisecond), "when the reservation ends")
				ctx, cancel := context.WithCancel(t.Context())
				turns := f.loop(ctx, 3, 20*time.Millisecond)
				time.Sleep(5 * time.Second) // it may have to make a connection
				require.Equal(t, 2, f.waiting(), "its first entry stays")
				released = f.release(next.lock)
				next = <-got
				require.Equal(t, 1, next.process)
				require.LessOrEqual(t, next.at.Sub(released), 180*time.Millisecond, "a message, or a poll, a request and a reply")
				f.release(next.lock)
				cancel()
				turns()
			})
		})
	}
}

// TestLine_AProcessKeepsItsPlaceBetweenCalls: its callers give up sooner than their turn comes, and
// try again at once. They have it when it comes, and send nothing meanwhile but the polls of their
// process.
func TestLine_AProcessKeepsItsPlaceBetweenCalls(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const interval = time.Second
		f, end := newFleet(t, m, 3, sluice.WithRetryInterval(interval))
		defer end()
		k := f.hold(0, sluice.WithTTL(time.Hour))
		calls := make(chan int)
		go func() { // it ends when it has had the lock, and the test waits for that
			for n := 0; ; n++ {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
				k, err := f.lockers[1].Lock(ctx, "a")
				if cancel(); err == nil {
					f.release(k)
					calls <- n
					return
				}
				require.ErrorIs(t, err, sluice.ErrLocked)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
		}()
		time.Sleep(100 * time.Millisecond)
		got := make(chan *sluice.Lock)
		go func() { got <- f.hold(2) }()
		time.Sleep(time.Millisecond)
		before := f.faults[1].Scripts()
		time.Sleep(10 * interval)
		require.Equal(t, 2, f.waiting())
		require.LessOrEqual(t, f.faults[1].Scripts()-before, 20, "polls")
		f.release(k)
		require.Greater(t, <-calls, 400, "of the first in line")
		f.release(<-got)
	})
}

// TestLine_APlaceWithoutACallerIsLeft: in 10 ms, or as soon as the lock is reserved for it.
func TestLine_APlaceWithoutACallerIsLeft(t *testing.T) {
	for kind, opts := range lockKinds {
		t.Run(kind, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				f, end := newFleet(t, m, 3, append(opts, sluice.WithRetryInterval(time.Hour), sluice.WithTTL(2*time.Hour))...)
				defer end()
				k := f.hold(0)
				if kind == "permits" {
					f.hold(0)
					f.hold(0)
				}
				giveUp := func() {
					_, err := f.lockers[1].Lock(t.Context(), "a", sluice.WithMaxWait(time.Second))
					require.ErrorIs(t, err, sluice.ErrLocked)
				}
				giveUp()
				require.Equal(t, 1, f.waiting())
				time.Sleep(11 * time.Millisecond)
				require.Zero(t, f.waiting())

				giveUp()
				got := make(chan time.Time)
				go func() { f.hold(2); got <- time.Now() }()
				time.Sleep(time.Millisecond)
				require.Equal(t, 2, f.waiting())
				require.Equal(t, f.release(k), <-got, "it passes the lock on")
			})
		})
	}
}

// TestLocker_SendsNothingForACallerThatWillHaveLeft: by the round trips of the last second, be they
// answered or not. The call lasts as long as its context.
func TestLocker_SendsNothingForACallerThatWillHaveLeft(t *testing.T) {
	for name, answered := range map[string]bool{"answered": true, "not answered": false} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
				f, end := newFleet(t, m, 1)
				defer end()
				f.faults[0].Delay(100 * time.Millisecond)
				for range 2 {
					f.release(f.hold(0)) // which makes the connections
				}
				if !answered {
					time.Sleep(time.Minute) // it is not known any more
				}
				var sets atomic.Int32
				m.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
					if command == "SET" {
						sets.Add(1)
					}
					return false
				})
				const calls = 500
				for try := range calls {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					start := time.Now()
					_, err := f.lockers[0].Lock(ctx, "a")
					cancel()
					require.ErrorIs(t, err, context.DeadlineExceeded, try)
					require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
				}
				require.Positive(t, sets.Load(), "never again")
				require.LessOrEqual(t, sets.Load(), int32(calls*20/1000+1), "one in a second")
				time.Sleep(time.Minute)
				require.False(t, m.Exists(lockKey))
			})
		})
	}
}

// TestLine_FarCallersThatGiveUpTakeLittle of the turns of near ones: a lock that they were given
// after they had left is of no use.
func TestLine_FarCallersThatGiveUpTakeLittle(t *testing.T) {
	for _, patience := range []time.Duration{20 * time.Millisecond, 250 * time.Millisecond} {
		t.Run(patience.String(), func(t *testing.T) {
			if patience < 200*time.Millisecond { // a round trip: this path is left to the whole run
				redistest.NotShort(t)
			}
			alone, beside := nearTurns(t, 0, patience), nearTurns(t, 10, patience)
			require.GreaterOrEqual(t, float64(beside), 0.9*float64(alone), "%d turns beside %d", beside, alone)
		})
	}
}

// nearTurns returns how often four near processes have the lock in a second beside so many whose
// server is 100 ms away, and whose callers give up.
func nearTurns(t *testing.T, far int, patience time.Duration) (turns int) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const near = 4
		f, end := newFleet(t, m, near+far)
		defer end()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range far {
			f.moveAway(near+i, 100*time.Millisecond)
			go func() { // ctx ends it
				for ctx.Err() == nil {
					bounded, end := context.WithTimeout(ctx, patience)
					if k, err := f.lockers[near+i].Lock(bounded, "a"); err == nil {
						_ = k.Unlock(context.Background())
					}
					end()
				}
			}()
		}
		var counts []func() int
		for i := range near {
			f.moveAway(i, 200*time.Microsecond)
			counts = append(counts, f.loop(ctx, i, time.Millisecond))
		}
		time.Sleep(time.Second)
		cancel()
		for _, count := range counts {
			turns += count()
		}
		time.Sleep(time.Second)
	})
	return turns
}
