package queues

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// every is the schedule of all multiples of a duration since the Unix epoch.
type every time.Duration

func (d every) Next(t time.Time) time.Time { return t.Truncate(time.Duration(d)).Add(time.Duration(d)) }

// TestPeriodic_AnEarlierClaimThatIsAdmittedLater does not set the clock back by which the next
// occurrence is chosen. A process may have two claims of a task, if the server's clock was set
// ahead and the first lease is over.
func TestPeriodic_AnEarlierClaimThatIsAdmittedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnEarlierClaim) // there a schedule answers at once
}

func testAnEarlierClaim(t *testing.T) {
	const lease, interval = 30 * time.Second, 50 * time.Millisecond
	p := &Worker{
		Queue: &Queue{}, Loop: taskloop.Queue{Lease: lease}, Periodic: []Periodic{{ID: "tick", Schedule: every(interval)}},
	}
	p.startPeriodic()
	first := time.Unix(1_700_000_000, 0).UTC()
	claim := func(due, at time.Time) (store.Task, occurrence) {
		o := occurrence{after: due.Add(-interval), due: due}
		return store.Task{ID: "tick", Attempt: 1, Header: o.header("tick", nil), Score: float64(at.Add(lease).UnixMicro()) / 1e6}, o
	}
	earlier, before := claim(first, first)
	later, o := claim(first.Add(10*time.Second), first.Add(10*time.Second+time.Millisecond))
	for _, c := range []struct {
		store.Task
		occurrence
	}{{later, o}, {earlier, before}} {
		_, err := p.admit(c.Task, c.occurrence)
		require.NoError(t, err)
	}
	d := p.conclude(later, store.Disposition{Action: store.Finish})
	require.NotNil(t, d.Next)
	require.Equal(t, o.due.Add(interval), d.Next.At)
}

// TestPeriodic_OneThatAWorkerKnowsIsNotRemoved, however long ago one that does not know it claimed it first.
func TestPeriodic_OneThatAWorkerKnowsIsNotRemoved(t *testing.T) {
	t.Parallel()
	due := time.Unix(1_700_000_000, 0).UTC()
	w := &Worker{Queue: &Queue{}, Loop: taskloop.Queue{Lease: time.Minute, Log: slog.New(slog.DiscardHandler)}, Periodic: []Periodic{{ID: "tick", Schedule: every(time.Hour)}}}
	w.startPeriodic()
	w.noteTime(due)
	known := occurrence{after: due.Add(-time.Hour), due: due, unknown: due}
	putBack := func(attempt int, o occurrence) store.Action {
		task := store.Task{ID: "other", Attempt: attempt, Header: o.header("other", nil), Score: store.ScoreOf(due.Add(forgetAfter + time.Minute))}
		_, err := w.admit(task, o)
		var own *notHandledError
		require.ErrorAs(t, err, &own)
		return own.disposition.Action
	}
	require.Equal(t, store.Finish, putBack(1, known), "it is known to none")
	require.Equal(t, store.Again, putBack(2, known), "a handler has failed since")
	for _, action := range []store.Action{store.Release, store.Again} {
		claimed := store.Task{ID: "tick", Attempt: 1, Header: known.header("tick", nil), Score: store.ScoreOf(due.Add(time.Minute))}
		d := w.conclude(claimed, store.Disposition{Action: action, Delay: time.Second})
		require.NotNil(t, d.Next)
		_, header, _, _ := store.Unpack(d.Next.Payload)
		o, is := occurrenceIn("tick", header)
		require.True(t, is)
		require.Zero(t, o.unknown)
	}
	require.Zero(t, known.handled(due).unknown)
}

// TestPeriodic_OneThatHadFailedIsTriedAgain hours later, where one that was never begun gives way to the latest.
func TestPeriodic_OneThatHadFailedIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // the schedule answers at once
		due := time.Unix(1_700_000_000, 0).UTC()
		w := &Worker{Queue: &Queue{}, Loop: taskloop.Queue{Lease: time.Minute, Log: slog.New(slog.DiscardHandler)}, Periodic: []Periodic{{ID: "tick", Schedule: every(time.Hour)}}}
		w.startPeriodic()
		o := occurrence{after: due.Add(-time.Hour), due: due}
		task := store.Task{ID: "tick", Attempt: 2, Header: o.header("tick", nil), Score: store.ScoreOf(due.Add(3*time.Hour + 31*time.Minute))}
		_, err := w.admit(task, o)
		require.NoError(t, err)
		task.Attempt = 1
		_, err = w.admit(task, o)
		var own *notHandledError
		require.ErrorAs(t, err, &own)
		require.Equal(t, store.Again, own.disposition.Action)
		require.NotNil(t, own.disposition.Next)
	})
}

// TestPeriodic_AnAnswerIsNotLostToTheKeeper: a schedule that thinks for 2.5 s has said what is next,
// and the task, which keeps the place of that, is soon claimed. If the keeper asked anew meanwhile,
// the next occurrence would be late. The keeper of another process does ask: this one's may hang.
func TestPeriodic_AnAnswerIsNotLostToTheKeeper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := &counted{every: every(10 * time.Second)}
		now := time.Now().UTC()
		process := func() *periodicTask {
			w := &Worker{Queue: &Queue{}, Loop: taskloop.Queue{Lease: time.Minute, Log: slog.New(slog.DiscardHandler)}, Periodic: []Periodic{{ID: "tick", Schedule: slow}}}
			w.startPeriodic()
			w.noteTime(now)
			return w.tasks["tick"]
		}
		task, o := process(), occurrence{after: now.Add(-10 * time.Second), due: now}.handled(now)
		_, isKnown := task.plan(o, now)
		require.False(t, isKnown)
		time.Sleep(3 * time.Second)
		placed := store.Info{State: store.StateScheduled, Task: store.Task{ID: "tick", Header: o.header("tick", nil), Score: store.ScoreOf(now.Add(3200 * time.Millisecond))}}
		task.mend(t.Context(), placed, now.Add(3*time.Second))
		time.Sleep(200 * time.Millisecond)
		answer, isKnown := task.plan(o, now)
		require.True(t, isKnown)
		require.NoError(t, answer.err)
		require.Equal(t, every(10*time.Second).Next(now), answer.next.due)
		require.EqualValues(t, 1, slow.calls.Load())
		process().mend(t.Context(), placed, now.Add(3*time.Second)) // what is behind the answer fails: there is no server
		time.Sleep(3 * time.Second)
		require.EqualValues(t, 2, slow.calls.Load())
	})
}

// counted is a schedule that thinks for 2.5 s.
type counted struct {
	every
	calls atomic.Int64
}

func (c *counted) Next(t time.Time) time.Time {
	c.calls.Add(1)
	time.Sleep(2500 * time.Millisecond)
	return c.every.Next(t)
}
