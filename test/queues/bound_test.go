package queues

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestMaxTasks_BoundsTheQueue: scheduled, due, leased and waiting tasks count; dead letters do not.
// What is there already passes, and changes.
func TestMaxTasks_BoundsTheQueue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.NoError(b, b.Q.SetStock(b.Context(), "phone", 9))
		full := []sluice.Task{{ID: "x"}, of("g", "x"), of("new", "x"), phone("x"), phoneOf("g", "x"), {ID: "x", Payload: []byte("p"), Delay: time.Hour}}
		requireFull := func() {
			b.Helper()
			for _, task := range full {
				outcome, err := b.Q.Enqueue(b.Context(), task)
				require.ErrorIs(b, err, sluice.ErrFull)
				require.Zero(b, outcome)
				_, err = b.Q.Get(b.Context(), "x")
				require.ErrorIs(b, err, sluice.ErrNotFound)
			}
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "leased"})
		e := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "scheduled", Delay: time.Hour})
		b.Enqueue(sluice.OutcomeAdded, of("g", "plays"))
		b.Enqueue(sluice.OutcomeAdded, of("g", "waits"))
		b.Enqueue(sluice.OutcomeAdded, phone("takes"))
		requireFull()
		b.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "scheduled", Delay: time.Hour})
		b.Enqueue(sluice.OutcomeUpdated, of("g", "waits"))
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "leased"})
		b.Enqueue(sluice.OutcomeKept, phone("takes"))
		outcomes, err := b.Q.EnqueueBatch(b.Context(), []sluice.Task{{ID: "scheduled"}, {ID: "x"}})
		require.ErrorIs(b, err, sluice.ErrFull)
		require.Equal(b, []sluice.Outcome{0, 0}, outcomes, "all of a step, or none")
		require.Equal(b, sluice.StateScheduled, b.Get("scheduled").State)
		requireFull()
		_, err = b.On(b.RDB).Enqueue(b.Context(), sluice.Task{ID: "unbounded"})
		require.NoError(b, err)
		_, err = b.Q.Cancel(b.Context(), "unbounded")
		require.NoError(b, err)
		require.NoError(b, b.Q.Bury(b.Context(), "no", e)) // its version takes over
		requireFull()
		require.NoError(b, b.Q.Bury(b.Context(), "no", b.Claim(1, time.Minute)...))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "x", Payload: []byte("p")})
		info, err := b.Q.Stock(b.Context(), "phone")
		require.NoError(b, err)
		require.Equal(b, sluice.StockInfo{Total: 9, Left: 8, Held: 1}, info)
	}, sluice.WithMaxTasks(5))
}

// TestMaxTasks_ConcurrentCallsFillItExactly: calls that are sent together do not all fail where
// some fit.
func TestMaxTasks_ConcurrentCallsFillItExactly(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		var added, refused atomic.Int64
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				switch outcome, err := b.Q.Enqueue(b.Context(), sluice.Task{ID: fmt.Sprint(i)}); {
				case errors.Is(err, sluice.ErrFull):
					refused.Add(1)
				case err == nil && outcome == sluice.OutcomeAdded:
					added.Add(1)
				}
			})
		}
		all.Wait()
		require.EqualValues(b, 137, added.Load())
		require.EqualValues(b, 863, refused.Load())
		require.EqualValues(b, 137, b.Stats().Due)
	}, sluice.WithMaxTasks(137))
}

// TestMaxTasks_RepeatsPassBesideWhatIsRefused: calls for tasks that are there, sent together with calls
// for new ones to a full queue.
func TestMaxTasks_RepeatsPassBesideWhatIsRefused(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "there"})
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				outcome, err := b.Q.Enqueue(b.Context(), sluice.Task{ID: "there"})
				require.NoError(b, err)
				require.Equal(b, sluice.OutcomeKept, outcome)
			})
			all.Go(func() {
				_, err := b.Q.Enqueue(b.Context(), sluice.Task{ID: fmt.Sprint(i)})
				require.ErrorIs(b, err, sluice.ErrFull)
			})
		}
		all.Wait()
	}, sluice.WithMaxTasks(1), sluice.WithDuplicates(sluice.DuplicatesKeep))
}

// TestMaxTasks_ABatchGoesInSteps: those before the one that does not fit are enqueued.
func TestMaxTasks_ABatchGoesInSteps(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tasks := make([]sluice.Task, 600)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		outcomes, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.ErrorIs(b, err, sluice.ErrFull)
		for i, outcome := range outcomes {
			require.Equal(b, i < 500, outcome == sluice.OutcomeAdded, i)
		}
		require.EqualValues(b, 500, b.Stats().Due)
	}, sluice.WithMaxTasks(599))
}

// TestMaxTasks_RefusesOnlyWhatAddsATask: an ID that comes twice is one, and what is done is none.
func TestMaxTasks_RefusesOnlyWhatAddsATask(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		once := sluice.Task{ID: "order", Duplicates: sluice.DuplicatesOnce}
		b.Enqueue(sluice.OutcomeAdded, once)
		require.NoError(b, b.Q.Dequeue(b.Context(), b.ClaimOne(time.Minute)))
		_, err := b.Q.EnqueueBatch(b.Context(), []sluice.Task{{ID: "a"}, {ID: "a"}})
		require.NoError(b, err)
		b.Enqueue(sluice.OutcomeDone, once)
		_, err = b.Q.EnqueueBatch(b.Context(), []sluice.Task{{ID: "b"}, {ID: "a"}})
		require.ErrorIs(b, err, sluice.ErrFull)

		unbound, err := sluice.NewQueue(b.RDB, b.Q.Name(), remembers)
		require.NoError(b, err)
		for _, id := range []string{"c", "d"} { // more than the bound
			_, err = unbound.Enqueue(b.Context(), sluice.Task{ID: id})
			require.NoError(b, err)
		}
		b.Enqueue(sluice.OutcomeDone, once)
		b.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "a"})
		_, err = b.Q.Enqueue(b.Context(), sluice.Task{ID: "b"})
		require.ErrorIs(b, err, sluice.ErrFull)
	}, remembers, sluice.WithMaxTasks(1))
}

// TestMaxTasks_AFullQueueCostsNoMore: calls that are sent together, and none of which would fit
// alone, are refused together.
func TestMaxTasks_AFullQueueCostsNoMore(t *testing.T) {
	redistest.NotShort(t)
	s := redistest.Start(t)
	rdb := s.Client(t)
	var sent atomic.Int64
	rdb.AddHook(counting{&sent})
	q, err := sluice.NewQueue(rdb, "q", sluice.WithMaxTasks(1))
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	before := sent.Load()
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			for k := range 50 {
				_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i, "-", k)})
				require.ErrorIs(t, err, sluice.ErrFull)
			}
		})
	}
	all.Wait()
	require.Less(t, sent.Load()-before, int64(200*50/4))
}

// TestMaxTasks_AnOrderThatIsADeadLetterIsKept, as it holds its unit: it adds no task.
func TestMaxTasks_AnOrderThatIsADeadLetterIsKept(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.NoError(b, b.Q.SetStock(b.Context(), "phone", 5))
		order := sluice.Task{ID: "ann", Take: sluice.Take{Item: "phone"}}
		b.Enqueue(sluice.OutcomeAdded, order)
		require.NoError(b, b.Q.Bury(b.Context(), "no", b.ClaimOne(time.Minute)))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "other"})
		b.Enqueue(sluice.OutcomeKept, order)
		b.Enqueue(sluice.OutcomeKept, sluice.Task{ID: "ann"})
		_, err := b.Q.Enqueue(b.Context(), sluice.Task{ID: "bob", Take: sluice.Take{Item: "phone"}})
		require.ErrorIs(b, err, sluice.ErrFull)
	}, sluice.WithMaxTasks(1))
}

// TestEnqueueBatch_ThePolicyOfTheQueueIsNoOther: tasks that name it and tasks that leave it out go together.
func TestEnqueueBatch_ThePolicyOfTheQueueIsNoOther(t *testing.T) {
	rdb, faults := redistest.Start(t).Faulty(t)
	q, err := sluice.NewQueue(rdb, redistest.Name(t), sluice.WithDuplicates(sluice.DuplicatesKeep))
	require.NoError(t, err)
	tasks := make([]sluice.Task, 500)
	for i := range tasks {
		tasks[i].ID = strconv.Itoa(i)
		if i%2 == 0 {
			tasks[i].Duplicates = sluice.DuplicatesKeep
		}
	}
	before := faults.Scripts()
	_, err = q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	require.LessOrEqual(t, faults.Scripts()-before, 5)
}
