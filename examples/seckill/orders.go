package main

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// The states of an order. The row decides: an order is paid or cancelled once its row says so,
// and never both, whatever a process or Redis knows.
const (
	unpaid    = "unpaid"
	paid      = "paid"
	cancelled = "cancelled"
	void      = "void" // see cancel
)

// order is a customer's order of one unit.
type order struct {
	id       string
	customer int
	due      time.Time // cancelled if not paid by then
}

// view is what a customer sees of the shop.
type view struct {
	stock  int    // units left
	status string // of the customer's order, unpaid or paid; empty if there is none
	orders int    // how many the customer has placed, including cancelled ones
}

func (s *shop) look(ctx context.Context, customer int) (v view, err error) {
	err = s.db.QueryRowContext(ctx, `
		SELECT stock,
			(SELECT count(*) FROM orders WHERE customer = ?1),
			coalesce((SELECT status FROM orders WHERE customer = ?1 AND status IN ('unpaid', 'paid')), '')
		FROM item`, customer).Scan(&v.stock, &v.orders, &v.status)
	return v, err
}

// place takes a unit out of the stock and writes the order. seen is the stock that the buyer
// has read before.
//
// It is one transaction, which checks the stock and the customer itself. Under the lock its
// conditions are always met. However, a process that was stopped for longer than the lock's
// TTL continues as if it still held the lock, and only the database can detect that. Then the
// error is errOvertaken, and nothing has changed.
func (s *shop) place(ctx context.Context, o order, seen int) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		err := one(tx.ExecContext(ctx, `UPDATE item SET stock = stock - 1 WHERE stock = ? AND stock > 0`, seen))
		if err != nil {
			return err
		}
		// OR IGNORE: the worker may have voided the ID, see cancel.
		err = one(tx.ExecContext(ctx, `
			INSERT OR IGNORE INTO orders (id, customer, status, due) SELECT ?1, ?2, 'unpaid', ?3
			WHERE NOT EXISTS (SELECT 1 FROM orders WHERE customer = ?2 AND status IN ('unpaid', 'paid'))`,
			o.id, o.customer, o.due.UnixMicro()))
		if err != nil {
			return err
		}
		return one(tx.ExecContext(ctx, `INSERT INTO movement (units) VALUES (-1)`))
	})
}

// pay pays an order, unless it was cancelled before, and says whether it is paid now. Of pay
// and cancel, the first one to change the row wins. A single statement needs no lock.
func (s *shop) pay(ctx context.Context, id string) (bool, error) {
	err := one(s.db.ExecContext(ctx, `UPDATE orders SET status = 'paid' WHERE id = ? AND status = 'unpaid'`, id))
	if errors.Is(err, errOvertaken) {
		return false, nil
	}
	return err == nil, err
}

// cancel cancels the unpaid ones of these orders and puts their units back, in one
// transaction.
//
// An order that does not exist was never committed: its buyer's process died between Enqueue
// and commit. cancel writes it as void; if the process was only stopped, its commit then fails
// because the ID is taken.
func (s *shop) cancel(ctx context.Context, ids ...string) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		for _, id := range ids {
			if err := cancelOne(ctx, tx, id); err != nil {
				return err
			}
		}
		return nil
	})
}

func cancelOne(ctx context.Context, tx *sql.Tx, id string) error {
	err := one(tx.ExecContext(ctx, `
		UPDATE orders SET status = 'cancelled', cancelled = ? WHERE id = ? AND status = 'unpaid'`,
		time.Now().UnixMicro(), id))
	if errors.Is(err, errOvertaken) { // paid, cancelled before, or not existing
		_, err = tx.ExecContext(ctx, `INSERT OR IGNORE INTO orders (id, status) VALUES (?, 'void')`, id)
		return err
	}
	if err != nil {
		return err
	}
	if err := one(tx.ExecContext(ctx, `UPDATE item SET stock = stock + 1`)); err != nil {
		return err
	}
	return one(tx.ExecContext(ctx, `INSERT INTO movement (units) VALUES (1)`))
}
