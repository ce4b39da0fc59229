package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

const (
	heldTTL    = 5 * time.Second         // rueidislock's default, which its README keeps
	minHeld    = 2700 * time.Millisecond // long enough for each contender to renew
	goroutines = "goroutines"
	locksLost  = "locks lost"
)

// held measures many locks that are held for longer than their TTL.
func held() scenario {
	renewing := entrant{name: sluiceName, settings: fmt.Sprintf("in held: TTL %v, WithAutoRenew", heldTTL), open: plain(newRenewing)}
	return scenario{
		name: "held",
		about: fmt.Sprintf("10,000 locks (100 with -quick) with a TTL of %v, renewed in the background, which redislock and redsync do not do;"+
			" the server's commands while they are held", heldTTL),
		measure: commandsPerSecond,
		entries: append([]entrant{renewing}, enter("rueidislock")...),
		length:  10 * time.Second,
		columns: []column{{goroutines, median, whole}, {locksLost, slices.Max[[]float64], whole}},
		turn:    heldTurn,
	}
}

func newRenewing(rdb redis.UniversalClient, _ setup) (contender, error) {
	l, err := sluice.NewLocker(rdb, sluice.WithTTL(heldTTL), sluice.WithAutoRenew())
	return locker{l}, err
}

func heldTurn(ctx context.Context, t turn) (r result, err error) {
	unlocks := make([]unlock, 10_000)
	if t.quick {
		unlocks = unlocks[:100]
	}
	name := uniqueName("held")
	err = inParallel(ctx, poolSize, len(unlocks), func(ctx context.Context, i int) (err error) {
		unlocks[i], err = t.contender.Lock(ctx, fmt.Sprint(name, "-", i))
		return err
	})
	if err != nil {
		return result{}, fmt.Errorf("lock: %w", err)
	}
	if r.value, err = t.meter.commandsDuring(ctx, max(t.length, minHeld)); err != nil {
		return result{}, err
	}
	r.extra = map[string]float64{goroutines: float64(runtime.NumGoroutine() - t.goroutines)}
	errs := make([]error, len(unlocks)) // of lost locks
	_ = inParallel(context.WithoutCancel(ctx), poolSize, len(unlocks), func(ctx context.Context, i int) error {
		errs[i] = unlocks[i](ctx)
		return nil
	})
	for _, err := range errs {
		r.failures.add(err)
	}
	r.extra[locksLost] = float64(r.failures.Count)
	return r, nil
}
