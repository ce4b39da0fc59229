// Package backoff draws the pauses between tries, and says which of two times is sooner.
//
// Every pause has a random part (jitter), so that clients which failed together do
// not come back together.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// maxDoublings keeps Exponential from overflowing.
const maxDoublings = 20

// Exponential returns first, doubled n times, and at most last. It has no jitter: give
// the result to [Full] or [Half].
func Exponential(first, last time.Duration, n int) time.Duration {
	return min(first<<min(max(n, 0), maxDoublings), last)
}

// Full returns a random duration from 0 to d ("full jitter").
func Full(d time.Duration) time.Duration { return rand.N(d + 1) }

// Half returns a random duration from d/2 to d.
func Half(d time.Duration) time.Duration { return d/2 + Full(d-d/2) }

// Sooner returns the earlier of two times. Zero stands for never.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
