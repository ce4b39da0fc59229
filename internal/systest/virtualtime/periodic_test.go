package virtualtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// periodicOutage is a test of a periodic task whose workers lose their server. It notes which
// occurrences were handled.
type periodicOutage struct {
	*outage
	q        *sluice.Queue // on the connections that may fail
	schedule sluice.Schedule
	start    time.Time

	mu      sync.Mutex // guards what follows
	handled []string
}

func periodicOutages(t *testing.T, every time.Duration, test func(o *periodicOutage)) {
	t.Helper()
	outages(t, func(o *outage) {
		defer time.Sleep(time.Minute) // so that what lingers has ended
		q := systest.NewQueueTest(o.T, o.rdb, redistest.Name(t), sluice.WithPollInterval(min(every/10, 10*time.Minute))).Q
		test(&periodicOutage{outage: o, q: q, schedule: sluice.Every(every), start: time.Now()})
	})
}

// work runs a worker. If then is not nil, it is called in the second call of a handler of this
// test, which returns what it returns.
func (o *periodicOutage) work(q *sluice.Queue, grace time.Duration, then func() error) (stop func() error) {
	return systest.StartWorker(o.T, &sluice.Worker{
		Queue: q, Grace: grace, Backoff: systest.After(90 * time.Minute),
		Periodic: []sluice.Periodic{{ID: "report", Schedule: o.schedule}},
		Handler: func(_ context.Context, e sluice.Entry) error {
			if o.note(e.Due) == 2 && then != nil {
				return then()
			}
			return nil
		},
	})
}

// note notes that an occurrence is handled, and returns how many calls there were.
func (o *periodicOutage) note(due time.Time) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.handled = append(o.handled, due.UTC().Format(time.TimeOnly))
	return len(o.handled)
}

// requireHandled requires that a handler was called for these occurrences, by their numbers from
// the start, in this order.
func (o *periodicOutage) requireHandled(numbers ...int) {
	o.Helper()
	var all, want []string
	at := o.start
	for range slices.Max(numbers) {
		at = o.schedule.Next(at)
		all = append(all, at.UTC().Format(time.TimeOnly))
	}
	for _, n := range numbers {
		want = append(want, all[n-1])
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	require.Equal(o, want, o.handled)
}

// outageKinds are what begins an outage, and what ends it.
var outageKinds = map[string]struct{ begin, end func(o *outage) }{
	"replies stall":       {func(o *outage) { o.faults.Stall() }, func(o *outage) { o.faults.Resume() }},
	"requests stall":      {func(o *outage) { o.faults.StallRequests() }, func(o *outage) { o.faults.Resume() }},
	"connections refused": {(*outage).begin, func(o *outage) { o.down.Store(false) }},
	"a lost reply":        {func(o *outage) { o.faults.DropReply(1) }, func(*outage) {}},
	"the server loads": {
		func(o *outage) { o.server.SetError("LOADING Redis is loading the dataset in memory") },
		func(o *outage) { o.server.SetError("") },
	},
}

// TestPeriodic_AnOutageRepeatsAndSkipsNothing: as the handler returns, whatever it returns, no
// server can be reached for a while. Each occurrence is handled once, also if that lasts for longer
// than the lease, since the process that has handled it lives.
func TestPeriodic_AnOutageRepeatsAndSkipsNothing(t *testing.T) {
	test := func(name, kind string, last time.Duration, handle func() error) {
		t.Run(fmt.Sprint(kind, " ", last, " ", name), func(t *testing.T) {
			periodicOutages(t, time.Hour, func(o *periodicOutage) {
				stop := o.work(o.q, 0, func() error {
					outageKinds[kind].begin(o.outage)
					time.AfterFunc(last, func() { outageKinds[kind].end(o.outage) })
					return handle()
				})
				time.Sleep(3*time.Hour + time.Minute)
				require.NoError(o, stop())
				o.requireHandled(1, 2, 3)
			})
		})
	}
	lasts := []time.Duration{time.Minute, 2 * time.Second, 25 * time.Second}
	for kind := range outageKinds {
		for _, last := range redistest.FullOrShort(lasts, lasts[:1]) {
			test("done", kind, last, func() error { return nil })
		}
	}
	for name, handle := range map[string]func() error{
		"permanent": func() error { return sluice.Permanent(errors.New("never")) },
		"failed":    func() error { return errors.New("not before the next") },
		"again":     func() error { return sluice.Again(90 * time.Minute) },
		"panics":    func() error { panic("no") },
	} {
		test(name, "connections refused", 10*time.Second, handle)
		test(name, "replies stall", time.Minute, handle)
	}
}

// TestPeriodic_AFailureInAnOutageIsRetried, and is no occurrence of its own.
func TestPeriodic_AFailureInAnOutageIsRetried(t *testing.T) {
	for name, result := range map[string]error{"failed": errors.New("failed"), "again": sluice.Again(time.Second)} {
		t.Run(name, func(t *testing.T) {
			periodicOutages(t, 2*time.Hour, func(o *periodicOutage) {
				stop := o.work(o.q, 0, func() error {
					o.begin()
					time.AfterFunc(10*time.Second, func() { o.down.Store(false) })
					return result
				})
				time.Sleep(9 * time.Hour)
				require.NoError(o, stop())
				o.requireHandled(1, 2, 2, 3, 4)
			})
		})
	}
}

// TestPeriodic_WhatComesInAnOutageIsHandledOnce, late, and what follows comes at its time.
func TestPeriodic_WhatComesInAnOutageIsHandledOnce(t *testing.T) {
	for kind, fault := range outageKinds {
		t.Run(kind, func(t *testing.T) {
			periodicOutages(t, time.Minute, func(o *periodicOutage) {
				stop := o.work(o.q, 0, func() error {
					time.Sleep(50 * time.Second)
					fault.begin(o.outage)
					time.AfterFunc(18*time.Second, func() { fault.end(o.outage) })
					return nil
				})
				time.Sleep(5*time.Minute + 50*time.Second)
				require.NoError(o, stop())
				o.requireHandled(1, 2, 3, 4, 5)
			})
		})
	}
}

// TestPeriodic_AnotherProcessMayRepeatAfterTheLease: it cannot know what has become of the
// occurrence. The one that has handled it changes nothing any more when its connections work again.
func TestPeriodic_AnotherProcessMayRepeatAfterTheLease(t *testing.T) {
	for last, want := range map[time.Duration][]int{
		10 * time.Second: {1, 2, 3, 4},
		40 * time.Second: {1, 2, 2, 3, 4},
	} {
		t.Run(last.String(), func(t *testing.T) {
			periodicOutages(t, time.Hour, func(o *periodicOutage) {
				name := o.q.Name()
				var stopOther func() error
				stop := o.work(o.q, 0, func() error {
					o.faults.StallRequests()
					time.AfterFunc(last, o.faults.Resume)
					other, err := sluice.NewQueue(o.clean, name, sluice.WithPollInterval(4*time.Second)) // the first is the watchman
					require.NoError(o, err)
					stopOther = o.work(other, 0, nil)
					return nil
				})
				time.Sleep(4*time.Hour + time.Minute)
				require.NoError(o, stop())
				require.NoError(o, stopOther())
				o.requireHandled(want...)
			})
		})
	}
}

// TestPeriodic_AWorkerThatStopsInAnOutageRepeatsNothing: it reports the result within its Grace;
// or, if the outage lasts for longer, what runs next in this process knows of it.
func TestPeriodic_AWorkerThatStopsInAnOutageRepeatsNothing(t *testing.T) {
	for last, left := range map[time.Duration]int{5 * time.Second: 0, 20 * time.Second: 1} {
		t.Run(last.String(), func(t *testing.T) {
			periodicOutages(t, time.Hour, func(o *periodicOutage) {
				began := make(chan struct{})
				stop := o.work(o.q, 10*time.Second, func() error {
					o.begin()
					time.AfterFunc(last, func() { o.down.Store(false) })
					close(began)
					return nil
				})
				<-began
				err := stop()
				var unfinished *sluice.UnfinishedError
				require.Equal(o, left > 0, errors.As(err, &unfinished), "%v", err)
				if left > 0 {
					require.Equal(o, left, unfinished.Unacknowledged)
				}
				time.Sleep(time.Minute)
				stop = o.work(o.q, 0, nil)
				time.Sleep(2*time.Hour + 10*time.Minute)
				require.NoError(o, stop())
				o.requireHandled(1, 2, 3, 4)
			})
		})
	}
}
