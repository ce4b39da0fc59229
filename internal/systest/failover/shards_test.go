package failover

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

const sixShards = 6

func shardOf(id string) int { return int(crc32.ChecksumIEEE([]byte(id)) % sixShards) }

// lateness is how late tasks were handed out, of each shard. The payload of a task is when it is due.
type lateness struct {
	mu  sync.Mutex // guards what follows
	all [sixShards][]time.Duration
}

func (l *lateness) handle(_ context.Context, e sluice.Entry) error {
	due, err := strconv.ParseInt(string(e.Payload), 10, 64)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[shardOf(e.ID)] = append(l.all[shardOf(e.ID)], time.Since(time.UnixMicro(due)))
	return err
}

// take returns how late the latest hundredth of the tasks of these shards was at least, and how many
// tasks there were, since the last time.
func (l *lateness) take(shards ...int) (p99 time.Duration, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []time.Duration
	for _, shard := range shards {
		all = append(all, l.all[shard]...)
		l.all[shard] = nil
	}
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)*99/100], len(all)
}

// await waits until so many tasks of these shards were handed out since the last time.
func (l *lateness) await(t *testing.T, n int, shards ...int) {
	t.Helper()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		all := 0
		for _, shard := range shards {
			all += len(l.all[shard])
		}
		return all >= n
	}, 25*time.Second, 5*time.Millisecond, "the tasks of these shards are handed out")
}

// countOf returns how many of the tasks of enqueueAt are in these shards.
func countOf(name string, n int, shards ...int) (count int) {
	for i := range n {
		if slices.Contains(shards, shardOf(fmt.Sprint(name, i))) {
			count++
		}
	}
	return count
}

// enqueueAt has as many tasks due, one after the other, from a time on.
func enqueueAt(t *testing.T, q *sluice.Queue, name string, n int, from time.Time, apart time.Duration) {
	t.Helper()
	var all sync.WaitGroup
	for part := range 32 {
		all.Go(func() {
			for i := part; i < n; i += 32 {
				due := from.Add(time.Duration(i) * apart)
				_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(name, i), At: due, Payload: fmt.Append(nil, due.UnixMicro())})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestCluster_HungShardCostsItsOwnTasks: while a primary hangs that has two of six shards, a worker
// gets the tasks of the others as soon as before.
func TestCluster_HungShardCostsItsOwnTasks(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000")
	rdb, name := c.Client(t), redistest.Name(t)
	q, err := sluice.NewQueue(rdb, name, sluice.WithShards(sixShards))
	require.NoError(t, err)
	lag := systest.Lag(t)
	var late lateness
	const apart, phase = 2 * time.Millisecond, 1500
	w := &sluice.Worker{Queue: q, Concurrency: 16, Lease: 10 * time.Second, Grace: 500 * time.Millisecond, Handler: late.handle}
	stop := systest.StartWorker(t, w)
	others := []int{0, 1, 4, 5}
	begun := time.Now()
	enqueueAt(t, q, "before", phase, begun.Add(time.Second), apart)
	took := time.Since(begun)
	late.await(t, countOf("before", phase, others...), others...)
	before, _ := late.take(others...)
	from := time.Now().Add(time.Second + 2*took) // a busy machine takes long to enqueue the next
	enqueueAt(t, q, "during", phase, from, apart)
	late.await(t, 1, others...) // their time has come
	hung := c.Primary(keyspace.Shard("Queue:"+name, sixShards, 2))
	hung.Pause(t)
	defer hung.Resume(t)
	late.await(t, countOf("during", phase, others...), others...)
	during, n := late.take(others...)
	t.Logf("p99 of lateness: %v, and %v while a primary hangs (%d tasks; lag %v)", before, during, n, lag())
	// The client waits five seconds for the server that hangs: who waits with it is seen on a busy machine too.
	require.Less(t, during, before+3*time.Second+10*lag())
	hung.Resume(t)
	require.Eventually(t, func() bool { return w.Stats().Done == 2*phase }, time.Minute, 10*time.Millisecond)
	require.NoError(t, stop())
}

// TestCluster_ClaimsGoOnBesideAHungShard: while a primary hangs, Claim and Pop bring the tasks of the other shards. What was
// leased there to no caller is given back.
func TestCluster_ClaimsGoOnBesideAHungShard(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
	name := redistest.Name(t)
	q, err := sluice.NewQueue(c.Client(t), name, sluice.WithShards(sixShards))
	require.NoError(t, err)
	const n = 600
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i].ID = fmt.Sprint(i)
	}
	_, err = q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	others, claimed := 0, 0
	for _, task := range tasks {
		if shard := shardOf(task.ID); shard != 2 && shard != 3 {
			others++
		}
	}
	hung := c.Primary(keyspace.Shard("Queue:"+name, sixShards, 2))
	hung.Pause(t)
	defer hung.Resume(t)
	lag := systest.Lag(t)
	for began := time.Now(); claimed < others; {
		require.Less(t, time.Since(began), time.Minute)
		from := time.Now()
		es, err := q.Claim(t.Context(), 20, time.Hour)
		require.Less(t, time.Since(from), 4*time.Second+10*lag())
		claimed += len(es)
		if err != nil {
			require.NotErrorIs(t, err, context.DeadlineExceeded, "it is not the caller's")
		}
	}
	require.Equal(t, others, claimed)
	es, err := q.Claim(t.Context(), 20, time.Hour)
	require.Empty(t, es)
	require.Error(t, err, "it cannot be told whether there are any")
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	hung.Resume(t)
	require.Eventually(t, func() bool {
		es, err := q.Claim(t.Context(), 20, time.Hour)
		claimed += len(es)
		return err == nil && claimed == n
	}, time.Minute, 10*time.Millisecond, "an hour's lease was left to no caller")
}

// TestCluster_SkewedShardsStarveNoOther: all tasks of one shard are due at once, and a few of the
// others while the worker is busy with them.
func TestCluster_SkewedShardsStarveNoOther(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	const poll = 500 * time.Millisecond
	q, err := sluice.NewQueue(c.Client(t), redistest.Name(t), sluice.WithShards(sixShards), sluice.WithPollInterval(poll))
	require.NoError(t, err)
	lag := systest.Lag(t)
	var backlog []string
	for i := 0; len(backlog) < 4000; i++ {
		if id := fmt.Sprint("b", i); shardOf(id) == 3 {
			backlog = append(backlog, id)
		}
	}
	var all sync.WaitGroup
	for part := range slices.Chunk(backlog, 250) {
		all.Go(func() {
			for _, id := range part {
				if _, err := q.Enqueue(t.Context(), sluice.Task{ID: id, Payload: fmt.Append(nil, time.Now().UnixMicro())}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	var late lateness
	w := &sluice.Worker{Queue: q, Concurrency: 8, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(5 * time.Millisecond) // the work: the backlog lasts for a while
		return late.handle(ctx, e)
	}}
	from := time.Now().Add(500 * time.Millisecond)
	enqueueAt(t, q, "x", 50, from, 20*time.Millisecond)
	stop := systest.StartWorker(t, w)
	require.Eventually(t, func() bool { return w.Stats().Done == int64(len(backlog)+50) }, time.Minute, 10*time.Millisecond)
	p99, n := late.take(0, 1, 2, 4, 5)
	t.Logf("p99 of the lateness of %d tasks of other shards: %v", n, p99)
	require.Less(t, p99, poll+5*lag()+100*time.Millisecond)
	require.NoError(t, stop())
}
