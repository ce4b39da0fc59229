package main

import (
	"context"
	"slices"
	"time"
)

// hot measures one name that many goroutines of one process want.
func hot() scenario {
	return scenario{
		name:    "hot",
		about:   "64 goroutines of one process on one name",
		measure: perSecond,
		entries: peers(),
		length:  3 * time.Second,
		retry:   retryForThroughput,
		columns: []column{
			{"least turns", slices.Min[[]float64], whole},
			{"most turns", slices.Max[[]float64], whole},
			commandsColumn, allocsColumn,
		},
		turn: hotTurn,
	}
}

func hotTurn(ctx context.Context, t turn) (result, error) {
	name := uniqueName("hot")
	var g guard
	work := team{
		contender: t.contender, size: 64, length: t.length, guard: &g,
		name: func(int) string { return name },
	}.work(ctx)
	r := result{
		value: float64(work.sections()) / t.length.Seconds(),
		ops:   float64(work.sections()),
		extra: map[string]float64{
			"least turns": float64(slices.Min(work.Turns)),
			"most turns":  float64(slices.Max(work.Turns)),
		},
		waits:    work.waits,
		failures: work.Failures,
	}
	return r, g.check()
}
