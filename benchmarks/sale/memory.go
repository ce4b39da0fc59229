package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// lookEvery is how often a process asks for the stock. It is how long a unit that came back may be
// unknown to a process, and a stock that is gone likewise. Queue answers so by itself.
const lookEvery = 50 * time.Millisecond

// work has a Worker as Task.Take's handle the tasks of orders until ctx ends.
func work(ctx context.Context, queue *sluice.Queue, handler sluice.Handler) error {
	worker := &sluice.Worker{
		Queue: queue, Handler: handler, Lease: ttl, Backoff: func(int, error) time.Duration { return lookEvery },
		Logger: slog.New(slog.DiscardHandler),
	}
	return worker.Run(ctx)
}

// memory is what a process knows of the stock, so that it answers most requests by itself.
type memory struct {
	soldOut atomic.Bool
}

func (m *memory) set(stock int)   { m.soldOut.Store(stock <= 0) }
func (m *memory) isSoldOut() bool { return m.soldOut.Load() }

// keep keeps it fresh until ctx ends.
func (m *memory) keep(ctx context.Context, left func(context.Context) (int, error)) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if n, err := left(ctx); err == nil {
				m.set(n)
			}
		case <-ctx.Done():
			return
		}
	}
}
