// Start is the README's lock and task as one program: what to import, and in which order to stop.
// It needs a Redis:
//
//	go run -C examples ./start -redis localhost:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

func main() {
	address := flag.String("redis", "localhost:6379", "`address` of a Redis server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: *address})
	defer rdb.Close() // last
	if err := run(ctx, rdb); err != nil {
		log.Fatal(err)
	}
}

// run sells a phone, and works on tasks until ctx ends.
func run(ctx context.Context, rdb *redis.Client) error {
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		return err
	}
	defer locker.Close() // after the workers, whose handlers may hold locks
	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		return err
	}

	var mux sluice.Mux
	mux.Handle("cancel", func(_ context.Context, e sluice.Entry) error {
		fmt.Println("canceled unless it was paid:", e.ID) // an error is retried, after a growing pause
		return nil
	})
	mux.Handle("receipt", func(_ context.Context, e sluice.Entry) error {
		fmt.Println("receipt for", e.ID)
		return nil
	}, sluice.KindTimeout(10*time.Second))
	worker := &sluice.Worker{Queue: queue, Handler: mux.Serve}
	if err := errors.Join(locker.Check(ctx), worker.Check(ctx)); err != nil {
		return err // says in words what is wrong with the address, the password or the rights
	}
	var workers sync.WaitGroup
	defer workers.Wait()
	workers.Go(func() {
		if err := worker.Run(ctx); err != nil {
			log.Print(err) // what was left when it stopped
		}
	})

	// In a web server, this is what a handler does with its request's context.
	return locker.Do(ctx, "stock:phone", func(ctx context.Context) error {
		_, err := queue.EnqueueBatch(ctx, []sluice.Task{
			{ID: sluice.NewID(), Kind: "receipt"},
			{ID: sluice.NewID(), Kind: "cancel", Delay: 2 * time.Second},
		})
		return err // and commit here, before the lock is released
	}, sluice.WithMaxWait(2*time.Second))
}
