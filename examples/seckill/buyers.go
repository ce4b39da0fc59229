package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// buyer is somebody at a screen. A customer may be two buyers, on two devices.
type buyer struct {
	customer int
}

// customers is how many there are: every tenth buyer is the customer before.
func (c config) customers() int {
	return c.Buyers - c.Buyers/10
}

// share returns the buyers that process p of n serves. A customer's two buyers
// are neighbours, and so go to different processes at about the same time.
func (c config) share(p, n int) []buyer {
	var bs []buyer
	for i := p; i < c.Buyers; i += n {
		bs = append(bs, buyer{customer: i - (i+1)/10})
	}
	return bs
}

// intention is what a customer does about an order.
type intention struct {
	think time.Duration // between seeing the stock and taking a unit
	pays  bool
	after time.Duration // how long after ordering
}

// intend is what the customer will do with the next order, after so many before.
// It depends on nothing else, so that it is the same in whichever process.
// Seven in ten pay soon, one at the very moment of cancellation, two never. By
// the third order everybody pays: the sale has an end.
func intend(seed uint64, customer, before int) intention {
	r := rand.New(rand.NewPCG(seed, uint64(customer)<<16|uint64(before)))
	in := intention{
		think: time.Millisecond + time.Duration(r.Int64N(int64(2*time.Millisecond))),
		pays:  true,
		after: 20*time.Millisecond + time.Duration(r.Int64N(int64(payWithin/3))),
	}
	switch n := r.IntN(10); {
	case before >= 2 || n < 7:
	case n == 7:
		in.after = payWithin
	default:
		in.pays = false
	}
	return in
}

// line is where the buyers of a process stand. It is safe for concurrent use.
type line struct {
	mu    sync.Mutex // guards spots
	spots []spot
}

type spot struct {
	buyer
	from time.Time // not to be served before
}

// comeback is how long a buyer who goes home without a unit stays away. It is
// the same for all, so that the line stays in the order of from.
const comeback = 50 * time.Millisecond

func newLine(bs []buyer) *line {
	l := &line{}
	for _, b := range bs {
		l.spots = append(l.spots, spot{buyer: b})
	}
	return l
}

// next takes the first buyer out of the line. There may be none just now.
func (l *line) next() (buyer, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.spots) == 0 || time.Now().Before(l.spots[0].from) {
		return buyer{}, false
	}
	b := l.spots[0].buyer
	l.spots = l.spots[1:]
	return b, true
}

// back puts a buyer at the end of the line.
func (l *line) back(b buyer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spots = append(l.spots, spot{buyer: b, from: time.Now().Add(comeback)})
}

// pause sleeps, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
