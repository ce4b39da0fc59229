package main

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

const (
	// atOnce is how many buyers a process serves at a time, and so how many of
	// its goroutines wait for the lock at most. The others need not: most will
	// find the stock gone.
	atOnce = 16
	// lockTTL is for how long a process that dies under the lock keeps the
	// others waiting. A stay under the lock takes a few milliseconds.
	lockTTL = 2 * time.Second
	// payWithin is how long an order may stay unpaid.
	payWithin = time.Second
	// glance is the pause between two looks at an empty shelf.
	glance = 10 * time.Millisecond
)

// errand is what a process has to know to take part in a sale.
type errand struct {
	config
	Addr string // of Redis
	DB   string // file
	Run  string // name of lock and queue
	Proc int    // which of Procs it is
}

// seller is one process's part in the sale. It keeps nothing that the sale could
// not go on without: orders and stock are in the database, the lock and the
// tasks on Redis.
type seller struct {
	errand
	shop   *shop
	locker *sluice.Locker
	queue  *sluice.Queue
	line   *line
}

// sellAsOne does a process's part, until the sale is over.
func sellAsOne(ctx context.Context, e errand) error {
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
	s := &seller{errand: e, shop: db, locker: locker, queue: queue, line: newLine(e.share(e.Proc, e.Procs))}
	return s.run(ctx)
}

// run sells and cancels side by side. The sale's end ends both; so does an error.
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

// sell lets buyers in, as long as there is something on the shelf, until every
// unit is paid.
func (s *seller) sell(ctx context.Context) error {
	paying, over := context.WithCancel(ctx)
	var payments errgroup.Group
	visits, ctx := errgroup.WithContext(ctx)
	visits.SetLimit(atOnce)
	for {
		now, err := s.shop.standing(ctx)
		if err != nil || now.paid >= s.Stock {
			// Who would still pay has an order that was cancelled.
			over()
			return cmp.Or(visits.Wait(), payments.Wait(), err)
		}
		b, ok := buyer{}, false
		if now.stock > 0 {
			b, ok = s.line.next()
		}
		if !ok {
			_ = pause(ctx, glance)
			continue
		}
		visits.Go(func() error {
			return s.visit(ctx, b, func(p purchase) {
				payments.Go(func() error { return s.pay(paying, p) })
			})
		})
	}
}
