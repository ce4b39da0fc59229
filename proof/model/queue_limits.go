package model

import (
	"math"
	"time"

	"github.com/sluice-go/sluice"
)

// inMicros returns the server's time in microseconds, in which it counts limits.
func inMicros(now float64) float64 { return math.Round(now * 1e6) }

// Pause pauses the queue for a whole number of milliseconds, or for good if that is 0.
func (q *Queue) Pause(now float64, d time.Duration) {
	q.Paused, q.Until = true, 0
	if d > 0 {
		q.Until = inMicros(now) + float64(d.Microseconds())
	}
}

// Resume ends a pause.
func (q *Queue) Resume() { q.Paused, q.Until = false, 0 }

// IsPaused says whether the queue is paused: a pause with an end is over by itself.
func (q *Queue) IsPaused(now float64) bool {
	return q.Paused && (q.Until == 0 || q.Until > inMicros(now))
}

// SetLimits gives the queue other limits. Tokens that are spent stay spent, as many as the new
// burst has.
func (q *Queue) SetLimits(now float64, l sluice.Limits) {
	used := q.used(now)
	if l.Rate > 0 {
		l.Burst = max(l.Burst, 1)
		if l.Per == 0 {
			l.Per = time.Second
		}
	}
	q.Limits, q.Spent = l, 0
	if l.Rate > 0 && used > 0 {
		tokens := min(used, float64(l.Burst)) * float64(l.Per.Microseconds())
		q.Spent = math.Ceil(inMicros(now) + tokens/float64(l.Rate))
	}
}

// every is how many microseconds a token of the rate takes.
func (q *Queue) every() float64 { return float64(q.Limits.Per.Microseconds()) / float64(q.Limits.Rate) }

// used is how many tokens of the rate are spent.
func (q *Queue) used(now float64) float64 {
	if q.Limits.Rate == 0 {
		return 0
	}
	return max(q.Spent-inMicros(now), 0) * float64(q.Limits.Rate) / float64(q.Limits.Per.Microseconds())
}

// places returns how many more tasks may be leased.
func (q *Queue) places(now float64) int {
	if q.Limits.Running == 0 {
		return math.MaxInt
	}
	return max(q.Limits.Running-len(q.Index(now)), 0)
}

// tokens returns how many more tasks may be handed out.
func (q *Queue) tokens(now float64) int {
	if q.Limits.Rate == 0 {
		return math.MaxInt
	}
	return max(int(math.Floor(float64(q.Limits.Burst)-q.used(now))), 0)
}

// allowed returns how many of n tasks may be handed out, if there are so many places for them.
func (q *Queue) allowed(now float64, n, places int) int {
	if q.IsPaused(now) {
		return 0
	}
	return min(n, places, q.tokens(now))
}

// spend notes that n tasks were handed out.
func (q *Queue) spend(now float64, n int) {
	if q.Limits.Rate > 0 && n > 0 {
		q.Spent = math.Ceil(max(q.Spent, inMicros(now)) + float64(n)*float64(q.Limits.Per.Microseconds())/float64(q.Limits.Rate))
	}
}

// Changes returns the times, in microseconds, at which a pause ends and tokens come back.
func (q *Queue) Changes() (at []float64) {
	if q.Until > 0 {
		at = append(at, q.Until)
	}
	if q.Limits.Rate > 0 && q.Spent > 0 {
		for n := range min(q.Limits.Burst, 3) {
			at = append(at, math.Ceil(q.Spent-float64(n)*q.every()))
		}
	}
	return at
}
