package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

// queue is a task queue with the connections that it needs. It serves one turn only, and its
// tasks' IDs are numbers.
type queue interface {
	// Enqueue enqueues a task that is due at a time; zero means at once.
	Enqueue(ctx context.Context, id int, payload []byte, due time.Time) error
	// Fill enqueues n tasks in the quickest way.
	Fill(ctx context.Context, n int, payload []byte, due func(id int) time.Time) error
	// Work calls handler with tasks until ctx ends.
	Work(ctx context.Context, concurrency int, handler func(id int)) error
	// Close also removes the remaining tasks.
	Close() error
}

// selfTimed is a queue that enqueues tasks one a call, and times the calls, by itself.
type selfTimed interface {
	// EnqueueTimed enqueues n tasks, which begin with the number from, and returns how long
	// all of them took, and each call.
	EnqueueTimed(callers, from, n int, due func(id int) time.Time) (time.Duration, []time.Duration, error)
}

// sized is a queue that knows what its tasks need, since no Redis keeps them.
type sized interface {
	used(ctx context.Context) (bytes float64, err error)
}

// taskID returns an ID that is as long as a UUID. It does not use Sprintf, which would add a
// quarter of a microsecond to the figures.
func taskID(id int) string {
	const blank = "task-0000000000000000000000000000000"
	digits := strconv.Itoa(id)
	return blank[:len(blank)-len(digits)] + digits
}

// idOf returns the number in an ID of taskID; -1 for other IDs.
func idOf(task string) int {
	digits, ours := strings.CutPrefix(task, "task-")
	id, err := strconv.Atoi(digits)
	if !ours || err != nil {
		return -1
	}
	return id
}

// taskQueue is the queue of Sluice.
type taskQueue struct {
	*sluice.Queue
	rdb         redis.UniversalClient
	closeClient func() error
}

func openSluiceQueue(s setup) (queue, error) { return newTaskQueue(s) }

func newTaskQueue(s setup, options ...sluice.QueueOption) (taskQueue, error) {
	rdb := newClient(s.Addr)
	q, err := sluice.NewQueue(rdb, s.Queue, options...)
	return taskQueue{q, rdb, rdb.Close}, err
}

func openPipelinedQueue(s setup) (queue, error) {
	rdb := newClient(s.Addr)
	auto, err := rdb.AutoPipeline()
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	q, err := sluice.NewQueue(auto, s.Queue)
	return taskQueue{q, auto, func() error { return errors.Join(auto.Close(), rdb.Close()) }}, err
}

func (q taskQueue) Enqueue(ctx context.Context, id int, payload []byte, due time.Time) error {
	_, err := q.Queue.Enqueue(ctx, sluice.Task{ID: taskID(id), Payload: payload, At: due})
	return err
}

func (q taskQueue) Fill(ctx context.Context, n int, payload []byte, due func(int) time.Time) error {
	const batch = 5000
	tasks := make([]sluice.Task, 0, batch)
	for id := range n {
		tasks = append(tasks, sluice.Task{ID: taskID(id), Payload: payload, At: due(id)})
		if len(tasks) == batch || id == n-1 {
			if _, err := q.EnqueueBatch(ctx, tasks); err != nil {
				return err
			}
			tasks = tasks[:0]
		}
	}
	return nil
}

func (q taskQueue) Work(ctx context.Context, concurrency int, handler func(id int)) error {
	w := &sluice.Worker{
		Queue: q.Queue, Concurrency: concurrency,
		Handler: func(_ context.Context, e sluice.Entry) error {
			handler(idOf(e.ID))
			return nil
		},
	}
	return w.Run(ctx)
}

func (q taskQueue) count(ctx context.Context) (int, error) {
	s, err := q.Stats(ctx)
	return int(s.Due + s.Scheduled), err
}

func (q taskQueue) Close() error {
	return errors.Join(q.Purge(context.Background()), q.closeClient())
}

// asynqQueue is github.com/hibiken/asynq.
type asynqQueue struct {
	*asynq.Client
	options asynq.RedisClientOpt
	name    string
	check   time.Duration // 0 for its default, 5s
}

func openAsynq(check time.Duration) func(s setup) (queue, error) {
	return func(s setup) (queue, error) {
		options := asynq.RedisClientOpt{Addr: s.Addr, PoolSize: poolSize}
		return asynqQueue{asynq.NewClient(options), options, s.Queue, check}, nil
	}
}

func (q asynqQueue) Enqueue(ctx context.Context, id int, payload []byte, due time.Time) error {
	options := []asynq.Option{asynq.TaskID(taskID(id)), asynq.Queue(q.name)}
	if !due.IsZero() {
		options = append(options, asynq.ProcessAt(due))
	}
	_, err := q.EnqueueContext(ctx, asynq.NewTask("t", payload), options...)
	return err
}

func (q asynqQueue) Fill(ctx context.Context, n int, payload []byte, due func(int) time.Time) error {
	return fillSingly(ctx, q, n, payload, due)
}

// fillSingly fills a queue with many goroutines.
func fillSingly(ctx context.Context, q queue, n int, payload []byte, due func(int) time.Time) error {
	return inParallel(ctx, poolSize, n, func(ctx context.Context, id int) error { return q.Enqueue(ctx, id, payload, due(id)) })
}

// inParallel calls do with 0 to n-1, from this number of goroutines. It stops at the first
// error.
func inParallel(ctx context.Context, goroutines, n int, do func(ctx context.Context, i int) error) error {
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range goroutines {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (q asynqQueue) Work(ctx context.Context, concurrency int, handler func(id int)) error {
	return q.workOn(ctx, concurrency, map[string]int{q.name: 1}, handler)
}

// workOn works on several queues, each with a priority.
func (q asynqQueue) workOn(ctx context.Context, concurrency int, queues map[string]int, handler func(id int)) error {
	server := asynq.NewServer(q.options, asynq.Config{
		Concurrency: concurrency, Queues: queues,
		LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: q.check,
	})
	err := server.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		handler(idOf(id))
		return nil
	}))
	if err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

func (q asynqQueue) count(context.Context) (int, error) {
	inspector := asynq.NewInspector(q.options)
	defer func() { _ = inspector.Close() }()
	info, err := inspector.GetQueueInfo(q.name)
	if err != nil {
		return 0, err
	}
	return info.Size, nil
}

func (q asynqQueue) Close() error {
	inspector := asynq.NewInspector(q.options)
	err := inspector.DeleteQueue(q.name, true)
	if errors.Is(err, asynq.ErrQueueNotFound) {
		err = nil
	}
	return errors.Join(err, inspector.Close(), q.Client.Close())
}

const asynqName = "asynq"

// queueEntrants returns all entrants with queues.
func queueEntrants() []entrant {
	return []entrant{
		{name: sluiceName, settings: "defaults", openQueue: openSluiceQueue},
		{name: sluiceName + " on AutoPipeline", settings: "defaults", openQueue: openPipelinedQueue},
		{name: asynqName, settings: "v0.26.0, defaults, no logging", openQueue: openAsynq(0)},
		{name: batchesName, settings: "defaults; a call enqueues 250 tasks", openQueue: openBatches},
		{name: riverName, settings: riverSettings, openQueue: openRiver(0), fewer: 10, unmetered: ofRedis},
		{name: riverFastName, settings: riverSettings + ", FetchCooldown and FetchPollInterval 1ms", openQueue: openRiver(time.Millisecond),
			fewer: 10, unmetered: ofRedis},
		{name: bullName, settings: bullSettings, openQueue: openBull, fewer: 10, unmetered: []string{allocsPerOp}},
		{name: loopName, settings: "defaults; goroutines that each Claim and Dequeue one task at a time", openQueue: openLoop},
		{name: floorName, settings: "for tasks: bare go-redis. ZADD NX of 250 IDs; two groups at once of 32 IDs, each a script that re-scores" +
			" due IDs and one that removes them", openQueue: openBare(bareQueue{take: takeByScript, finish: finishByScript})},
		{name: floorName + ", ZPOPMIN", settings: "the same with ZPOPMIN of 32, which loses what a dead client has taken",
			openQueue: openBare(bareQueue{take: takeByPop})},
		{name: asynqName + " at 50ms", settings: "the same, DelayedTaskCheckInterval 50ms", openQueue: openAsynq(50 * time.Millisecond)},
	}
}

func enterQueues(names ...string) []entrant { return pick(queueEntrants(), names) }

// atOnce is the due time of a task that is due when it is enqueued.
func atOnce(int) time.Time { return time.Time{} }

// ledger checks that a handler was called for every task.
type ledger struct {
	times    []atomic.Int32
	left     atomic.Int64
	complete chan struct{} // closed after the last task
}

func newLedger(n int) *ledger {
	l := &ledger{times: make([]atomic.Int32, n), complete: make(chan struct{})}
	l.left.Store(int64(n))
	return l
}

// twice returns an error if a handler was called for a task again.
func (l *ledger) twice() error {
	n := 0
	for i := range l.times {
		if l.times[i].Load() > 1 {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("RUN TWICE: %d of %d", n, len(l.times))
	}
	return nil
}

// enter records that a handler was called.
func (l *ledger) enter(id int) {
	if id >= 0 && id < len(l.times) && l.times[id].Add(1) == 1 && l.left.Add(-1) == 0 {
		close(l.complete)
	}
}

// workThrough works until a handler was called for every task, and returns how long that took.
func (l *ledger) workThrough(ctx context.Context, q queue, concurrency int, handler func(id int)) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var took time.Duration
	began := time.Now()
	go func() {
		defer cancel()
		select {
		case <-l.complete:
			took = time.Since(began)
		case <-ctx.Done():
		}
	}()
	if err := q.Work(ctx, concurrency, handler); err != nil {
		return 0, err
	}
	if n := l.left.Load(); n > 0 {
		return 0, fmt.Errorf("TASKS LOST: no handler was called for %d of %d", n, len(l.times))
	}
	return took, l.twice()
}

// counts is a queue that tells how many tasks it has.
type counts interface {
	count(ctx context.Context) (int, error)
}

// requireAll returns an error unless the queue has so many tasks.
func requireAll(ctx context.Context, q queue, tasks int) error {
	c, ok := q.(counts)
	if !ok {
		return errors.New("this queue does not tell how many tasks it has")
	}
	n, err := c.count(ctx)
	if err == nil && n != tasks {
		err = fmt.Errorf("TASKS LOST: %d of %d are in the queue", n, tasks)
	}
	return err
}

// info returns a section of the server's INFO.
func info(ctx context.Context, addr, section string) (map[string]string, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	all, err := rdb.InfoMap(ctx, section).Result()
	for _, values := range all {
		return values, err
	}
	return nil, err
}
