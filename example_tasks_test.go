package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
)

// What an operator asks for: the tasks that are worked on, and those that no worker will do.
func ExampleQueue_All() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "mails")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.EnqueueBatch(ctx, []sluice.Task{{ID: "refused"}, {ID: "long"}}); err != nil {
		log.Fatal(err)
	}
	claimed, err := queue.Claim(ctx, 2, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	if err := queue.Bury(ctx, "no such address", claimed[0]); err != nil {
		log.Fatal(err)
	}

	for task, err := range queue.All(ctx, sluice.StateLeased, sluice.WithoutPayloads()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(task.ID, "is leased for less than a minute:", time.Until(task.LeaseEnds) < time.Minute)
		fmt.Println("may be finished by others:", !errors.Is(queue.Dequeue(ctx, task.Entry), sluice.ErrInvalid))
	}
	for task, err := range queue.All(ctx, sluice.StateDead) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(task.ID, "died today:", time.Since(task.DiedAt) < 24*time.Hour, "because:", task.Reason)
	}
	// Output:
	// long is leased for less than a minute: true
	// may be finished by others: false
	// refused died today: true because: no such address
}

// A task that has no name of its own, such as a mail that a customer asks for.
func ExampleNewID() {
	first, second := sluice.NewID(), sluice.NewID()
	fmt.Println(len(first), first < second)
	// Output: 26 true
}

// Two kinds of tasks in one worker. The payload of one is a Go value.
func ExampleMux() {
	rdb, done := connect()
	defer done()
	queue, err := sluice.NewQueue(rdb, "tasks")
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	type email struct{ To string }
	emails := sluice.Typed[email]{Queue: queue, Kind: "email"}

	var mux sluice.Mux
	emails.Handle(&mux, func(_ context.Context, e sluice.Entry, v email) error {
		fmt.Println(e.ID, "to", v.To)
		return nil
	}, sluice.KindTimeout(10*time.Second))
	mux.Handle("report", func(_ context.Context, e sluice.Entry) error {
		fmt.Println(e.ID)
		stop() // the example is over
		return nil
	}, sluice.KindMaxAttempts(3))

	if _, err := emails.Enqueue(ctx, sluice.Task{ID: "welcome"}, email{To: "ann@example.com"}); err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "monthly", Kind: "report"}); err != nil {
		log.Fatal(err)
	}
	worker := &sluice.Worker{Queue: queue, Handler: mux.Serve, Concurrency: 1}
	fmt.Println(worker.Run(ctx))
	// Output:
	// welcome to ann@example.com
	// monthly
	// <nil>
}

// A partner that says when to try again.
func ExampleRetryIn() {
	post := func(_ context.Context, _ sluice.Entry) error {
		reply := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"30"}}} // of a request
		if seconds, err := strconv.Atoi(reply.Header.Get("Retry-After")); err == nil {
			return sluice.RetryIn(time.Duration(seconds)*time.Second, errors.New("the partner is busy"))
		}
		return nil
	}
	fmt.Println(post(context.Background(), sluice.Entry{ID: "webhook"}))
	// Output: the partner is busy
}

// What is to be done around the handlers of all kinds of tasks.
func ExampleMiddleware() {
	rdb, done := connect()
	defer done()
	queue, err := sluice.NewQueue(rdb, "reports")
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	logged := func(next sluice.Handler) sluice.Handler {
		return func(ctx context.Context, e sluice.Entry) error {
			err := next(ctx, e)
			fmt.Println(e.ID, "attempt", e.Attempt, "result:", err)
			return err
		}
	}
	worker := &sluice.Worker{
		Queue: queue,
		Use:   []sluice.Middleware{logged},
		Handler: func(context.Context, sluice.Entry) error {
			stop() // the example is over
			return nil
		},
	}
	if _, err := queue.Enqueue(ctx, sluice.Task{ID: "monthly"}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(worker.Run(ctx))
	// Output:
	// monthly attempt 1 result: <nil>
	// <nil>
}

// Callers that have waited in vain, by name: a sign that a section takes too long.
func ExampleLockHooks() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb, sluice.WithMaxWait(50*time.Millisecond), sluice.WithLockHooks(sluice.LockHooks{
		LockWaitFailed: func(_ context.Context, i sluice.LockWaitFailed) {
			fmt.Println(i.Name, "was held all the time:", errors.Is(i.Err, sluice.ErrLocked))
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	held, err := locker.Lock(ctx, "stock:phone")
	if err != nil {
		log.Fatal(err)
	}
	_, err = locker.Lock(ctx, "stock:phone")
	fmt.Println(errors.Is(err, sluice.ErrLocked))
	fmt.Println(held.Unlock(ctx))
	// Output:
	// stock:phone was held all the time: true
	// true
	// <nil>
}
