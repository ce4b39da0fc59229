package workers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestDiscard_LeavesNothing: no dead letter, also on the last attempt, and nothing that the queue's
// retention remembers, neither of its ID nor of its result. So DuplicatesOnce takes the ID again.
// What other handlers finish at the same time is remembered.
func TestDiscard_LeavesNothing(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		log := &systest.Buffer{}
		q := b.On(b.RDB, sluice.WithMaxAttempts(1), sluice.WithRetention(time.Hour), sluice.WithDuplicates(sluice.DuplicatesOnce))
		w := &sluice.Worker{Queue: q, Logger: systest.LogTo(log), Handler: func(ctx context.Context, e sluice.Entry) error {
			require.NoError(b, sluice.RecordResult(ctx, []byte("result")))
			if e.ID == "done" {
				return nil
			}
			return fmt.Errorf("wrapped: %w", sluice.Discard(refusal{}))
		}}
		tasks := []sluice.Task{{ID: "a"}, {ID: "done"}, {ID: "b", Payload: []byte("p")}, {ID: "c", Kind: "k"}}
		outcomes, err := q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		require.NotContains(b, outcomes, sluice.OutcomeDone)
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Discarded+w.Stats().Done == 4 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Discarded: 3, Done: 1}, w.Stats())
		require.Equal(b, 3, log.Count("task discarded"))
		require.Equal(b, 3, log.Count("error=\"wrapped: "+refusal{}.Error()))
		require.Zero(b, log.Count("buried")+log.Count("attempt failed"))
		for _, task := range tasks {
			found, err := q.Get(b.Context(), task.ID)
			if task.ID == "done" {
				require.NoError(b, err)
				require.Equal(b, "result", string(found.Result))
				continue
			}
			require.ErrorIs(b, err, sluice.ErrNotFound)
			outcome, err := q.Enqueue(b.Context(), task)
			require.NoError(b, err)
			require.Equal(b, sluice.OutcomeAdded, outcome)
		}
		require.NoError(b, b.Q.Purge(b.Context()))
		b.RequireClean()
	})
}

// TestDiscard_WhatElseIsSaid: Permanent and Again win, since they keep the task; RetryIn does not.
// A version that waits takes the task's place.
func TestDiscard_WhatElseIsSaid(t *testing.T) {
	require.NoError(t, sluice.Discard(nil))
	require.ErrorIs(t, sluice.Discard(refusal{}), refusal{})
	require.EqualError(t, sluice.Discard(refusal{}), refusal{}.Error())
	systest.EachQueue(t, func(b systest.QueueTest) {
		w := &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
			switch e.ID {
			case "permanent":
				return sluice.Discard(sluice.Permanent(refusal{}))
			case "within":
				return sluice.Permanent(sluice.Discard(refusal{}))
			case "again":
				return errors.Join(sluice.Discard(refusal{}), sluice.Again(time.Hour))
			case "deferred":
				if string(e.Payload) == "new" {
					return nil
				}
				b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: e.ID, Payload: []byte("new")})
			}
			return sluice.RetryIn(time.Hour, sluice.Discard(refusal{}))
		}}
		stop := systest.StartWorker(b.T, w)
		for _, id := range []string{"permanent", "within", "again", "deferred", "retry in"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
		}
		b.Eventually(func() bool { s := w.Stats(); return s.Done+s.Buried+s.Again+s.Discarded == 6 })
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Buried: 2, Again: 1, Discarded: 2, Done: 1}, w.Stats())
	})
}

// TestDiscard_OfAPeriodic ends the occurrence: the next one comes.
func TestDiscard_OfAPeriodic(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		w := &sluice.Worker{Queue: b.Q, Periodic: []sluice.Periodic{{ID: "p", Schedule: sluice.Every(100 * time.Millisecond)}},
			Handler: func(context.Context, sluice.Entry) error { return sluice.Discard(refusal{}) }}
		stop := systest.StartWorker(b.T, w)
		b.Eventually(func() bool { return w.Stats().Discarded >= 2 })
		require.NoError(b, stop())
		require.Zero(b, w.Stats().Done+w.Stats().Retried+w.Stats().Buried)
		require.Zero(b, b.Stats().Dead)
	})
}

// TestDiscard_ALostReplyIsRepeated, as that of any result is.
func TestDiscard_ALostReplyIsRepeated(t *testing.T) {
	t.Parallel()
	rdb, faults := redistest.Redis(t).Faulty(t)
	b := systest.NewQueueTest(t, rdb, redistest.Name(t), sluice.WithRetention(time.Hour))
	w := &sluice.Worker{Queue: b.Q, Lease: 3 * time.Second, Handler: func(context.Context, sluice.Entry) error {
		faults.DropReply(1)
		return sluice.Discard(refusal{})
	}}
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
	stop := systest.StartWorker(t, w)
	b.Eventually(func() bool { return w.Stats().Discarded == 1 })
	require.NoError(t, stop())
	require.Equal(t, sluice.WorkerStats{Discarded: 1}, w.Stats())
	b.RequireClean()
}
