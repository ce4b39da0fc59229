package periodic

import (
	"cmp"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestPeriodic_WhatIsRemovedEnds after ten minutes, in which a worker that knows it would handle
// it.
func TestPeriodic_WhatIsRemovedEnds(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		old := sluice.Periodic{ID: "old", Schedule: sluice.Every(time.Hour)}
		_, stop := b.work("first", nil, old)
		synctest.Wait() // it has put it there
		stop()
		_, stop = b.work("second", nil)
		time.Sleep(time.Until(b.hour(1).Add(9 * time.Minute)))
		require.Empty(b, b.of("old"))
		_, stopThird := b.work("third", nil, old)
		time.Sleep(time.Minute)
		require.Len(b, b.of("old"), 1, "a worker that knows it got it")
		stopThird()
		time.Sleep(time.Until(b.hour(2).Add(9 * time.Minute)))
		require.EqualValues(b, 1, b.Stats().Scheduled)
		time.Sleep(2 * time.Minute)
		b.RequireClean()
		require.Len(b, b.of("old"), 1)
		require.Equal(b, 1, b.log.Count("removed a periodic task"))
		stop()
	})
}

// TestPeriodic_AnOldWorkerForgetsNothing that has waited for long: it has known of it for ten
// minutes itself.
func TestPeriodic_AnOldWorkerForgetsNothing(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		task := sluice.Periodic{ID: "a", Schedule: sluice.Every(24 * time.Hour)}
		_, stop := b.work("first", nil, task)
		synctest.Wait() // it has put it there
		stop()
		time.Sleep(25 * time.Hour) // no worker
		_, stop = b.work("unknowing", nil)
		time.Sleep(time.Minute)
		_, stopThird := b.work("third", nil, task)
		time.Sleep(time.Minute)
		require.Len(b, b.of("a"), 1)
		stop()
		stopThird()
	})
}

// TestPeriodic_AnOldWorkerCountsAnewForEachOccurrence: that it has seen one of them long ago says
// nothing about one that is late.
func TestPeriodic_AnOldWorkerCountsAnewForEachOccurrence(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		task := sluice.Periodic{ID: "a", Schedule: sluice.Every(24 * time.Hour)}
		handle := func(want int) {
			_, stop := b.work("knowing", nil, task)
			time.Sleep(time.Minute)
			stop()
			require.Len(b, b.of("a"), want)
		}
		handle(0)
		_, stop := b.work("unknowing", nil)
		time.Sleep(time.Until(task.Schedule.Next(time.Now())) + time.Minute)
		handle(1)
		require.NoError(b, b.Q.Pause(b.Context(), 0))
		time.Sleep(time.Until(task.Schedule.Next(time.Now())) + 15*time.Minute)
		require.NoError(b, b.Q.Resume(b.Context()))
		time.Sleep(time.Minute)
		handle(2)
		require.Zero(b, b.log.Count("removed a periodic task"))
		stop()
	})
}

// TestPeriodic_AChangedScheduleTakesEffect, to a sooner and to a later one.
func TestPeriodic_AChangedScheduleTakesEffect(t *testing.T) {
	redistest.NotShort(t)
	inPeriodicTest(t, func(b *periodicTest) {
		_, stop := b.work("", nil, sluice.Periodic{ID: "a", Schedule: sluice.Every(24 * time.Hour)})
		time.Sleep(90 * time.Minute)
		stop()
		from := time.Now()
		_, stop = b.work("", nil, sluice.Periodic{ID: "a", Schedule: sluice.Every(10 * time.Minute)})
		time.Sleep(85 * time.Minute)
		to := time.Now()
		stop()
		b.requireOn(b.T, "a", sluice.Every(10*time.Minute), from, to, soon)
		w, stop := b.work("", nil, sluice.Periodic{ID: "a", Schedule: daily{12, 3, time.UTC}})
		b.forget()
		from = time.Now()
		time.Sleep(50 * time.Hour)
		stop()
		b.requireOn(b.T, "a", daily{12, 3, time.UTC}, from, time.Now(), soon)
		require.Zero(b, w.Stats().Again)
	})
}

// TestPeriodic_RollingDeployment: workers with two schedules at the same time. The list of the one
// that started last decides when the task is due, whichever of them handles it; and no storm of
// moves keeps them busy.
func TestPeriodic_RollingDeployment(t *testing.T) {
	redistest.NotShort(t)
	for name, schedules := range map[string][2]sluice.Schedule{
		"sooner":       {sluice.Every(time.Hour), sluice.Every(10 * time.Minute)},
		"later":        {sluice.Every(10 * time.Minute), sluice.Every(time.Hour)},
		"other":        {daily{10, 0, time.UTC}, daily{11, 0, time.UTC}},
		"that counts":  {fromThen(7 * time.Minute), fromThen(11 * time.Minute)},
		"new one has":  {nil, sluice.Every(10 * time.Minute)},
		"old one has":  {sluice.Every(10 * time.Minute), nil},
		"both are one": {fromThen(7 * time.Minute), fromThen(7 * time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			inPeriodicTest(t, func(b *periodicTest) {
				var workers []*sluice.Worker
				var stops []func()
				for i, s := range schedules {
					var tasks []sluice.Periodic
					if s != nil {
						tasks = append(tasks, sluice.Periodic{ID: "a", Schedule: s})
					}
					w, stop := b.work(fmt.Sprint(i), nil, tasks...)
					workers, stops = append(workers, w), append(stops, stop)
					time.Sleep(time.Minute)
				}
				from, of, late, day := time.Now(), schedules[1], soon, 2*time.Hour
				switch name {
				case "other":
					day = 50 * time.Hour
				case "old one has", "new one has":
					of, late = cmp.Or(schedules[1], schedules[0]), time.Minute
				}
				time.Sleep(day + 5*time.Minute)
				all := b.of("a")
				require.NotEmpty(b, all)
				if every, counts := of.(fromThen); counts {
					b.requireApart(all, time.Duration(every))
				} else {
					b.requireOn(b.T, "a", of, from, time.Now(), late)
				}
				again := workers[0].Stats().Again + workers[1].Stats().Again
				require.Less(b, again, int64(5*len(all)+5), "it is put back for seconds")
				for _, stop := range stops {
					stop()
				}
			})
		})
	}
}

// requireApart requires that each run is of an occurrence so long after the one before, to the
// second; or longer, until the worker with the newer list has looked, after the other one has
// handled it.
func (b *periodicTest) requireApart(all []run, every time.Duration) {
	b.Helper()
	for i, run := range all[1:] {
		require.GreaterOrEqual(b, run.due.Sub(all[i].due), every-time.Second, "%v", all)
		require.LessOrEqual(b, run.due.Sub(all[i].due), every+90*time.Second, "%v", all)
		require.LessOrEqual(b, run.at.Sub(run.due), soon)
	}
}

// nextTest is a queue with a task that others take the place of.
type nextTest struct {
	systest.QueueTest
	now time.Time
}

// at returns the task as it is at a time after the start of the test.
func (b nextTest) at(after time.Duration) sluice.Task {
	return sluice.Task{ID: "a", At: b.now.Add(after), Payload: []byte(after.String()), Header: map[string]string{"k": after.String()}}
}

// requireIs requires that the task is the one of at, and was never claimed.
func (b nextTest) requireIs(state sluice.State, after time.Duration) {
	b.Helper()
	e, err := b.Q.Get(b.Context(), "a")
	require.NoError(b, err)
	require.Equal(b, state, e.State)
	require.WithinDuration(b, b.at(after).At, e.Due, time.Millisecond)
	require.Equal(b, after.String(), string(e.Payload))
	require.Equal(b, after.String(), e.Header["k"])
	require.Zero(b, e.Attempt)
}

func eachNextTest(t *testing.T, test func(b nextTest)) {
	t.Helper()
	systest.EachQueue(t, func(b systest.QueueTest) { test(nextTest{b, time.Now()}) })
}

// TestPeriodic_ALateReportChangesNothing: one that had no reply and is sent again, or that the
// network has held, comes when another worker has been handed the next occurrence, or has handled
// it, or when the task is gone. Only who has the receipt may end the claim.
func TestPeriodic_ALateReportChangesNothing(t *testing.T) {
	eachNextTest(t, func(b nextTest) {
		const lease = time.Minute
		putNext := func(of sluice.Entry, after time.Duration) error {
			return b.PutNext(b.Context(), of, b.at(after))
		}
		late := func(of sluice.Entry) {
			b.Helper()
			require.ErrorIs(b, putNext(of, -2*time.Minute), sluice.ErrStale)
			require.ErrorIs(b, b.Q.Dequeue(b.Context(), of), sluice.ErrStale)
		}
		b.Enqueue(sluice.OutcomeAdded, b.at(-3*time.Minute))
		first := b.ClaimOne(lease)
		require.NoError(b, putNext(first, -2*time.Minute))
		b.requireIs(sluice.StateDue, -2*time.Minute)
		late(first)
		b.requireIs(sluice.StateDue, -2*time.Minute)

		second := b.ClaimOne(lease)
		require.Equal(b, 1, second.Attempt)
		late(first) // it is being handled
		require.NoError(b, b.Q.Extend(b.Context(), second, 2*lease))
		late(first)
		require.NoError(b, putNext(second, time.Hour)) // the receipt of the claim stays the holder's
		late(first)                                    // it has been handled
		late(second)
		b.requireIs(sluice.StateScheduled, time.Hour)

		seen := b.Get("a")
		require.NoError(b, putNext(seen.Entry, time.Minute)) // a schedule has changed
		require.ErrorIs(b, putNext(seen.Entry, 2*time.Hour), sluice.ErrStale)
		b.requireIs(sluice.StateScheduled, time.Minute)

		_, err := b.Q.Cancel(b.Context(), "a")
		require.NoError(b, err)
		late(second)
		require.ErrorIs(b, putNext(seen.Entry, time.Minute), sluice.ErrStale)
		b.RequireClean()
	})
}

// TestPeriodic_TheNextIsKeptWhenTheLeaseHasEnded: a server whose clock is set ahead ends leases of
// which the holder does not know. As long as no other has been handed the task, its report is
// accepted.
func TestPeriodic_TheNextIsKeptWhenTheLeaseHasEnded(t *testing.T) {
	eachNextTest(t, func(b nextTest) {
		b.Enqueue(sluice.OutcomeAdded, b.at(-time.Minute))
		e := b.ClaimOne(2 * time.Second)
		b.Eventually(func() bool {
			now, err := b.Q.Get(b.Context(), "a")
			return err == nil && now.State == sluice.StateDue
		})
		require.NoError(b, b.PutNext(b.Context(), e, b.at(time.Hour)))
		b.requireIs(sluice.StateScheduled, time.Hour)
		require.Zero(b, b.Stats().Leased)
	})
}

// TestPeriodic_AWaitingVersionComesBeforeTheNext, with its own payload.
func TestPeriodic_AWaitingVersionComesBeforeTheNext(t *testing.T) {
	eachNextTest(t, func(b nextTest) {
		b.Enqueue(sluice.OutcomeAdded, b.at(-time.Minute))
		e := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeDeferred, b.at(2*time.Hour))
		require.NoError(b, b.PutNext(b.Context(), e, b.at(time.Hour)))
		b.requireIs(sluice.StateScheduled, 2*time.Hour)
	})
}
