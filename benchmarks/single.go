package main

import (
	"context"
	"time"
)

// single measures a lock that no other caller wants: one goroutine, one name.
func single() scenario {
	return scenario{
		name:    "single",
		about:   "one goroutine locks and unlocks one name; time per pair",
		measure: duration,
		entries: enter(sluiceName, floorName, "redislock", "redsync", "rueidislock"),
		length:  2 * time.Second,
		columns: []column{commandsColumn, allocsColumn},
		turn:    singleTurn,
	}
}

func singleTurn(ctx context.Context, t turn) (result, error) {
	unending := context.WithoutCancel(ctx) // as in most programs
	name := uniqueName("single")
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
	return result{value: float64(took) / float64(pairs), ops: float64(pairs)}, nil
}
