package sluicetest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

// TestRedis_ShowsEveryState: of a queue with a prefix of its own, paused, with headers.
func TestRedis_ShowsEveryState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := sluicetest.New(t)
		r := all.Prefix("Shop:")
		queue, err := sluice.NewQueue(r.Client(), "orders", sluice.WithQueuePrefix("Shop:"))
		require.NoError(t, err)
		enqueue := func(id string, delay time.Duration) {
			_, err := queue.Enqueue(t.Context(), sluice.Task{ID: id, Payload: []byte("of " + id), Header: map[string]string{"trace": id}, Delay: delay})
			require.NoError(t, err)
		}
		require.Empty(t, r.Due("orders"))
		r.RequireEmpty("orders")
		for i := range 8 {
			enqueue(fmt.Sprint("leased-", i), 0)
		}
		leased, err := queue.Claim(t.Context(), 8, time.Hour)
		require.NoError(t, err)
		require.Len(t, leased, 8)
		require.NoError(t, queue.Bury(t.Context(), "hopeless", leased[0]))
		require.NoError(t, queue.Pause(t.Context(), 0))
		for i := range 9 {
			enqueue(fmt.Sprint("due-", i), 0)
		}
		later := make([]sluice.Task, 2500)
		for i := range later {
			id := fmt.Sprint("scheduled-", i)
			later[i] = sluice.Task{ID: id, Payload: []byte("of " + id), Header: map[string]string{"trace": id}, Delay: 24*time.Hour + time.Duration(i)*time.Second}
		}
		_, err = queue.EnqueueBatch(t.Context(), later)
		require.NoError(t, err)

		require.Len(t, r.Due("orders"), 9)
		require.Len(t, r.Leased("orders"), 7)
		scheduled := r.Scheduled("orders")
		require.Len(t, scheduled, 2500)
		for i, e := range scheduled {
			require.Equal(t, fmt.Sprint("scheduled-", i), e.ID)
			require.Equal(t, "of "+e.ID, string(e.Payload))
			require.Equal(t, map[string]string{"trace": e.ID}, e.Header)
		}
		dead := r.Dead("orders")
		require.Len(t, dead, 1)
		require.Equal(t, "hopeless", dead[0].Reason)
		require.Equal(t, dead[0], r.RequireDead("orders", leased[0].ID))
		r.RequireNotEnqueued("orders", leased[0].ID)
		r.RequireNotEnqueued("orders", "no such")
		require.Equal(t, sluice.StateLeased, r.RequireEnqueued("orders", leased[1].ID).State)
		require.Equal(t, sluice.StateDue, r.RequireEnqueued("orders", "due-3").State)
		require.True(t, r.Stats("orders").Paused)
		require.EqualValues(t, 2500, r.Stats("orders").Scheduled)

		require.Empty(t, all.Scheduled("orders"), "the queue of that name with the usual prefix")
	})
}

// failing is a test that notes its failure.
type failing struct {
	testing.TB
	message string
}

func (f *failing) Helper()          {}
func (f *failing) Cleanup(g func()) { f.TB.Cleanup(g) }
func (f *failing) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestRedis_FailsTheTest: each assertion that does not hold, with what the queue has. No payload is
// shown.
func TestRedis_FailsTheTest(t *testing.T) {
	t.Parallel()
	f := &failing{TB: t}
	r := sluicetest.New(f)
	queue, err := sluice.NewQueue(r.Client(), "q")
	require.NoError(t, err)
	for _, id := range []string{"a", "dead"} {
		_, err = queue.Enqueue(t.Context(), sluice.Task{ID: id, Payload: []byte("secret")})
		require.NoError(t, err)
	}
	dead, err := queue.Get(t.Context(), "dead")
	require.NoError(t, err)
	require.NoError(t, queue.Bury(t.Context(), "hopeless", dead.Entry))
	remembering, err := sluice.NewQueue(r.Client(), "q", sluice.WithRetention(time.Hour))
	require.NoError(t, err)
	_, err = remembering.Enqueue(t.Context(), sluice.Task{ID: "done"})
	require.NoError(t, err)
	done, err := remembering.Get(t.Context(), "done")
	require.NoError(t, err)
	require.NoError(t, remembering.Dequeue(t.Context(), done.Entry))
	r.RequireNotEnqueued("q", "done")
	require.Equal(t, []sluice.TaskInfo{r.RequireDone("q", "done")}, r.Done("q"))
	require.NoError(t, r.Client().Set(t.Context(), "Queue:text", "x", 0).Err())
	sale, err := sluice.NewQueue(r.Client(), "sale")
	require.NoError(t, err)
	require.NoError(t, sale.SetStock(t.Context(), "phone", 10))
	_, err = sale.Enqueue(t.Context(), sluice.Task{ID: "order", Take: sluice.Take{Item: "phone", Units: 3}})
	require.NoError(t, err)
	r.RequireStock("sale", "phone", 7, 3, 0)
	for want, do := range map[string]func(){
		`no task "b" in queue "q"; it has 1 due, 0 scheduled, 0 leased, 1 dead`:          func() { r.RequireEnqueued("q", "b") },
		`task "dead" of queue "q" is a dead letter: hopeless`:                            func() { r.RequireEnqueued("q", "dead") },
		`task "a" of queue "q" is due`:                                                   func() { r.RequireNotEnqueued("q", "a") },
		`no dead letter "b" in queue "q"; it has 1 due, 0 scheduled, 0 leased, 1 dead`:   func() { r.RequireDead("q", "b") },
		`task "a" of queue "q" is no dead letter: it is due`:                             func() { r.RequireDead("q", "a") },
		`task "done" of queue "q" is done`:                                               func() { r.RequireEnqueued("q", "done") },
		`nothing is remembered of task "b" of queue "q"; it has 1 due`:                   func() { r.RequireDone("q", "b") },
		`task "a" of queue "q" is not done: it is due`:                                   func() { r.RequireDone("q", "a") },
		`queue "q" is not empty: it has 1 tasks, ["a (due)"] among them`:                 func() { r.RequireEmpty("q") },
		`Advance(-1s): time does not go back`:                                            func() { r.Advance(-time.Second) },
		`invalid argument`:                                                               func() { r.Due("") },
		`of item "phone" of queue "sale" 7 are left, 3 held and 0 sold; want 7, 0 and 3`: func() { r.RequireStock("sale", "phone", 7, 0, 3) },
		`queue "sale" has no stock of item "pear"`:                                       func() { r.RequireStock("sale", "pear", 0, 0, 0) },
		`foreign or damaged data`:                                                        func() { r.Due("text") },
	} {
		f.message = ""
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			do()
		}()
		<-ended
		require.Contains(t, f.message, want)
		require.NotContains(t, f.message, "secret")
	}
}

// TestRedis_TellsOfRetriesAndWorkers: the last error, what became of tasks, and who works.
func TestRedis_TellsOfRetriesAndWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		queue, err := sluice.NewQueue(r.Client(), "orders")
		require.NoError(t, err)
		worker := &sluice.Worker{
			Queue: queue, Label: "packer", Backoff: func(int, error) time.Duration { return time.Hour },
			Handler: func(_ context.Context, e sluice.Entry) error {
				if e.Attempt == 1 {
					return errors.New("no paper")
				}
				return nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		// It ends with ctx; the test waits for it.
		go func() { ended <- worker.Run(ctx) }()
		_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "order-1"})
		require.NoError(t, err)
		begun := r.Now()
		r.Advance(2 * time.Second)
		task := r.RequireEnqueued("orders", "order-1")
		require.Equal(t, "no paper", task.Reason)
		require.WithinDuration(t, begun, task.FailedAt, time.Second)
		require.Equal(t, task, r.Scheduled("orders")[0])
		stats := r.Stats("orders")
		require.Equal(t, []int64{0, 1, 1}, []int64{stats.Finished, stats.Retried, int64(stats.Workers)})
		workers, err := queue.Workers(t.Context())
		require.NoError(t, err)
		require.Equal(t, "packer", workers[0].Label)

		r.Advance(time.Hour)
		r.RequireNotEnqueued("orders", "order-1")
		require.EqualValues(t, 1, r.Stats("orders").Finished)
		stop()
		require.NoError(t, <-ended)
		require.Zero(t, r.Stats("orders").Workers)
		r.Advance(25 * time.Hour)
		require.Equal(t, sluice.Stats{}, r.Stats("orders"))
	})
}
