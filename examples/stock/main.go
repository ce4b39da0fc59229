// Stock shows a shop that sells no more than it has: a lock around the stock, orders in SQLite, and
// a task that cancels what is not paid in time. The task is enqueued before the commit, and the row
// decides what an order is.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver, in plain Go

	"github.com/sluice-go/sluice"
)

const schema = `CREATE TABLE item (stock INTEGER NOT NULL); INSERT INTO item VALUES (5);
CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT NOT NULL);`

const lockName = "stock:phone"

var errSoldOut, errNotUnpaid = errors.New("sold out"), errors.New("no such unpaid order")

// Shop sells one item.
type Shop struct {
	DB     *sql.DB
	Locker *sluice.Locker
	Queue  *sluice.Queue
	PayIn  time.Duration
}

// Buy takes a unit from the stock. The ID is new for each attempt.
func (s *Shop) Buy(ctx context.Context, id string) error {
	return s.underLock(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var stock int
		if err := tx.QueryRowContext(ctx, "SELECT stock FROM item").Scan(&stock); err != nil {
			return err
		}
		if stock == 0 {
			return errSoldOut
		}
		// Before the commit: a crash between the two leaves a task for an order that is not there,
		// which does nothing. The other way round it would leave an order that nothing cancels.
		if _, err := s.Queue.Enqueue(ctx, sluice.Task{ID: id, Delay: s.PayIn}); err != nil {
			return err // even if it is ErrUnknown
		}
		_, err := tx.ExecContext(ctx, "UPDATE item SET stock = stock - 1; INSERT INTO orders VALUES (?, 'unpaid')", id)
		return err
	})
}

// Pay pays an order. The row decides between Pay and Cancel; no lock is needed.
func (s *Shop) Pay(ctx context.Context, id string) error {
	changed, err := s.DB.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'unpaid'", id)
	if err != nil {
		return err
	}
	if n, _ := changed.RowsAffected(); n == 0 {
		return errNotUnpaid
	}
	_, _ = s.Queue.Cancel(ctx, id) // only tidies up
	return nil
}

// Cancel is the Worker's handler. It takes the lock that the buyer took: then an order that is not
// there never will be. It is safe to repeat: the second time, the order is not unpaid.
func (s *Shop) Cancel(ctx context.Context, e sluice.Entry) error {
	return s.underLock(ctx, func(ctx context.Context, tx *sql.Tx) error {
		changed, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'canceled' WHERE id = ? AND state = 'unpaid'", e.ID)
		if err != nil {
			return err
		}
		if n, _ := changed.RowsAffected(); n == 0 {
			return nil
		}
		_, err = tx.ExecContext(ctx, "UPDATE item SET stock = stock + 1")
		return err
	})
}

// underLock runs a transaction while it holds the lock. It commits before the lock is released.
func (s *Shop) underLock(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.Locker.Do(ctx, lockName, func(ctx context.Context) error {
		tx, err := s.DB.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := fn(ctx, tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	}, sluice.WithMaxWait(5*time.Second))
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "stock:", err)
		os.Exit(1)
	}
}

// run sells five units to six buyers, of whom two pay. After a second the others' units are back.
func run(ctx context.Context, out io.Writer) error {
	m, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer m.Close()
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // one memory
	_, failed := db.ExecContext(ctx, schema)
	locker, err1 := sluice.NewLocker(rdb)
	queue, err2 := sluice.NewQueue(rdb, "orders")
	if err := errors.Join(failed, err1, err2); err != nil {
		return err
	}
	defer locker.Close()
	shop := &Shop{db, locker, queue, time.Second}
	for i := range 6 {
		id := fmt.Sprint("order-", i)
		if err := shop.Buy(ctx, id); err != nil {
			fmt.Fprintln(out, id, err)
		} else if i < 2 {
			fmt.Fprintln(out, id, "paid", shop.Pay(ctx, id))
		}
	}
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	go func() {
		for ctx.Err() == nil {
			if s, err := queue.Stats(ctx); err == nil && s.Due+s.Scheduled+s.Leased == 0 {
				stop()
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	err = (&sluice.Worker{Queue: queue, Handler: shop.Cancel}).Run(ctx)
	var stock int
	err = errors.Join(err, db.QueryRow("SELECT stock FROM item").Scan(&stock))
	fmt.Fprintln(out, "in stock:", stock)
	return err
}
