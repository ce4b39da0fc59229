package main

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

const (
	// atOnce is how many buyers a process serves at the same time, and so the most
	// goroutines that wait for the lock. More would be useless: most buyers will find the
	// stock empty.
	atOnce = 16
	// lockTTL is how long the others wait if a process dies while it holds the lock. A hold
	// takes a few milliseconds.
	lockTTL = 2 * time.Second
	// payWithin is how long an order may stay unpaid.
	payWithin = time.Second
	// pollInterval is the pause between two looks at an empty stock.
	pollInterval = 10 * time.Millisecond
)

// assignment is what a process needs to know to take part in a sale.
type assignment struct {
	config
	Addr string // of Redis
	DB   string // file
	Run  string // name of lock and queue
	Proc int    // which of Procs it is
}

// seller is one process's part in the sale. The sale can continue without it: orders and stock
// are in the database, the lock and the tasks on Redis.
type seller struct {
	assignment
	shop   *shop
	locker *sluice.Locker
	queue  *sluice.Queue
	buyers *buyerQueue
}

// sellAsOne runs one process's part until the sale is over.
func sellAsOne(ctx context.Context, e assignment) error {
	db, err := openShop(e.DB)
	if err != nil {
		return err
	}
	defer db.close()
	rdb := connect(e.Addr)
	defer rdb.Close()
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(lockTTL))
	if err != nil {
		return err
	}
	defer locker.Close()
	queue, err := sluice.NewQueue(rdb, e.Run)
	if err != nil {
		return err
	}
	s := &seller{assignment: e, shop: db, locker: locker, queue: queue, buyers: newBuyerQueue(e.share(e.Proc, e.Procs))}
	return s.run(ctx)
}

// run sells and cancels concurrently, until the sale is over or one of them fails.
func (s *seller) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	working, over := context.WithCancel(ctx)
	defer over()
	g.Go(func() error { return s.work(working) })
	g.Go(func() error {
		defer over()
		return s.sell(ctx)
	})
	return g.Wait()
}

// sell serves buyers while there is stock, until every unit is paid.
func (s *seller) sell(ctx context.Context) error {
	paying, over := context.WithCancel(ctx)
	var payments errgroup.Group
	visits, ctx := errgroup.WithContext(ctx)
	visits.SetLimit(atOnce)
	for {
		now, err := s.shop.standing(ctx)
		if err != nil || now.paid >= s.Stock {
			// All units are paid, so the orders of customers who would still pay are cancelled.
			over()
			return cmp.Or(visits.Wait(), payments.Wait(), err)
		}
		b, ok := buyer{}, false
		if now.stock > 0 {
			b, ok = s.buyers.next()
		}
		if !ok {
			_ = pause(ctx, pollInterval)
			continue
		}
		visits.Go(func() error {
			return s.visit(ctx, b, func(p purchase) {
				payments.Go(func() error { return s.pay(paying, p) })
			})
		})
	}
}
