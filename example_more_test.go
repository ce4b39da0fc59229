package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
)

// An order of several items: all of them are locked, or none. The names may be in any order: no two
// orders wait for each other in a circle. docs/locks.md, "Several locks".
func ExampleLocker_DoAll() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	stock := map[string]int{"phone": 1, "case": 5} // rows of a database
	err = locker.DoAll(ctx, []string{"phone", "case"}, func(context.Context) error {
		for item := range stock {
			stock[item]--
		}
		return nil // commit before you return
	})
	fmt.Println(stock["phone"], stock["case"], err)
	// Output:
	// 0 4 <nil>
}

// The same without a function: one handle for all the locks.
func ExampleLocker_LockAll() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	set, err := locker.LockAll(ctx, []string{"phone", "case"}, sluice.WithFencing())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(set.Valid(), set.Get("phone").Fence() > 0, set.Context().Err())
	fmt.Println(set.Unlock(ctx))
	// Output:
	// true true <nil>
	// <nil>
}

// A section that one process begins and another one ends: an upload is checked where it arrives,
// and written elsewhere.
func ExampleLocker_Adopt() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	front, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = front.Close() }()
	back, err := sluice.NewLocker(rdb) // in another process
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = back.Close() }()

	lock, err := front.Lock(ctx, "upload:7", sluice.WithFencing(), sluice.WithAutoRenew())
	if err != nil {
		log.Fatal(err)
	}
	token, err := lock.Detach(ctx) // send it over a channel that keeps secrets
	if err != nil {
		log.Fatal(err)
	}

	adopted, err := back.Adopt(ctx, "upload:7", token, sluice.WithFencing(), sluice.WithAutoRenew())
	if err != nil {
		log.Fatal(err) // ErrNotHeld: it came too late
	}
	fmt.Println(lock.Valid(), adopted.Valid(), adopted.Fence() > lock.Fence())
	fmt.Println(adopted.Unlock(ctx))
	// Output:
	// false true true
	// <nil>
}

// At most three calls at a time to a service that allows no more, from all processes together.
func ExampleWithPermits() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	for i := range 4 {
		_, err := locker.TryLock(ctx, "payment-service", sluice.WithPermits(3)) // Lock and Do wait for one
		fmt.Println(i, err)
	}
	info, err := locker.Inspect(ctx, "payment-service")
	fmt.Println(info.Holders, err)
	// Output:
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
	// 3 sluice: try lock "payment-service": locked by another holder
	// 3 <nil>
}

// A holder that reads before it writes enters its fence first, and reads with it. From then on
// every earlier holder is refused, whatever it was about to write. docs/database.md has the same in
// SQL.
func ExampleLock_Fence() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb, sluice.WithFencing())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	building := struct{ floors, fence int64 }{floors: 10}
	enter := func(fence int64) (floors int64, ok bool) { // UPDATE ... SET fence = ? WHERE fence <= ? RETURNING floors
		if fence < building.fence {
			return 0, false
		}
		building.fence = fence
		return building.floors, true
	}
	write := func(floors, fence int64) bool { // UPDATE ... SET floors = ? WHERE fence = ?
		if fence != building.fence {
			return false
		}
		building.floors = floors
		return true
	}

	a, err := locker.Lock(ctx, "building:tower")
	if err != nil {
		log.Fatal(err)
	}
	seen, _ := enter(a.Fence())
	if _, err = locker.ForceUnlock(ctx, "building:tower"); err != nil { // or A is stopped, and its TTL is over
		log.Fatal(err)
	}
	b, err := locker.Lock(ctx, "building:tower")
	if err != nil {
		log.Fatal(err)
	}
	floors, ok := enter(b.Fence())
	fmt.Println("B has seen:", floors, ok)
	fmt.Println("A writes:", write(seen+1, a.Fence()))
	fmt.Println("B writes:", write(floors+2, b.Fence()))
	fmt.Println("floors:", building.floors)
	fmt.Println(b.Unlock(ctx), a.Valid())
	// Output:
	// B has seen: 10 true
	// A writes: false
	// B writes: true
	// floors: 12
	// <nil> false
}

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
	var last sluice.TaskInfo // the zero TaskInfo: from the beginning
	for {
		page, err := queue.List(ctx, sluice.StateScheduled, last, size)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("page:")
		for _, t := range page {
			fmt.Println(t.ID, t.State)
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

// Dead letters that are more than a limit, or too old, are dropped: the oldest first. Stats counts
// them.
func ExampleWithDeadLimit() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "webhooks", sluice.WithDeadLimit(1000), sluice.WithDeadAge(30*24*time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	stats, err := queue.Stats(ctx)
	fmt.Println(stats.Dead, stats.Trimmed, err)
	// Output: 0 0 <nil>
}

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

// Hooks that carry a request's ID from the producer to the handler, and say what became of the
// task.
func ExampleWithQueueHooks() {
	rdb, done := connect()
	defer done()
	type requestID struct{}
	hooks := sluice.QueueHooks{
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

// An upstream takes three calls at a time, and ten in a second.
func ExampleQueue_SetLimits() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	queue, err := sluice.NewQueue(rdb, "calls")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(queue.SetLimits(ctx, sluice.Limits{Running: 3, Rate: 10, Burst: 5}))
	if _, err := queue.EnqueueBatch(ctx, []sluice.Task{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}}); err != nil {
		log.Fatal(err)
	}
	claimed, err := queue.Claim(ctx, 10, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	stats, err := queue.Stats(ctx)
	fmt.Println(len(claimed), "of", stats.Limits.Running, "are worked on, and", stats.Due, "waits", err)
	// Output:
	// <nil>
	// 3 of 3 are worked on, and 1 waits <nil>
}

// Two queues share four handlers. While both have work, one has three of them.
func ExamplePool() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	urgent, err1 := sluice.NewQueue(rdb, "urgent")
	bulk, err2 := sluice.NewQueue(rdb, "bulk")
	_, err3 := urgent.Enqueue(ctx, sluice.Task{ID: "order:7"})
	_, err4 := bulk.Enqueue(ctx, sluice.Task{ID: "report"})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		log.Fatal(err)
	}

	working, end := context.WithCancel(ctx)
	var left atomic.Int32
	left.Store(2)
	handler := func(context.Context, sluice.Entry) error {
		if left.Add(-1) == 0 {
			end() // in real life a signal ends it
		}
		return nil
	}
	pool := &sluice.Pool{Concurrency: 4, Workers: []*sluice.Worker{
		{Queue: urgent, Weight: 3, Handler: handler},
		{Queue: bulk, Weight: 1, Handler: handler},
	}}
	fmt.Println(pool.Run(working))
	fmt.Println(pool.Workers[0].Stats().Done, pool.Workers[1].Stats().Done)
	// Output:
	// <nil>
	// 1 1
}
