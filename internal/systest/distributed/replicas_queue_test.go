package distributed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// TestQueue_NeedsReplicas: what changes the queue says if too few replicas have it, and is done
// all the same. What it returns stands beside the error, also where nothing was changed.
func TestQueue_NeedsReplicas(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	ctx, b := t.Context(), systest.NewQueueTest(t, g.Client(t), "q")
	q := b.On(b.RDB, sluice.WithQueueReplicas(1))
	keep := b.On(b.RDB, sluice.WithQueueReplicas(1), sluice.WithDuplicates(sluice.DuplicatesKeep))
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "claimed"})
	e := b.ClaimOne(time.Hour)
	g.Replicas[0].Pause(t)
	defer g.Replicas[0].Resume(t)
	for i, operation := range []func() (any, any, error){
		func() (any, any, error) {
			o, err := q.Enqueue(ctx, sluice.Task{ID: "a"})
			return sluice.OutcomeAdded, o, err
		},
		func() (any, any, error) {
			o, err := q.Enqueue(ctx, sluice.Task{ID: "a"})
			return sluice.OutcomeUpdated, o, err
		},
		func() (any, any, error) {
			o, err := keep.Enqueue(ctx, sluice.Task{ID: "a"})
			return sluice.OutcomeKept, o, err
		},
		func() (any, any, error) {
			o, err := keep.EnqueueBatch(ctx, []sluice.Task{{ID: "a"}, {ID: "b"}})
			return []sluice.Outcome{sluice.OutcomeKept, sluice.OutcomeAdded}, o, err
		},
		func() (any, any, error) { s, err := q.Cancel(ctx, "a"); return sluice.StateDue, s, err },
		func() (any, any, error) { s, err := q.Cancel(ctx, "absent"); return sluice.StateAbsent, s, err },
		func() (any, any, error) { es, err := q.Pop(ctx, 4); return 1, len(es), err },
		func() (any, any, error) { return nil, nil, q.Dequeue(ctx, e) },
		func() (any, any, error) { return nil, nil, q.Purge(ctx) },
		func() (any, any, error) { return nil, nil, q.Purge(ctx) }, // of an empty queue
		func() (any, any, error) { return nil, nil, q.SetStock(ctx, "phone", 1) },
		func() (any, any, error) {
			o, err := q.Enqueue(ctx, phone("c"))
			return sluice.OutcomeAdded, o, err
		},
		func() (any, any, error) {
			o, err := q.Enqueue(ctx, phone("late"))
			return sluice.OutcomeSoldOut, o, err
		},
		func() (any, any, error) { s, err := q.Cancel(ctx, "c"); return sluice.StateDue, s, err },
	} {
		want, got, err := operation()
		require.Equal(t, want, got, "%d", i)
		require.ErrorIs(t, err, sluice.ErrUnderReplicated, "%d", i)
		require.ErrorContains(t, err, "0 of 1", "%d", i)
	}
	require.ErrorIs(t, q.Dequeue(ctx, e), sluice.ErrStale)
	es, err := q.Pop(ctx, 1) // what pops nothing needs no replica
	require.NoError(t, err)
	require.Empty(t, es)
}

// phone is a buyer's order of one.
func phone(buyer string) sluice.Task {
	return sluice.Task{ID: buyer, Take: sluice.Take{Item: "phone"}}
}

// TestQueue_AKeptTaskIsOnTheReplicas: that a task is kept says that the replicas have it, though
// another call has written it; and it changes nothing about the task.
func TestQueue_AKeptTaskIsOnTheReplicas(t *testing.T) {
	redistest.NotShort(t)
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, policy := range []sluice.Duplicates{sluice.DuplicatesKeep, sluice.DuplicatesEarliest, sluice.DuplicatesLatest} {
			id := policy.String()
			q := b.On(b.RDB, sluice.WithDuplicates(policy), sluice.WithQueueReplicas(5))
			at := time.Now().Add(time.Hour)
			task := sluice.Task{ID: id, Payload: []byte("payload"), At: at}
			outcome, err := q.Enqueue(b.Context(), task)
			require.ErrorIs(b, err, sluice.ErrUnderReplicated)
			require.Equal(b, sluice.OutcomeAdded, outcome)
			before := b.Get(id)
			outcome, err = q.Enqueue(b.Context(), task)
			require.ErrorIs(b, err, sluice.ErrUnderReplicated)
			require.Equal(b, sluice.OutcomeKept, outcome)
			require.Equal(b, before, b.Get(id))
		}
	})
}

// TestQueue_ARepeatSaysWhatTheReplicasHave: whatever was ErrUnderReplicated stays so until the
// replica has it, though a repeat, by a client that has written nothing, finds nothing to do. It
// changes nothing either.
func TestQueue_ARepeatSaysWhatTheReplicasHave(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb := g.Client(t)
	var table []operations.Ready
	for _, op := range operations.OfQueues() {
		if !op.Replicated || slices.Contains([]string{"Queue.Pop", "Queue.Pause", "Queue.Reschedule"}, op.Name) { // a repeat is another change, or none
			continue
		}
		table = append(table, op.Ready(t, operations.New(t, rdb)))
	}
	each := func(check func(op operations.Operation, err error)) {
		var all sync.WaitGroup
		for _, op := range table {
			f, err := *op.On, error(nil)
			f.Queue, err = sluice.NewQueue(g.Client(t), f.Name, sluice.WithQueueReplicas(1), sluice.WithDuplicates(sluice.DuplicatesKeep))
			require.NoError(t, err)
			all.Go(func() { _, err := op.Call(t.Context(), &f); check(op.Operation, err) })
		}
		all.Wait()
	}
	g.Replicas[0].Pause(t)
	each(func(op operations.Operation, err error) { assert.ErrorIs(t, err, sluice.ErrUnderReplicated, op.Name) })
	before := operations.State(t, rdb, "")
	each(func(op operations.Operation, err error) {
		assert.ErrorIs(t, err, sluice.ErrUnderReplicated, "the repeat of "+op.Name)
	})
	g.Replicas[0].Resume(t)
	require.Eventually(t, func() bool { // on a busy machine not the first time
		short := false
		each(func(op operations.Operation, err error) {
			switch {
			case errors.Is(err, sluice.ErrUnderReplicated):
				short = true
			case op.Lost == operations.UsedUp:
				assert.ErrorIs(t, err, sluice.ErrStale, op.Name)
			default:
				assert.NoError(t, err, op.Name)
			}
		})
		return !short
	}, 30*time.Second, time.Millisecond)
	operations.Same(t, before, operations.State(t, rdb, ""))
}

// TestQueue_AFullServerAcknowledgesTheLastTask: what finishes it is on the replicas, and so is what
// finds an empty queue.
func TestQueue_AFullServerAcknowledgesTheLastTask(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	ctx, rdb := t.Context(), g.Client(t)
	b := systest.NewQueueTest(t, rdb, "q")
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
	e := b.ClaimOne(time.Hour)
	require.NoError(t, b.Q.Pause(ctx, time.Hour))
	require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	q := b.On(rdb, sluice.WithQueueReplicas(1))
	require.NoError(t, q.Dequeue(ctx, e))
	require.NoError(t, q.Resume(ctx))
	require.NoError(t, q.Resume(ctx))
}

// TestQueue_MergedCallsShareAWait: each of many callers has its own outcome, and together they
// wait once.
func TestQueue_MergedCallsShareAWait(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb := g.Client(t)
	q, err := sluice.NewQueue(rdb, redistest.Name(t), sluice.WithQueueReplicas(1))
	require.NoError(t, err)
	var counter waitCounts
	rdb.AddHook(&counter)
	const callers, rounds = 64, 20
	enqueueAll := func(prefix string, check func(error)) {
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				for i := range rounds {
					outcome, err := q.Enqueue(context.Background(), sluice.Task{ID: fmt.Sprint(prefix, c, ".", i)})
					if outcome != sluice.OutcomeAdded {
						t.Error(outcome)
					}
					check(err)
				}
			})
		}
		all.Wait()
	}
	enqueueAll("a", func(err error) {
		if err != nil && !errors.Is(err, sluice.ErrUnderReplicated) { // on a busy machine
			t.Error(err)
		}
	})
	require.Less(t, counter.waits.Load(), int64(callers*rounds/2))
	require.Zero(t, counter.behind.Load())
	require.Zero(t, counter.alone.Load())
}

// TestQueue_MergedCallsLearnOfTheShortfall: so does each call of a group.
func TestQueue_MergedCallsLearnOfTheShortfall(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb := g.Client(t)
	q, err := sluice.NewQueue(rdb, redistest.Name(t), sluice.WithQueueReplicas(1))
	require.NoError(t, err)
	g.Replicas[0].Pause(t)
	defer g.Replicas[0].Resume(t)
	ctx := t.Context()
	ids := make([]string, 16)
	var all sync.WaitGroup
	for i := range ids {
		ids[i] = fmt.Sprint(i)
		all.Go(func() {
			outcome, err := q.Enqueue(ctx, sluice.Task{ID: ids[i]})
			if outcome != sluice.OutcomeAdded || !errors.Is(err, sluice.ErrUnderReplicated) {
				t.Error(outcome, err)
			}
		})
	}
	all.Wait()
	es, err := q.Claim(ctx, len(ids), time.Hour)
	require.NoError(t, err)
	require.Len(t, es, len(ids))
	for _, e := range es {
		all.Go(func() {
			if err := q.Dequeue(ctx, e); !errors.Is(err, sluice.ErrUnderReplicated) {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestQueue_AForgottenScriptWaitsOnce: a server that does not know a script would wait for the
// replicas twice.
func TestQueue_AForgottenScriptWaitsOnce(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb := g.Client(t)
	q, err := sluice.NewQueue(rdb, redistest.Name(t), sluice.WithQueueReplicas(1))
	require.NoError(t, err)
	if err := q.Pause(t.Context(), time.Hour); err != nil { // on a busy machine
		require.ErrorIs(t, err, sluice.ErrUnderReplicated)
	}
	g.Replicas[0].Pause(t)
	defer g.Replicas[0].Resume(t)
	for range 5 {
		underReplicated(t, func(ctx context.Context) error {
			require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
			return q.Pause(ctx, time.Hour)
		})
	}
}

// TestQueue_AContextOfASecondLeavesTimeForTheReply: alone, and in a group with others.
func TestQueue_AContextOfASecondLeavesTimeForTheReply(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	q, err := sluice.NewQueue(g.Client(t), redistest.Name(t), sluice.WithQueueReplicas(1))
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "warm"})
	if err != nil {
		require.ErrorIs(t, err, sluice.ErrUnderReplicated)
	}
	g.Replicas[0].Pause(t)
	defer g.Replicas[0].Resume(t)
	var callers sync.WaitGroup
	for i := range 20 {
		callers.Go(func() {
			underReplicated(t, func(ctx context.Context) error {
				_, err := q.Enqueue(ctx, sluice.Task{ID: fmt.Sprint(i)})
				return err
			})
		})
	}
	callers.Wait()
	next := 0 // a repeat would find nothing to cancel
	underReplicated(t, func(ctx context.Context) error { next++; _, err := q.Cancel(ctx, fmt.Sprint(next)); return err })
	underReplicated(t, func(ctx context.Context) error { return q.Pause(ctx, 0) })
}
