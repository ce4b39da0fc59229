package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// A task for later, and a worker for it: README, first screen.
func Example_worker() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	cancelUnpaid := func(_ context.Context, id string) error {
		fmt.Println("cancelled", id)
		stop() // the example is over
		return nil
	}

	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		log.Fatal(err)
	}
	_, err = queue.Enqueue(ctx, sluice.Task{ID: "order-1", Delay: 50 * time.Millisecond}) // in the README: 15 minutes
	if err != nil {
		log.Fatal(err)
	}

	worker := &sluice.Worker{Queue: queue, Handler: func(ctx context.Context, e sluice.Entry) error {
		return cancelUnpaid(ctx, e.ID) // an error is retried after a growing pause
	}}
	err = worker.Run(ctx) // until ctx ends
	fmt.Println(err)
	// Output:
	// cancelled order-1
	// <nil>
}

// An order that is not paid in 15 minutes is to be cancelled.
func ExampleQueue_Enqueue() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		log.Fatal(err)
	}

	outcome, err := queue.Enqueue(ctx, sluice.Task{ID: "order-1", Delay: 15 * time.Minute})
	fmt.Println(outcome, err)
	due, err := queue.Claim(ctx, 10, time.Minute)
	fmt.Println("due:", len(due), err)

	was, err := queue.Cancel(ctx, "order-1")
	fmt.Println("it was", was, err)
	// Output:
	// added <nil>
	// due: 0 <nil>
	// it was scheduled <nil>
}

// A worker loop of one's own: wait, claim, work, and say what became of it.
func ExampleQueue_Claim() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	queue, err := sluice.NewQueue(rdb, "mail")
	if err != nil {
		log.Fatal(err)
	}
	_, err = queue.EnqueueBatch(ctx, []sluice.Task{
		{ID: "welcome", Payload: []byte("hello")},
		{ID: "flaky", Payload: []byte("fails once")},
		{ID: "reminder", Payload: []byte("pay"), Delay: 50 * time.Millisecond},
	})
	if err != nil {
		log.Fatal(err)
	}

	sent := 0
	send := func(e sluice.Entry) error {
		if e.ID == "flaky" && e.Attempt == 1 {
			return errors.New("try again")
		}
		fmt.Printf("%s: %s\n", e.ID, e.Payload)
		if sent++; sent == 3 {
			stop() // the example is over
		}
		return nil
	}

	for {
		if err := queue.Wait(ctx); ctx.Err() != nil {
			break
		} else if err != nil {
			time.Sleep(time.Second) // Redis is away
			continue
		}
		entries, err := queue.Claim(ctx, 1, time.Minute)
		if err != nil {
			log.Print(err)
		}
		for _, e := range entries {
			// Finishing does not end with ctx: what is done is done.
			ctx := context.WithoutCancel(ctx)
			err := send(e)
			if err != nil {
				err = queue.Retry(ctx, e, 10*time.Millisecond)
			} else {
				err = queue.Dequeue(ctx, e)
			}
			if err != nil {
				log.Print(err)
			}
		}
	}
	stats, err := queue.Stats(context.Background())
	fmt.Println("left:", stats.Due+stats.Scheduled, err)
	// Unordered output:
	// welcome: hello
	// flaky: fails once
	// reminder: pay
	// left: 0 <nil>
}

// Peek first, then take: of several callers that do so with one task, one succeeds.
func ExampleQueue_Peek() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "seats")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "12A"}); err != nil {
		log.Fatal(err)
	}

	seen, err := queue.Peek(ctx, 1)
	fmt.Println(len(seen), seen[0].ID, err)
	fmt.Println("first:", queue.Dequeue(ctx, seen[0]))
	fmt.Println("second:", errors.Is(queue.Dequeue(ctx, seen[0]), sluice.ErrStale))
	// Output:
	// 1 12A <nil>
	// first: <nil>
	// second: true
}

// Debounce: a search index is rebuilt a while after the last change, not after
// each. Latest keeps the later of two due times.
func ExampleWithDuplicates() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "reindex", sluice.WithDuplicates(sluice.Latest))
	if err != nil {
		log.Fatal(err)
	}

	for _, change := range []string{"title", "price", "stock"} {
		outcome, err := queue.Enqueue(ctx, sluice.Task{
			ID: "product-7", Payload: []byte("since " + change), Delay: 30 * time.Millisecond,
		})
		fmt.Println(outcome, err)
	}
	if err := queue.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	entries, err := queue.Pop(ctx, 10)
	fmt.Println(len(entries), string(entries[0].Payload), err)
	// Output:
	// added <nil>
	// updated <nil>
	// updated <nil>
	// 1 since stock <nil>
}

// A receipt is good for as long as the lease; long work extends it.
func ExampleQueue_Extend() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "video")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "film"}); err != nil {
		log.Fatal(err)
	}

	entries, err := queue.Claim(ctx, 1, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	film := entries[0]
	fmt.Println("extended:", queue.Extend(ctx, film, time.Hour))
	fmt.Println("finished:", queue.Dequeue(ctx, film))
	fmt.Println("too late:", errors.Is(queue.Extend(ctx, film, time.Hour), sluice.ErrStale))
	// Output:
	// extended: <nil>
	// finished: <nil>
	// too late: true
}

// A worker runs a function for each task as it becomes due, and stops when its
// context ends.
func ExampleWorker() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background()) // in main: signal.NotifyContext
	defer stop()
	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		log.Fatal(err)
	}
	_, err = queue.EnqueueBatch(ctx, []sluice.Task{
		{ID: "order-1", Payload: []byte("two phones")},
		{ID: "order-2", Payload: []byte("a case"), Delay: 50 * time.Millisecond},
	})
	if err != nil {
		log.Fatal(err)
	}

	worker := &sluice.Worker{
		Queue: queue,
		Handler: func(ctx context.Context, e sluice.Entry) error {
			fmt.Printf("cancel %s: %s\n", e.ID, e.Payload)
			if e.ID == "order-2" {
				stop() // the example is over
			}
			return nil
		},
	}
	fmt.Println(worker.Run(ctx))
	fmt.Println("done:", worker.Stats().Done)
	// Output:
	// cancel order-1: two phones
	// cancel order-2: a case
	// <nil>
	// done: 2
}

// An error is tried again after a while, and one that no further attempt will mend
// is not: its task goes to the dead letters, for an operator to look at.
func ExamplePermanent() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	queue, err := sluice.NewQueue(rdb, "mail", sluice.WithMaxAttempts(3))
	if err != nil {
		log.Fatal(err)
	}
	_, err = queue.EnqueueBatch(ctx, []sluice.Task{{ID: "nowhere"}, {ID: "busy"}, {ID: "down"}})
	if err != nil {
		log.Fatal(err)
	}

	worker := &sluice.Worker{
		Queue:       queue,
		Concurrency: 1,
		Handler: func(_ context.Context, e sluice.Entry) error {
			switch {
			case e.ID == "nowhere":
				return sluice.Permanent(errors.New("no such address"))
			case e.ID == "down":
				return errors.New("server down")
			case e.Attempt < 3:
				return errors.New("server busy")
			}
			fmt.Println("sent:", e.ID, "at attempt", e.Attempt)
			return nil
		},
		Backoff: func(attempt int, _ error) time.Duration {
			return time.Duration(attempt) * 10 * time.Millisecond // by default 1s and more, at random
		},
	}
	go func() {
		for s := worker.Stats(); s.Done+s.Buried < 3; s = worker.Stats() {
			time.Sleep(time.Millisecond)
		}
		stop() // the example is over
	}()
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}

	letters, err := queue.Dead(context.Background(), 10)
	for _, letter := range letters {
		fmt.Printf("%s: %s (%d)\n", letter.ID, letter.Reason, letter.Attempt)
	}
	fmt.Println(err)
	// Output:
	// sent: busy at attempt 3
	// nowhere: no such address (1)
	// down: server down (3)
	// <nil>
}

// A worker that is told to stop lets its handlers finish, for Grace at most; what
// it had not begun others get at once.
func ExampleWorker_Run() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background()) // in main: signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	queue, err := sluice.NewQueue(rdb, "video")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.EnqueueBatch(ctx, []sluice.Task{{ID: "short"}, {ID: "endless"}}); err != nil {
		log.Fatal(err)
	}

	var begun sync.WaitGroup
	begun.Add(2)
	go func() { begun.Wait(); stop() }()
	worker := &sluice.Worker{
		Queue: queue,
		Grace: 100 * time.Millisecond,
		Handler: func(ctx context.Context, e sluice.Entry) error {
			begun.Done()
			if e.ID == "short" {
				time.Sleep(10 * time.Millisecond)
				return nil
			}
			<-ctx.Done() // Grace is over
			return ctx.Err()
		},
	}
	fmt.Println(worker.Run(ctx))
	fmt.Println("done:", worker.Stats().Done)

	endless, err := queue.Get(context.Background(), "endless")
	fmt.Println("attempts of endless:", endless.Attempt, err)
	// Output:
	// <nil>
	// done: 1
	// attempts of endless: 0 <nil>
}

// Dead letters are kept until the program revives or cancels them.
func ExampleQueue_Revive() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "payments")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "refund-7", Payload: []byte("5 EUR")}); err != nil {
		log.Fatal(err)
	}
	entries, err := queue.Claim(ctx, 1, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(queue.Bury(ctx, entries[0], "the bank is unknown"))

	letters, err := queue.Dead(ctx, 10)
	fmt.Println(letters[0].ID, letters[0].Reason, err)
	revived, err := queue.Revive(ctx, "refund-7") // the bank has been entered
	fmt.Println(revived, err)
	entries, err = queue.Claim(ctx, 1, time.Minute)
	fmt.Printf("%s: %s, attempt %d %v\n", entries[0].ID, entries[0].Payload, entries[0].Attempt, err)
	// Output:
	// <nil>
	// refund-7 the bank is unknown <nil>
	// 1 <nil>
	// refund-7: 5 EUR, attempt 1 <nil>
}
