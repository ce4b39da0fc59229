package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
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
	Sent     int64   // by the clients, while the sections counted
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
	clients   []contender // instead of contender: the members share them evenly
	size      int
	lead      time.Duration           // from the beginning until the sections count
	length    time.Duration           // while they count
	hold      time.Duration           // of a section
	start     time.Time               // when to begin; zero for now
	name      func(member int) string // of the lock that a member wants
	guard     func(member int) *guard // of the sections of its name; nil if the names differ
	sent      *atomic.Int64           // what the clients send; nil if that is not counted
}

// What the sections of a team are, one after the other.
const (
	leading int32 = iota
	counting
	over
)

// work returns when the time is over or ctx ends. A wait that the end of the time cuts short
// counts as long as it lasted: without it, a goroutine that never gets the lock would be
// missing from the waits. For the same reason a wait that began before the sections counted
// counts in full.
func (t team) work(ctx context.Context) tally {
	time.Sleep(time.Until(t.start))
	// The deadline is out of reach: without one, redislock gives up after the TTL.
	ctx, cancel := context.WithTimeout(ctx, t.lead+t.length+time.Minute)
	defer cancel()
	var phase atomic.Int32
	sum := tally{waits: newWaits()}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		sum.Sent = t.keepTime(ctx, &phase)
	})

	members := make([]member, t.size)
	for i := range members {
		members[i] = member{team: t, name: t.name(i), phase: &phase, waits: newWaits()}
		if len(t.clients) > 0 {
			members[i].contender = t.clients[i%len(t.clients)]
		}
		if t.guard != nil {
			members[i].sections = t.guard(i)
		}
		wg.Go(func() { members[i].work(ctx) })
	}
	wg.Wait()

	for i := range members {
		sum.Turns = append(sum.Turns, members[i].turns)
		sum.Failures.merge(members[i].failures)
		sum.waits.Merge(members[i].waits)
	}
	return sum
}

// keepTime leads the members through the phases. It returns how many commands the clients sent
// while the sections counted.
func (t team) keepTime(ctx context.Context, phase *atomic.Int32) (sent int64) {
	defer phase.Store(over)
	if t.sent == nil {
		t.sent = new(atomic.Int64)
	}
	sleep(ctx, t.lead)
	before := t.sent.Load()
	phase.Store(counting)
	sleep(ctx, t.length)
	return t.sent.Load() - before
}

// member is a goroutine of a team.
type member struct {
	team
	sections *guard
	name     string
	phase    *atomic.Int32
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
		if m.phase.Load() != leading {
			_ = m.waits.RecordValue(int64(time.Since(began)))
		}
		if err != nil {
			if m.phase.Load() != over {
				m.failures.add(fmt.Errorf("lock: %w", err))
				time.Sleep(pauseAfterFailure)
			}
			continue
		}
		if m.sections != nil {
			m.sections.enter()
		}
		if m.hold > 0 {
			time.Sleep(m.hold)
		}
		if m.sections != nil {
			m.sections.leave()
		}
		if m.phase.Load() == counting {
			m.turns++
		}
		if err := unlock(context.WithoutCancel(ctx)); err != nil {
			m.failures.add(fmt.Errorf("unlock: %w", err))
		}
	}
}

// warmUp fills the contender's pool, by so many callers, and loads its scripts into the server. It
// gives up a lock for which it waits too long: after a slow reply rueidislock may wait for a free
// name for ever.
func warmUp(ctx context.Context, c contender, callers int) error {
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var group errgroup.Group
	for i := range callers {
		group.Go(func() error {
			unlock, err := c.Lock(bounded, uniqueName(fmt.Sprint("warm-up-", i)))
			if err == nil {
				return unlock(ctx)
			}
			if ctx.Err() == nil && bounded.Err() != nil {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	return nil
}

// uniqueName returns a name that no other turn, or run on the same server, uses.
func uniqueName(what string) string { return "benchmark-" + what + "-" + newToken() }
