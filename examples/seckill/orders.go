package main

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// The states of an order. The row decides: whatever a process or Redis believes,
// an order is paid or cancelled when its row has become so, and never both.
const (
	unpaid    = "unpaid"
	paid      = "paid"
	cancelled = "cancelled"
	void      = "void" // see cancel
)

// order is a unit that a customer has taken.
type order struct {
	id       string
	customer int
	due      time.Time // it is cancelled if not paid by then
}

// view is what a customer sees of the shop.
type view struct {
	stock  int    // units left
	status string // of the customer's order, unpaid or paid; empty if there is none
	orders int    // how many the customer has placed, cancelled ones included
}

func (s *shop) look(ctx context.Context, customer int) (v view, err error) {
	err = s.db.QueryRowContext(ctx, `
		SELECT stock,
			(SELECT count(*) FROM orders WHERE customer = ?1),
			coalesce((SELECT status FROM orders WHERE customer = ?1 AND status IN ('unpaid', 'paid')), '')
		FROM item`, customer).Scan(&v.stock, &v.orders, &v.status)
	return v, err
}

// place takes a unit out of the stock, of which seen was left when the buyer
// looked, and writes the order down.
//
// It is one transaction, which checks stock and customer for itself. Under the
// lock its conditions are always met. But a process that was stopped for longer
// than the lock's TTL goes on as if it still held it, and the database is the one
// place that can know better: errOvertaken then, and nothing has changed.
func (s *shop) place(ctx context.Context, o order, seen int) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		err := one(tx.ExecContext(ctx, `UPDATE item SET stock = stock - 1 WHERE stock = ? AND stock > 0`, seen))
		if err != nil {
			return err
		}
		// OR IGNORE: the ID may have been voided, see cancel.
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

// pay says whether the order is paid now. It is not if it was cancelled before:
// of pay and cancel, the first one to change the row wins. A single statement
// needs no lock.
func (s *shop) pay(ctx context.Context, id string) (bool, error) {
	err := one(s.db.ExecContext(ctx, `UPDATE orders SET status = 'paid' WHERE id = ? AND status = 'unpaid'`, id))
	if errors.Is(err, errOvertaken) {
		return false, nil
	}
	return err == nil, err
}

// cancel cancels those of the orders that are unpaid, and puts their units back,
// in one transaction.
//
// An order that does not exist was never committed, as its buyer's process died
// between Enqueue and commit. It is written down as void, so that, should the
// process only have been stopped, its commit finds the ID taken.
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
	if errors.Is(err, errOvertaken) { // paid, cancelled before, or not there
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
