package distributed

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// manyQueues is how many queues share a name on a Cluster of three primaries: each of these has
// some.
const manyQueues = 12

// lateness is how late tasks were handed out. The payload of a task is when it is due.
type lateness struct {
	mu  sync.Mutex // guards what follows
	all map[string]time.Duration
}

func (l *lateness) handle(_ context.Context, e sluice.Entry) error {
	due, err := strconv.ParseInt(string(e.Payload), 10, 64)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[string]time.Duration{}
	}
	l.all[e.ID] = time.Since(time.UnixMicro(due))
	return err
}

// await waits until all of these tasks were handed out, and returns how late the latest hundredth
// of them was at least.
func (l *lateness) await(t *testing.T, ids []string) (p99 time.Duration) {
	t.Helper()
	var all []time.Duration
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		all = all[:0]
		for _, id := range ids {
			if late, found := l.all[id]; found {
				all = append(all, late)
			}
		}
		return len(all) == len(ids)
	}, 25*time.Second, 5*time.Millisecond, "%d tasks are handed out", len(ids))
	slices.Sort(all)
	return all[len(all)*99/100]
}

// enqueueAt has as many tasks due, one after the other, from a time on, and returns their IDs.
func enqueueAt(t *testing.T, qs sluice.Queues, name string, n int, from time.Time, apart time.Duration) (ids []string) {
	t.Helper()
	var all sync.WaitGroup
	for i := range n {
		ids = append(ids, fmt.Sprint(name, i))
	}
	for part := range 32 {
		all.Go(func() {
			for i := part; i < n; i += 32 {
				due := from.Add(time.Duration(i) * apart)
				_, err := qs.Of(ids[i]).Enqueue(t.Context(), sluice.Task{ID: ids[i], At: due, Payload: fmt.Append(nil, due.UnixMicro())})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return ids
}

// TestCluster_HungServerCostsItsOwnTasks: while a primary hangs that has some of several queues, a
// Pool gets the tasks of the others as soon as before.
func TestCluster_HungServerCostsItsOwnTasks(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000")
	rdb, name := c.Client(t), redistest.Name(t)
	qs, err := sluice.NewQueues(rdb, name, manyQueues)
	require.NoError(t, err)
	lag := systest.Lag(t)
	var late lateness
	const apart, phase = 2 * time.Millisecond, 1500
	workers := qs.Workers(&sluice.Worker{Handler: late.handle, Lease: 10 * time.Second})
	stop := systest.StartPool(t, &sluice.Pool{Workers: workers, Concurrency: 16, Grace: 500 * time.Millisecond})
	hung := c.Primary("Queue:" + qs[0].Name())
	hangs := on(c, qs, hung)
	others := func(ids []string) []string {
		return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return hangs[qs.Of(id)] })
	}
	begun := time.Now()
	ids := enqueueAt(t, qs, "before", phase, begun.Add(time.Second), apart)
	took := time.Since(begun)
	before := late.await(t, others(ids))
	from := time.Now().Add(time.Second + 2*took) // a busy machine takes long to enqueue the next
	ids = others(enqueueAt(t, qs, "during", phase, from, apart))
	late.await(t, ids[:1]) // their time has come
	hung.Pause(t)
	defer hung.Resume(t)
	during := late.await(t, ids)
	t.Logf("p99 of lateness: %v, and %v while a primary hangs (%d tasks; lag %v)", before, during, len(ids), lag())
	// The client waits five seconds for the server that hangs: who waits with it is seen on a busy
	// machine too.
	require.Less(t, during, before+3*time.Second+10*lag())
	hung.Resume(t)
	require.Eventually(t, func() bool { return doneBy(workers) == 2*phase }, time.Minute, 10*time.Millisecond)
	require.NoError(t, stop())
}

// on returns which queues a server has.
func on(c *redistest.Cluster, qs sluice.Queues, s *redistest.Server) map[*sluice.Queue]bool {
	has := map[*sluice.Queue]bool{}
	for _, q := range qs {
		has[q] = c.Primary("Queue:"+q.Name()) == s
	}
	return has
}

// doneBy is how many tasks the workers have finished.
func doneBy(workers []*sluice.Worker) (n int64) {
	for _, w := range workers {
		n += w.Stats().Done
	}
	return n
}

// TestCluster_ABatchGoesOnBesideAHungServer: each task of the others is enqueued. After the error,
// what has no outcome may be enqueued again.
func TestCluster_ABatchGoesOnBesideAHungServer(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")
	qs, err := sluice.NewQueues(c.Client(t), redistest.Name(t), manyQueues)
	require.NoError(t, err)
	hung := c.Primary("Queue:" + qs[0].Name())
	hangs := on(c, qs, hung)
	for _, q := range qs { // so that the client is connected
		_, err := q.Stats(t.Context())
		require.NoError(t, err)
	}
	tasks := make([]sluice.Task, 6000)
	for i := range tasks {
		tasks[i].ID = fmt.Sprint(i)
	}
	hung.Pause(t)
	defer hung.Resume(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	outcomes, err := qs.EnqueueBatch(ctx, tasks)
	require.Error(t, err)
	require.Len(t, outcomes, len(tasks))
	for i, outcome := range outcomes {
		if !hangs[qs.Of(tasks[i].ID)] {
			require.Equal(t, sluice.OutcomeAdded, outcome, tasks[i].ID)
		} else {
			require.Zero(t, outcome, tasks[i].ID)
		}
	}
	hung.Resume(t)
	require.Eventually(t, func() bool {
		_, err = qs.EnqueueBatch(t.Context(), tasks)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	total := int64(0)
	for _, q := range qs {
		s, err := q.Stats(t.Context())
		require.NoError(t, err)
		total += s.Due
	}
	require.EqualValues(t, len(tasks), total)
}

// TestCluster_ABacklogStarvesNoOtherQueue: all tasks of one queue are due at once, and a few of the
// others while the Pool is busy with them. Each of these has a handler before many of the backlog.
func TestCluster_ABacklogStarvesNoOtherQueue(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	qs, err := sluice.NewQueues(c.Client(t), redistest.Name(t), manyQueues)
	require.NoError(t, err)
	var backlog []sluice.Task
	for i := 0; len(backlog) < 4000; i++ {
		if id := fmt.Sprint("b", i); qs.Of(id) == qs[3] {
			backlog = append(backlog, sluice.Task{ID: id})
		}
	}
	_, err = qs.EnqueueBatch(t.Context(), backlog)
	require.NoError(t, err)
	var mu sync.Mutex // guards what follows
	var handled []time.Time
	passedBy := map[string]int{} // of a task of another queue: how many of the backlog were begun after it was due
	workers := qs.Workers(&sluice.Worker{Handler: func(_ context.Context, e sluice.Entry) error {
		defer time.Sleep(15 * time.Millisecond) // the work: the backlog lasts for a while
		mu.Lock()
		defer mu.Unlock()
		if qs.Of(e.ID) == qs[3] {
			handled = append(handled, time.Now())
			return nil
		}
		first, _ := slices.BinarySearchFunc(handled, e.Due, time.Time.Compare)
		passedBy[e.ID] = len(handled) - first
		return nil
	}})
	ids := enqueueAt(t, qs, "x", 50, time.Now().Add(500*time.Millisecond), 20*time.Millisecond)
	stop := systest.StartPool(t, &sluice.Pool{Workers: workers, Concurrency: 8})
	require.Eventually(t, func() bool { return doneBy(workers) == int64(len(backlog)+len(ids)) }, time.Minute, 10*time.Millisecond)
	require.NoError(t, stop())
	require.NotEmpty(t, passedBy)
	for id, n := range passedBy {
		require.Less(t, n, len(backlog)/20, id)
	}
}
