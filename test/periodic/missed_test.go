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
