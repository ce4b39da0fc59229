package sale

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

func (s *Shop) reconcile(ctx context.Context, _ sluice.Entry) error {
	err := s.Reconcile(ctx)
	if errors.Is(err, sluice.ErrLocked) {
		return sluice.Again(time.Second) // another process is at it: no failure
	}
	return err
}

// Reconcile compares Redis with the database, and mends what is left of a crash between two steps,
// or of a Redis that came back empty or older. A user whom Redis has forgotten before a row was
// written has no order, and may ask again.
//
// A lock is good here: when a sale is deployed all processes start at once, and each would read
// every order while the crowd waits. Also, the one that writes last might have read the oldest
// total. The lock does not keep buyers and tasks out, and need not: each step of the script is safe
// beside them, and what was put back is looked at once more. So a holder that loses its lock does
// no harm either.
func (s *Shop) Reconcile(ctx context.Context) error {
	return s.locker.Do(ctx, "reconcile:"+s.Item, s.mend, sluice.WithMaxWait(max(5*time.Second, 2*s.Crash)))
}

func (s *Shop) mend(ctx context.Context) error {
	// Redis first. An order whose row is not found after that has a task on its way, or has lost
	// it. The other way round, an order might be written in between.
	buyers, err := s.rdb.HGetAll(ctx, s.keys()[1]).Result() // no more than there are units
	if err != nil {
		return err
	}
	var item Item
	var orders []Order
	db := s.db.WithContext(ctx)
	err = errors.Join(db.Take(&item, "id = ?", s.Item).Error, db.Find(&orders, "item = ? AND state IN ?", s.Item, []string{Unpaid, Paid}).Error)
	if err != nil {
		return err
	}
	open, forgotten := []any{"open", item.Total}, []string{}
	for _, o := range orders {
		switch buyers[o.Buyer] {
		case "": // Redis has forgotten the buyer
			open, forgotten = append(open, o.Buyer, o.ID), append(forgotten, o.ID)
		case o.ID:
			delete(buyers, o.Buyer)
		}
		if o.State == Unpaid && o.PayBy < time.Now().UnixMilli() { // in case that Redis has forgotten the task
			err = errors.Join(err, s.enqueue(ctx, "cancel", o.ID, o.Buyer, 0))
		}
	}
	for buyer, id := range buyers {
		err = errors.Join(err, s.settle(ctx, buyer, id))
	}
	if err == nil {
		err = script.Run(ctx, s.rdb, s.keys(), open...).Err()
	}
	for _, id := range forgotten { // in case that it was canceled since it was read, when there was no buyer to drop
		err = errors.Join(err, s.follow(ctx, id))
	}
	return err
}

// settle looks at a buyer whom Redis has accepted, and who has neither paid nor to pay. Without a
// row, the process has died before it enqueued the task, or the task is on its way: to enqueue it
// once more does no harm. With a row, the process has died before Redis followed it.
func (s *Shop) settle(ctx context.Context, buyer, id string) error {
	if o, err := s.row(ctx, id); err != nil || o.State == "" {
		return errors.Join(err, s.enqueue(ctx, "order", id, buyer, 0))
	}
	return s.follow(ctx, id)
}

// Figures are the state of the sale.
type Figures struct {
	Item                            Item
	Stock, Accepted                 int64 // in Redis
	Unpaid, Paid, Canceled, Refused int64 // rows
	Buyers                          int64 // different ones who have paid
	Due, Scheduled                  int64 // tasks
}

// Figures asks Redis and the database, one after the other.
func (s *Shop) Figures(ctx context.Context) (f Figures, err error) {
	stock, err1 := s.rdb.Get(ctx, s.keys()[0]).Int64()
	if errors.Is(err1, redis.Nil) { // closed
		err1 = nil
	}
	accepted, err2 := s.rdb.HLen(ctx, s.keys()[1]).Result()
	stats, err3 := s.queue.Stats(ctx)
	f.Stock, f.Accepted, f.Due, f.Scheduled = stock, accepted, stats.Due+stats.Leased, stats.Scheduled
	db := s.db.WithContext(ctx)
	err4 := db.Take(&f.Item, "id = ?", s.Item).Error
	var rows []struct {
		State     string
		N, Buyers int64
	}
	err5 := db.Model(&Order{}).Select("state, count(*) AS n, count(DISTINCT buyer) AS buyers").Where("item = ?", s.Item).Group("state").Scan(&rows).Error
	for _, r := range rows {
		switch r.State {
		case Unpaid:
			f.Unpaid = r.N
		case Paid:
			f.Paid, f.Buyers = r.N, r.Buyers
		case Canceled:
			f.Canceled = r.N
		case Refused:
			f.Refused = r.N
		}
	}
	return f, errors.Join(err1, err2, err3, err4, err5)
}

// Done says whether exactly the item's units were sold, one a user, and both stocks say so.
func (f Figures) Done() bool {
	total := int64(f.Item.Total)
	return total > 0 && f.Paid == total && f.Buyers == total && f.Unpaid == 0 && f.Item.Stock == 0 && f.Stock == 0
}
