package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// hotSize is how many goroutines want each hot name.
const hotSize = 64

// hot measures names that many goroutines of one process want.
func hot(names int) scenario {
	s := scenario{
		name:     "hot",
		about:    "64 goroutines of one process on one name",
		headline: "64 goroutines of one process want one lock: how often it changes hands in a second",
		measure:  perSecond,
		entries:  append(peers(), enter(fifoName)...),
		length:   3 * time.Second,
		retry:    retryForThroughput,
		columns: []column{
			{"least turns", slices.Min[[]float64], whole},
			{"most turns", slices.Max[[]float64], whole},
			commandsColumn, allocsColumn,
		},
		turn: func(ctx context.Context, t turn) (result, error) { return hotTurn(ctx, t, names) },
	}
	if names > 1 {
		s.name, s.about = fmt.Sprintf("hot-%d", names), fmt.Sprintf("64 goroutines of one process on each of %d names", names)
		s.headline, s.entries = "", enter(sluiceName, "rueidislock", fifoName)
	}
	return s
}

func hotTurn(ctx context.Context, t turn, names int) (result, error) {
	unique, guards := make([]string, names), make([]guard, names)
	for i := range unique {
		unique[i] = uniqueName("hot")
	}
	work := team{
		contender: t.contender, size: names * hotSize, length: t.length,
		guard: func(i int) *guard { return &guards[i%names] },
		name:  func(i int) string { return unique[i%names] },
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
	var errs []error
	for i := range guards {
		errs = append(errs, guards[i].check())
	}
	return r, errors.Join(errs...)
}
