package virtualtime

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// goesOn is within what time the loops go on after a connection has gone quiet: five seconds, and a
// poll interval or the pause before the next try.
const goesOn = 5*time.Second + time.Second

// quietBubble runs a test in a bubble for clients that wait for replies for a while, for longer
// than any loop, and for ever. Their pools have room for the connections that have gone quiet:
// those of the last kind keep their places.
func quietBubble(t *testing.T, test func(n network)) {
	t.Helper()
	quietBubbleOf(t, 4*time.Second, test) // what is quiet and was not met is not met by what follows
}

// quietBubbleOf is quietBubble for clients that keep idle connections for so long.
func quietBubbleOf(t *testing.T, idle time.Duration, test func(n network)) {
	t.Helper()
	for name, timeout := range map[string]time.Duration{"default": 0, "20s": 20 * time.Second, "never": -1} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, clean redis.UniversalClient) {
				faults := redistest.NewFaults(systest.BubbleDialer(m))
				rdb := redis.NewClient(&redis.Options{
					Addr: "127.0.0.1:6379", Dialer: faults.Dial, ReadTimeout: timeout, PoolSize: 10_000,
					ConnMaxIdleTime:          idle,
					MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
				})
				n := network{t, m, clean, rdb, faults, &sendLog{start: time.Now()}}
				rdb.AddHook(n.log)
				test(n)
				require.NoError(t, rdb.Close())
				time.Sleep(time.Minute) // so that what lingers has ended
			})
		})
	}
}

// TestQueue_WaitGoesOnAfterAQuietConnection: its looks, together with other queues' and alone, meet
// several of them.
func TestQueue_WaitGoesOnAfterAQuietConnection(t *testing.T) {
	quietBubble(t, func(n network) {
		q, err := sluice.NewQueue(n.faulty, "q")
		require.NoError(n, err)
		ctx, cancel := context.WithCancel(n.Context())
		defer cancel()
		clean := newQueue(n, n.clean)
		due := make(chan struct{}, 1)
		var ended sync.WaitGroup
		ended.Go(func() {
			for ctx.Err() == nil {
				if q.Wait(ctx) != nil {
					time.Sleep(10 * time.Millisecond)
				} else if entries, err := clean.Pop(ctx, 1); err == nil && len(entries) == 1 {
					due <- struct{}{}
				}
			}
		})
		n.warmPipelines(2)
		for range 5 {
			time.Sleep(5500 * time.Millisecond)
			require.NoError(n, n.faulty.Ping(ctx).Err()) // so that the look alone meets one too
			n.faults.Quiet()
			start := time.Now()
			_, err = clean.Enqueue(ctx, sluice.Task{ID: "a"})
			require.NoError(n, err)
			<-due
			require.LessOrEqual(n, time.Since(start), goesOn)
		}
		cancel()
		ended.Wait()
	})
}

func newQueue(n network, rdb redis.UniversalClient) *sluice.Queue {
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(n, err)
	return q
}

// TestWorker_GoesOnAfterAQuietConnection: all that it has are quiet from now and then on, while it
// is idle, and while handlers run; its periodic task is kept in the queue. A stop ends as usual.
func TestWorker_GoesOnAfterAQuietConnection(t *testing.T) {
	quietBubble(t, func(n network) {
		ctx, cancel := context.WithCancel(n.Context())
		defer cancel()
		handled, occurrences := make(chan string, 100), atomic.Int64{}
		w := sluice.Worker{
			Queue: newQueue(n, n.faulty), Lease: 30 * time.Second,
			Periodic: []sluice.Periodic{{ID: "periodic", Schedule: sluice.Every(10 * time.Second)}},
			Handler: func(ctx context.Context, e sluice.Entry) error {
				switch e.ID {
				case "periodic":
					occurrences.Add(1)
				case "long":
					time.Sleep(2 * time.Minute) // its lease is extended
					fallthrough
				default:
					handled <- e.ID
				}
				return nil
			},
		}
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		producer := newQueue(n, n.clean)
		put := func(id string) {
			_, err := producer.Enqueue(ctx, sluice.Task{ID: id})
			require.NoError(n, err)
		}
		quiet := func() {
			time.Sleep(5300 * time.Millisecond)
			n.faults.Quiet()
			start := time.Now()
			put("short")
			require.Equal(n, "short", <-handled)
			require.LessOrEqual(n, time.Since(start), goesOn+2*time.Second, "two looks and an exchange may meet one each")
		}
		for range 10 {
			quiet()
		}
		put("long")
		for range 10 {
			quiet()
		}
		require.Equal(n, "long", <-handled)
		require.Zero(n, w.Stats().Lost)
		require.Positive(n, occurrences.Load())
		before := occurrences.Load()
		require.NoError(n, producer.Purge(ctx))
		n.faults.Quiet() // the keeper meets one too, perhaps
		time.Sleep(3 * time.Minute)
		require.Greater(n, occurrences.Load(), before, "it is in the queue again")
		cancel()
		stopped := time.Now()
		require.NoError(n, <-ended)
		require.LessOrEqual(n, time.Since(stopped), time.Second)
	})
}

// TestWorker_ManyQuietConnectionsLoseNoLease: all that are idle are quiet, and an extension may
// meet one after the other.
func TestWorker_ManyQuietConnectionsLoseNoLease(t *testing.T) {
	quietBubbleOf(t, time.Hour, func(n network) {
		handlers, idle := redistest.FullOrShort(300, 60), redistest.FullOrShort(200, 40)
		ctx, cancel := context.WithCancel(n.Context())
		defer cancel()
		begun, over := make(chan struct{}, handlers), make(chan struct{})
		w := sluice.Worker{Queue: newQueue(n, n.faulty), Lease: 12 * time.Second, Concurrency: handlers,
			Handler: func(context.Context, sluice.Entry) error {
				begun <- struct{}{}
				<-over
				return nil
			}}
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		tasks := make([]sluice.Task, handlers)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err := newQueue(n, n.clean).EnqueueBatch(ctx, tasks)
		require.NoError(n, err)
		for range handlers {
			<-begun
		}
		time.Sleep(3 * time.Second)
		n.warmBoth(idle)
		n.faults.Quiet()
		time.Sleep(20 * time.Second)
		require.Zero(n, w.Stats().Lost)
		close(over)
		cancel()
		<-ended // its reports may meet the others
	})
}

// TestWorker_ManyQuietConnectionsDelayNoTask: one is met, and the others are closed before they are
// met.
func TestWorker_ManyQuietConnectionsDelayNoTask(t *testing.T) {
	quietBubbleOf(t, time.Hour, func(n network) {
		idle := redistest.FullOrShort(100, 20)
		ctx, cancel := context.WithCancel(n.Context())
		defer cancel()
		handled := make(chan string, 100)
		w := sluice.Worker{Queue: newQueue(n, n.faulty), Handler: func(_ context.Context, e sluice.Entry) error {
			handled <- e.ID
			return nil
		}}
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		producer := newQueue(n, n.clean)
		for round := range 5 {
			n.warmBoth(idle)
			n.faults.Quiet()
			start := time.Now()
			_, err := producer.Enqueue(ctx, sluice.Task{ID: fmt.Sprint(round)})
			require.NoError(n, err)
			require.Equal(n, fmt.Sprint(round), <-handled)
			require.LessOrEqual(n, time.Since(start), goesOn+2*time.Second, "a look, and then an exchange, may meet one each")
			time.Sleep(10 * time.Second)
		}
		cancel()
		require.NoError(n, <-ended)
	})
}

// TestPeriodic_IsKeptAfterAQuietConnection: the first look at the task meets it.
func TestPeriodic_IsKeptAfterAQuietConnection(t *testing.T) {
	quietBubble(t, func(n network) {
		ctx, cancel := context.WithCancel(n.Context())
		w := sluice.Worker{
			Queue:    newQueue(n, n.faulty),
			Periodic: []sluice.Periodic{{ID: "periodic", Schedule: sluice.Every(time.Hour)}},
			Handler:  func(context.Context, sluice.Entry) error { return nil },
		}
		n.warmBoth(2) // before go-redis 9.23 pipelines have no pool of their own, and a claim may meet the first
		n.faults.Quiet()
		ended := make(chan error)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(goesOn + 3*time.Second) // after an error it pauses for up to three
		require.True(n, n.m.Exists("Queue:q"))
		time.Sleep(time.Minute) // an unanswered claim counts for as long as its lease
		cancel()
		require.NoError(n, <-ended)
	})
}

// TestLocker_GoesOnAfterAQuietConnection: locks are renewed, an Unlock does not wait for a renewal
// that gets no answer, what was acquired for no caller is released, and those who wait learn that a
// key was deleted.
func TestLocker_GoesOnAfterAQuietConnection(t *testing.T) {
	quietBubble(t, func(n network) {
		l, done := n.taught()
		defer done()
		ctx := n.Context()
		short, err := l.Lock(ctx, "short", sluice.WithAutoRenew())
		require.NoError(n, err)
		long, err := l.Lock(ctx, "long", sluice.WithAutoRenew(), sluice.WithTTL(time.Hour))
		require.NoError(n, err)
		for range 10 {
			n.faults.Quiet()
			time.Sleep(2*time.Minute - 100*time.Millisecond)
			require.NoError(n, short.Context().Err())
			require.NoError(n, long.Context().Err())
		}
		n.quietForPipelines()
		time.Sleep(2 * time.Second) // the long one is renewed after a third of its TTL
		start := time.Now()
		require.NoError(n, long.Unlock(n.within(time.Minute)))
		require.LessOrEqual(n, time.Since(start), goesOn)
		time.Sleep(5 * time.Second) // idle connections that are quiet are not used any more
		require.NoError(n, short.Unlock(ctx))

		n.faults.StallFrom(1)
		_, err = l.Lock(n.within(50*time.Millisecond), "doubtful", sluice.WithTTL(time.Hour))
		require.ErrorIs(n, err, sluice.ErrUnknown)
		n.faults.Quiet() // what the janitor has sent gets no answer
		n.faults.Resume()
		start = time.Now()
		for n.m.Exists("Lock:doubtful") {
			time.Sleep(100 * time.Millisecond)
			require.LessOrEqual(n, time.Since(start), goesOn+time.Second)
		}

		time.Sleep(5 * time.Second) // likewise
		_, err = l.Lock(ctx, "deleted", sluice.WithTTL(time.Hour))
		require.NoError(n, err)
		n.quietForPipelines()
		n.m.Del("Lock:deleted")
		start = time.Now()
		got, err := l.Lock(n.within(time.Minute), "deleted")
		require.NoError(n, err)
		require.LessOrEqual(n, time.Since(start), goesOn)
		require.NoError(n, got.Unlock(ctx))
	})
}

// quietForPipelines makes all connections quiet, and takes those that are not for pipelines: a call
// of the test's own would wait for as long as its context.
func (n network) quietForPipelines() {
	n.faults.Quiet()
	for range 5 {
		go n.faulty.Ping(context.Background())
	}
	synctest.Wait() // they have taken connections that are quiet
}

func (n network) within(d time.Duration) context.Context { return systest.Within(n.T, d) }
