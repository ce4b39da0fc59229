package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// failures counts errors, and keeps the first.
type failures struct {
	Count int    `json:"count"`
	First string `json:"first,omitempty"`
}

func (f *failures) add(err error) {
	if err == nil {
		return
	}
	if f.Count == 0 {
		f.First = err.Error()
	}
	f.Count++
}

func (f *failures) merge(g failures) {
	if f.Count == 0 {
		f.First = g.First
	}
	f.Count += g.Count
}

// newWaits makes a histogram of times between 1us and 2 minutes, to 1%.
func newWaits() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(time.Microsecond), int64(2*time.Minute), 2)
}

// waitsOf returns the histogram of times that are known already.
func waitsOf(times []time.Duration) *hdrhistogram.Histogram {
	waits := newWaits()
	for _, d := range times {
		_ = waits.RecordValue(int64(max(d, 0)))
	}
	return waits
}

// tally has the results of a team.
type tally struct {
	Turns    []int64 // sections of each goroutine
	Failures failures
	waits    *hdrhistogram.Histogram
}

func (t *tally) sections() (n int64) {
	for _, turns := range t.Turns {
		n += turns
	}
	return n
}

// team is a group of goroutines that lock and unlock for a fixed time, each as often as it can.
type team struct {
	contender contender
	size      int
	length    time.Duration
	start     time.Time               // when to begin; zero for now
	name      func(member int) string // of the lock that a member wants
	guard     func(member int) *guard // of the sections of its name; nil if the names differ
}

// work returns when the time is over or ctx ends. A wait that the end of the time cuts short
// counts as long as it lasted: without it, a goroutine that never gets the lock would be
// missing from the waits.
func (t team) work(ctx context.Context) tally {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	time.Sleep(time.Until(t.start))
	var over atomic.Bool
	timer := time.AfterFunc(t.length, func() { over.Store(true); cancel() })
	defer timer.Stop()

	members := make([]member, t.size)
	var wg sync.WaitGroup
	for i := range members {
		members[i] = member{team: t, name: t.name(i), over: &over, waits: newWaits()}
		if t.guard != nil {
			members[i].sections = t.guard(i)
		}
		wg.Go(func() { members[i].work(ctx) })
	}
	wg.Wait()

	sum := tally{waits: newWaits()}
	for i := range members {
		sum.Turns = append(sum.Turns, members[i].turns)
		sum.Failures.merge(members[i].failures)
		sum.waits.Merge(members[i].waits)
	}
	return sum
}

// member is a goroutine of a team.
type member struct {
	team
	sections *guard
	name     string
	over     *atomic.Bool
	turns    int64
	waits    *hdrhistogram.Histogram
	failures failures
}

// pauseAfterFailure keeps a contender that fails at once from spinning.
const pauseAfterFailure = time.Millisecond

func (m *member) work(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		unlock, err := m.contender.Lock(ctx, m.name)
		_ = m.waits.RecordValue(int64(time.Since(began)))
		if err != nil {
			if !m.over.Load() {
				m.failures.add(fmt.Errorf("lock: %w", err))
				time.Sleep(pauseAfterFailure)
			}
			continue
		}
		if m.sections != nil {
			m.sections.enter()
			m.sections.leave()
		}
		if !m.over.Load() {
			m.turns++
		}
		if err := unlock(context.WithoutCancel(ctx)); err != nil {
			m.failures.add(fmt.Errorf("unlock: %w", err))
		}
	}
}

// warmUp fills the contender's pool and loads its scripts into the server. It gives up a lock for which it waits too long:
// after a slow reply rueidislock may wait for a free name for ever.
func warmUp(ctx context.Context, c contender) error {
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	errs := make(chan error)
	for i := range poolSize {
		go func() {
			unlock, err := c.Lock(bounded, uniqueName(fmt.Sprint("warm-up-", i)))
			if err == nil {
				err = unlock(ctx)
			} else if ctx.Err() == nil && bounded.Err() != nil {
				err = nil
			}
			errs <- err
		}()
	}
	var first error
	for range poolSize {
		if err := <-errs; err != nil && first == nil {
			first = fmt.Errorf("warm-up: %w", err)
		}
	}
	return first
}

// uniqueName returns a name that no other turn, or run on the same server, uses.
func uniqueName(what string) string { return "benchmark-" + what + "-" + newToken() }
