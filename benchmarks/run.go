package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A scenario is a task that contenders are given in turn.
type scenario struct {
	name    string
	about   string
	measure measure
	entries []entrant
	length  time.Duration // of a turn, where the time is fixed
	retry   time.Duration // what is best for those that poll; 0 where nobody waits
	columns []column      // besides those that every table has
	turn    func(ctx context.Context, t turn) (result, error)
}

// scenarios are all there are, in the order in which they run.
func scenarios() []scenario {
	return []scenario{single(), hot(), procs(), storm(2 * time.Millisecond), storm(20 * time.Millisecond),
		names(), manyNames(), wake(), held(),
		work(64, 200_000), work(1, 20_000),
		enqueue("enqueue-now", "due at once", atOnce), enqueue("enqueue-later", "due in 15 minutes", inAQuarter), enqueueBatch(),
		late("late-idle", func(entrant) int { return 2000 }, 5*time.Second),
		late("late-busy", halfOf, 3*time.Second),
		idle(), memory(0), memory(100), depth(10_000), depth(10_000_000)}
}

// turn is one contender's turn in one round.
type turn struct {
	setup   setup
	entrant entrant
	// contender is fresh and warm. In scenarios with several processes, each has
	// one of its own besides.
	contender contender
	queue     queue // instead, in scenarios of tasks
	meter     *meter
	// goroutines is how many the process had before the contender.
	goroutines int
	length     time.Duration
	quick      bool
}

// result is how a turn went.
type result struct {
	value    float64            // in the scenario's measure
	ops      float64            // that were done; 0 where they are not counted
	extra    map[string]float64 // by the title of the scenario's column
	waits    *hdrhistogram.Histogram
	failures failures
	notes    string
}

// quickLength is the length of a turn with -quick.
const quickLength = 300 * time.Millisecond

// compare runs the scenarios, prints their tables and writes the report.
func compare(ctx context.Context, c config, out, log io.Writer) (err error) {
	if err := c.checkOutputs(); err != nil {
		return err
	}
	addr := c.redis
	if addr == "" {
		var stop func()
		if addr, stop, err = startServer(ctx); err != nil {
			return err
		}
		defer stop()
	}
	m, err := describe(ctx, addr, c.rounds)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "%s, %s, %s/%s, %d CPUs, pools of %d connections, rounds: %d\n",
		m.Server, m.Go, m.OS, m.Arch, m.CPUs, m.Pool, m.Rounds)
	found := report{Machine: m}
	var errs []error
	for _, s := range c.scenarios {
		results, err := s.run(ctx, c, addr, log)
		if err != nil {
			return err
		}
		o := s.outcome(results)
		o.print(out)
		found.Scenarios = append(found.Scenarios, o)
		errs = append(errs, s.sluiceFailed(results))
	}
	printSettings(out, c.scenarios)
	return errors.Join(append(errs, found.write(c))...)
}

// sluiceFailed is what Sluice, which always goes first, did wrong.
func (s scenario) sluiceFailed(results [][]result) error {
	for _, r := range results[0] {
		if r.failures.Count > 0 {
			return fmt.Errorf("%s: Sluice failed: %s", s.name, r.failures.First)
		}
	}
	return nil
}

// run gives every contender a turn in every round. It returns each one's
// results; the error is ctx's only, for what a contender does wrong belongs into
// the table.
func (s scenario) run(ctx context.Context, c config, addr string, log io.Writer) ([][]result, error) {
	results := make([][]result, len(s.entries))
	for round := range c.rounds {
		for i, e := range s.entries {
			began := time.Now()
			r := s.oneTurn(ctx, turn{setup: setup{addr, s.retry}, entrant: e, length: s.lengthFor(c), quick: c.quick})
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			results[i] = append(results[i], r)
			_, _ = fmt.Fprintf(log, "%s, round %d of %d: %s: %s (%v)\n", s.name, round+1, c.rounds, e.name,
				s.progress(r), time.Since(began).Round(10*time.Millisecond))
		}
	}
	return results, nil
}

func (s scenario) lengthFor(c config) time.Duration {
	switch {
	case c.length > 0:
		return c.length
	case c.quick:
		return quickLength
	}
	return s.length
}

func (s scenario) progress(r result) string {
	said := s.measure.show(r.value)
	if r.notes != "" {
		said += ", " + r.notes
	}
	if r.failures.Count > 0 {
		said += fmt.Sprintf(", %d failures: %s", r.failures.Count, strings.TrimSpace(r.failures.First))
	}
	return said
}

// oneTurn opens the contender, warms it up, and lets it have its turn.
func (s scenario) oneTurn(ctx context.Context, t turn) (r result) {
	t.goroutines = runtime.NumGoroutine()
	shut, err := t.open(ctx)
	if shut != nil {
		if err == nil {
			runtime.GC() // of what earlier turns left
			r, err = s.metered(ctx, t)
		}
		if closing := shut(); closing != nil {
			r.failures.add(fmt.Errorf("close: %w", closing))
		}
	}
	r.failures.add(err)
	return r
}

// metered adds to the turn's result what its operations used.
func (s scenario) metered(ctx context.Context, t turn) (result, error) {
	t.meter = &meter{addr: t.setup.Addr}
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	r, err := s.turn(ctx, t)
	if err == nil {
		err = t.meter.perOp(ctx, &r)
	}
	return r, err
}

// open makes the turn's contender, warm, or its queue. shut is nil if there is
// nothing to be closed.
func (t *turn) open(ctx context.Context) (shut func() error, err error) {
	if t.entrant.openQueue != nil {
		if t.queue, err = t.entrant.openQueue(t.setup); err != nil {
			return nil, err
		}
		return t.queue.Close, nil
	}
	if t.contender, err = t.entrant.open(t.setup); err != nil {
		return nil, err
	}
	return t.contender.Close, warmUp(ctx, t.contender)
}
