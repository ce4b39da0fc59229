package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// connect returns the client that an example uses: yours, in a program.
func connect() (rdb *redis.Client, done func()) {
	m, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { _ = rdb.Close(); m.Close() }
}

// Ten phones, thirty buyers, and a stock that is read, looked at and written
// back: under the lock, ten are sold.
func ExampleLocker_Lock() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()

	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	stock, sold := 10, 0
	buy := func() error {
		waitCtx, cancel := context.WithTimeout(ctx, 10*time.Second) // how long a buyer waits
		defer cancel()
		lock, err := locker.Lock(waitCtx, "stock:phone")
		if err != nil {
			return err
		}
		defer func() { _ = lock.Unlock(ctx) }()

		if left := stock; left > 0 {
			time.Sleep(time.Millisecond) // think
			stock = left - 1
			sold++
		}
		return nil
	}

	var buyers sync.WaitGroup
	for range 30 {
		buyers.Go(func() {
			if err := buy(); err != nil {
				log.Print(err)
			}
		})
	}
	buyers.Wait()
	fmt.Println("sold", sold, "left", stock)
	// Output: sold 10 left 0
}

// A hot cache entry is refreshed by one of those who find it gone; the others
// wait for the lock, and find the entry.
func ExampleLocker_Do() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	loads := 0
	price := func() (string, error) {
		v, err := rdb.Get(ctx, "cache:price").Result()
		if !errors.Is(err, redis.Nil) {
			return v, err
		}
		err = locker.Do(ctx, "cache:price", func(ctx context.Context) error {
			v, err = rdb.Get(ctx, "cache:price").Result() // somebody may have been faster
			if !errors.Is(err, redis.Nil) {
				return err
			}
			loads++ // the slow query
			v = "499"
			return rdb.Set(ctx, "cache:price", v, time.Minute).Err()
		})
		return v, err
	}

	var requests sync.WaitGroup
	for range 20 {
		requests.Go(func() {
			if v, err := price(); err != nil || v != "499" {
				log.Print(v, err)
			}
		})
	}
	requests.Wait()
	fmt.Println("loads:", loads)
	// Output: loads: 1
}

// Numbers without gaps or doubles, where the last one is kept in a place that
// cannot count by itself. (Redis can: INCR needs no lock.)
func ExampleLocker_Do_sequence() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	last := 0
	next := func() (n int, err error) {
		err = locker.Do(ctx, "seq:invoice", func(context.Context) error {
			last++
			n = last
			return nil
		})
		return n, err
	}
	for range 3 {
		n, err := next()
		fmt.Println(n, err)
	}
	// Output:
	// 1 <nil>
	// 2 <nil>
	// 3 <nil>
}

// A lock that somebody else holds is ErrLocked at once.
func ExampleLocker_TryLock() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	lock, err := locker.TryLock(ctx, "nightly report")
	fmt.Println(lock.Valid(), err)
	_, err = locker.TryLock(ctx, "nightly report")
	fmt.Println(errors.Is(err, sluice.ErrLocked))

	info, err := locker.Inspect(ctx, "nightly report")
	fmt.Println(info.Held, info.TTL > 50*time.Second, err)
	fmt.Println(lock.Unlock(ctx))
	// Output:
	// true <nil>
	// true
	// true true <nil>
	// <nil>
}

// Work that takes longer than the TTL extends its lock, and stops when that is
// lost.
func ExampleLock_Extend() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	lock, err := locker.Lock(ctx, "import", sluice.WithTTL(10*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		// A batch of work, which ends when lock.Context() does.
		if err := lock.Extend(ctx, 10*time.Second); errors.Is(err, sluice.ErrNotHeld) {
			log.Fatal("somebody else may be importing now")
		}
	}
	ttl, err := lock.TTL(ctx)
	fmt.Println(ttl > 9*time.Second, time.Until(lock.Deadline()) < ttl, err)
	fmt.Println(lock.Unlock(ctx), context.Cause(lock.Context()))
	// Output:
	// true true <nil>
	// <nil> context canceled
}

// A job loses its lock without knowing, and writes all the same. What it writes to
// compares fences, and keeps what the later holder wrote.
func ExampleWithFencing() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb, sluice.WithFencing(), sluice.WithTTL(50*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	// In a database: UPDATE building SET floors = ?, fence = ? WHERE fence < ?
	floors, highest := 10, int64(0)
	write := func(n int, fence int64) bool {
		if fence <= highest {
			return false
		}
		floors, highest = n, fence
		return true
	}

	a, err := locker.Lock(ctx, "floor-numbers")
	if err != nil {
		log.Fatal(err)
	}
	// A is stopped for longer than its TTL, and B gets the lock.
	b, err := locker.Lock(ctx, "floor-numbers")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("B:", write(12, b.Fence()))
	fmt.Println("A:", write(11, a.Fence())) // it should have asked a.Valid(), and might be stopped after that
	fmt.Println("floors:", floors)
	fmt.Println(b.Unlock(ctx), a.Valid())
	// Output:
	// B: true
	// A: false
	// floors: 12
	// <nil> false
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

	paid, err := queue.Cancel(ctx, "order-1")
	fmt.Println("paid in time:", paid, err)
	// Output:
	// added <nil>
	// due: 0 <nil>
	// paid in time: true <nil>
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

	send := func(e sluice.Entry) error {
		if e.ID == "flaky" && e.Attempt == 1 {
			return errors.New("try again")
		}
		fmt.Printf("%s: %s\n", e.ID, e.Payload)
		if e.ID == "reminder" {
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
	// Output:
	// welcome: hello
	// flaky: fails once
	// reminder: pay
	// left: 0 <nil>
}

// Look first, then take: of all who do that with one task, one succeeds.
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
	first := entries[0]
	film, err := queue.Extend(ctx, first, time.Hour)
	fmt.Println(film.Attempt, film.Score > first.Score, err)
	fmt.Println("old receipt:", errors.Is(queue.Dequeue(ctx, first), sluice.ErrStale))
	fmt.Println("new receipt:", queue.Dequeue(ctx, film))
	// Output:
	// 1 true <nil>
	// old receipt: true
	// new receipt: <nil>
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
// is not: its task goes to the dead letters, for somebody to look at.
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

// Dead letters are kept until somebody says what is to become of them.
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
