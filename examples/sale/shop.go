package main

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-go/sluice"
)

// Schema is the shop's table: a row for each order. The row decides what an order is, and a buyer
// has one that counts at most.
const Schema = `
CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, buyer TEXT NOT NULL, state TEXT NOT NULL, pay_by BIGINT NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS one_a_buyer ON orders (buyer) WHERE state <> 'cancelled'`

// item is what is for sale.
const item = "phone"

var (
	errUnpaid  = errors.New("not paid in time")
	errNoOrder = errors.New("no order to be paid")
)

// Shop is what each process of the shop has.
type Shop struct {
	DB    *sql.DB
	Queue *sluice.Queue
	PayIn time.Duration
}

// Buy takes a phone for a buyer and puts the order into the queue, in one step. After ErrUnknown it
// is called again: OutcomeKept says that the buyer has a phone.
func (s *Shop) Buy(ctx context.Context, buyer string) (sluice.Outcome, error) {
	return s.Queue.Enqueue(ctx, s.order(buyer, sluice.NewID(), false))
}

func (s *Shop) order(buyer, number string, restore bool) sluice.Task {
	return sluice.Task{
		ID: buyer, Kind: "order", Payload: []byte(number), Duplicates: sluice.DuplicatesOnce, // one a buyer
		Take: sluice.Take{Item: item, Restore: restore},
	}
}

// Pay pays for what a buyer has ordered. A shop with a payment provider gives it the number, and is
// called back with it.
func (s *Shop) Pay(ctx context.Context, buyer string) error {
	var number string
	err := s.DB.QueryRowContext(ctx, "SELECT number FROM orders WHERE buyer = $1 AND state <> 'cancelled'", buyer).Scan(&number)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoOrder
	}
	if err != nil {
		return err
	}
	return s.PayOrder(ctx, number, buyer)
}

// PayOrder pays an order, unless it is cancelled, and has the task look at it. It may be repeated. It
// goes by the number: a payment that comes late must not pay for the buyer's next order.
func (s *Shop) PayOrder(ctx context.Context, number, buyer string) error {
	changed, err := s.DB.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE number = $1 AND state <> 'cancelled'", number)
	if err != nil {
		return err
	}
	if n, err := changed.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errNoOrder, err)
	}
	_, _ = s.Queue.Reschedule(context.WithoutCancel(ctx), buyer, 0) // else the task looks when the time to pay is over
	return nil
}

// Order is the whole life of an order. It may run again after each of its steps.
func (s *Shop) Order(ctx context.Context, e sluice.Entry) error {
	switch order, err := s.Open(ctx, string(e.Payload), e.ID); {
	case err != nil:
		return err // tried again: the phone stays held
	case order.Paid:
		return nil // the phone is sold
	case order.Cancelled: // its row says so, whatever the clock does
		return sluice.Discard(errUnpaid) // the phone can be bought again
	default:
		return sluice.Again(order.Left) // looks again when the time to pay is over; held until then
	}
}

// Row is what an order's row says.
type Row struct {
	Paid, Cancelled bool
	Left            time.Duration // to pay
}

// open writes an order's row if there is none, or cancels it if its time to pay is over. If the buyer
// has an order that counts, from before Redis lost some, that row decides for this one, too.
const open = `
INSERT INTO orders (number, buyer, state, pay_by)
VALUES (COALESCE((SELECT number FROM orders WHERE buyer = $2 AND state <> 'cancelled'), $1), $2, 'unpaid', $3)
ON CONFLICT (number) DO UPDATE SET state = CASE WHEN orders.state = 'unpaid' AND orders.pay_by <= $4 THEN 'cancelled' ELSE orders.state END
RETURNING state, pay_by`

// Open opens, cancels and reads an order's row, in one statement.
func (s *Shop) Open(ctx context.Context, number, buyer string) (Row, error) {
	var state string
	var payBy int64
	now := time.Now()
	err := s.DB.QueryRowContext(ctx, open, number, buyer, now.Add(s.PayIn).UnixMilli(), now.UnixMilli()).Scan(&state, &payBy)
	return Row{Paid: state == "paid", Cancelled: state == "cancelled", Left: time.UnixMilli(payBy).Sub(now)}, err
}

// Refill fills a Redis that came back empty, while the shop is closed: there are no purchases, no
// payments, and no worker. It enqueues the orders that count. The paid ones are done at once.
func (s *Shop) Refill(ctx context.Context, total int64) error {
	rows, err := s.DB.QueryContext(ctx, "SELECT number, buyer FROM orders WHERE state <> 'cancelled'")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var orders []sluice.Task
	for rows.Next() {
		var number, buyer string
		if err := rows.Scan(&number, &buyer); err != nil {
			return err
		}
		orders = append(orders, s.order(buyer, number, true))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if _, err := s.Queue.EnqueueBatch(ctx, orders); err != nil {
		return err
	}
	return s.Queue.SetStock(ctx, item, total)
}

// Paid returns how many phones are paid.
func (s *Shop) Paid(ctx context.Context) (n int64, err error) {
	return n, s.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders WHERE state = 'paid'").Scan(&n)
}

// Work handles orders until ctx ends.
func (s *Shop) Work(ctx context.Context) error {
	var mux sluice.Mux
	mux.Handle("order", s.Order)
	return (&sluice.Worker{Queue: s.Queue, Handler: mux.Serve, Timeout: 10 * time.Second, Backoff: sluice.BackoffUpTo(2 * time.Second)}).Run(ctx)
}

// ServeHTTP is the shop's web server: POST /buy and /pay, with the buyer's name.
func (s *Shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	buyer, status := r.FormValue("buyer"), http.StatusOK
	if buyer == "" || len(buyer) > 64 || !utf8.ValidString(buyer) || strings.ContainsRune(buyer, 0) { // which no row could have
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "POST /buy":
		switch outcome, err := s.Buy(r.Context(), buyer); {
		case err != nil:
			status = http.StatusServiceUnavailable
		case outcome == sluice.OutcomeSoldOut:
			status = http.StatusGone
		case outcome != sluice.OutcomeAdded: // this buyer has one
			status = http.StatusConflict
		}
	case "POST /pay":
		if err := s.Pay(r.Context(), buyer); err != nil {
			status = http.StatusConflict
		}
	default:
		status = http.StatusNotFound
	}
	w.WriteHeader(status)
}
