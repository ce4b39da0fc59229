package periodic

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// scriptCounter counts the calls of a script, and the bytes of its replies, about.
type scriptCounter struct {
	digest       string
	calls, bytes atomic.Int64
}

// countScript returns a counter of the calls of a script by a client.
func countScript(t *testing.T, rdb redis.UniversalClient, name string) *scriptCounter {
	c := &scriptCounter{digest: systest.Scripts().Digest(name)}
	require.NotEmpty(t, c.digest)
	rdb.AddHook(c)
	return c
}

func (c *scriptCounter) count(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if args := cmd.Args(); len(args) > 1 && args[1] == c.digest {
			c.calls.Add(1)
			if r, ok := cmd.(interface{ Val() any }); ok {
				c.bytes.Add(int64(len(fmt.Sprint(r.Val()))))
			}
		}
	}
}

func (c *scriptCounter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *scriptCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c *scriptCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer c.count(cmds...)
		return next(ctx, cmds)
	}
}

// hundreds returns 300 periodic tasks, some of which are due again and again within a minute.
func hundreds() (tasks []sluice.Periodic) {
	for i := range 300 {
		s := sluice.Every(time.Hour + time.Duration(i)*time.Minute)
		switch {
		case i%100 == 0:
			s = sluice.Every(20 * time.Second)
		case i%3 == 0:
			s = fromThen(time.Hour + time.Duration(i)*time.Minute)
		}
		tasks = append(tasks, sluice.Periodic{ID: fmt.Sprint(i), Schedule: s, Payload: make([]byte, 2000)})
	}
	return tasks
}

// TestPeriodic_OneCommandKeepsAll that a worker has, a minute, also if a schedule hangs; and no
// other, as long as all is well.
func TestPeriodic_OneCommandKeepsAll(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		const n = 5
		minutes := redistest.FullOrShort(40, 10)
		over := make(chan struct{})
		defer close(over)
		tasks := append(hundreds(), sluice.Periodic{ID: "hangs", Schedule: scheduleFunc(func(time.Time) time.Time { <-over; return time.Time{} })})
		looks, moves, adds := countScript(b.T, b.RDB, "get"), countScript(b.T, b.RDB, "giveback"), countScript(b.T, b.RDB, "enqueue")
		var stops []func()
		for i := range n {
			_, stop := b.work(fmt.Sprint(i), nil, tasks...)
			stops = append(stops, stop)
		}
		time.Sleep(time.Second)
		require.LessOrEqual(b, looks.calls.Load(), int64(2*n), "those that the server did not know are sent again")
		for _, c := range []*scriptCounter{looks, moves, adds} {
			c.calls.Store(0)
		}
		time.Sleep(2 * time.Minute) // what is there is known then
		looks.calls.Store(0)
		looks.bytes.Store(0)
		time.Sleep(time.Duration(minutes) * time.Minute)
		require.InDelta(b, n*minutes, looks.calls.Load(), float64(n*minutes)*0.15)
		require.Less(b, looks.bytes.Load(), 20_000*looks.calls.Load(), "only those are told of that were not as before: all have 600,000")
		require.Zero(b, adds.calls.Load())
		require.LessOrEqual(b, moves.calls.Load(), int64(len(b.all)), "reports of handlers")
		for _, stop := range stops {
			stop()
		}
	})
}

// TestPeriodic_AFleetBeginsWithMany that all of its workers find missing.
func TestPeriodic_AFleetBeginsWithMany(t *testing.T) {
	t.Parallel()
	redistest.NotShort(t)
	b := systest.NewQueueTest(t, redistest.Redis(t).Client(t), redistest.Name(t))
	var stops []func() error
	for range 30 {
		w := &sluice.Worker{Queue: b.On(b.RDB), Periodic: hundreds(), Handler: func(context.Context, sluice.Entry) error { return nil }}
		stops = append(stops, systest.StartWorker(b.T, w))
	}
	b.Eventually(func() bool { return b.Stats().Scheduled >= 297 })
	for _, stop := range stops {
		require.NoError(b, stop())
	}
}

// TestPeriodic_TellsOfATaskWithItsID, which keeps it from being handed out: once, until its next
// occurrence is back.
func TestPeriodic_TellsOfATaskWithItsID(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		_, stop := b.work("w", nil, sluice.Periodic{ID: "tick", Schedule: sluice.Every(time.Hour)})
		defer stop()
		const told = "another task has its ID: enqueue that with another one"
		for i, delay := range []time.Duration{0, time.Minute + 30*time.Second} { // claimed, and looked at before
			time.Sleep(time.Second)
			require.Equal(b, i, b.log.Count(told))
			b.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "tick", Delay: delay})
			time.Sleep(delay + time.Second)
			require.Equal(b, i+1, b.log.Count(told))
			time.Sleep(91 * time.Second)
			require.Equal(b, i+1, b.log.Count(told))
			require.Equal(b, "tick", b.Get("tick").Header["sluice-period-of"])
		}
	})
}

// TestPeriodic_AllAreKept also beside some with large payloads, of which a reply has no more than a
// megabyte: what is behind them is looked at, too.
func TestPeriodic_AllAreKept(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		var tasks []sluice.Periodic
		for i := range 26 {
			task := sluice.Periodic{ID: fmt.Sprint("small", i), Schedule: sluice.Every(24 * time.Hour)}
			if i < 6 { // their handlers are at work all the time
				task = sluice.Periodic{ID: fmt.Sprint("large", i), Schedule: sluice.Every(time.Second), Payload: make([]byte, 600<<10)}
			}
			tasks = append(tasks, task)
		}
		_, stop := b.work("", func(ctx context.Context, _ sluice.Entry) error {
			<-ctx.Done()
			return ctx.Err()
		}, tasks...)
		defer stop()
		time.Sleep(3 * time.Minute)
		for i := 6; i < 26; i++ {
			state, err := b.Q.Cancel(b.Context(), tasks[i].ID)
			require.NoError(b, err)
			require.Equal(b, sluice.StateScheduled, state)
		}
		time.Sleep(2 * time.Minute)
		stats, err := b.Q.Stats(b.Context())
		require.NoError(b, err)
		require.EqualValues(b, 20, stats.Scheduled)
	})
}
