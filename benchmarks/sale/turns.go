package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/examples/seckill/shophttp"
)

// itemSchema is the stock in the database, beside the orders.
const itemSchema = `CREATE TABLE item (stock INTEGER NOT NULL, fence INTEGER NOT NULL)`

// The ways to take a unit out of the stock, of which ?1 was seen before and ?2 is the fence.
const (
	// takeBlindly overwrites what other buyers have written since.
	takeBlindly = `UPDATE item SET stock = ?1 - 1, fence = max(fence, ?2)`
	// takeIfLeft needs neither turns nor a look.
	takeIfLeft = `UPDATE item SET stock = stock - 1, fence = max(fence, ?2) WHERE stock > 0 AND ?1 = ?1`
	// takeSeen is for turns, during which its conditions are met. A process that was stopped for
	// longer than the lock's TTL goes on as if it had its turn: the row refuses it.
	takeSeen = `UPDATE item SET stock = ?1 - 1, fence = ?2 WHERE stock = ?1 AND stock > 0 AND fence <= ?2`
)

// byTurns sells from a stock in the database: look at the stock, enqueue the cancellation, write
// the order and the stock. Its guard has buyers take turns, or does not.
type byTurns struct {
	shophttp.Site
	guard guard
	take  string // the statement
	queue *sluice.Queue
	known memory
}

// turnsBy returns how to open byTurns.
func turnsBy(take string, open func(s shophttp.Site) (guard, error)) shophttp.OpenWay {
	return func(s shophttp.Site) (shophttp.Way, error) {
		guard, err := open(s)
		if err != nil {
			return nil, err
		}
		queue, err := sluice.NewQueue(s.Redis, s.Name)
		return &byTurns{Site: s, guard: guard, take: take, queue: queue}, err
	}
}

func (b *byTurns) Begin(ctx context.Context) error {
	return b.Store.Transact(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, itemSchema+`; INSERT INTO item VALUES (?, 0)`, b.Stock)
		return err
	})
}

func (b *byTurns) End(ctx context.Context) { _ = b.queue.Purge(ctx) }

func (b *byTurns) Left(ctx context.Context) (n int, err error) {
	return n, b.Store.Query(ctx, `SELECT stock FROM item`).Scan(&n)
}

func (b *byTurns) Close() { b.guard.close() }

// Buy sells a unit during the buyer's turn.
func (b *byTurns) Buy(ctx context.Context, customer int) (number string, err error) {
	if b.known.isSoldOut() {
		return "", shophttp.ErrSoldOut
	}
	err = b.guard.do(ctx, func(ctx context.Context, fence uint64) error {
		if b.known.isSoldOut() { // gone while this buyer waited
			return shophttp.ErrSoldOut
		}
		number, err = b.sell(ctx, customer, fence)
		return err
	})
	return number, err
}

// sell is a buyer's turn: look, work, write and commit.
func (b *byTurns) sell(ctx context.Context, customer int, fence uint64) (string, error) {
	var stock int
	var has bool
	err := b.Store.Query(ctx, `SELECT stock, EXISTS (SELECT 1 FROM orders WHERE customer = ? AND status IN ('unpaid', 'paid')) FROM item`,
		customer).Scan(&stock, &has)
	switch {
	case err != nil:
		return "", err
	case stock <= 0:
		b.known.set(0)
		return "", shophttp.ErrSoldOut
	case has:
		return "", shophttp.ErrHasOne
	}
	// Enqueue before the commit: a process that dies between the two leaves a task without an
	// order, which the handler drops. In the other order it would leave an order that is never
	// cancelled.
	number, due := rand.Text(), time.Now().Add(b.PayWithin)
	if _, err := b.queue.Enqueue(ctx, sluice.Task{ID: number, Delay: b.PayWithin}); err != nil {
		return "", err
	}
	err = b.Store.Transact(ctx, func(tx *sql.Tx) error {
		if err := shophttp.One(tx.ExecContext(ctx, b.take, stock, int64(fence))); err != nil {
			return err
		}
		// OR IGNORE: the customer may have an order, and the ID may be void.
		return shophttp.One(tx.ExecContext(ctx, `INSERT OR IGNORE INTO orders (id, customer, status, due) VALUES (?, ?, 'unpaid', ?)`,
			number, customer, due.UnixMicro()))
	})
	if err == nil {
		b.known.set(stock - 1)
	}
	return number, err
}

// Pay pays an order. Cancel only spares a worker the look at a paid order, so its errors can be
// ignored.
func (b *byTurns) Pay(ctx context.Context, number string) error {
	_, err := b.Store.Pay(ctx, number)
	if err == nil {
		_, _ = b.queue.Cancel(ctx, number)
	}
	return err
}

func (b *byTurns) Work(ctx context.Context) error {
	go b.known.keep(ctx, b.Left) // ends with ctx
	return work(ctx, b.queue, b.cancel)
}

// cancel handles the task of an order that was not paid in time, or of one that was never
// committed: its buyer's process died between Enqueue and commit. It changes the stock, which a
// buyer may have read, and so takes a turn.
func (b *byTurns) cancel(ctx context.Context, task sluice.Entry) error {
	return b.guard.do(ctx, func(ctx context.Context, fence uint64) error {
		return b.Store.Transact(ctx, func(tx *sql.Tx) error {
			err := shophttp.One(tx.ExecContext(ctx, `UPDATE orders SET status = 'cancelled', cancelled = ? WHERE id = ? AND status = 'unpaid'`,
				time.Now().UnixMicro(), task.ID))
			if errors.Is(err, shophttp.ErrOvertaken) { // paid, cancelled before, or not existing: its ID is taken, so that a late commit fails
				_, err = tx.ExecContext(ctx, `INSERT OR IGNORE INTO orders (id, status) VALUES (?, 'void')`, task.ID)
				return err
			}
			if err != nil {
				return err
			}
			return shophttp.One(tx.ExecContext(ctx, `UPDATE item SET stock = stock + 1, fence = max(fence, ?)`, int64(fence)))
		})
	})
}
