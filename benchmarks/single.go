package main

import (
	"context"
	"runtime"
	"time"
)

// single is the uncontended cost: one goroutine, one name.
func single() scenario {
	return scenario{
		name:    "single",
		about:   "one goroutine locks and unlocks one name; time per pair",
		measure: duration,
		entries: enter(sluiceName, floorName, "redislock", "redsync", "rueidislock"),
		length:  2 * time.Second,
		columns: []column{{"allocs", median, whole}},
		turn:    singleTurn,
	}
}

func singleTurn(ctx context.Context, t turn) (result, error) {
	unending := context.WithoutCancel(ctx) // as in most programs
	name := uniqueName("single")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	pairs := 0
	for time.Since(began) < t.length && ctx.Err() == nil {
		unlock, err := t.contender.Lock(unending, name)
		if err != nil {
			return result{}, err
		}
		if err := unlock(unending); err != nil {
			return result{}, err
		}
		pairs++
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return result{
		value: float64(took) / float64(pairs),
		extra: map[string]float64{"allocs": float64(after.Mallocs-before.Mallocs) / float64(pairs)},
	}, nil
}
