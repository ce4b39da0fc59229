package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// here carries out an assignment in this process.
func (e assignment) here(ctx context.Context) (a answer, err error) {
	g, err := openSharedGuard(e.Guard)
	if err != nil {
		return answer{}, err
	}
	clients, err := e.open(ctx)
	defer func() { err = errors.Join(err, closeAll(clients)) }()
	if err != nil {
		return answer{}, err
	}
	return e.work(ctx, clients, g, order{time.Now().UnixNano()}), nil
}

// open opens the clients and warms them up. The caller closes those that it returns, even with
// an error.
func (e *assignment) open(ctx context.Context) ([]contender, error) {
	open := enter(e.Entrant)[0].open
	if e.Clients > 0 {
		e.Setup.sent = new(atomic.Int64)
		return openFleet(ctx, open, e.Setup, e.Clients)
	}
	c, err := open(e.Setup)
	if err != nil {
		return nil, err
	}
	return []contender{c}, warmUp(ctx, c, poolSize)
}

// work has a team work. The turns of its tally are each goroutine's or, if there are several
// clients, each client's.
func (e assignment) work(ctx context.Context, clients []contender, g *guard, o order) answer {
	if e.Unguarded {
		g = nil
	}
	work := team{
		clients: clients, size: e.Size, lead: e.Lead, length: e.Length, hold: e.Hold,
		guard: func(int) *guard { return g },
		start: time.Unix(0, o.Start),
		name:  func(int) string { return e.Lock },
		sent:  e.Setup.sent,
	}.work(ctx)
	if e.Clients > 0 {
		turns := make([]int64, len(clients))
		for i, n := range work.Turns {
			turns[i%len(clients)] += n
		}
		work.Turns = turns
	}
	return answer{Tally: work, Waits: work.waits.Export()}
}
