package sluice_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/sluice-go/sluice"
)

// The other side asks for fewer requests (HTTP 429): the task is put off, and has not failed.
func ExampleAgain() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	queue, err := sluice.NewQueue(rdb, "invoices", sluice.WithMaxAttempts(1))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "invoice-1"}); err != nil {
		log.Fatal(err)
	}

	calls := 0
	send := func() (status int, retryAfter time.Duration) { // of the API that gets the invoice
		if calls++; calls < 3 {
			return 429, 20 * time.Millisecond
		}
		return 200, 0
	}
	worker := &sluice.Worker{Queue: queue, Handler: func(_ context.Context, e sluice.Entry) error {
		status, retryAfter := send()
		fmt.Println(e.ID, "attempt", e.Attempt, "status", status)
		if status == 429 {
			return sluice.Again(retryAfter)
		}
		stop() // the example is over
		return nil
	}}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("snoozed", worker.Stats().Snoozed)
	// Output:
	// invoice-1 attempt 1 status 429
	// invoice-1 attempt 1 status 429
	// invoice-1 attempt 1 status 200
	// snoozed 2
}
