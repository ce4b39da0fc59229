package sluice_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/sluice-go/sluice"
)

// A walk through all tasks of a state, in pages.
func ExampleQueue_List() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "newsletters")
	if err != nil {
		log.Fatal(err)
	}
	for i := range 5 {
		if _, err := queue.Enqueue(ctx, sluice.Task{ID: fmt.Sprint("week-", i), Delay: time.Duration(i+1) * time.Hour}); err != nil {
			log.Fatal(err)
		}
	}
	const size = 2
	var last sluice.Entry // the zero Entry: from the beginning
	for {
		page, err := queue.List(ctx, sluice.Scheduled, last, size)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("page:")
		for _, e := range page {
			fmt.Println(e.ID, e.State)
		}
		if len(page) < size {
			break
		}
		last = page[size-1]
	}
	// Output:
	// page:
	// week-0 scheduled
	// week-1 scheduled
	// page:
	// week-2 scheduled
	// week-3 scheduled
	// page:
	// week-4 scheduled
}

// Nothing is handed out while a queue is paused: here for as long as the service that the
// handlers call is away.
func ExampleQueue_Pause() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "invoices")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(queue.Pause(ctx, time.Hour)) // or until Resume
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "7"}); err != nil {
		log.Fatal(err)
	}
	claimed, err := queue.Claim(ctx, 10, time.Minute)
	fmt.Println(len(claimed), err)
	stats, err := queue.Stats(ctx)
	fmt.Println(stats.Paused, stats.Due, err)
	// Output:
	// <nil>
	// 0 <nil>
	// true 1 <nil>
}

// Resume ends a pause at once. Workers that wait learn of it.
func ExampleQueue_Resume() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "deliveries")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "7"}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(queue.Pause(ctx, 0))
	fmt.Println(queue.Resume(ctx))
	claimed, err := queue.Claim(ctx, 10, time.Minute)
	fmt.Println(len(claimed), err)
	// Output:
	// <nil>
	// <nil>
	// 1 <nil>
}

// Dead letters that are more than a limit, or too old, are dropped: the oldest first. Stats counts them.
func ExampleWithDeadLimit() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "webhooks", sluice.WithDeadLimit(1000), sluice.WithDeadAge(30*24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	stats, err := queue.Stats(ctx)
	fmt.Println(stats.Dead, stats.Dropped, err)
	// Output: 0 0 <nil>
}
