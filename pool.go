package sluice

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// Pool runs Workers that share one number of handlers, each with its own queue, on one server or
// several. Fill in the fields, and Run. It must not be copied. A change of a field while it runs
// has no effect. A field that is 0 has its default; a negative one is ErrInvalid.
//
// While several queues have work, each has its share of the handlers' time, by Weight, however many
// handlers there are and however long they take; one that returns within a millisecond counts as
// one that took a millisecond. (Start-time fair queueing: Goyal, Vin and Cheng, 1996.) What one
// queue does not use, the others have: no handler idles while there is work, except until a claim
// that is under way has been answered. A queue that had no work gets the next handler that returns,
// or one at once if one is free. It claims nothing that no handler is free for, except one probe
// task from a server that did not answer before. Handlers are not interrupted: one queue's long
// ones may have all, if the others had no work.
//
// A queue whose server does not answer keeps handlers for about a tenth of a second. Each has one
// goroutine or two, beside the handlers', and one more for Periodic tasks; and each client has one
// that says who works. The queues of one client use about as many connections as one Worker does,
// unless a round trip takes more than 20ms.
type Pool struct {
	// Workers are the queues and their handlers. Each has its own fields, but not Grace and Logger,
	// which must not be set; its Concurrency bounds its handlers within the Pool's. Its Stats say
	// what becomes of its queue's tasks. Required.
	Workers []*Worker

	// Concurrency is how many handlers may run at once, of all Workers. At most 1,000,000. Defaults
	// to 16.
	Concurrency int

	// Grace is how long handlers may go on when Run's ctx has ended, before theirs does, and after
	// their Timeout before they are stuck: see Worker.Timeout. Defaults to 10s.
	Grace time.Duration

	// Logger gets what the Workers' would. Defaults to slog.Default().
	Logger *slog.Logger

	seat atomic.Pointer[seat] // nil if it does not run
}

// Run works until ctx ends, and then stops as Worker.Run does, with one Grace for all, and one
// *UnfinishedError that counts what is left of all Workers.
//
// It is ErrInvalid at once if a field is out of range, if there is no Worker or a nil one, if one
// sets Grace or Logger or is running already, here or elsewhere, if two have a Periodic of the same
// ID on one queue, or if the Pool is running already.
func (p *Pool) Run(ctx context.Context) error {
	c, err := p.newCrew("run")
	if err != nil {
		return err
	}
	if !p.seat.CompareAndSwap(nil, c.seat(taskloop.AllQueues)) {
		return invalid("run", "the pool is running already")
	}
	defer p.seat.Store(nil)
	for i, w := range p.Workers {
		if err := w.enter(c.seat(i)); err != nil {
			return err
		}
		defer w.seat.Store(nil)
	}
	if left := c.run(ctx); left != nil {
		return fmt.Errorf("sluice: run: %w", left)
	}
	return nil
}

// newCrew returns the pool's crew, for an operation.
func (p *Pool) newCrew(op string) (*crew, error) {
	if len(p.Workers) == 0 {
		return nil, invalid(op, "a Pool without Workers")
	}
	name := func(i int) string { return fmt.Sprintf("Pool.Workers[%d]", i) }
	for i, w := range p.Workers {
		switch {
		case w == nil:
			return nil, invalid(op, name(i)+" is nil")
		case w.Grace != 0:
			return nil, invalid(op, name(i)+".Grace: set Pool.Grace instead")
		case w.Logger != nil:
			return nil, invalid(op, name(i)+".Logger: set Pool.Logger instead")
		}
	}
	return newCrew(op, "Pool", name, p.Workers, p.Concurrency, p.Grace, p.Logger)
}

// SetConcurrency changes how many handlers may run at once, while Run runs: soon. It never blocks.
// Those that are too many go on until they return. ErrInvalid if n is not 1 to 1,000,000, or the
// Pool does not run.
func (p *Pool) SetConcurrency(n int) error { return p.seat.Load().resize(n) }

// seat is where something that runs sits in its crew.
type seat struct {
	of    int // the worker, or taskloop.AllQueues
	sizes *taskloop.Sizes
}

// resize changes a number of handlers.
func (s *seat) resize(n int) error {
	switch {
	case n < 1 || n > maxConcurrency:
		return invalid("set concurrency", fmt.Sprintf("n must be 1 to %d", maxConcurrency))
	case s == nil:
		return invalid("set concurrency", "nothing runs")
	}
	s.sizes.Set(s.of, n)
	return nil
}

// crew is a Run of workers that share one number of handlers.
type crew struct {
	workers []*queues.Worker
	loop    taskloop.Config
}

// newCrew returns the crew of workers, whose fields it checks, and those of its owner. Errors name
// them as name does, and the owner as it is given.
func newCrew(op, owner string, name func(i int) string, workers []*Worker, concurrency int, grace time.Duration, log *slog.Logger) (*crew, error) {
	c := &crew{loop: taskloop.Config{
		Concurrency: orDefault(concurrency, defaultConcurrency), Grace: orDefault(grace, defaultGrace), Sizes: taskloop.NewSizes(),
	}}
	switch {
	case c.loop.Concurrency < 0 || c.loop.Concurrency > maxConcurrency:
		return nil, invalid(op, fmt.Sprintf("%s.Concurrency must be 0 to %d", owner, maxConcurrency))
	}
	if err := checkDurationFrom(0, owner+".Grace", c.loop.Grace); err != nil {
		return nil, fmt.Errorf("sluice: %s: %w", op, err)
	}
	if log == nil {
		log = slog.Default()
	}
	for i, w := range workers {
		if w.Queue == nil {
			return nil, invalid(op, name(i)+".Queue is nil")
		}
		if err := w.Queue.check(op + ": " + name(i)); err != nil {
			return nil, err
		}
		e, err := w.engine(log)
		if err != nil {
			return nil, fmt.Errorf("sluice: %s: %s: %w", op, name(i), err)
		}
		c.workers = append(c.workers, e)
	}
	if err := checkPeriodics(name, workers); err != nil {
		return nil, fmt.Errorf("sluice: %s: %w", op, err)
	}
	return c, nil
}

// checkPeriodics refuses an ID that several of the workers have on one queue: each would put its
// own occurrence in the place of the other's.
func checkPeriodics(name func(i int) string, workers []*Worker) error {
	type task struct {
		client  *redisexec.Executor
		key, id string
	}
	first := map[task]int{}
	for i, w := range workers {
		for j, p := range w.Periodic {
			t := task{w.Queue.engine.Executor, w.Queue.options.prefix + w.Queue.name, p.ID}
			if other, isTaken := first[t]; isTaken {
				return fmt.Errorf("%w: %s: Periodic[%d]: %s has the ID %q on this queue", ErrInvalid, name(i), j, name(other), p.ID)
			}
			first[t] = i
		}
	}
	return nil
}

// seat returns the seat of a worker, or of taskloop.AllQueues.
func (c *crew) seat(of int) *seat { return &seat{of, c.loop.Sizes} }

// run returns when the loop has ended, and what it leaves.
func (c *crew) run(ctx context.Context) *UnfinishedError {
	return (*UnfinishedError)(queues.Run(ctx, c.workers, c.loop))
}
