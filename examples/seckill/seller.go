package main

import (
	"cmp"
	"context"
	"errors"
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
	// pollInterval is the pause between two looks for a buyer.
	pollInterval = 10 * time.Millisecond
)

// assignment is what a process needs to know to take part in a sale.
type assignment struct {
	config
	Lock bool   // sell by a lock, not by stock
	Addr string // of Redis
	DB   string // file
	Run  string // name of the queue, and of the lock
	Proc int    // which of Procs it is
}

// seller is one process's part in the sale. The sale can continue without it: the orders are in the
// database, their tasks on Redis.
type seller struct {
	assignment
	shop   *shop
	way    way
	buyers *buyerQueue
}

// way is how a seller sells: byStock or byLock.
type way interface {
	// buy sells a unit to a customer who has seen the shop so.
	buy(ctx context.Context, customer int, seen view) (purchase, error)
	// pay pays an order if its customer wants to.
	pay(ctx context.Context, p purchase) error
	// work cancels orders that are due and unpaid, until ctx ends.
	work(ctx context.Context) error
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
	locker, err1 := sluice.NewLocker(rdb, sluice.WithTTL(lockTTL))
	cancellations, err2 := sluice.NewQueue(rdb, e.Run)
	orders, err3 := openQueue(rdb, e.Run)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	defer locker.Close()
	s := &seller{assignment: e, shop: db, way: &byStock{e, db, orders}, buyers: newBuyerQueue(e.share(e.Proc, e.Procs))}
	if e.Lock {
		s.way = &byLock{e, db, locker, cancellations}
	}
	return s.run(ctx)
}

// run sells and cancels concurrently, until the sale is over or one of them fails.
func (s *seller) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	working, over := context.WithCancel(ctx)
	defer over()
	g.Go(func() error { return s.way.work(working) })
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
		b, ok := s.buyers.next()
		if !ok {
			_ = pause(ctx, pollInterval)
			continue
		}
		visits.Go(func() error {
			return s.visit(ctx, b, func(p purchase) {
				payments.Go(func() error { return s.way.pay(paying, p) })
			})
		})
	}
}

// visit serves a buyer once. The buyer then goes to the end of the queue, or leaves if the
// order is paid. The look decides nothing: it only spares the way to sell a buyer that cannot buy.
func (s *seller) visit(ctx context.Context, b buyer, ordered func(purchase)) error {
	v, err := s.shop.look(ctx, b.customer)
	if err != nil || v.status == paid {
		return err
	}
	defer s.buyers.add(b)
	if v.status == unpaid {
		return nil
	}
	p, err := s.way.buy(ctx, b.customer, v)
	switch {
	case errors.Is(err, sluice.ErrUnknown), errors.Is(err, sluice.ErrLost), errors.Is(err, errOvertaken):
		// The buyer comes again. This attempt may have left an order that will not be
		// paid, or a task without an order; the worker removes both when they are due.
		return nil
	case err == nil && p.result == sold:
		ordered(p)
	}
	return err
}

// purchase is the result of a buyer's attempt.
type purchase struct {
	order
	intention
	result string
}

const (
	sold      = "sold"
	soldOut   = "sold out"
	hasOne    = "has one"
	overtaken = "overtaken"
	failed    = "failed"
)
