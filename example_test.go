package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
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

// A lock around a function: as in the README.
func Example_lock() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	sell := func(context.Context) error { fmt.Println("sold"); return nil }

	locker, err := sluice.NewLocker(rdb) // rdb is your go-redis client; it stays yours
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	err = locker.Do(ctx, "stock:phone", func(ctx context.Context) error {
		return sell(ctx) // one at a time, in all processes; commit before you return
	})
	fmt.Println(err)
	// Output:
	// sold
	// <nil>
}

// Ten phones, thirty buyers, and a stock that is read, looked at and written
// back: under the lock, ten are sold. docs/locks.md.
func ExampleLocker_Lock() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()

	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	errBusy := errors.New("try again later")
	stock, sold := 10, 0
	buy := func() error {
		waitCtx, cancel := context.WithTimeout(ctx, 10*time.Second) // how long a buyer waits; not how long the lock lives
		defer cancel()
		lock, err := locker.Lock(waitCtx, "stock:phone")
		if errors.Is(err, sluice.ErrLocked) {
			return errBusy // another caller held it all the time
		} else if err != nil {
			return err // an error of Redis or the network
		}
		defer func() { _ = lock.Unlock(ctx) }()

		if left := stock; left > 0 {
			time.Sleep(time.Millisecond) // think: time for another buyer, if there were no lock
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

// A hot cache entry is refreshed by one of the callers that find it gone; the others
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
			v, err = rdb.Get(ctx, "cache:price").Result() // another caller may have been faster
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

// A buyer waits for two seconds at most, and what Do's function does then has as much time
// as the request.
func ExampleWithMaxWait() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	sell := func(context.Context) error { fmt.Println("sold"); return nil }
	err = locker.Do(ctx, "stock:phone", sell, sluice.WithMaxWait(2*time.Second))
	if errors.Is(err, sluice.ErrLocked) {
		fmt.Println("busy: another caller held it all the time")
	}
	fmt.Println(err)
	// Output:
	// sold
	// <nil>
}

// The function that Do calls writes the fence beside what the lock guards, and asks the
// lock before a step that cannot be undone.
func ExampleLockFromContext() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb, sluice.WithFencing())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	err = locker.Do(ctx, "building:tower", func(ctx context.Context) error {
		lock := sluice.LockFromContext(ctx, "building:tower")
		fmt.Println(lock.Name(), lock.Fence() > 0, lock.Valid())
		return nil
	})
	fmt.Println(err, sluice.LockFromContext(ctx, "building:tower") == nil)
	// Output:
	// building:tower true true
	// <nil> true
}

// A lock that another caller holds is ErrLocked at once.
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
			log.Fatal("another process may be importing now")
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
	locker, err := sluice.NewLocker(rdb, sluice.WithFencing(), sluice.WithTTL(500*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	// In a database: UPDATE building SET floors = ?, fence = ? WHERE fence <= ?
	floors, highest := 10, int64(0)
	write := func(n int, fence int64) bool {
		if fence < highest {
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
	fmt.Println("A:", write(11, a.Fence()))       // it should have asked a.Valid(), and might be stopped after that
	fmt.Println("B again:", write(13, b.Fence())) // the same fence: why it is <= and not <
	fmt.Println("floors:", floors)
	fmt.Println(b.Unlock(ctx), a.Valid())
	// Output:
	// B: true
	// A: false
	// B again: true
	// floors: 13
	// <nil> false
}

// Which host holds the lock: an operator asks, and the next caller may say so in its log.
func ExampleWithOwner() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb, sluice.WithOwner("import@host-7")) // no secret: every client of the server can see it
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	lock, err := locker.Lock(ctx, "import")
	if err != nil {
		log.Fatal(err)
	}
	info, err := locker.Inspect(ctx, "import")
	fmt.Println(info.Held, info.Owner, err)
	fmt.Println(lock.Unlock(ctx))
	// Output:
	// true import@host-7 <nil>
	// <nil>
}

// Figures of locks: how many are held, how many callers have waited for long, and which locks were
// lost.
func ExampleWithLockHooks() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	var held, waitedLong atomic.Int64
	locker, err := sluice.NewLocker(rdb, sluice.WithLockHooks(sluice.LockHooks{
		LockAcquired: func(_ context.Context, i sluice.LockAcquired) {
			held.Add(1)
			if !i.HandedOver && i.Waited > time.Second {
				waitedLong.Add(1)
			}
		},
		LockReleased: func(i sluice.LockReleased) {
			held.Add(-1)
			fmt.Println(i.Name, "was held for more than an hour:", i.Held > time.Hour)
		},
		LockLost: func(i sluice.LockLost) {
			held.Add(-1)
			fmt.Println(i.Name, "was lost")
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	err = locker.Do(ctx, "stock:phone", func(context.Context) error {
		fmt.Println("held:", held.Load())
		return nil
	})
	fmt.Println("held:", held.Load(), err)
	if _, err = locker.Lock(ctx, "stock:case"); err != nil {
		log.Fatal(err)
	}
	_, err = locker.ForceUnlock(ctx, "stock:case") // as an operator may
	fmt.Println("held:", held.Load(), "waited long:", waitedLong.Load(), err)
	// Output:
	// held: 1
	// stock:phone was held for more than an hour: false
	// held: 0 <nil>
	// stock:case was lost
	// held: 0 waited long: 0 <nil>
}

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
	fmt.Println("again", worker.Stats().Again)
	// Output:
	// invoice-1 attempt 1 status 429
	// invoice-1 attempt 1 status 429
	// invoice-1 attempt 1 status 200
	// again 2
}

// A handler that is about to do what cannot be undone asks whether the task is still its own. If
// not, another worker may have it: what this one returns has no effect.
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
