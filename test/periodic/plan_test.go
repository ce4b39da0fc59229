package periodic

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// firstThen is a schedule that answers at once some times, of which then makes another answer.
func firstThen(s sluice.Schedule, n int64, then func()) sluice.Schedule {
	var calls atomic.Int64
	return scheduleFunc(func(t time.Time) time.Time {
		if calls.Add(1) > n {
			then()
		}
		return s.Next(t)
	})
}

// TestPeriodic_NoOtherTaskWaitsForASchedule: 40 of them hang, are slow, panic or exit, at the start
// or later, and eight handlers work on them, on a task beside them, and on another queue; and 400
// that hang.
func TestPeriodic_NoOtherTaskWaitsForASchedule(t *testing.T) {
	const slow = 2500 * time.Millisecond
	over := make(chan struct{})
	for name, then := range map[string]func(){
		"hangs": func() { <-over }, "slow": func() { time.Sleep(slow) }, "panics": func() { panic("no") }, "exits": runtime.Goexit,
	} {
		for _, answers := range []int64{0, 2} {
			n := redistest.FullOrShort(40, 10)
			if name == "hangs" && answers == 0 {
				n = redistest.FullOrShort(400, 40)
			}
			t.Run(fmt.Sprint(name, " after ", answers), func(t *testing.T) {
				inPeriodicTest(t, func(b *periodicTest) {
					over = make(chan struct{}) // of the bubble
					bad, well, end := sluice.Every(10*time.Second), sluice.Every(time.Second), 59500*time.Millisecond
					handle := func(_ context.Context, e sluice.Entry) error {
						b.note("", e)
						return nil
					}
					p := &sluice.Pool{Concurrency: 8, Logger: systest.LogTo(&b.log), Workers: []*sluice.Worker{
						{Queue: b.Q, Handler: handle, Periodic: []sluice.Periodic{{ID: "beside", Schedule: well}}},
						{Queue: b.On(b.RDB, sluice.WithQueuePrefix("other")), Handler: handle, Periodic: []sluice.Periodic{{ID: "other", Schedule: well}}},
					}}
					for i := range n {
						p.Workers[0].Periodic = append(p.Workers[0].Periodic, sluice.Periodic{ID: fmt.Sprint(i), Schedule: firstThen(bad, answers, then)})
					}
					ctx, cancel := context.WithCancel(b.Context())
					ended := make(chan error, 1)
					go func() { ended <- p.Run(ctx) }()
					time.Sleep(end)
					close(over)
					cancel()
					require.NoError(b, <-ended)
					for _, id := range []string{"beside", "other"} {
						b.requireOn(b.T, id, well, b.start, b.start.Add(end), soon/2)
					}
					for i := range n {
						all := b.of(fmt.Sprint(i))
						require.LessOrEqual(b, len(all), 5)
						if name == "slow" { // at most the first ones are missed
							b.requireOn(b.T, fmt.Sprint(i), bad, all[0].due.Add(-1), b.start.Add(end), soon)
						}
						require.GreaterOrEqual(b, len(all), int(answers)/2)
					}
					require.LessOrEqual(b, b.log.Count("has no next occurrence"), n, "once each")
				})
			})
		}
	}
}
