package replicas

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
)

// TestQueue_NeedsReplicas: what changes the queue says if too few replicas have it, and is done
// all the same. What it returns stands beside the error.
func TestQueue_NeedsReplicas(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	ctx, rdb := t.Context(), g.Client(t)
	name := redistest.Name(t)
	on := func(opts ...sluice.QueueOption) *sluice.Queue {
		q, err := sluice.NewQueue(rdb, name, opts...)
		require.NoError(t, err)
		return q
	}
	plain := on()
	q := on(sluice.WithQueueReplicas(1))
	keep := on(sluice.WithQueueReplicas(1), sluice.WithDuplicates(sluice.Keep))
	for i := range 8 {
		_, err := plain.Enqueue(ctx, sluice.Task{ID: fmt.Sprint("t", i)})
		require.NoError(t, err)
	}
	es, err := plain.Claim(ctx, 8, time.Hour)
	require.NoError(t, err)
	require.Len(t, es, 8)
	for round, name := range []string{"hung", "well"} {
		hung, acknowledged, took := name == "hung", 0, es[4*round:]
		if hung {
			g.Replicas[0].Pause(t)
		} else {
			g.Replicas[0].Resume(t)
		}
		for i, operation := range []func() (any, any, error){
			func() (any, any, error) { o, err := q.Enqueue(ctx, sluice.Task{ID: name}); return sluice.Added, o, err },
			func() (any, any, error) {
				o, err := q.Enqueue(ctx, sluice.Task{ID: name})
				return sluice.Updated, o, err
			},
			func() (any, any, error) {
				o, err := keep.Enqueue(ctx, sluice.Task{ID: name})
				return sluice.Kept, o, err
			},
			func() (any, any, error) {
				o, err := q.EnqueueBatch(ctx, []sluice.Task{{ID: name + "1"}, {ID: name + "2"}})
				return []sluice.Outcome{sluice.Added, sluice.Added}, o, err
			},
			func() (any, any, error) {
				o, err := keep.EnqueueBatch(ctx, []sluice.Task{{ID: name + "1"}, {ID: name + "2"}})
				return []sluice.Outcome{sluice.Kept, sluice.Kept}, o, err
			},
			func() (any, any, error) { ok, err := q.Reschedule(ctx, name, 0); return true, ok, err },
			func() (any, any, error) { s, err := q.Cancel(ctx, name); return sluice.Due, s, err },
			func() (any, any, error) { return nil, nil, q.Dequeue(ctx, took[0]) },
			func() (any, any, error) { return nil, nil, q.Retry(ctx, took[1], time.Hour) },
			func() (any, any, error) { return nil, nil, q.Release(ctx, took[2]) },
			func() (any, any, error) { return nil, nil, q.Bury(ctx, took[3], "why") },
			func() (any, any, error) { n, err := q.Revive(ctx, took[3].ID); return 1, n, err },
			func() (any, any, error) { es, err := q.Pop(ctx, 4); return 4, len(es), err },
		} {
			want, got, err := operation()
			require.Equal(t, want, got, "%s %d", name, i)
			if err == nil {
				acknowledged++
				continue
			}
			require.ErrorIs(t, err, sluice.ErrUnderReplicated, "%s %d", name, i) // on a busy machine, also if it is well
			require.ErrorContains(t, err, "0 of 1", "%s %d", name, i)
		}
		require.Equal(t, hung, acknowledged == 0, "%d acknowledged while the replica was %s", acknowledged, name)
		// What is returned stands beside the error also where nothing was changed; what pops nothing needs no replica.
		require.ErrorIs(t, q.Dequeue(ctx, took[0]), sluice.ErrStale)
		state, err := q.Cancel(ctx, "absent")
		require.Equal(t, sluice.Absent, state)
		require.True(t, !hung && err == nil || errors.Is(err, sluice.ErrUnderReplicated), err)
		_, err = q.Pop(ctx, 1)
		require.NoError(t, err)
	}
}

// TestQueue_AKeptTaskIsOnTheReplicas: that a task is kept says that the replicas have it, though
// another call has written it; and it changes nothing about the task.
func TestQueue_AKeptTaskIsOnTheReplicas(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, policy := range []sluice.Duplicates{sluice.Keep, sluice.Earliest, sluice.Latest} {
			id := policy.String()
			q := b.On(b.RDB, sluice.WithDuplicates(policy), sluice.WithQueueReplicas(5))
			at := time.Now().Add(time.Hour)
			task := sluice.Task{ID: id, Payload: []byte("payload"), At: at}
			outcome, err := q.Enqueue(b.Context(), task)
			require.ErrorIs(b, err, sluice.ErrUnderReplicated)
			require.Equal(b, sluice.Added, outcome)
			before := b.Get(id)
			outcome, err = q.Enqueue(b.Context(), task)
			require.ErrorIs(b, err, sluice.ErrUnderReplicated)
			require.Equal(b, sluice.Kept, outcome)
			require.Equal(b, before, b.Get(id))
		}
	})
}

// held returns everything that the server holds of a queue.
func held(b systest.QueueTest) map[string]any {
	all := map[string]any{}
	for _, key := range b.RDB.Keys(b.Context(), "*").Val() {
		all[key] = b.RDB.Dump(b.Context(), key).Val()
		if b.RDB.Type(b.Context(), key).Val() == "zset" {
			all[key] = b.RDB.ZRangeWithScores(b.Context(), key, 0, -1).Val()
		}
	}
	return all
}

// TestQueue_ARepeatSaysWhatTheReplicasHave: whatever was ErrUnderReplicated stays so until the replica has it, though a repeat,
// by a client that has written nothing, finds nothing to do. It changes nothing either.
func TestQueue_ARepeatSaysWhatTheReplicasHave(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	ctx, rdb := t.Context(), g.Client(t)
	b := systest.NewQueueTest(t, rdb, "q")
	later := func(id string) sluice.Task { return sluice.Task{ID: id, Payload: []byte("p"), Delay: time.Hour} }
	stale := []string{"dequeue", "retry", "release", "bury"}
	for _, id := range append(stale, "revive", "drop") {
		b.Enqueue(sluice.Added, sluice.Task{ID: id})
	}
	claimed := map[string]sluice.Entry{}
	for _, e := range b.Claim(10, time.Hour) {
		claimed[e.ID] = e
	}
	b.Bury(claimed["revive"], "why")
	b.Bury(claimed["drop"], "why")
	b.Enqueue(sluice.Added, later("cancel"))
	require.NoError(t, b.Q.Pause(ctx, time.Hour))
	operations := map[string]func(q *sluice.Queue) error{
		"enqueue":       func(q *sluice.Queue) error { _, err := q.Enqueue(ctx, later("enqueue")); return err },
		"enqueue batch": func(q *sluice.Queue) error { _, err := q.EnqueueBatch(ctx, []sluice.Task{later("batch")}); return err },
		"cancel":        func(q *sluice.Queue) error { _, err := q.Cancel(ctx, "cancel"); return err },
		"dequeue":       func(q *sluice.Queue) error { return q.Dequeue(ctx, claimed["dequeue"]) },
		"retry":         func(q *sluice.Queue) error { return q.Retry(ctx, claimed["retry"], time.Hour) },
		"release":       func(q *sluice.Queue) error { return q.Release(ctx, claimed["release"]) },
		"bury":          func(q *sluice.Queue) error { return q.Bury(ctx, claimed["bury"], "why") },
		"revive":        func(q *sluice.Queue) error { _, err := q.Revive(ctx, "revive"); return err },
		"drop":          func(q *sluice.Queue) error { _, err := q.Drop(ctx, "drop"); return err },
		"reschedule":    func(q *sluice.Queue) error { _, err := q.Reschedule(ctx, "absent", 0); return err },
		"resume":        func(q *sluice.Queue) error { return q.Resume(ctx) },
	}
	each := func(check func(name string, err error)) {
		var all sync.WaitGroup
		for name, operation := range operations {
			all.Go(func() {
				check(name, operation(b.On(g.Client(t), sluice.WithQueueReplicas(1), sluice.WithDuplicates(sluice.Keep))))
			})
		}
		all.Wait()
	}
	g.Replicas[0].Pause(t)
	each(func(name string, err error) { assert.ErrorIs(t, err, sluice.ErrUnderReplicated, name) })
	before := held(b)
	each(func(name string, err error) { assert.ErrorIs(t, err, sluice.ErrUnderReplicated, "the repeat of "+name) })
	g.Replicas[0].Resume(t)
	require.Eventually(t, func() bool { // on a busy machine not the first time
		short := false
		each(func(name string, err error) {
			switch {
			case errors.Is(err, sluice.ErrUnderReplicated):
				short = true
			case slices.Contains(stale, name):
				assert.ErrorIs(t, err, sluice.ErrStale, name)
			default:
				assert.NoError(t, err, name)
			}
		})
		return !short
	}, 30*time.Second, time.Millisecond)
	require.Equal(t, before, held(b))
}

// TestQueue_AFullServerAcknowledgesTheLastTask: what finishes it is on the replicas, and so is what finds an empty queue.
func TestQueue_AFullServerAcknowledgesTheLastTask(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	ctx, rdb := t.Context(), g.Client(t)
	b := systest.NewQueueTest(t, rdb, "q")
	b.Enqueue(sluice.Added, sluice.Task{ID: "a"})
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
	var counter counts
	rdb.AddHook(&counter)
	const callers, rounds = 64, 20
	enqueueAll := func(prefix string, check func(error)) {
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				for i := range rounds {
					outcome, err := q.Enqueue(context.Background(), sluice.Task{ID: fmt.Sprint(prefix, c, ".", i)})
					if outcome != sluice.Added {
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
			if outcome != sluice.Added || !errors.Is(err, sluice.ErrUnderReplicated) {
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

// TestQueue_AForgottenScriptWaitsOnce: a server that does not know a script would wait for the replicas twice.
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
		require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
		err = q.Pause(systest.Within(t, time.Second), time.Hour)
		require.ErrorIs(t, err, sluice.ErrUnderReplicated)
		require.NotErrorIs(t, err, sluice.ErrUnknown)
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
