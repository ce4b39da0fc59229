package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// item is what is for sale.
const item = "phone"

var errUnpaid = errors.New("not paid in time")

// byStock sells by Task.Take. An order is one task: it takes the unit in the step that enqueues it,
// and how it ends decides whether the unit is sold or put back. No lock is needed, and a process
// that dies leaves nothing half done.
type byStock struct {
	assignment
	shop  *shop
	queue *sluice.Queue
}

func openQueue(rdb redis.UniversalClient, run string) (*sluice.Queue, error) {
	return sluice.NewQueue(rdb, run, sluice.WithRetention(time.Hour)) // for as long as the sale lasts
}

// buy takes a unit and enqueues the order. What the customer thinks about comes before.
func (s *byStock) buy(ctx context.Context, customer int, seen view) (purchase, error) {
	in := intend(s.Seed, customer, seen.orders)
	if err := pause(ctx, in.think); err != nil {
		return purchase{result: failed}, err
	}
	o := order{id: sluice.NewID(), customer: customer}
	outcome, err := s.queue.Enqueue(ctx, sluice.Task{
		ID: strconv.Itoa(customer), Duplicates: sluice.DuplicatesOnce, // one a customer
		Kind: "order", Payload: []byte(o.id),
		Take: sluice.Take{Item: item},
	})
	switch {
	case err != nil:
		return purchase{result: failed}, err
	case outcome == sluice.OutcomeSoldOut:
		return purchase{result: soldOut}, nil
	case outcome != sluice.OutcomeAdded:
		return purchase{result: hasOne}, nil
	}
	return purchase{order: o, intention: in, result: sold}, nil
}

// work has a Worker handle the orders.
func (s *byStock) work(ctx context.Context) error {
	var mux sluice.Mux
	mux.Handle("order", s.handle)
	worker := &sluice.Worker{
		Queue: s.queue, Handler: mux.Serve, Lease: lease, Backoff: func(int, error) time.Duration { return errorPause },
		Logger: slog.New(slog.DiscardHandler), // else each order that waits or is cancelled is a line
	}
	return worker.Run(ctx)
}

// handle is the whole life of an order. It may run again after each of its steps.
func (s *byStock) handle(ctx context.Context, e sluice.Entry) error {
	customer, err := strconv.Atoi(e.ID)
	if err != nil {
		return sluice.Discard(err)
	}
	o, status, err := s.shop.follow(ctx, string(e.Payload), customer)
	switch {
	case err != nil:
		return err // tried again: the unit stays held
	case status == paid:
		return nil // the unit is sold
	case status == cancelled:
		return sluice.Discard(errUnpaid) // the unit is back
	}
	return sluice.Again(time.Until(o.due))
}

// follow writes the row of an order that has none, cancels it if its time is over, and returns it. If
// the customer has an order that counts, from before Redis lost some, that row decides for this one,
// too. The stock of the sale is on Redis; that of the database follows the rows, for the report.
func (s *shop) follow(ctx context.Context, id string, customer int) (o order, status string, err error) {
	now, due := time.Now(), int64(0)
	err = s.transact(ctx, func(tx *sql.Tx) error {
		change := func(units int, statement string, args ...any) error {
			err := one(tx.ExecContext(ctx, statement, args...))
			if errors.Is(err, errOvertaken) { // nothing to change
				return nil
			}
			if err == nil {
				_, err = tx.ExecContext(ctx, `INSERT INTO movement (units) VALUES (?1); UPDATE item SET stock = stock + ?1`, units)
			}
			return err
		}
		return cmp.Or(
			change(-1, `
				INSERT OR IGNORE INTO orders (id, customer, status, due) SELECT ?1, ?2, 'unpaid', ?3
				WHERE NOT EXISTS (SELECT 1 FROM orders WHERE customer = ?2 AND status IN ('unpaid', 'paid'))`,
				id, customer, now.Add(payWithin).UnixMicro()),
			change(1, `
				UPDATE orders SET status = 'cancelled', cancelled = ?1 WHERE customer = ?2 AND status = 'unpaid' AND due <= ?1`,
				now.UnixMicro(), customer),
			tx.QueryRowContext(ctx, rowOf, id, customer).Scan(&id, &status, &due))
	})
	return order{id, customer, time.UnixMicro(due)}, status, err
}

// rowOf is the query for the row that decides for a customer's order.
const rowOf = `SELECT id, status, due FROM orders WHERE id = ?1 OR customer = ?2 AND status IN ('unpaid', 'paid') ORDER BY status = 'cancelled' LIMIT 1`

// pay pays an order, and has its task look at the row, which decides. It waits for the row: a
// Worker writes it some milliseconds after the purchase.
func (s *byStock) pay(ctx context.Context, p purchase) error {
	if !p.pays || pause(ctx, p.after) != nil {
		return nil
	}
	var done bool
	err := sql.ErrNoRows
	for errors.Is(err, sql.ErrNoRows) && pause(ctx, pollInterval) == nil {
		if done, err = s.shop.pay(ctx, p.id); err == nil && !done {
			err = s.shop.db.QueryRowContext(ctx, rowOf, p.id, p.customer).Scan(new(string), new(string), new(int64))
		}
	}
	if done {
		_, _ = s.queue.Reschedule(ctx, strconv.Itoa(p.customer), 0) // else the task looks when the time is over
	}
	if ctx.Err() != nil {
		return nil // the sale is over
	}
	return err
}
