// Package sale sells one item in a seckill, a flash sale: Redis lets in as many buyers as there are
// units, tasks write the orders, and the database has the last word.
//
//	Buy        Redis: one unit less, the user has an order ID      then enqueue "order"
//	order      database: the row, one unit less                    "cancel" is enqueued before the commit
//	Pay        database: unpaid -> paid                            then remove "cancel", to tidy up
//	cancel     database: unpaid -> canceled, one unit more         then Redis: one unit more, the user has none
//	reconcile  what a crash between two steps has left
//
// Each step is safe to repeat, because a crash may come before the next one, and a task may run
// twice.
package sale

import (
	"context"
	_ "embed" // for the script
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/sluice-go/sluice"
)

// What becomes of a request to buy.
const (
	Accepted = "accepted" // the order will be written
	Have     = "have"     // the user has an order already
	SoldOut  = "sold out"
	Closed   = "closed" // Redis does not know the stock, yet or any more
)

// The states of an order's row. An order without a row is Accepted.
const (
	Unpaid   = "unpaid"
	Paid     = "paid"
	Canceled = "canceled"
	Refused  = "refused" // Redis has let in too many; no unit was taken
)

// Item is a row: what is for sale, and how much of it has no order.
type Item struct {
	ID           string `gorm:"primaryKey"`
	Total, Stock int
}

// Order is a row. A user has at most one that is neither canceled nor refused. MySQL has no index
// with a condition: let a column be 1 in such rows and NULL in others there, and index that too.
type Order struct {
	ID    string `gorm:"primaryKey"`
	Item  string `gorm:"uniqueIndex:one_each,where:state = 'unpaid' OR state = 'paid'"`
	Buyer string `gorm:"uniqueIndex:one_each"`
	State string
	PayBy int64 // in milliseconds since 1970
}

// Config is what differs between a test and real life.
type Config struct {
	Item  string
	Total int           // units; counts when the item's row is made
	PayIn time.Duration // from the row until it is canceled
	Every time.Duration // between two runs of reconcile
	Crash time.Duration // for how long a process that died holds up its lock and its tasks
}

// Shop sells the item. It is safe for concurrent use, in any number of processes.
type Shop struct {
	db     *gorm.DB
	rdb    redis.UniversalClient
	locker *sluice.Locker
	queue  *sluice.Queue
	Config
}

//go:embed sale.lua
var lua string

var script = redis.NewScript(lua)

// Open makes the tables and the item's row if they are missing, and opens the sale in Redis. The
// caller closes the Shop.
func Open(ctx context.Context, db *gorm.DB, rdb redis.UniversalClient, c Config) (*Shop, error) {
	locker, err1 := sluice.NewLocker(rdb, sluice.WithTTL(c.Crash))
	// Keep: an ID that is enqueued again is on its way already. No order ID is used twice.
	queue, err2 := sluice.NewQueue(rdb, "shop:"+c.Item, sluice.WithDuplicates(sluice.DuplicatesKeep))
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	s := &Shop{db, rdb, locker, queue, c}
	// A lock IS needed here: two processes that start at once would both find no table, and the
	// second one would fail.
	err := locker.Do(ctx, "migrate:"+c.Item, func(ctx context.Context) error {
		if err := db.WithContext(ctx).AutoMigrate(&Item{}, &Order{}); err != nil {
			return err
		}
		return db.WithContext(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&Item{c.Item, c.Total, c.Total}).Error
	})
	if err == nil {
		if err = s.Reconcile(ctx); errors.Is(err, sluice.ErrLocked) {
			err = nil // another process is at it; if it dies, the first buyer has the sale opened
		}
	}
	if err != nil {
		return nil, errors.Join(err, locker.Close())
	}
	return s, nil
}

// Close closes the Locker. Stop the Worker first, and close the client and the database after it.
func (s *Shop) Close() error { return s.locker.Close() }

// Worker returns the worker that writes and cancels orders. Its Concurrency is what the database
// has to bear: the crowd stays in Redis.
func (s *Shop) Worker() *sluice.Worker {
	mux := &sluice.Mux{}
	mux.Handle("order", s.order, sluice.KindTimeout(10*time.Second))
	mux.Handle("cancel", s.cancel, sluice.KindTimeout(10*time.Second))
	mux.Handle("reconcile", s.reconcile)
	return &sluice.Worker{Queue: s.queue, Handler: mux.Serve, Concurrency: 8, Lease: s.Crash, Grace: 4 * time.Second,
		Periodic: []sluice.Periodic{{ID: "reconcile", Kind: "reconcile", Schedule: sluice.Every(s.Every)}}}
}

// Answer is the answer to a buyer.
type Answer struct {
	Result string `json:"result"`
	Order  string `json:"order,omitempty"`
}

// Buy takes a unit for a user, without a look at the database. A user who asks again gets the same
// order.
//
// No lock is needed: the script is one step. A lock around "read the stock, then write it" would do
// the same, one buyer after the other.
func (s *Shop) Buy(ctx context.Context, user string) (Answer, error) {
	// A buyer who goes away must not end this between its two steps.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	a, err := s.take(ctx, user)
	switch {
	case err == nil && a.Result == Accepted:
		// A crash, or an error, before this leaves a buyer without a task. Reconcile finds that.
		err = s.enqueue(ctx, "order", a.Order, user, 0)
	case err == nil && a.Result == Closed: // all who find it closed enqueue one task together
		_, err = s.queue.Enqueue(ctx, sluice.Task{ID: "refill", Kind: "reconcile"})
	}
	return a, err
}

// take is the step of Buy in Redis. The user's first order ID counts.
func (s *Shop) take(ctx context.Context, user string) (Answer, error) {
	reply, err := script.Run(ctx, s.rdb, s.keys(), "take", user, sluice.NewID()).StringSlice()
	if err != nil {
		return Answer{}, fmt.Errorf("take a unit: %w", err)
	}
	return Answer{reply[0], reply[1]}, nil
}

// keys have one hash tag, so that a Cluster has both in one slot.
func (s *Shop) keys() []string {
	return []string{"shop:{" + s.Item + "}:stock", "shop:{" + s.Item + "}:buyers"}
}

// enqueue enqueues a task for an order, unless it is on its way.
func (s *Shop) enqueue(ctx context.Context, kind, order, user string, delay time.Duration) error {
	_, err := s.queue.Enqueue(ctx, sluice.Task{ID: kind + ":" + order, Kind: kind, Payload: []byte(user), Header: map[string]string{"order": order}, Delay: delay})
	return err
}

// errRefused says that the user has another order, that the row is there already, or that no unit
// is left.
var errRefused = errors.New("order refused")

// order writes an order's row. Whatever it finds, there is a row after that, and an order is
// decided once and for all.
//
// No lock is needed: the unique index lets one row of a user in, and the conditional UPDATE takes
// no unit that is not there.
func (s *Shop) order(ctx context.Context, e sluice.Entry) error {
	o := Order{ID: e.Header["order"], Item: s.Item, Buyer: string(e.Payload), State: Unpaid}
	err := s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		o.PayBy = time.Now().Add(s.PayIn).UnixMilli() // here, because a transaction may have to wait for a connection
		if made := tx.Clauses(clause.OnConflict{DoNothing: true}).Create(&o); made.Error != nil || made.RowsAffected == 0 {
			return errors.Join(made.Error, errRefused)
		}
		taken := tx.Model(&Item{}).Where("id = ? AND stock > 0", s.Item).Update("stock", gorm.Expr("stock - 1"))
		if taken.Error != nil || taken.RowsAffected == 0 {
			return errors.Join(taken.Error, errRefused)
		}
		// Before the commit: a crash between the two leaves a task that finds no order. The other
		// way round it would leave an order that nothing cancels. If this is a second attempt, the
		// task of the first is kept, and comes early: see cancel.
		return s.enqueue(ctx, "cancel", o.ID, o.Buyer, s.PayIn)
	})
	if errors.Is(err, errRefused) { // a row of the same ID stays what it is
		o.State = Refused
		err = s.db.WithContext(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&o).Error
	}
	return errors.Join(err, s.follow(ctx, o.ID))
}

// cancel gives a unit back that was not paid in time: in the database, and then in Redis. The other
// way round, a crash between the two would let a buyer in for a unit that the database does not
// have.
//
// No lock is needed: of this UPDATE and the one in Pay, one finds the order unpaid.
func (s *Shop) cancel(ctx context.Context, e sluice.Entry) error {
	id, now := e.Header["order"], time.Now()
	err := s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		changed := tx.Model(&Order{}).Where("id = ? AND state = ? AND pay_by <= ?", id, Unpaid, now.UnixMilli()).Update("state", Canceled)
		if changed.Error != nil || changed.RowsAffected == 0 {
			return changed.Error
		}
		return tx.Model(&Item{}).Where("id = ?", s.Item).Update("stock", gorm.Expr("stock + 1")).Error
	})
	if err != nil {
		return err
	}
	if o, err := s.row(ctx, id); err != nil {
		return err
	} else if o.State == Unpaid { // its second attempt was later than this task
		return sluice.Again(time.UnixMilli(o.PayBy).Sub(now))
	}
	return s.follow(ctx, id)
}

// follow makes Redis follow an order's row. It comes after the commit and is repeated with the
// task, so that a crash between the two does no harm; and the script puts back a unit only while
// the user has that very order.
func (s *Shop) follow(ctx context.Context, id string) error {
	o, err := s.row(ctx, id)
	if err != nil || o.State != Canceled && o.State != Refused {
		return err
	}
	units := 0 // Redis let in one too many: there is nothing to put back
	if o.State == Canceled {
		units = 1
	}
	return script.Run(ctx, s.rdb, s.keys(), "drop", o.Buyer, o.ID, units).Err()
}

// row returns an order, or one without a state if there is no row.
func (s *Shop) row(ctx context.Context, id string) (o Order, err error) {
	return o, s.db.WithContext(ctx).Where("id = ?", id).Limit(1).Find(&o).Error
}

// Pay pays an order, and returns its state after that: Paid, also for a repeat; Accepted if its row
// is still to be written.
//
// No lock is needed, for the same reason as in cancel.
func (s *Shop) Pay(ctx context.Context, id string) (state string, err error) {
	if err := s.db.WithContext(ctx).Model(&Order{}).Where("id = ? AND state = ?", id, Unpaid).Update("state", Paid).Error; err != nil {
		return "", err
	}
	o, err := s.row(ctx, id)
	switch o.State {
	case Paid:
		_, _ = s.queue.Cancel(ctx, "cancel:"+id) // only tidies up: the row has decided
	case Unpaid: // the row was written after the UPDATE
		return s.Pay(ctx, id)
	case "":
		o.State = Accepted
	}
	return o.State, err
}
