package sluice_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/sluice-go/sluice"
)

// A header goes along with a task, beside its payload.
func ExampleTask_header() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		log.Fatal(err)
	}

	_, err = queue.Enqueue(ctx, sluice.Task{
		ID: "order-1", Payload: []byte(`{"total":100}`), Header: map[string]string{"tenant": "shop-7"},
	})
	if err != nil {
		log.Fatal(err)
	}
	entries, err := queue.Claim(ctx, 1, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(entries[0].Header["tenant"], string(entries[0].Payload))
	// Output:
	// shop-7 {"total":100}
}

// Hooks that carry a request's ID from the producer to the handler, and say what became of the task.
func ExampleWithQueueHooks() {
	rdb, done := connect()
	defer done()
	type requestID struct{}
	hooks := sluice.Hooks{
		TasksSending: func(ctx context.Context, i sluice.TasksSending) context.Context {
			if id, ok := ctx.Value(requestID{}).(string); ok {
				for k := range i.Tasks {
					i.Tasks[k].Header = map[string]string{"request": id}
				}
			}
			return ctx
		},
		TaskStarted: func(ctx context.Context, i sluice.TaskStarted) context.Context {
			return context.WithValue(ctx, requestID{}, i.Entry.Header["request"])
		},
		TaskFinished: func(ctx context.Context, i sluice.TaskFinished) {
			fmt.Println(i.Entry.ID, "is", i.Disposition, "for", ctx.Value(requestID{})) // in a service: a metric
		},
	}
	queue, err := sluice.NewQueue(rdb, "orders", sluice.WithQueueHooks(hooks))
	if err != nil {
		log.Fatal(err)
	}

	request := context.WithValue(context.Background(), requestID{}, "r-42")
	if _, err = queue.Enqueue(request, sluice.Task{ID: "order-1"}); err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	worker := &sluice.Worker{Queue: queue, Handler: func(ctx context.Context, e sluice.Entry) error {
		fmt.Println("cancelling", e.ID, "for", ctx.Value(requestID{}))
		stop() // the example is over
		return nil
	}}
	err = worker.Run(ctx)
	fmt.Println(err)
	// Output:
	// cancelling order-1 for r-42
	// order-1 is done for r-42
	// <nil>
}
