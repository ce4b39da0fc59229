package sluice_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/sluice-go/sluice"
)

// A sweep that is due again and again. All processes have the same list, and one of them does each sweep.
func ExamplePeriodic() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	queue, err := sluice.NewQueue(rdb, "chores")
	if err != nil {
		log.Fatal(err)
	}

	var last time.Time
	worker := &sluice.Worker{
		Queue: queue,
		Periodic: []sluice.Periodic{
			{ID: "sweep", Schedule: sluice.Every(50 * time.Millisecond)}, // or a schedule of a cron package
		},
		Handler: func(_ context.Context, e sluice.Entry) error {
			if last.IsZero() {
				fmt.Println(e.ID, "is due at a multiple of 50ms:", e.Due.Equal(e.Due.Truncate(50*time.Millisecond)))
				last = e.Due
				return nil
			}
			fmt.Println("and again:", e.Due.After(last))
			stop() // the example is over
			return nil
		},
	}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// sweep is due at a multiple of 50ms: true
	// and again: true
}
