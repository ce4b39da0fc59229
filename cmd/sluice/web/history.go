package web

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	// sampleEvery is how far apart the figures are that are kept for an hour.
	sampleEvery = 10 * time.Second
	// remembered is how long they are kept.
	remembered = time.Hour
	// rememberedWhole is for how long all figures are kept that were read: rates are of a minute.
	rememberedWhole = rateOver + sampleEvery
)

// history has the figures of one queue over the last hour: all that were read of the last minute,
// and before that one each ten seconds. It needs 18 kB at the most: 28 bytes for each of 360
// samples, and 112 for each of 70 points.
type history struct {
	mu      sync.Mutex // guards what follows
	points  []point
	samples []sample
}

// point is what a queue was at a time.
type point struct {
	at                                          time.Time
	due, scheduled, waiting, leased, dead, done int64
	// Since the counts began.
	finished, retried, buried, lost, trimmed int64
}

// sample is what is kept of a point for an hour: what charts draw. Counts above four billion are
// kept as that.
type sample struct {
	at                                          uint32 // in Unix seconds
	due, scheduled, waiting, leased, dead, done uint32
}

// sum counts what is in the queue, without what is only remembered.
func (p point) sum() int64 { return p.due + p.scheduled + p.waiting + p.leased + p.dead }

// failed counts the attempts that were no success, and succeeded those that were.
func (p point) failed() int64    { return p.retried + p.buried + p.lost }
func (p point) succeeded() int64 { return p.finished }

func (p point) sample() sample {
	few := func(n int64) uint32 { return uint32(max(0, min(n, math.MaxUint32))) }
	return sample{uint32(p.at.Unix()), few(p.due), few(p.scheduled), few(p.waiting), few(p.leased), few(p.dead), few(p.done)}
}

// age returns how long before now it was.
func (s sample) age(now time.Time) time.Duration { return now.Sub(time.Unix(int64(s.at), 0)) }

func (s sample) point() point {
	return point{
		at:  time.Unix(int64(s.at), 0),
		due: int64(s.due), scheduled: int64(s.scheduled), waiting: int64(s.waiting), leased: int64(s.leased), dead: int64(s.dead), done: int64(s.done),
	}
}

// note adds what a queue is now, and forgets what is old.
func (h *history) note(now time.Time, s sluice.Stats) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := point{now, s.Due, s.Scheduled, s.GroupWaiting, s.Leased, s.Dead, s.Done, s.Finished, s.Retried, s.Buried, s.Lost, s.Trimmed}
	h.points = slices.DeleteFunc(h.points, func(p point) bool { return now.Sub(p.at) > rememberedWhole || p.at.After(now) })
	h.points = append(h.points, p)
	// One of the future is of before the clock was put back.
	h.samples = slices.DeleteFunc(h.samples, func(s sample) bool { return s.age(now) > remembered || s.age(now) < 0 })
	// A sample is in whole seconds, and a look each ten seconds comes a little earlier or later.
	if n := len(h.samples); n > 0 && h.samples[n-1].age(now) < sampleEvery-500*time.Millisecond {
		return
	}
	h.samples = append(h.samples, p.sample())
}

// lastMinute returns the figures for rates, the oldest first.
func (h *history) lastMinute() []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.points)
}

// lastHour returns the figures for charts, the oldest first: those of the counts that are never
// kept for long are 0 in the older ones.
func (h *history) lastHour() []point {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]point, 0, len(h.samples)+len(h.points))
	for _, s := range h.samples {
		if p := s.point(); len(h.points) == 0 || p.at.Before(h.points[0].at.Add(-time.Second)) {
			all = append(all, p)
		}
	}
	return append(all, h.points...)
}

// wasThere reports whether the queue had any task in the last minutes.
func (h *history) wasThere(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.points, func(p point) bool { return p.sum() > 0 }) ||
		slices.ContainsFunc(h.samples, func(s sample) bool { return s.age(now) <= lingers && s.point().sum() > 0 })
}
