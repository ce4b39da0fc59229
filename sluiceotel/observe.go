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

// Observe reports the state of queues whenever metrics are collected: one Stats of each queue, all at
// once, for two seconds at most. It ends with Unregister. Observe a queue in one process, or all
// of them report the same numbers.
//
//	sluice.queue.tasks          tasks by sluice.task.state: due, scheduled, leased, dead
//	sluice.queue.oldest_due     for how long the first due task has been due, in seconds
//	sluice.queue.dropped        dead letters that WithDeadLimit and WithDeadAge have dropped, a counter
//	sluice.queue.paused         1 while the queue is paused, else 0
//	sluice.queue.waiting        clients that wait for tasks, see sluice.Stats
//	sluice.queue.limit.running  how many tasks may be leased at a time; only of a queue with this limit
//	sluice.queue.limit.rate     how many tasks may be handed out in a second; only of a queue with this limit
//
// A queue whose server does not answer has no values in that collection, and its error goes to OpenTelemetry's
// error handler.
func (t *Telemetry) Observe(queues ...*sluice.Queue) (metric.Registration, error) {
	tasks, err1 := t.meter.Int64ObservableGauge("sluice.queue.tasks", metric.WithUnit("{task}"), metric.WithDescription("Tasks in a queue."))
	oldest, err2 := t.meter.Float64ObservableGauge("sluice.queue.oldest_due", metric.WithUnit("s"),
		metric.WithDescription("For how long the first due task has been due."))
	paused, err3 := t.meter.Int64ObservableGauge("sluice.queue.paused", metric.WithDescription("1 while the queue is paused."))
	dropped, err4 := t.meter.Int64ObservableCounter("sluice.queue.dropped", metric.WithUnit("{task}"),
		metric.WithDescription("Dead letters that were dropped by a limit."))
	waiting, err5 := t.meter.Int64ObservableGauge("sluice.queue.waiting", metric.WithUnit("{client}"),
		metric.WithDescription("Clients that wait for tasks."))
	limitRunning, err6 := t.meter.Int64ObservableGauge("sluice.queue.limit.running", metric.WithUnit("{task}"),
		metric.WithDescription("How many tasks may be leased at a time."))
	limitRate, err7 := t.meter.Float64ObservableGauge("sluice.queue.limit.rate", metric.WithUnit("{task}/s"),
		metric.WithDescription("How many tasks may be handed out in a second."))
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		return nil, fmt.Errorf("sluiceotel: %w", err)
	}
	observe := func(ctx context.Context, o metric.Observer) error {
		return forEach(ctx, queues, func(q *sluice.Queue, s sluice.Stats) {
			of := []attribute.KeyValue{system, semconv.MessagingDestinationName(q.Name())}
			for state, n := range map[sluice.State]int64{sluice.StateDue: s.Due, sluice.StateScheduled: s.Scheduled, sluice.StateLeased: s.Leased, sluice.StateDead: s.Dead} {
				o.ObserveInt64(tasks, n, metric.WithAttributes(append(of, keyState.String(state.String()))...))
			}
			o.ObserveFloat64(oldest, s.OldestDue.Seconds(), metric.WithAttributes(of...))
			o.ObserveInt64(dropped, s.Dropped, metric.WithAttributes(of...))
			o.ObserveInt64(waiting, int64(s.Waiting), metric.WithAttributes(of...))
			var isPaused int64
			if s.Paused {
				isPaused = 1
			}
			o.ObserveInt64(paused, isPaused, metric.WithAttributes(of...))
			if l := s.Limits; l.Running > 0 {
				o.ObserveInt64(limitRunning, int64(l.Running), metric.WithAttributes(of...))
			}
			if l := s.Limits; l.Rate > 0 {
				o.ObserveFloat64(limitRate, float64(l.Rate)/l.Per.Seconds(), metric.WithAttributes(of...))
			}
		})
	}
	registration, err := t.meter.RegisterCallback(observe, tasks, oldest, paused, dropped, waiting, limitRunning, limitRate)
	if err != nil {
		return nil, fmt.Errorf("sluiceotel: %w", err)
	}
	return registration, nil
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
