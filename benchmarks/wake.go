package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// wake measures how long a released lock stays free while a caller waits for it.
func wake() scenario {
	return scenario{
		name:    "wake",
		about:   "one process unlocks, another has been waiting; median time from before the unlock until the other has the lock",
		measure: duration,
		entries: peers(),
		retry:   retryForLatency,
		turn:    wakeTurn,
	}
}

// wakeLimit bounds the wait of one waiter.
const wakeLimit = 5 * time.Second

// maxFailures is how many waiters may fail to wake up before the turn ends.
const maxFailures = 2

func wakeTurn(ctx context.Context, t turn) (r result, err error) {
	_, file, remove, err := newSharedGuard()
	if err != nil {
		return result{}, err
	}
	defer remove()
	name := uniqueName("wake")
	c, err := spawn(ctx, assignment{Setup: t.setup, Entrant: t.entrant.name, Lock: name, Guard: file})
	if err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	times := 100
	if t.quick {
		times = 10
	}
	r.waits = newWaits()
	for range times {
		d, slept, err := wakeOnce(ctx, t.contender, c, name)
		if err != nil {
			return r, err
		}
		_ = r.waits.RecordValue(int64(d))
		if r.failures.merge(slept); r.failures.Count >= maxFailures {
			break
		}
	}
	r.value = float64(r.waits.ValueAtQuantile(50))
	return r, nil
}

// wakeOnce releases the lock once, and returns how long the waiter took to get it, by the
// machine's clock, which both processes read. A waiter that never gets the lock is a failure
// in slept, and its wait counts as long as it lasted; err is for everything else.
func wakeOnce(ctx context.Context, holder contender, waiter *child, name string) (d time.Duration, slept failures, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*wakeLimit)
	defer cancel()
	unlock, err := holder.Lock(ctx, name)
	if err != nil {
		return 0, slept, fmt.Errorf("lock: %w", err)
	}
	if err := waiter.order(order{}); err != nil {
		return 0, slept, err
	}
	// Long enough for the other process to wait, and a random time, so that it ends at no
	// fixed point between two of its retries.
	time.Sleep(20*time.Millisecond + rand.N(20*time.Millisecond))
	freed := time.Now()
	if err := unlock(ctx); err != nil {
		return 0, slept, fmt.Errorf("unlock: %w", err)
	}
	a, err := waiter.answer()
	if err != nil {
		return 0, slept, err
	}
	d = time.Unix(0, a.At).Sub(freed)
	if d <= 0 {
		return 0, slept, fmt.Errorf("NOT EXCLUSIVE: the waiter had the lock %v before it was freed", -d)
	}
	return d, a.Tally.Failures, nil
}

// waitAsChild is wakeOnce's part in the child.
func waitAsChild(ctx context.Context, e assignment, c contender) answer {
	ctx, cancel := context.WithTimeoutCause(ctx, wakeLimit, errors.New("never woke up"))
	defer cancel()
	unlock, err := c.Lock(ctx, e.Lock)
	a := answer{At: time.Now().UnixNano()}
	if err == nil {
		err = unlock(ctx)
	}
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	a.Tally.Failures.add(err)
	return a
}
