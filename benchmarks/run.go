package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A scenario is a measurement that every contender runs in turn.
type scenario struct {
	name  string
	about string
	// headline says in its chart what is compared, for readers who know nothing else of it; empty
	// for its about.
	headline string
	measure  measure
	entries  []entrant
	length   time.Duration // of a turn, if it is fixed
	retry    time.Duration // the best one for contenders that poll; 0 if none waits
	// roundTrip is how far the server is away; 0 for this machine.
	roundTrip time.Duration
	columns   []column // of the table, besides the usual ones
	turn      func(ctx context.Context, t turn) (result, error)
}

// scenarios returns all scenarios, in the order in which they run: fleets first.
func scenarios() []scenario {
	return slices.Concat(fleets(), herds(), []scenario{
		single(), hot(1), hot(64), procs(), baskets(), permits(), storm(2 * time.Millisecond),
		names(), manyNames(), clusterNames(), wake(), held(), heldMany(40_000, 3*time.Second), heldMany(100_000, 15*time.Second),
		unlockAll(50_000, false), unlockAll(50_000, true),
		work(64, 200_000), work(1, 20_000), loop(), serverTime(),
		enqueue("enqueue-now", 64, 50_000, "due at once", atOnce), enqueue("enqueue-later", 64, 50_000, "due in 15 minutes", in15Minutes),
		enqueue("enqueue-one", 1, 20_000, "due at once", atOnce), enqueueBatch(), batch(), takes(), soldOut(), groups(), outbox(),
		late("late-idle", func(entrant) int { return 1000 }, 5*time.Second,
			sluiceName, asynqName, asynqName+" at 50ms", riverName, riverFastName, bullName),
		late("late-busy", halfRate, 3*time.Second, sluiceName, asynqName+" at 50ms", riverFastName, bullName),
		manyQueues(100),
		memory(0), memory(100), large("large-64k", 64<<10), large("large-1m", 1<<20), largeLog(),
		depth(10_000), depth(10_000_000),
	}, far())
}

// turn is one contender's turn in one round.
type turn struct {
	setup   setup
	entrant entrant
	// contender is new and warmed up. In scenarios with several processes, each child
	// process has one of its own too.
	contender contender
	queue     queue // instead of contender, in scenarios of tasks
	meter     *meter
	// goroutines is how many goroutines the process had before it opened the contender.
	goroutines int
	length     time.Duration
	quick      bool
}

// tasks returns how many of a scenario's tasks the turn has.
func (t turn) tasks(n int) int {
	if t.entrant.fewer > 0 {
		n /= t.entrant.fewer
	}
	if t.quick {
		n /= 100
	}
	return n
}

// settling is how long clients are given to connect and subscribe.
func (t turn) settling() time.Duration {
	if t.quick {
		return quickLength / 2
	}
	return time.Second
}

// result is the result of a turn.
type result struct {
	value    float64            // in the scenario's measure
	ops      float64            // the number of operations; 0 if they are not counted
	extra    map[string]float64 // by the title of the scenario's column
	waits    *hdrhistogram.Histogram
	held     int // how many tasks the queue must have at the end; 0 if that is not asked
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
	c.postgres, c.etcd, c.cluster = &postgres{}, &etcd{}, &cluster{}
	defer c.postgres.stop()
	defer c.etcd.stop()
	defer c.cluster.stop()
	addr := c.redis
	if addr == "" {
		var stop func()
		if addr, stop, err = startServer(); err != nil {
			return err
		}
		defer stop()
	}
	m, err := describe(ctx, addr, c.rounds)
	if err != nil {
		return err
	}
	m.print(out)
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
		errs = append(errs, s.sluiceFailure(results))
	}
	printSettings(out, c.scenarios)
	return errors.Join(append(errs, found.write(c))...)
}

// sluiceFailure returns an error if Sluice failed, in whichever way it is used.
func (s scenario) sluiceFailure(results [][]result) error {
	for i, rs := range results {
		for _, r := range rs {
			if strings.HasPrefix(s.entries[i].name, sluiceName) && r.failures.Count > 0 {
				return fmt.Errorf("%s: %s failed: %s", s.name, s.entries[i].name, r.failures.First)
			}
		}
	}
	return nil
}

// run gives every contender a turn in every round, and returns the results by contender. The
// error is ctx's, or that the server cannot be reached: the table shows how contenders failed.
func (s scenario) run(ctx context.Context, c config, addr string, log io.Writer) ([][]result, error) {
	addr, stop, err := away(addr, s.roundTrip)
	if err != nil {
		return nil, err
	}
	defer stop()
	results := make([][]result, len(s.entries))
	for round := range c.rounds {
		for i, e := range s.entries {
			began := time.Now()
			opening := setup{Addr: addr, Retry: s.retry, Queue: uniqueName("queue"), Etcd: c.etcd, postgres: c.postgres, cluster: c.cluster}
			r := s.oneTurn(ctx, turn{setup: opening, entrant: e, length: s.lengthFor(c), quick: c.quick})
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

// lengthFor returns the length of a turn.
func (s scenario) lengthFor(c config) time.Duration {
	switch {
	case c.length > 0:
		return c.length
	case c.quick:
		return quickLength
	}
	return s.length
}

// progress returns a line about a turn.
func (s scenario) progress(r result) string {
	text := s.measure.show(r.value)
	if r.notes != "" {
		text += ", " + r.notes
	}
	if r.failures.Count > 0 {
		text += fmt.Sprintf(", %d failures: %s", r.failures.Count, strings.TrimSpace(r.failures.First))
	}
	return text
}

// oneTurn opens the contender, warms it up, and runs its turn.
func (s scenario) oneTurn(ctx context.Context, t turn) (r result) {
	t.goroutines = runtime.NumGoroutine()
	shut, err := t.open(ctx)
	if errors.Is(err, errNotHere) {
		return result{notes: err.Error()}
	}
	if shut != nil {
		if err == nil {
			runtime.GC() // of the garbage of earlier turns
			r, err = s.metered(ctx, t)
		}
		if closing := shut(); closing != nil {
			r.failures.add(fmt.Errorf("close: %w", closing))
		}
	}
	if errors.Is(err, errNotHere) { // a turn finds out what it needs
		return result{notes: err.Error()}
	}
	r.failures.add(err)
	return r
}

// metered runs the turn, and adds to its result what each operation used. What the turn has left in
// its queue is counted then.
func (s scenario) metered(ctx context.Context, t turn) (result, error) {
	t.meter = &meter{addr: t.setup.Addr}
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	r, err := s.turn(ctx, t)
	if err == nil {
		err = t.meter.perOp(ctx, &r)
	}
	if err == nil && r.held > 0 {
		err = requireAll(ctx, t.queue, r.held)
	}
	for _, title := range t.entrant.unmetered {
		delete(r.extra, title)
	}
	return r, err
}

// open opens the turn's contender and warms it up, or opens its queue. shut is nil if there
// is nothing to close.
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
	return t.contender.Close, warmUp(ctx, t.contender, poolSize)
}
