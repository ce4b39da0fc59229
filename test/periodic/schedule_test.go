package periodic

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// twenty is every twenty minutes, until a time from which something else answers.
func (b *periodicTest) twenty(until time.Time, after func(t time.Time) time.Time) sluice.Schedule {
	return scheduleFunc(func(t time.Time) time.Time {
		if !t.Before(until) {
			return after(t)
		}
		return sluice.Every(20 * time.Minute).Next(t)
	})
}

// TestPeriodic_SchedulesThatFail delay no other, also if the worker has one runner, and end, or
// wait for the schedule.
func TestPeriodic_SchedulesThatFail(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		last, over := b.start.Add(time.Hour), make(chan struct{})
		defer close(over)
		failing := map[string]func(t time.Time) time.Time{
			"panics":    func(time.Time) time.Time { panic("no") },
			"exits":     func(time.Time) time.Time { runtime.Goexit(); return time.Time{} },
			"hangs":     func(time.Time) time.Time { <-over; return time.Time{} },
			"zero":      func(time.Time) time.Time { return time.Time{} },
			"same":      func(t time.Time) time.Time { return t },
			"backwards": func(t time.Time) time.Time { return t.Add(-time.Hour) },
			"far":       func(t time.Time) time.Time { return t.AddDate(1000, 0, 0) },
		}
		w := &sluice.Worker{Queue: b.Q, Concurrency: 1, Logger: systest.LogTo(&b.log), Grace: time.Second,
			Periodic: []sluice.Periodic{{ID: "well", Schedule: sluice.Every(20 * time.Minute)}},
			Handler: func(_ context.Context, e sluice.Entry) error {
				b.note("", e)
				return nil
			}}
		for id, after := range failing {
			w.Periodic = append(w.Periodic, sluice.Periodic{ID: id, Schedule: b.twenty(last, after)},
				sluice.Periodic{ID: id + " at once", Schedule: scheduleFunc(after)})
		}
		stop := systest.StartWorker(b.T, w)
		time.Sleep(3*time.Hour - time.Minute)
		stopping := time.Now()
		require.NoError(b, stop())
		require.LessOrEqual(b, time.Since(stopping), time.Second)
		b.requireOn(b.T, "well", sluice.Every(20*time.Minute), b.start, stopping, soon/2)
		for id := range failing {
			b.requireOn(b.T, id, sluice.Every(20*time.Minute), b.start, last.Add(time.Second), soon/2)
			require.Empty(b, b.of(id+" at once"))
			require.Equal(b, 1, b.log.Count("has no next occurrence\" queue="+b.Q.Name()+" task="+id+" "), id)
		}
		require.Equal(b, 14, b.log.Count("has no next occurrence"), "once each")
		require.EqualValues(b, 1+3, b.Stats().Scheduled, "of those that may answer yet, one keeps the place of the next")
	})
}

// TestPeriodic_AScheduleThatHangsForAWhile loses no occurrence that is in the queue, repeats none,
// and goes on when it answers again. Run ends though, and what runs then knows as much.
func TestPeriodic_AScheduleThatHangsForAWhile(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		var calls atomic.Int64
		from, to := b.hour(1).Add(-time.Second), b.hour(1).Add(70*time.Minute)
		hangs := scheduleFunc(func(t time.Time) time.Time {
			if now := time.Now(); now.After(from) && now.Before(to) { // as the first occurrence comes, and until the next has passed
				calls.Add(1)
				time.Sleep(time.Until(to))
			}
			return sluice.Every(time.Hour).Next(t)
		})
		_, stop := b.work("", nil, sluice.Periodic{ID: "hangs", Schedule: hangs})
		time.Sleep(time.Until(b.hour(1).Add(5 * time.Minute)))
		require.Len(b, b.of("hangs"), 1)
		require.WithinDuration(b, b.hour(1), b.of("hangs")[0].at, soon)
		stopping := time.Now()
		stop()
		require.LessOrEqual(b, time.Since(stopping), time.Second)
		_, stop = b.work("", nil, sluice.Periodic{ID: "hangs", Schedule: hangs})
		time.Sleep(time.Until(b.hour(4).Add(time.Minute)))
		stop()
		b.requireOn(b.T, "hangs", sluice.Every(time.Hour), b.start, time.Now(), 12*time.Minute)
		require.Equal(b, int64(2), calls.Load(), "what hangs is not called again")
		require.Equal(b, 2, b.log.Count("does not return"))
	})
}

// TestPeriodic_AClockThatWasAhead by an hour for a second: what was due in that hour was handled
// early, once, as the latest that was missed. What is due too late then is mended within a minute
// and a half, be it the next occurrence or a retry.
func TestPeriodic_AClockThatWasAhead(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		nightly := daily{2, 0, time.UTC}
		ten := sluice.Every(10 * time.Second)
		time.Sleep(80 * time.Minute)
		b.start = time.Now()
		wrong := b.hour(1).Add(-30 * time.Minute) // of the hour that is left out, half is before nightly's time
		latest := wrong.Add(time.Hour - 10*time.Second)
		_, stop := b.work("", func(_ context.Context, e sluice.Entry) error {
			switch {
			case e.ID == "slow":
				time.Sleep(5 * time.Second)
			case e.ID == "fails" && e.Due.Equal(latest):
				return errors.New("failed")
			}
			return nil
		}, sluice.Periodic{ID: "nightly", Schedule: nightly}, sluice.Periodic{ID: "ten", Schedule: ten},
			sluice.Periodic{ID: "slow", Schedule: ten}, sluice.Periodic{ID: "fails", Schedule: ten},
			sluice.Periodic{ID: "relative", Schedule: fromThen(10 * time.Second)})
		time.Sleep(time.Until(wrong.Add(-500 * time.Millisecond)))
		b.server.SetTime(time.Now().Add(time.Hour))
		time.Sleep(time.Second)
		b.server.SetTime(time.Time{})
		time.Sleep(time.Until(b.hour(1).Add(10 * time.Minute)))
		stop()
		for _, id := range []string{"ten", "slow", "fails"} {
			var before, early, after []run
			for _, run := range b.of(id) {
				switch {
				case run.due.Before(wrong):
					before = append(before, run)
				case run.due.Equal(latest):
					early = append(early, run)
				default:
					after = append(after, run)
				}
			}
			b.requireRuns(id, ten, b.start, wrong, before)
			require.Len(b, early, 1, id)
			require.WithinDuration(b, wrong, early[0].at, time.Second)
			require.LessOrEqual(b, after[0].due.Sub(wrong), 3*time.Minute, id) // as docs/guarantees.md says: two looks, each within 90 s
			b.requireRuns(id, ten, after[0].due.Add(-time.Second), time.Now(), after)
		}
		relative := b.of("relative")
		for i, run := range relative[1:] {
			require.LessOrEqual(b, run.at.Sub(relative[i].at), 3*time.Minute+10*time.Second)
		}
		b.requireRuns("nightly", nightly, b.start, time.Now(), b.of("nightly"))
		require.WithinDuration(b, wrong, b.of("nightly")[0].at, time.Second)
		require.Equal(b, nightly.Next(b.of("nightly")[0].due), b.Get("nightly").Due.UTC())
	})
}

// TestPeriodic_AClockThatWasADayAhead for a moment, in which occurrences were handled, or for
// minutes, in which a worker found all as it was to be, silences no task for longer than it takes
// to see it: also if all workers start anew. The log says so.
func TestPeriodic_AClockThatWasADayAhead(t *testing.T) {
	for name, test := range map[string]struct {
		every, lasts time.Duration
		restarts     bool
	}{
		"a moment":             {every: time.Second, lasts: 2500 * time.Millisecond},
		"a moment and a start": {every: time.Second, lasts: 2500 * time.Millisecond, restarts: true},
		"minutes":              {every: time.Hour, lasts: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inPeriodicTest(t, func(b *periodicTest) {
				b.Q = b.On(b.RDB)
				task := sluice.Periodic{ID: "a", Schedule: sluice.Every(test.every)}
				_, stop := b.work("", nil, task)
				time.Sleep(2 * time.Minute)
				for over := time.Now().Add(test.lasts); time.Now().Before(over); time.Sleep(min(test.every/10, time.Second)) {
					b.server.SetTime(time.Now().Add(24 * time.Hour))
				}
				b.server.SetTime(time.Time{})
				if test.restarts {
					stop()
					_, stop = b.work("", nil, task)
				}
				time.Sleep(4 * time.Minute)
				again := b.Get("a")
				require.LessOrEqual(b, time.Until(again.Due), 2*test.every, "silenced") // one may have been handled early
				b.forget()
				time.Sleep(max(time.Minute, 3*test.every))
				stop()
				b.requireOn(b.T, "a", task.Schedule, again.Due.Add(-1), time.Now(), 6*time.Second)
				if test.every < test.lasts {
					require.Equal(b, 1, b.log.Count("clock was ahead"), "%s", b.log.String())
				}
			})
		})
	}
}

// TestPeriodic_AStartWhileTheClockIsBehind for some seconds has nothing handled twice: what was
// handled is ahead of that clock.
func TestPeriodic_AStartWhileTheClockIsBehind(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		b.Q = b.On(b.RDB)
		task := sluice.Periodic{ID: "a", Schedule: sluice.Every(10 * time.Second)}
		_, stop := b.work("", nil, task)
		time.Sleep(10*time.Minute + 2*time.Second)
		b.server.SetTime(time.Now().Add(-time.Hour))
		_, stopSecond := b.work("", nil, task)
		time.Sleep(3 * time.Second)
		b.server.SetTime(time.Time{})
		time.Sleep(time.Minute)
		stop()
		stopSecond()
		all := b.of("a")
		for i, run := range all[1:] {
			require.True(b, run.due.After(all[i].due), "%v after %v", run, all[i])
		}
	})
}

// requireRuns requires that there was one run for each of the occurrences of a schedule in a time.
func (b *periodicTest) requireRuns(id string, s sluice.Schedule, from, to time.Time, all []run) {
	b.Helper()
	var want, got []time.Time
	for at := s.Next(from); at.Before(to); at = s.Next(at) {
		want = append(want, at.UTC())
	}
	for _, run := range all {
		got = append(got, run.due.UTC())
	}
	for i := range min(len(want), len(got)) {
		require.Equal(b, want[i], got[i], id)
	}
	require.Len(b, got, len(want), id)
}

// TestPeriodic_AClockThatWasBehind for a second has nothing handled twice.
func TestPeriodic_AClockThatWasBehind(t *testing.T) {
	redistest.NotShort(t)
	inPeriodicTest(t, func(b *periodicTest) {
		ten := sluice.Every(10 * time.Second)
		b.Q = b.On(b.RDB)
		_, stop := b.work("", nil, sluice.Periodic{ID: "ten", Schedule: ten}, sluice.Periodic{ID: "hourly", Schedule: sluice.Every(time.Hour)})
		for i := range 5 {
			time.Sleep(time.Until(b.hour(1).Add(time.Duration(i)*time.Minute - 500*time.Millisecond)))
			b.server.SetTime(time.Now().Add(-time.Hour))
			time.Sleep(time.Second)
			b.server.SetTime(time.Time{})
		}
		time.Sleep(10 * time.Minute)
		stop()
		b.requireOn(b.T, "hourly", sluice.Every(time.Hour), b.start, time.Now(), 6*time.Second)
		all := b.of("ten")
		for i, run := range all[1:] {
			require.True(b, run.due.After(all[i].due), "%v after %v", run, all[i])
			require.LessOrEqual(b, run.due.Sub(all[i].due), 20*time.Second)
		}
		require.True(b, slices.IsSortedFunc(all, func(a, b run) int { return a.due.Compare(b.due) }))
	})
}

// TestPeriodic_IsNotPutOffPastTheNext by an operator either.
func TestPeriodic_IsNotPutOffPastTheNext(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		_, stop := b.work("", nil, sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour)})
		time.Sleep(time.Until(b.hour(1).Add(10 * time.Minute)))
		_, err := b.Q.Reschedule(b.Context(), "a", 24*time.Hour)
		require.NoError(b, err)
		time.Sleep(time.Until(b.hour(5).Add(10 * time.Minute)))
		stop()
		b.requireOn(b.T, "a", sluice.Every(time.Hour), b.start, time.Now(), soon)
	})
}

// TestPeriodic_AScheduleThatFailsOnce puts an occurrence that is long overdue back for some
// seconds, not for as long as it is overdue.
func TestPeriodic_AScheduleThatFailsOnce(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		var fails atomic.Bool
		daily := scheduleFunc(func(t time.Time) time.Time {
			if fails.CompareAndSwap(true, false) {
				panic("no")
			}
			return sluice.Every(24 * time.Hour).Next(t)
		})
		_, stop := b.work("", nil, sluice.Periodic{ID: "a", Schedule: daily})
		synctest.Wait() // it has put it there
		stop()
		due := b.Get("a").Due
		time.Sleep(time.Until(due.Add(10 * time.Hour))) // no worker runs
		fails.Store(true)
		_, stop = b.work("", nil, sluice.Periodic{ID: "a", Schedule: daily})
		time.Sleep(time.Minute)
		stop()
		require.Len(b, b.of("a"), 1)
		require.Equal(b, due.UTC(), b.of("a")[0].due)
	})
}

// TestPeriodic_RescheduledWhileItRuns runs once more when its handler has returned, also in the
// process that has concluded the occurrence.
func TestPeriodic_RescheduledWhileItRuns(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		calls := 0
		_, stop := b.work("", func(ctx context.Context, e sluice.Entry) error {
			if calls++; calls == 1 {
				was, err := b.Q.Reschedule(ctx, e.ID, 0)
				require.True(b, was)
				return err
			}
			return nil
		}, sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour)})
		time.Sleep(time.Until(b.hour(2).Add(time.Minute)))
		stop()
		var dues []time.Time
		for _, run := range b.of("a") {
			dues = append(dues, run.due)
		}
		require.Equal(b, []time.Time{b.hour(1).UTC(), b.hour(1).UTC(), b.hour(2).UTC()}, dues)
	})
}

// TestPeriodic_IsNotMovedByLessThanAMicrosecond: a due time in Redis has microseconds, and one of a
// schedule may lie between two.
func TestPeriodic_IsNotMovedByLessThanAMicrosecond(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		odd := sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour + 646*time.Nanosecond)}
		_, stop := b.work("", nil, odd)
		time.Sleep(time.Second) // the first occurrence comes and goes
		before := b.Get("a").Header
		_, stopOther := b.work("", nil, odd)
		time.Sleep(5 * time.Minute)
		require.Equal(b, before, b.Get("a").Header)
		stop()
		stopOther()
	})
}

// TestPeriodic_GoesOnWhereItIsDone: its ID was finished and is remembered, of an earlier schedule
// or a task of that name. It is enqueued all the same, whatever the queue does with duplicates.
func TestPeriodic_GoesOnWhereItIsDone(t *testing.T) {
	for _, policy := range []sluice.Duplicates{sluice.DuplicatesReplace, sluice.DuplicatesOnce} {
		inPeriodicTest(t, func(b *periodicTest) {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "hourly"})
			require.NoError(b, b.Q.Dequeue(b.Context(), b.ClaimOne(time.Minute)))
			require.Equal(b, sluice.StateDone, b.Get("hourly").State)
			b.start = time.Now()
			_, stop := b.work("", nil, sluice.Periodic{ID: "hourly", Schedule: sluice.Every(time.Hour)})
			time.Sleep(5*time.Hour + time.Minute)
			stop()
			b.requireOn(b.T, "hourly", sluice.Every(time.Hour), b.start, time.Now(), soon)
			require.Equal(b, sluice.StateScheduled, b.Get("hourly").State)
		}, sluice.WithRetention(24*time.Hour), sluice.WithDuplicates(policy))
	}
}
