package queues

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// all returns all tasks of a queue, and its stocks, with what they were read with.
func all(b systest.QueueTest, q *sluice.Queue) (ts []sluice.TaskInfo) {
	b.Helper()
	for _, state := range []sluice.State{sluice.StateScheduled, sluice.StateDue, sluice.StateLeased, sluice.StateDead, sluice.StateWaiting} {
		for t, err := range q.All(b.Context(), state) {
			require.NoError(b, err)
			ts = append(ts, t)
		}
	}
	return ts
}

// TestRestore_IsAnExactRoundTrip: what is read of a queue and put into an empty one is the same there: states, due
// times, attempts, errors, reasons, payloads, headers, kinds, groups, units and ends.
func TestRestore_IsAnExactRoundTrip(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		from, err := sluice.NewQueue(b.RDB, b.Q.Name()+".from")
		require.NoError(b, err)
		to, err := sluice.NewQueue(b.RDB, b.Q.Name()+".to")
		require.NoError(b, err)
		require.NoError(b, from.SetStock(ctx, "phone", 100))
		now := b.RDB.Time(ctx).Val()
		for i := range 60 {
			task := sluice.Task{ID: fmt.Sprint("t", i), Kind: "k", At: now.Add(time.Duration(i-40) * time.Minute), Payload: []byte{byte(i), 0xff}, Header: map[string]string{"trace": fmt.Sprint(i)}}
			switch i % 5 {
			case 1:
				task.Group = fmt.Sprint("g", i%2)
			case 2:
				task.Take = sluice.Take{Item: "phone", Units: 1 + i%3}
			case 3:
				task.Kind, task.Payload, task.Header = "", nil, nil
			case 4:
				task.Expires = now.Add(24 * time.Hour)
			}
			_, err := from.Enqueue(ctx, task)
			require.NoError(b, err)
		}
		es, err := from.Claim(ctx, 20, time.Hour)
		require.NoError(b, err)
		require.NoError(b, from.Bury(ctx, "dial tcp: no route", es[:6]...))
		for _, e := range es[6:12] {
			require.NoError(b, retry(ctx, from, e))
		}
		require.NoError(b, from.Release(ctx, es[12:]...))
		want := all(b, from)
		states := map[sluice.State]int{}
		for _, t := range want {
			states[t.State]++
		}
		require.Len(b, states, 4, "each state but leased")
		rand.Shuffle(len(want), func(i, j int) { want[i], want[j] = want[j], want[i] })
		outcomes, err := to.Restore(ctx, want...)
		require.NoError(b, err)
		for _, o := range outcomes {
			require.Equal(b, sluice.OutcomeAdded, o)
		}
		require.Len(b, outcomes, len(want))
		require.ElementsMatch(b, all(b, from), all(b, to))
		// The units are held, and how many there are in all is said apart.
		require.NoError(b, to.SetStock(ctx, "phone", 100))
		held, err := from.Stock(ctx, "phone")
		require.NoError(b, err)
		have, err := to.Stock(ctx, "phone")
		require.NoError(b, err)
		require.Equal(b, held, have)
		require.Positive(b, have.Held)

		outcomes, err = to.Restore(ctx, want...)
		require.NoError(b, err)
		for _, o := range outcomes {
			require.Equal(b, sluice.OutcomeKept, o)
		}
		again, err := to.Stock(ctx, "phone")
		require.NoError(b, err)
		require.Equal(b, have, again, "what is kept takes no units")

		// All of them can be worked on.
		ids, err := to.Claim(ctx, 100, time.Hour)
		require.NoError(b, err)
		require.NotEmpty(b, ids)
		require.NoError(b, to.Dequeue(ctx, ids...))
	})
}

// retry gives a task back, due an hour later, or at once.
func retry(ctx context.Context, q *sluice.Queue, e sluice.Entry) error {
	return errors.Join(q.Retry(ctx, time.Duration(len(e.ID)%2)*time.Hour, "it failed", e))
}

// TestRestore_WhatWasLeasedIsDue, once, and its attempt counts.
func TestRestore_WhatWasLeasedIsDue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		b.ClaimOne(time.Hour)
		to, err := sluice.NewQueue(b.RDB, b.Q.Name()+".to")
		require.NoError(b, err)
		_, err = to.Restore(ctx, b.Get("a"))
		require.NoError(b, err)
		es, err := to.Claim(ctx, 1, time.Minute)
		require.NoError(b, err)
		require.Len(b, es, 1)
		require.Equal(b, 2, es[0].Attempt)
	})
}

// TestRestore_WakesAWaitingWorker: it does not wait for its next poll.
func TestRestore_WakesAWaitingWorker(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		q, err := sluice.NewQueue(b.RDB, b.Q.Name(), sluice.WithPollInterval(time.Hour))
		require.NoError(b, err)
		done := make(chan string, 1)
		stop := systest.StartWorker(b.T, &sluice.Worker{Queue: q, Handler: func(_ context.Context, e sluice.Entry) error {
			done <- e.ID
			return nil
		}})
		b.Eventually(func() bool {
			s, err := q.Stats(b.Context())
			require.NoError(b, err)
			return s.Waiting == 1
		})
		_, err = q.Restore(b.Context(), sluice.TaskInfo{Entry: sluice.Entry{ID: "a", Due: time.Now().Add(-time.Minute)}, State: sluice.StateDue})
		require.NoError(b, err)
		require.Equal(b, "a", <-done)
		require.NoError(b, stop())
	})
}

// TestRestore_RefusesWhatItCannotPutBack, and sends nothing then.
func TestRestore_RefusesWhatItCannotPutBack(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		good := sluice.TaskInfo{Entry: sluice.Entry{ID: "a", Due: time.Now()}, State: sluice.StateDue}
		for name, spoil := range map[string]func(t *sluice.TaskInfo){
			"no ID":      func(t *sluice.TaskInfo) { t.ID = "" },
			"absent":     func(t *sluice.TaskInfo) { t.State = sluice.StateAbsent },
			"done":       func(t *sluice.TaskInfo) { t.State = sluice.StateDone },
			"no payload": func(t *sluice.TaskInfo) { t.Omitted = 5 },
			"attempt":    func(t *sluice.TaskInfo) { t.Attempt = -1 },
			"no due":     func(t *sluice.TaskInfo) { t.Due = time.Time{} },
			"no death":   func(t *sluice.TaskInfo) { t.State = sluice.StateDead },
			"units":      func(t *sluice.TaskInfo) { t.Take = sluice.Take{Item: "a", Units: -1} },
			"group":      func(t *sluice.TaskInfo) { t.Group = "a\x00" },
		} {
			bad := good
			spoil(&bad)
			_, err := b.Q.Restore(b.Context(), good, bad)
			require.ErrorIs(b, err, sluice.ErrInvalid, name)
		}
		require.Zero(b, b.Stats().Due)
	})
}

// TestRestore_WhatIsDoneStaysDone, while it is remembered: to restore a file again runs no finished work
// again.
func TestRestore_WhatIsDoneStaysDone(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		q, err := sluice.NewQueue(b.RDB, b.Q.Name(), sluice.WithRetention(time.Hour))
		require.NoError(b, err)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		was := b.Get("a")
		es, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(b, err)
		require.NoError(b, q.Dequeue(ctx, es...))
		for _, again := range []*sluice.Queue{q, b.Q} { // that one knows the retention by what workers have said, or not at all
			outcomes, err := again.Restore(ctx, was)
			require.NoError(b, err)
			require.Equal(b, []sluice.Outcome{sluice.OutcomeDone}, outcomes)
		}
		require.Equal(b, sluice.StateDone, b.Get("a").State)
	})
}

// TestRestore_OverWhatAForeignConsumerHasLeft: its lease takes no place any more, and is not counted.
func TestRestore_OverWhatAForeignConsumerHasLeft(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		was := b.Get("a")
		b.ClaimOne(time.Hour)
		require.NoError(b, b.RDB.ZRem(b.Context(), b.Key, "a").Err())
		_, err := b.Q.Restore(b.Context(), was)
		require.NoError(b, err)
		s := b.Stats()
		require.Equal(b, []int64{1, 0}, []int64{s.Due, s.Leased})
	})
}

// TestRestore_RefusesWhatNoHeaderHolds: Kind and Expires stand among the pairs of a header, so that
// one more would not be read back.
func TestRestore_RefusesWhatNoHeaderHolds(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		task := sluice.TaskInfo{State: sluice.StateDue, Entry: sluice.Entry{ID: "a", Due: time.Unix(1, 0), Header: map[string]string{}}}
		for i := range 64 {
			task.Header[fmt.Sprint(i)] = "v"
		}
		require.NoError(b, task.Check())
		task.Expires = time.Unix(5, 0)
		require.ErrorIs(b, task.Check(), sluice.ErrInvalid)
		_, err := b.Q.Restore(b.Context(), task)
		require.ErrorIs(b, err, sluice.ErrInvalid)
		delete(task.Header, "0")
		_, err = b.Q.Restore(b.Context(), task)
		require.NoError(b, err)
		require.Len(b, b.Get("a").Header, 63)
		task.State = -1
		_, err = b.Q.Restore(b.Context(), task)
		require.ErrorIs(b, err, sluice.ErrInvalid)
	})
}
