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
