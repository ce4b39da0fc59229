package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	leases "github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// The server is killed and started again, with its append-only file. Every task is done,
// one warning is logged, and the worker does not spin meanwhile.
func TestWorker_SurvivesARestartOfTheServer(t *testing.T) {
	redistest.NotShort(t)
	// Not parallel: it measures the CPU time of the process.
	surviveRestart(t, 2*time.Second)
}

func surviveRestart(t *testing.T, outage time.Duration) {
	const n = 400
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always") // "everysec" may write what was finished after its reply
	b, log := systest.NewQueueTest(t, s.Client(t), redistest.Name(t)), &systest.Buffer{}
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p"), Delay: rand.N(outage + time.Second)}
	}
	_, err := b.Q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	w := &sluice.Worker{Queue: b.Q, Concurrency: 10, Logger: systest.LogTo(log), Handler: func(context.Context, sluice.Entry) error {
		time.Sleep(rand.N(30 * time.Millisecond)) // the work
		return nil
	}}
	stop := systest.StartWorker(t, w)
	b.Eventually(func() bool { return w.Stats().Done > n/20 })
	s.Down()
	before := cpu(t)
	time.Sleep(outage) // in which the CPU time is measured
	used := cpu(t) - before
	s.Up(t)
	up := time.Now()
	b.RequireDrained()
	t.Logf("outage of %v: %v of CPU time, all done %v after it, %+v\n%s", outage, used, time.Since(up), w.Stats(), log)
	require.NoError(t, stop())
	require.Less(t, used, outage/5, "it spins")
	require.Equal(t, 1, log.Count("level=WARN"), log)
	require.Equal(t, 1, log.Count("level=INFO"), log)
	require.Equal(t, int64(n), w.Stats().Done)
}

// cpu is the CPU time that this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// On a server that has no memory left a worker finishes, retries, buries and extends
// what is there.
func TestWorker_GoesOnOnAFullServer(t *testing.T) {
	t.Parallel()
	const lease = 10 * time.Second
	s := redistest.Start(t)
	b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t))
	for i := range 30 {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p")})
	}
	require.NoError(t, b.RDB.ConfigSet(t.Context(), "maxmemory", "1").Err())
	w := &sluice.Worker{Queue: b.Q, Concurrency: 4, Backoff: systest.After(0), Lease: lease,
		Handler: func(ctx context.Context, e sluice.Entry) error {
			switch {
			case e.ID > "2" && e.ID < "20":
				return sluice.Permanent(errors.New("no"))
			case e.Attempt == 1:
				return errors.New("again")
			case e.ID == "5":
				ends := b.Get("5").LeaseEnds
				b.Eventually(func() bool { return b.Get("5").LeaseEnds.After(ends) }) // it has been extended
			}
			return ctx.Err()
		}}
	stop := systest.StartWorker(t, w)
	b.RequireDrained()
	require.NoError(t, stop())
	stats := w.Stats()
	require.Equal(t, int64(30), stats.Done+stats.Buried)
	require.Equal(t, stats.Done, stats.Retried)
	require.Zero(t, stats.Lost)
	require.Equal(t, stats.Buried, b.Stats().Dead)
}

// restricted returns a queue on a client that must not use a command, with its faults,
// and the same queue on a client that may use all commands.
func restricted(t *testing.T, denied string) (b systest.QueueTest, q *sluice.Queue, faults *redistest.Faults) {
	t.Helper()
	s := redistest.Start(t)
	b = systest.NewQueueTest(t, s.Client(t), "q")
	require.NoError(t, b.RDB.Do(t.Context(), "ACL", "SETUSER", "user", "on", ">secret", "~*", "&*", "+@all", "-"+denied).Err())
	faults = redistest.NewFaults(new(net.Dialer).DialContext)
	return b, b.On(dial(t, s, faults)), faults
}

// Redis hands tasks out and takes no results. The worker stops working on tasks in vain.
func TestWorker_StopsClaimingWhenResultsAreRejected(t *testing.T) {
	t.Parallel()
	b, q, faults := restricted(t, "hdel") // which a claim of so few does without
	tasks := make([]sluice.Task, 200)
	for i := range tasks {
		tasks[i].ID = fmt.Sprint(i)
	}
	_, err := b.Q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	var begun atomic.Int64
	systest.StartWorker(t, &sluice.Worker{Queue: q, Concurrency: 8, Grace: time.Millisecond, Handler: func(context.Context, sluice.Entry) error {
		begun.Add(1)
		return nil
	}})
	b.Eventually(func() bool { return begun.Load() > 0 })
	tried := faults.Scripts()
	b.Eventually(func() bool { return faults.Scripts() >= tried+12 })
	require.LessOrEqual(t, begun.Load(), int64(3*8)) // those claimed before the first rejection included
}

// Redis takes results and hands no tasks out. What was claimed before is finished: the claim
// beside it is no reason to reject that.
func TestWorker_FinishesWhereClaimsAreDenied(t *testing.T) {
	t.Parallel()
	b, q, _ := restricted(t, "flushall")
	for i := range 40 {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i)})
	}
	begun, end := make(chan struct{}, 40), make(chan struct{})
	w := &sluice.Worker{Queue: q, Concurrency: 16, Handler: func(context.Context, sluice.Entry) error {
		begun <- struct{}{}
		<-end
		return nil
	}}
	systest.StartWorker(t, w)
	for range 16 {
		<-begun
	}
	require.NoError(t, b.RDB.Do(t.Context(), "ACL", "SETUSER", "user", "-zadd").Err())
	close(end)
	b.Eventually(func() bool { return w.Stats().Done == 16 })
	require.Zero(t, w.Stats().Lost)
	require.Equal(t, int64(24), b.Stats().Due)
	require.NoError(t, b.RDB.Do(t.Context(), "ACL", "SETUSER", "user", "+zadd").Err())
	b.Eventually(func() bool { return w.Stats().Done == 40 })
	require.Zero(t, w.Stats().Lost)
}

// Waiting fails and claiming does not. Tasks are done, and the log stays short.
func TestWorker_WorksWhereOneCommandIsDenied(t *testing.T) {
	t.Parallel()
	b, q, _ := restricted(t, "zrange")
	log := &systest.Buffer{}
	w := &sluice.Worker{Queue: q, Logger: systest.LogTo(log), Handler: func(context.Context, sluice.Entry) error { return nil }}
	systest.StartWorker(t, w)
	for i := range 3 {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i)})
		b.Eventually(func() bool { return w.Stats().Done == int64(i+1) })
	}
	require.Never(t, func() bool { return strings.Count(log.String(), "\n") > 3 }, time.Second, 10*time.Millisecond, log) // several tries
	require.NotContains(t, log.String(), "secret")
}

// dial returns a client of the restricted user, closed when the test ends.
func dial(t *testing.T, s *redistest.Server, faults *redistest.Faults) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "user", Password: "secret", Dialer: faults.Dial})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Tasks are due at random times, and the worker is idle between them. The time of a
// claim is the server's own: its score less the lease.
func TestWorker_IsNeverEarly(t *testing.T) {
	measureLateness(t, 2000*systest.Scale(), time.Second*time.Duration(systest.Scale()))
}

func measureLateness(t *testing.T, n int, spread time.Duration) {
	const lease = time.Minute
	s := redistest.Redis(t)
	b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t))
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Delay: 300*time.Millisecond + rand.N(spread)}
	}
	_, err := b.Q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	due := map[string]float64{}
	for _, z := range b.RDB.ZRangeWithScores(t.Context(), b.Key, 0, -1).Val() {
		due[z.Member.(string)] = z.Score
	}
	times := make(chan float64, n)
	systest.StartWorker(t, &sluice.Worker{Queue: b.Q, Lease: lease, Handler: func(ctx context.Context, e sluice.Entry) error {
		times <- leases.ReceiptIn(ctx) - lease.Seconds() - due[e.ID]
		return nil
	}})
	var late []float64
	for range n {
		late = append(late, <-times)
	}
	slices.Sort(late)
	t.Logf("%d tasks in %v, lateness in ms: min %.3f, p50 %.3f, p99 %.3f, max %.3f", n, spread,
		late[0]*1e3, late[n/2]*1e3, late[n*99/100]*1e3, late[n-1]*1e3)
	require.GreaterOrEqual(t, late[0], -1e-6, "early") // a microsecond: doubles round
}
