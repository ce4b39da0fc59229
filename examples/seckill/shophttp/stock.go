package shophttp

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
)

const (
	item = "phone"
	// lease is how long the task of a process that died is kept from the others.
	lease = 2 * time.Second
)

var errUnpaid = errors.New("not paid in time")

// byStock sells by Task.Take: an order is one task, which takes the unit in the step that enqueues
// it, and holds it until the order's row says what has become of it.
type byStock struct {
	Site
	queue *sluice.Queue
}

func openStock(s Site) (Way, error) {
	queue, err := sluice.NewQueue(s.Redis, s.Name, sluice.WithRetention(time.Hour)) // for as long as the sale lasts
	return byStock{s, queue}, err
}

func (b byStock) Begin(ctx context.Context) error {
	return b.queue.SetStock(ctx, item, int64(b.Stock))
}

func (b byStock) End(ctx context.Context) {
	_ = b.queue.Purge(ctx)
	_ = b.queue.DeleteStock(ctx, item)
}

// Buy takes a unit for the customer and enqueues the order, in one step. When the stock is gone the
// Queue answers from memory, which is what happens to nearly all requests of a flash sale.
func (b byStock) Buy(ctx context.Context, customer int) (string, error) {
	number := sluice.NewID()
	outcome, err := b.queue.Enqueue(ctx, sluice.Task{
		ID: strconv.Itoa(customer), Duplicates: sluice.DuplicatesOnce, // one a customer
		Kind: "order", Payload: []byte(number),
		Take: sluice.Take{Item: item},
	})
	switch {
	case err != nil:
		return "", err // after ErrUnknown the customer may have a unit: not paid, it comes back
	case outcome == sluice.OutcomeSoldOut:
		return "", ErrSoldOut
	case outcome != sluice.OutcomeAdded:
		return "", ErrHasOne
	}
	return number, nil
}

// Order is the whole life of an order. It may run again after each of its steps.
func (b byStock) Order(ctx context.Context, e sluice.Entry) error {
	customer, err := strconv.Atoi(e.ID)
	if err != nil {
		return sluice.Discard(err)
	}
	status, due, err := b.Store.Order(ctx, string(e.Payload), customer, b.PayWithin)
	switch {
	case err != nil:
		return err // tried again: the unit stays held
	case status == Paid:
		return nil // the unit is sold
	case status == Cancelled:
		return sluice.Discard(errUnpaid) // the unit is back
	}
	return sluice.Again(time.Until(due))
}

// Pay pays an order, and has its task look at the row, which decides.
func (b byStock) Pay(ctx context.Context, number string) error {
	customer, err := b.Store.Pay(ctx, number)
	if err == nil {
		_, _ = b.queue.Reschedule(ctx, strconv.Itoa(customer), 0) // else the task looks when the time to pay is over
	}
	return err
}

func (b byStock) Work(ctx context.Context) error {
	var mux sluice.Mux
	mux.Handle("order", b.Order)
	worker := &sluice.Worker{
		Queue: b.queue, Handler: mux.Serve, Lease: lease, Backoff: func(int, error) time.Duration { return lookEvery },
		Logger: slog.New(slog.DiscardHandler), // else each order that waits or is cancelled is a line
	}
	return worker.Run(ctx)
}

func (b byStock) Left(ctx context.Context) (int, error) {
	info, err := b.queue.Stock(ctx, item)
	return int(info.Left), err
}

func (byStock) Close() {}
