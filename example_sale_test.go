package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// shopOrders is the table of orders of an example: a row for each number.
type shopOrders struct {
	mu   sync.Mutex // guards rows
	rows map[string]shopOrder
}

type shopOrder struct {
	Buyer           string
	Paid, Cancelled bool
	Until           time.Time
	Left            time.Duration // to pay
}

// Open writes the row at its first call, cancels it when its time is over, and returns it.
func (o *shopOrders) Open(_ context.Context, number, buyer string, payIn time.Duration) (shopOrder, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	row, ok := o.rows[number]
	if !ok {
		row = shopOrder{Buyer: buyer, Paid: buyer == "ann", Until: time.Now().Add(payIn)}
	}
	row.Left = time.Until(row.Until)
	row.Cancelled = !row.Paid && row.Left <= 0
	o.rows[number] = row
	return row, nil
}

// A flash sale: two phones, three buyers. Ann pays, Bob does not, and his phone can be bought
// again. As in the README.
func Example_sale() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	orders, errUnpaid := &shopOrders{rows: map[string]shopOrder{}}, errors.New("not paid in time")

	queue, err := sluice.NewQueue(rdb, "orders", sluice.WithRetention(24*time.Hour)) // rdb is your go-redis client; it stays yours
	if err != nil {
		log.Fatal(err)
	}
	if err = queue.SetStock(ctx, "phone", 2); err != nil {
		log.Fatal(err)
	}
	for _, buyer := range []string{"ann", "bob", "ann", "cid"} {
		// OutcomeAdded, OutcomeKept (this buyer has one), OutcomeDone or OutcomeSoldOut. After ErrUnknown: again, with the same ID.
		outcome, err := queue.Enqueue(ctx, sluice.Task{
			ID: buyer, Duplicates: sluice.DuplicatesOnce, // one a buyer
			Kind: "order", Payload: []byte(sluice.NewID()), // the order's number
			Take: sluice.Take{Item: "phone"}, // a unit, in the same step
		})
		fmt.Println(buyer, outcome, err)
	}

	var mux sluice.Mux
	mux.Handle("order", func(ctx context.Context, e sluice.Entry) error {
		order, err := orders.Open(ctx, string(e.Payload), e.ID, 50*time.Millisecond) // in the README: 15 minutes
		switch {
		case err != nil:
			return err // tried again; the unit stays held
		case order.Paid:
			return nil // the unit is sold
		case order.Cancelled: // its row says so, whatever the clock does
			defer stop()                     // the example is over
			return sluice.Discard(errUnpaid) // the unit is back
		}
		return sluice.Again(order.Left) // the unit stays held
	})
	err = (&sluice.Worker{Queue: queue, Handler: mux.Serve, Logger: slog.New(slog.DiscardHandler)}).Run(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(queue.Stock(context.Background(), "phone"))
	// Output:
	// ann added <nil>
	// bob added <nil>
	// ann kept <nil>
	// cid sold out <nil>
	// {2 1 0 1} <nil>
}
