// Tenants has many customers share one queue. One of them imports 50,000 tasks, and the others' do
// not stand behind these: each task's Group is its tenant, of whom four tasks are in play at a time.
// It measures how long the tasks of small tenants wait, without the import and beside it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

func main() {
	if err := run(context.Background(), os.Stdout, os.Getenv("REDIS_URL"), 50_000); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run measures on a Redis or, without a URL, on a miniredis. That is slow with many tasks: it gets a
// fiftieth of the import.
func run(ctx context.Context, out io.Writer, url string, imported int) error {
	if url == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		url, imported = "redis://"+server.Addr(), imported/50
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(options)
	defer func() { _ = rdb.Close() }()
	for _, n := range []int{0, imported} {
		s := service{waits: map[string]time.Duration{}, work: func(sluice.Entry) { time.Sleep(time.Millisecond) }} // the database
		took, err := s.serve(ctx, rdb, n)
		if err != nil {
			return err
		}
		waits := slices.Sorted(maps.Values(s.waits))
		fmt.Fprintf(out, "%d of %d imported; small tenants: %.0f tasks a second, p50 %v, p99 %v\n", s.imported, n,
			small/took.Seconds(), waits[small/2].Round(time.Microsecond), waits[small*99/100].Round(time.Microsecond))
	}
	return nil
}

const small = 200 // tasks of small tenants, of whom there are ten

// service is what a process does with the tasks.
type service struct {
	work     func(sluice.Entry)
	mu       sync.Mutex               // guards what follows
	waits    map[string]time.Duration // of small tenants' tasks, by their IDs
	imported int                      // how many tasks of the import are done
}

// serve handles the tasks of small tenants behind an import, and drops what is left of that.
func (s *service) serve(ctx context.Context, rdb *redis.Client, imported int) (took time.Duration, err error) {
	queue, err := sluice.NewQueue(rdb, "example:tenants")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, queue.Purge(ctx)) }()
	tasks := make([]sluice.Task, imported)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint("import-", i), Kind: "import", Group: "big"}
	}
	if err := queue.SetLimits(ctx, sluice.Limits{PerGroup: 4}); err != nil { // of the 16 that a Worker handles at a time
		return 0, err
	}
	if _, err := queue.EnqueueBatch(ctx, tasks); err != nil {
		return 0, err
	}
	began := time.Now()
	working, stop := context.WithCancel(ctx)
	defer stop()
	all, working := errgroup.WithContext(working)
	worker := sluice.Worker{Queue: queue, Handler: func(_ context.Context, e sluice.Entry) error { return s.handle(e, stop) }}
	all.Go(func() error { return worker.Run(working) })
	all.Go(func() error {
		for i := range small {
			if _, err := queue.Enqueue(ctx, sluice.Task{ID: fmt.Sprint("small-", i), Group: fmt.Sprint("small", i%10)}); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	})
	err = all.Wait()
	return time.Since(began), errors.Join(err, ctx.Err())
}

// handle handles a task, and calls stop when all of the small tenants are done. A task is due when
// it is enqueued, by Redis's clock, which is taken to be that of this machine.
func (s *service) handle(e sluice.Entry, stop func()) error {
	waited := time.Since(e.Due)
	s.work(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Kind == "import" {
		s.imported++
	} else if s.waits[e.ID] = waited; len(s.waits) == small {
		stop()
	}
	return nil
}
