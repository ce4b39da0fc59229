package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

const (
	minIdle = 1500 * time.Millisecond // long enough for each contender to poll

	herdRate    = 40 // tasks per second
	herdAtOnce  = 4000
	herdIdle    = 6 * time.Second // of many clients each looks once in three seconds
	idleScripts = "idle scripts/s"
	flatOutRate = "enqueues/s"
	flatOutP50  = "p50 flat out"
	flatOutP99  = "p99 flat out"
	fillTime    = "all enqueued"
)

var scriptsPerTask = measure{"scripts/task", less, threeDigits}

// herds returns the scenarios of many workers on one queue.
func herds() []scenario {
	return []scenario{
		herd(300, 0), herd(1000, 0), herd(300, 200*time.Millisecond), burst(300),
		herdLimited(300, sluice.Limits{Running: 10}), herdLimited(300, sluice.Limits{Rate: 40, Burst: 4}),
	}
}

// herd measures what many idle workers do about each task, which only one of them gets.
func herd(workers int, delay time.Duration) scenario {
	s := scenario{
		name: fmt.Sprint("herd-", workers),
		about: fmt.Sprintf("%d workers on an idle queue, each with a client of its own, and %d tasks per second due at once: scripts per task,"+
			" beyond those of idling; the waits are from due to handler; then up to %d tasks flat out, from one goroutine",
			workers, herdRate, herdAtOnce),
		measure: scriptsPerTask,
		entries: enterQueues(sluiceName, asynqName),
		length:  4 * time.Second,
		columns: []column{{idleScripts, median, threeDigits}, {flatOutRate, median, whole}, {flatOutP50, median, inTime}, {flatOutP99, median, inTime}},
		turn:    func(ctx context.Context, t turn) (result, error) { return herdTurn(ctx, t, workers, delay) },
	}
	if delay > 0 { // for which asynq at its defaults takes up to five seconds: see late
		s.name += "-later"
		s.about = fmt.Sprintf("the same, each task due %v after it is enqueued", delay)
		s.entries = enterQueues(sluiceName)
	}
	return s
}

func herdTurn(ctx context.Context, t turn, workers int, delay time.Duration) (r result, err error) {
	atOnce, idling := herdAtOnce, max(t.length, herdIdle)
	if t.quick {
		workers, atOnce, idling = max(workers/10, 1), atOnce/100, minIdle
	}
	steady := newArrivals(0, int(herdRate*t.length.Seconds()), delay)
	flatOut := newArrivals(steady.n, atOnce, delay)
	stop := startHerd(ctx, t, workers, 16, func(id int) {
		steady.arrive(id)
		flatOut.arrive(id)
	})
	defer func() { err = errors.Join(err, stop()) }()
	sleep(ctx, t.settling()) // the herd has subscribed
	idle, _, err := t.meter.during(ctx, idling)
	if err != nil {
		return result{}, err
	}
	began := time.Now()
	if err := errors.Join(t.meter.start(ctx), steady.produce(ctx, t.queue, time.Second/herdRate, time.Minute)); err != nil {
		return result{}, err
	}
	sleep(ctx, 100*time.Millisecond) // what the others do about the last task
	u, err := t.meter.read(ctx)
	if err != nil {
		return result{}, err
	}
	r.value = (u.scripts - idle*time.Since(began).Seconds()) / float64(steady.sent)
	r.waits = waitsOf(steady.lateness())
	if err := flatOut.produce(ctx, t.queue, 0, t.length); err != nil {
		return result{}, err
	}
	late := waitsOf(flatOut.lateness())
	r.extra = map[string]float64{
		idleScripts: idle, flatOutRate: float64(flatOut.sent) / flatOut.took.Seconds(),
		flatOutP50: float64(late.ValueAtQuantile(50)), flatOutP99: float64(late.ValueAtQuantile(99)),
	}
	return r, nil
}

// burst measures how soon many idle workers are busy when there is much to do.
func burst(workers int) scenario {
	const places, tasks = 4, 10_000
	return scenario{
		name: fmt.Sprint("burst-", workers),
		about: fmt.Sprintf("%d idle workers of %d handlers, each with a client of its own, and %d tasks at once: time until all handlers are busy",
			workers, places, tasks),
		measure: duration,
		entries: enterQueues(sluiceName, asynqName),
		turn: func(ctx context.Context, t turn) (r result, err error) {
			workers, tasks := workers, tasks
			if t.quick {
				workers, tasks = max(workers/10, 1), tasks/10
			}
			var busy atomic.Int64
			var busyAt time.Time
			allBusy, l := make(chan struct{}), newLedger(tasks)
			stop := startHerd(ctx, t, workers, places, func(id int) {
				if busy.Add(1) == int64(workers*places) {
					busyAt = time.Now()
					close(allBusy)
				}
				select {
				case <-allBusy:
				case <-ctx.Done():
				}
				l.enter(id)
			})
			defer func() { err = errors.Join(err, stop()) }()
			sleep(ctx, 2*t.settling())
			began := time.Now()
			if err := t.queue.Fill(ctx, tasks, nil, atOnce); err != nil {
				return r, err
			}
			filled := time.Since(began)
			select {
			case <-allBusy:
			case <-time.After(time.Minute):
				return r, fmt.Errorf("%d handlers were busy after a minute", busy.Load())
			case <-ctx.Done():
				return r, ctx.Err()
			}
			select {
			case <-l.complete:
			case <-ctx.Done():
				return r, ctx.Err()
			}
			r.value = float64(busyAt.Sub(began))
			r.extra = map[string]float64{fillTime: float64(filled)}
			return r, l.twice()
		},
		columns: []column{{fillTime, median, inTime}},
	}
}

// startHerd starts workers, each on a client of its own, on the turn's queue. stop ends them.
func startHerd(ctx context.Context, t turn, workers, concurrency int, handler func(id int)) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var all errgroup.Group
	for range workers {
		all.Go(func() error {
			q, err := t.entrant.openQueue(t.setup)
			if err != nil {
				return err
			}
			return errors.Join(q.Work(ctx, concurrency, handler), q.Close())
		})
	}
	return func() error {
		cancel()
		return all.Wait()
	}
}

// arrivals has up to n tasks with consecutive IDs, and how late their handlers began.
type arrivals struct {
	first, n int
	delay    time.Duration
	due      []atomic.Int64 // in Unix nanoseconds
	began    []atomic.Int64 // likewise; 0 for not yet
	arrived  atomic.Int64
	again    atomic.Int64 // handlers that were called for a task that had arrived
	sent     int
	took     time.Duration // the enqueueing
}

func newArrivals(first, n int, delay time.Duration) *arrivals {
	n = max(n, 1)
	return &arrivals{first: first, n: n, delay: delay, due: make([]atomic.Int64, n), began: make([]atomic.Int64, n)}
}

// produce enqueues the tasks, with a pause between two and as many as the time allows, and
// waits until all of these have arrived.
func (a *arrivals) produce(ctx context.Context, q queue, pause, limit time.Duration) error {
	start := time.Now()
	for a.sent < a.n && (a.sent == 0 || time.Since(start) < limit) {
		if pause > 0 {
			sleep(ctx, time.Until(start.Add(time.Duration(a.sent)*pause)))
		}
		due := time.Now().Add(a.delay)
		a.due[a.sent].Store(due.UnixNano())
		if a.delay == 0 {
			due = time.Time{}
		}
		if err := q.Enqueue(ctx, a.first+a.sent, nil, due); err != nil {
			return err
		}
		a.sent++
	}
	a.took = time.Since(start)
	for wait := time.Now(); a.arrived.Load() < int64(a.sent); sleep(ctx, time.Millisecond) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(wait) > time.Minute {
			return fmt.Errorf("TASKS LOST: a handler was called for %d of %d", a.arrived.Load(), a.sent)
		}
	}
	if n := a.again.Load(); n > 0 {
		return fmt.Errorf("RUN TWICE: %d of %d", n, a.sent)
	}
	return nil
}

// arrive records that a handler began, if the task is one of these.
func (a *arrivals) arrive(id int) {
	i := id - a.first
	switch {
	case i < 0 || i >= a.n:
	case a.began[i].CompareAndSwap(0, time.Now().UnixNano()):
		a.arrived.Add(1)
	default:
		a.again.Add(1)
	}
}

// lateness returns the times from due to handler.
func (a *arrivals) lateness() (times []time.Duration) {
	for i := range a.sent {
		times = append(times, time.Duration(a.began[i].Load()-a.due[i].Load()))
	}
	return times
}
