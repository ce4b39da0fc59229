package sluice_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-go/sluice"
)

// A handler that is about to do what cannot be undone asks whether the task is still its own. If not, another worker may
// have it: what this one returns has no effect.
func ExampleLeaseValid() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	queue, err := sluice.NewQueue(rdb, "invoices")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "invoice-1"}); err != nil {
		log.Fatal(err)
	}

	worker := &sluice.Worker{Queue: queue, Handler: func(ctx context.Context, e sluice.Entry) error {
		// … work that takes long
		if !sluice.LeaseValid(ctx) {
			return sluice.ErrLost
		}
		fmt.Println("sent", e.ID)
		stop() // the example is over
		return nil
	}}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("outside of a handler:", sluice.LeaseValid(ctx))
	// Output:
	// sent invoice-1
	// outside of a handler: false
}
