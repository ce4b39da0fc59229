package sluice_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-go/sluice"
)

// An order of several items: all of them are locked, or none. The names may be in any order: no two orders wait for each
// other in a circle.
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

// At most three calls at a time to a partner who allows no more, from all processes together.
func ExampleWithPermits() {
	rdb, done := connect()
	defer done()
	ctx := context.Background()
	locker, err := sluice.NewLocker(rdb, sluice.WithPermits(3))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	for i := range 4 {
		_, err := locker.TryLock(ctx, "partner") // Lock and Do wait for one
		fmt.Println(i, err)
	}
	info, err := locker.Inspect(ctx, "partner")
	fmt.Println(info.Permits, err)
	// Output:
	// 0 <nil>
	// 1 <nil>
	// 2 <nil>
	// 3 sluice: try lock partner: locked by another holder
	// 3 <nil>
}
