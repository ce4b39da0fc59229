package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/sluicetest"
)

// A task for later, and a worker for it: as in the README.
func Example_worker() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	cancelUnpaid := func(_ context.Context, id string) error {
		fmt.Println("cancelled", id)
		stop() // the example is over
		return nil
	}

	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		log.Fatal(err)
	}
	_, err = queue.Enqueue(ctx, sluice.Task{ID: "order-1", Delay: 50 * time.Millisecond}) // in the README: 15 minutes
	if err != nil {
		log.Fatal(err)
	}

	worker := &sluice.Worker{Queue: queue, Handler: func(ctx context.Context, e sluice.Entry) error {
		return cancelUnpaid(ctx, e.ID) // an error is retried after a growing pause
	}}
	err = worker.Run(ctx) // until ctx ends
	fmt.Println(err)
	// Output:
	// cancelled order-1
	// <nil>
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

	was, err := queue.Cancel(ctx, "order-1")
	fmt.Println("it was", was, err)
	// Output:
	// added <nil>
	// due: 0 <nil>
	// it was scheduled <nil>
}

// A worker loop of one's own: wait, claim, work, and say what became of it. Where Worker
// will do, use that: it claims in groups, and runs many handlers at once.
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
		{ID: "nowhere", Payload: []byte("has no address")},
		{ID: "reminder", Payload: []byte("pay"), Delay: 50 * time.Millisecond},
	})
	if err != nil {
		log.Fatal(err)
	}

	consume(ctx, queue, func(_ context.Context, e sluice.Entry) error {
		if e.ID == "nowhere" {
			return sluice.Permanent(errors.New("no such address"))
		}
		fmt.Printf("%s: %s\n", e.ID, e.Payload)
		if e.ID == "reminder" {
			stop() // the example is over
		}
		return nil
	})
	stats, err := queue.Stats(context.Background())
	fmt.Println("left:", stats.Due+stats.Scheduled+stats.Leased, "dead:", stats.Dead, err)
	// Output:
	// welcome: hello
	// reminder: pay
	// left: 0 dead: 1 <nil>
}

// consume works on tasks, one at a time, until ctx ends. Run it in as many goroutines as
// there is to be work at once.
func consume(ctx context.Context, queue *sluice.Queue, work func(ctx context.Context, e sluice.Entry) error) {
	for ctx.Err() == nil {
		err := queue.Wait(ctx)
		if err == nil {
			// One: the lease of a second would run while the first is worked on.
			var entries []sluice.Entry
			entries, err = queue.Claim(ctx, 1, time.Minute)
			for _, e := range entries {
				consumeOne(ctx, queue, e, work)
			}
		}
		if err != nil && ctx.Err() == nil {
			log.Print(err)
			select { // Redis is away, or denies a command: not again at once
			case <-time.After(sluice.DefaultBackoff(1, err)):
			case <-ctx.Done():
			}
		}
	}
}

// consumeOne works on a task, and says what became of it.
func consumeOne(ctx context.Context, queue *sluice.Queue, e sluice.Entry, work func(ctx context.Context, e sluice.Entry) error) {
	failed := queue.KeepAlive(ctx, e, time.Minute, func(ctx context.Context) error { return work(ctx, e) })
	isLast := queue.MaxAttempts() > 0 && e.Attempt >= queue.MaxAttempts()
	ctx = context.WithoutCancel(ctx) // what is done is done
	var err error
	switch {
	case failed == nil:
		err = queue.Dequeue(ctx, e)
	case sluice.IsPermanent(failed), isLast:
		err = queue.Bury(ctx, failed.Error(), e)
	default:
		err = queue.Retry(ctx, sluice.DefaultBackoff(e.Attempt, failed), "failed", e)
	}
	if err != nil {
		// ErrStale: it is not ours any more, and others have it. ErrUnavailable, ErrUnknown:
		// Redis is away, and the task comes again after its lease. (A Worker repeats the
		// result until then.)
		log.Print(err)
	}
}

// Peek first, then take: of several callers that do so with one task, one succeeds.
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
	queue, err := sluice.NewQueue(rdb, "reindex", sluice.WithDuplicates(sluice.DuplicatesLatest))
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
	film := entries[0]
	fmt.Println("extended:", queue.Extend(ctx, film, time.Hour))
	fmt.Println("finished:", queue.Dequeue(ctx, film))
	fmt.Println("too late:", errors.Is(queue.Extend(ctx, film, time.Hour), sluice.ErrStale))
	// Output:
	// extended: <nil>
	// finished: <nil>
	// too late: true
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
		{ID: "order-2", Payload: []byte("a case"), Delay: time.Second},
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
// is not: its task goes to the dead letters, for an operator to look at.
func ExamplePermanent() {
	rdb, done := connect()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var finished atomic.Int32
	hooks := sluice.QueueHooks{TaskFinished: func(_ context.Context, i sluice.TaskFinished) {
		if i.Disposition != sluice.DispositionRetried && finished.Add(1) == 3 {
			stop() // the example is over
		}
	}}
	queue, err := sluice.NewQueue(rdb, "mail", sluice.WithMaxAttempts(3), sluice.WithQueueHooks(hooks))
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
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}

	letters, err := queue.List(context.Background(), sluice.StateDead, sluice.TaskInfo{}, 10)
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
				time.Sleep(10 * time.Millisecond) // the work, which goes on after stop
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

// Dead letters are kept until the program revives or cancels them.
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
	fmt.Println(queue.Bury(ctx, "the bank is unknown", entries[0]))

	letters, err := queue.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 10)
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

// TestInABubble shows how to test code that uses a Queue and a Locker: on a fake clock, where
// fifteen minutes take milliseconds. docs/testing.md.
func TestInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		locker, err := sluice.NewLocker(r.Client())
		require.NoError(t, err)
		defer func() { require.NoError(t, locker.Close()) }()
		queue, err := sluice.NewQueue(r.Client(), "unpaid")
		require.NoError(t, err)

		cancelled := make(chan string, 1) // by your handler, which takes the buyer's lock
		worker := &sluice.Worker{Queue: queue, Handler: func(ctx context.Context, e sluice.Entry) error {
			return locker.Do(ctx, "stock:phone", func(context.Context) error { cancelled <- e.ID; return nil })
		}}
		ctx, stop := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- worker.Run(ctx) }()

		_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "order-1", Delay: 15 * time.Minute})
		require.NoError(t, err)
		task := r.RequireEnqueued("unpaid", "order-1")
		require.Equal(t, 15*time.Minute, task.Due.Sub(r.Now()).Round(time.Millisecond))
		r.Advance(task.Due.Sub(r.Now()) - time.Second)
		require.Empty(t, cancelled, "it is too early")
		r.Advance(task.Due.Sub(r.Now()) + time.Second)
		require.Equal(t, "order-1", <-cancelled)
		r.RequireEmpty("unpaid")
		stop()
		require.NoError(t, <-stopped)
	})
}

// A sweep that is due again and again. All processes have the same list, and one of them does each
// sweep.
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

// The loop of ExampleQueue_Claim goes round a few times a second while Claim fails and Wait
// works: the dead letters' key is of another type, which Wait does not look at.
func TestExampleQueue_Claim_PausesWhenClaimFails(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		require.NoError(t, m.Set("{Queue:q}:dead", "of another type"))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		before, worked := m.CommandCount(), 0
		work := func(context.Context, sluice.Entry) error { worked++; return nil }
		consume(ctx, q, work)
		require.Zero(t, worked)
		require.LessOrEqual(t, m.CommandCount()-before, 20*5*15, "five rounds a second of fifteen commands at most")
		m.Del("{Queue:q}:dead")
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		consume(ctx, q, work)
		require.Equal(t, 1, worked)
		time.Sleep(time.Minute)
	})
}
