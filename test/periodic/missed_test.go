package periodic

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestPeriodic_WhatIsMissedWhileNoWorkerRuns: the latest one is late, or is skipped; and the next
// one is in the future.
func TestPeriodic_WhatIsMissedWhileNoWorkerRuns(t *testing.T) {
	for missed, want := range map[sluice.Missed][]int{sluice.MissedLatest: {1, 11, 12}, sluice.MissedSkip: {1, 12}} {
		t.Run(fmt.Sprint(missed), func(t *testing.T) {
			inPeriodicTest(t, func(b *periodicTest) {
				hourly := sluice.Periodic{ID: "hourly", Schedule: sluice.Every(time.Hour), Missed: missed}
				_, stop := b.work("", nil, hourly)
				time.Sleep(90 * time.Minute)
				stop()
				time.Sleep(10*time.Hour + time.Minute)
				_, stop = b.work("", nil, hourly)
				time.Sleep(time.Hour)
				stop()
				for i, run := range b.of("hourly") {
					require.Less(b, i, len(want))
					require.Equal(b, b.hour(want[i]).UTC(), run.due.UTC())
				}
				require.Len(b, b.of("hourly"), len(want))
			})
		})
	}
}

// TestPeriodic_TheLatestMissedOneIsRetried as itself, also if millions were missed before it, for
// which the schedule is not asked.
func TestPeriodic_TheLatestMissedOneIsRetried(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		var calls atomic.Int64
		minutes := sluice.Periodic{ID: "a", Schedule: scheduleFunc(func(t time.Time) time.Time {
			calls.Add(1)
			return sluice.Every(2 * time.Second).Next(t)
		})}
		_, stop := b.work("", nil, minutes)
		time.Sleep(3 * time.Second)
		stop()
		time.Sleep(7*24*time.Hour + 500*time.Millisecond)
		calls.Store(0)
		b.forget()
		back := time.Now()
		_, stop = b.work("", func(_ context.Context, e sluice.Entry) error {
			if e.Attempt == 1 && len(b.of("a")) == 1 {
				return sluice.RetryIn(100*time.Millisecond, errors.New("failed"))
			}
			return nil
		}, minutes)
		time.Sleep(5 * time.Second)
		stop()
		latest := back.Truncate(2 * time.Second).UTC()
		for i, want := range []time.Time{latest, latest, latest.Add(2 * time.Second), latest.Add(4 * time.Second)} {
			require.Equal(b, want, b.of("a")[i].due.UTC(), "%v", b.of("a"))
		}
		require.Less(b, calls.Load(), int64(100))
	})
}

// TestPeriodic_ARetryIsNotMissed, however late it comes: its handler has begun in time.
func TestPeriodic_ARetryIsNotMissed(t *testing.T) {
	inPeriodicTest(t, func(b *periodicTest) {
		_, stop := b.work("", func(_ context.Context, e sluice.Entry) error {
			if e.Attempt == 1 {
				return sluice.RetryIn(10*time.Minute, errors.New("failed"))
			}
			return nil
		}, sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour), Missed: sluice.MissedSkip})
		time.Sleep(time.Until(b.hour(2)) - time.Minute)
		stop()
		require.Len(b, b.of("a"), 2)
		for i, run := range b.of("a") {
			require.Equal(b, b.hour(1).UTC(), run.due.UTC())
			require.Equal(b, i+1, run.attempt)
		}
	})
}

// TestPeriodic_WhatGoesOnLaterIsNotMissed: its handler has begun in time, and is called again, though
// no attempt says so: after Again, also twice, and after a stop that has interrupted it.
func TestPeriodic_WhatGoesOnLaterIsNotMissed(t *testing.T) {
	hourly := sluice.Periodic{ID: "a", Schedule: sluice.Every(time.Hour), Missed: sluice.MissedSkip}
	check := func(b *periodicTest, times ...int) {
		var runs []int
		for _, run := range b.of("a") {
			runs = append(runs, int(run.due.Sub(b.hour(0))/time.Hour))
			require.Equal(b, 1, run.attempt)
		}
		require.Equal(b, times, runs)
	}
	t.Run("again", func(t *testing.T) {
		inPeriodicTest(t, func(b *periodicTest) {
			_, stop := b.work("", func(context.Context, sluice.Entry) error {
				if n := len(b.of("a")); n < 4 {
					return sluice.Again(10 * time.Minute)
				}
				return nil
			}, hourly)
			time.Sleep(time.Until(b.hour(3)) - time.Minute)
			stop()
			check(b, 1, 1, 1, 1, 2)
		})
	})
	t.Run("interrupted", func(t *testing.T) {
		inPeriodicTest(t, func(b *periodicTest) {
			_, stop := b.work("", func(ctx context.Context, _ sluice.Entry) error {
				<-ctx.Done()
				return ctx.Err()
			}, hourly)
			time.Sleep(time.Until(b.hour(1)) + 3*time.Minute)
			stop()
			time.Sleep(3 * time.Minute)
			_, stop = b.work("", nil, hourly)
			time.Sleep(time.Until(b.hour(3)) - time.Minute)
			stop()
			check(b, 1, 1, 2)
		})
	})
	t.Run("not begun", func(t *testing.T) {
		inPeriodicTest(t, func(b *periodicTest) {
			_, stop := b.work("", nil, hourly)
			time.Sleep(time.Minute)
			stop()
			time.Sleep(time.Until(b.hour(1)) + 3*time.Minute)
			_, stop = b.work("", nil, hourly)
			time.Sleep(time.Until(b.hour(3)) - time.Minute)
			stop()
			check(b, 2)
		})
	})
}
