package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// buyer is a customer at a device. A customer with two devices is two buyers.
type buyer struct {
	customer int
}

// customers returns the number of customers: every tenth buyer is the customer before.
func (c config) customers() int {
	return c.Buyers - c.Buyers/10
}

// share returns the buyers that process p of n serves. A customer's two buyers are neighbours,
// so different processes serve them at about the same time.
func (c config) share(p, n int) []buyer {
	var bs []buyer
	for i := p; i < c.Buyers; i += n {
		bs = append(bs, buyer{customer: i - (i+1)/10})
	}
	return bs
}

// intention is what a customer will do about an order.
type intention struct {
	think time.Duration // between seeing the stock and taking a unit
	pays  bool
	after time.Duration // how long after ordering
}

// intend returns what the customer will do about the next order, after before earlier ones. It
// depends on nothing else, so it is the same in every process. Of ten orders, seven are paid
// soon, one at the moment of its cancellation, and two never. A customer's third order is
// always paid, so the sale ends.
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

// buyerQueue has the buyers that wait for a process to serve them. It is safe for concurrent
// use.
type buyerQueue struct {
	mu      sync.Mutex // guards waiting
	waiting []waitingBuyer
}

type waitingBuyer struct {
	buyer
	from time.Time // not served before
}

// returnAfter is how long a buyer without a unit stays away. It is the same for all buyers, so
// the queue stays sorted by from.
const returnAfter = 50 * time.Millisecond

func newBuyerQueue(bs []buyer) *buyerQueue {
	q := &buyerQueue{}
	for _, b := range bs {
		q.waiting = append(q.waiting, waitingBuyer{buyer: b})
	}
	return q
}

// next removes the first buyer, if there is one that may be served now.
func (q *buyerQueue) next() (buyer, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 || time.Now().Before(q.waiting[0].from) {
		return buyer{}, false
	}
	b := q.waiting[0].buyer
	q.waiting = q.waiting[1:]
	return b, true
}

// add puts a buyer at the end of the queue.
func (q *buyerQueue) add(b buyer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, waitingBuyer{buyer: b, from: time.Now().Add(returnAfter)})
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
