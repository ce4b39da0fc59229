package sluiceotel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/sluice-go/sluice"
)

// observeFor bounds how long a collection waits for a queue's numbers.
const observeFor = 2 * time.Second

// queueCounters are what has become of tasks in all processes, as the server counts them.
var queueCounters = []struct {
	name, description string
	of                func(s sluice.Stats) int64
}{
	{"sluice.queue.finished", "Tasks that were finished, discarded or popped, in any process.", func(s sluice.Stats) int64 { return s.Finished }},
	{"sluice.queue.discarded", "Of the finished ones, those that were discarded or have expired.", func(s sluice.Stats) int64 { return s.Discarded }},
	{"sluice.queue.retried", "Tasks that failed and are to be tried again, in any process.", func(s sluice.Stats) int64 { return s.Retried }},
	{"sluice.queue.buried", "Tasks that were put among the dead letters, by any process.", func(s sluice.Stats) int64 { return s.Buried }},
	{"sluice.queue.lost", "Leases that ran out, in any process.", func(s sluice.Stats) int64 { return s.Lost }},
	{"sluice.queue.trimmed", "Dead letters that were removed by a limit.", func(s sluice.Stats) int64 { return s.Trimmed }},
}

// queueGauges are whole numbers of a queue's state.
var queueGauges = []struct {
	name, unit, description string
	of                      func(s sluice.Stats) int64
}{
	{"sluice.queue.workers", "{worker}", "Workers that run, in any process.", func(s sluice.Stats) int64 { return int64(s.Workers) }},
	{"sluice.queue.waiting", "{client}", "Clients that wait for tasks.", func(s sluice.Stats) int64 { return int64(s.Waiting) }},
	{"sluice.queue.paused", "", "1 while the queue is paused.", func(s sluice.Stats) int64 {
		if s.Paused {
			return 1
		}
		return 0
	}},
}

// Observe reports the state of queues whenever metrics are collected: one Stats of each queue, all
// at once, for two seconds at most. It ends with Unregister. Observe a queue in one process, or all
// of them report the same numbers.
//
//	sluice.queue.tasks          tasks by sluice.task.state: due, scheduled, leased, dead, done (finished
//	                            ones that are remembered), and waiting (in their groups)
//	sluice.queue.lateness       for how long the first due task has been due, in seconds
//	sluice.queue.finished       tasks that were finished, a counter, as are the next four: see sluice.Stats
//	sluice.queue.retried        tasks that failed and are to be tried again
//	sluice.queue.buried         tasks that were put among the dead letters
//	sluice.queue.lost           leases that ran out
//	sluice.queue.trimmed        dead letters that WithDeadLimit and WithDeadAge have removed
//	sluice.queue.workers        Workers that run
//	sluice.queue.waiting        clients that wait for tasks, see sluice.Stats
//	sluice.queue.paused         1 while the queue is paused, else 0
//	sluice.queue.limit.running  how many tasks may be leased at a time; only of a queue with this limit
//	sluice.queue.limit.rate     how many tasks may be handed out in a second; only of a queue with this limit
//
// The counters are the server's, for all processes: also for those that have no hooks or were
// killed, of which sluice.task.dispositions does not tell. They begin at 0 after a day without
// work, and may fall a little in a failover, which rate() takes for a beginning at 0: deriv() does
// not.
//
// A queue whose server does not answer has no values in that collection, and its error goes to
// OpenTelemetry's error handler.
func (t *Telemetry) Observe(queues ...*sluice.Queue) (metric.Registration, error) {
	tasks, err1 := t.meter.Int64ObservableGauge("sluice.queue.tasks", metric.WithUnit("{task}"), metric.WithDescription("Tasks in a queue."))
	lateness, err2 := t.meter.Float64ObservableGauge("sluice.queue.lateness", metric.WithUnit("s"),
		metric.WithDescription("For how long the first due task has been due."))
	limitRunning, err3 := t.meter.Int64ObservableGauge("sluice.queue.limit.running", metric.WithUnit("{task}"),
		metric.WithDescription("How many tasks may be leased at a time."))
	limitRate, err4 := t.meter.Float64ObservableGauge("sluice.queue.limit.rate", metric.WithUnit("{task}/s"),
		metric.WithDescription("How many tasks may be handed out in a second."))
	numbers, err5 := t.queueNumbers()
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, fmt.Errorf("sluiceotel: %w", err)
	}
	observe := func(ctx context.Context, o metric.Observer) error {
		return forEach(ctx, queues, func(q *sluice.Queue, s sluice.Stats) {
			of := []attribute.KeyValue{system, semconv.MessagingDestinationName(valid(q.Name()))}
			for state, n := range map[sluice.State]int64{
				sluice.StateDue: s.Due, sluice.StateScheduled: s.Scheduled, sluice.StateLeased: s.Leased, sluice.StateDead: s.Dead, sluice.StateDone: s.Done,
				sluice.StateWaiting: s.GroupWaiting,
			} {
				o.ObserveInt64(tasks, n, metric.WithAttributes(append(of, keyState.String(state.String()))...))
			}
			o.ObserveFloat64(lateness, s.Lateness.Seconds(), metric.WithAttributes(of...))
			for _, n := range numbers {
				o.ObserveInt64(n.Int64Observable, n.of(s), metric.WithAttributes(of...))
			}
			if l := s.Limits; l.Running > 0 {
				o.ObserveInt64(limitRunning, int64(l.Running), metric.WithAttributes(of...))
			}
			if l := s.Limits; l.Rate > 0 {
				o.ObserveFloat64(limitRate, float64(l.Rate)/l.Per.Seconds(), metric.WithAttributes(of...))
			}
		})
	}
	observed := []metric.Observable{tasks, lateness, limitRunning, limitRate}
	for _, n := range numbers {
		observed = append(observed, n.Int64Observable)
	}
	registration, err := t.meter.RegisterCallback(observe, observed...)
	if err != nil {
		return nil, fmt.Errorf("sluiceotel: %w", err)
	}
	return registration, nil
}

// queueNumber is the instrument of a whole number of a queue's state.
type queueNumber struct {
	metric.Int64Observable
	of func(s sluice.Stats) int64
}

// queueNumbers returns those of queueCounters and queueGauges.
func (t *Telemetry) queueNumbers() (all []queueNumber, err error) {
	for _, c := range queueCounters {
		instrument, failed := t.meter.Int64ObservableCounter(c.name, metric.WithUnit("{task}"), metric.WithDescription(c.description))
		all, err = append(all, queueNumber{instrument, c.of}), errors.Join(err, failed)
	}
	for _, g := range queueGauges {
		instrument, failed := t.meter.Int64ObservableGauge(g.name, metric.WithUnit(g.unit), metric.WithDescription(g.description))
		all, err = append(all, queueNumber{instrument, g.of}), errors.Join(err, failed)
	}
	return all, err
}

// forEach reads the state of all queues at once, and calls f for each, one after the other.
func forEach(ctx context.Context, queues []*sluice.Queue, f func(*sluice.Queue, sluice.Stats)) error {
	ctx, cancel := context.WithTimeout(ctx, observeFor)
	defer cancel()
	stats, errs := make([]sluice.Stats, len(queues)), make([]error, len(queues))
	var all sync.WaitGroup
	for i, q := range queues {
		all.Go(func() { stats[i], errs[i] = q.Stats(ctx) })
	}
	all.Wait()
	for i, q := range queues {
		if errs[i] == nil {
			f(q, stats[i])
		}
	}
	return errors.Join(errs...)
}
