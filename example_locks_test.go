package sluice_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-go/sluice"
)

// An order of several items: all of them are locked, or none. The names may be in any order: no two orders wait for each
// other in a circle. README, "Several locks".
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
	fmt.Println(set.Valid(), set.Lock("phone").Fence() > 0, set.Context().Err())
	fmt.Println(set.Unlock(ctx))
	// Output:
	// true true <nil>
	// <nil>
}

// A section that one process begins and another one ends: an upload is checked where it arrives, and written elsewhere.
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
	fmt.Println(info.Permits, err)
	// Output:
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
	// 3 sluice: try lock payment-service: locked by another holder
	// 3 <nil>
}

// A holder that reads before it writes enters its fence first, and reads with it. From then on every earlier holder is
// refused, whatever it was about to write. docs/database.md has the same in SQL.
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
