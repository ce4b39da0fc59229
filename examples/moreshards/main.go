// Moreshards moves a queue to another number of shards while its producers go on: by a second queue. docs/shards.md has the
// procedure in words, and what does not work meanwhile.
//
// Without flags it needs no other program: Redis is a miniredis within the process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

// prefix is what the keys of queues begin with; see sluice.WithQueuePrefix.
const prefix = "Queue:"

// Target is the queue into which the producers of a process enqueue.
type Target struct {
	mu    sync.RWMutex // guards queue; held for reading during a call
	queue *sluice.Queue
}

// Enqueue enqueues a task.
func (t *Target) Enqueue(ctx context.Context, task sluice.Task) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, err := t.queue.Enqueue(ctx, task)
	return err
}

// Switch changes to another queue. When it returns, no call is under way to the queue before.
func (t *Target) Switch(queue *sluice.Queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = queue
}

// waitUntilEmpty waits until nothing is left in a queue. If no producer uses it any more, it stays so.
func waitUntilEmpty(ctx context.Context, queue *sluice.Queue) error {
	var s sluice.Stats // the last that were had
	for {
		switch now, err := queue.Stats(ctx); {
		case err != nil && ctx.Err() == nil:
			return err
		case err == nil && now.Due+now.Scheduled+now.Leased+now.Dead == 0:
			return nil
		case err == nil:
			s = now
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("due %d, scheduled %d, leased %d, dead %d: %w", s.Due, s.Scheduled, s.Leased, s.Dead, context.Cause(ctx))
		}
	}
}

// removeKeys removes what an empty queue leaves behind. The name must have none of *?[\. On a Cluster, call it for each primary.
func removeKeys(ctx context.Context, rdb redis.Cmdable, name string, shards int) error {
	key := prefix + name
	patterns := []string{key, "{" + key + "}:*"}
	if shards > 1 {
		shard := fmt.Sprintf("%s:1.%d.*.??????", key, shards)
		patterns = append(patterns, shard, "{"+shard+"}:*")
	}
	for _, pattern := range patterns {
		found := rdb.Scan(ctx, 0, pattern, 1000).Iterator()
		for found.Next(ctx) {
			if err := rdb.Unlink(ctx, found.Val()).Err(); err != nil {
				return err
			}
		}
		if err := found.Err(); err != nil {
			return err
		}
	}
	return nil
}

// start runs a Worker, and returns what stops it and waits for its end.
func start(ctx context.Context, queue *sluice.Queue, handler func(context.Context, sluice.Entry) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		worker := &sluice.Worker{Queue: queue, Handler: handler, Concurrency: 4}
		ended <- worker.Run(ctx)
	}()
	return func() error {
		cancel()
		return <-ended
	}
}

// move is the procedure. It returns the error of the first step that fails; the steps may then be done again.
func move(ctx context.Context, rdb redis.Cmdable, c config, t *Target, old, next *sluice.Queue, stopOld func() error) error {
	t.Switch(next)
	if err := waitUntilEmpty(ctx, old); err != nil {
		return err
	}
	if err := stopOld(); err != nil {
		return err
	}
	return removeKeys(ctx, rdb, old.Name(), c.from)
}

// config is the command line.
type config struct {
	redis, queue string
	from, to     int
}

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 0 if all went well, 1 if something failed, 2 for bad flags.
func run(ctx context.Context, args []string, out, log io.Writer) int {
	var c config
	f := flag.NewFlagSet("moreshards", flag.ContinueOnError)
	f.SetOutput(log)
	f.StringVar(&c.redis, "redis", "", "`address` of a Redis server, as host:port (default: an embedded one)")
	f.StringVar(&c.queue, "queue", "mail", "`name` of the queue; the second one is named after it and its shards. Both must be empty")
	f.IntVar(&c.from, "from", 1, "`number` of shards that the queue has")
	f.IntVar(&c.to, "to", 4, "`number` of shards of the second queue")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if f.NArg() > 0 {
		fmt.Fprintln(log, "moreshards: no arguments")
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := demonstrate(ctx, c, out); err != nil {
		fmt.Fprintln(log, "moreshards:", err)
		return 1
	}
	return 0
}

// demonstrate runs producers and a Worker of each queue, moves the queue under them, and counts what was handled.
func demonstrate(ctx context.Context, c config, out io.Writer) error {
	addr, closeServer, err := server(c.redis)
	if err != nil {
		return err
	}
	defer closeServer()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	old, err := sluice.NewQueue(rdb, c.queue, sluice.WithShards(c.from))
	if err != nil {
		return err
	}
	next, err := sluice.NewQueue(rdb, fmt.Sprintf("%s-%d", c.queue, c.to), sluice.WithShards(c.to))
	if err != nil {
		return err
	}
	var byOld, byNext tally
	stopOld, stopNext := start(ctx, old, byOld.handle), start(ctx, next, byNext.handle)

	target := &Target{queue: old}
	producing, stopProducing := context.WithCancel(ctx)
	defer stopProducing()
	var producers errgroup.Group
	sent := make([]int, 3)
	for i := range sent {
		producers.Go(func() (err error) { sent[i], err = produce(producing, ctx, target, i); return err })
	}
	byOld.waitFor(ctx, 20)
	if err = move(ctx, rdb, c, target, old, next, stopOld); err == nil {
		byNext.waitFor(ctx, 20)
	}
	stopProducing()
	if err := errors.Join(err, producers.Wait()); err != nil {
		return err
	}
	if err := waitUntilEmpty(ctx, next); err != nil {
		return err
	}
	if err := stopNext(); err != nil {
		return err
	}
	return report(out, sent, &byOld, &byNext)
}

// produce enqueues tasks, the half of them with a delay, until producing ends. It returns how many.
func produce(producing, ctx context.Context, target *Target, i int) (n int, err error) {
	for producing.Err() == nil {
		task := sluice.Task{ID: fmt.Sprintf("%d-%d", i, n), Delay: time.Duration(n%2) * 500 * time.Millisecond}
		if err := target.Enqueue(ctx, task); err != nil {
			return n, err
		}
		n++
		time.Sleep(5 * time.Millisecond)
	}
	return n, nil
}

// tally counts how often each task was handled.
type tally struct {
	mu    sync.Mutex // guards what follows
	times map[string]int
}

// handle is the handler of a Worker.
func (t *tally) handle(_ context.Context, e sluice.Entry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.times == nil {
		t.times = map[string]int{}
	}
	t.times[e.ID]++
	return nil
}

// waitFor waits until n tasks were handled, or ctx ends.
func (t *tally) waitFor(ctx context.Context, n int) {
	for t.tasks() < n && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
}

func (t *tally) tasks() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.times)
}

// report prints what was handled, and returns an error if that is not each task once.
func report(out io.Writer, sent []int, byOld, byNext *tally) error {
	tasks, once := 0, 0
	for i, n := range sent {
		tasks += n
		for k := range n {
			id := fmt.Sprintf("%d-%d", i, k)
			if byOld.times[id]+byNext.times[id] == 1 {
				once++
			}
		}
	}
	fmt.Fprintf(out, "%d tasks, %d of them handled once: %d by the old queue, %d by the new one\n", tasks, once, byOld.tasks(), byNext.tasks())
	if once != tasks {
		return errors.New("not every task was handled once")
	}
	return nil
}

// server returns the address of the Redis server: the one that the flag names, or a miniredis in this process.
func server(addr string) (string, func(), error) {
	if addr != "" {
		return addr, func() {}, nil
	}
	m, err := miniredis.Run()
	if err != nil {
		return "", nil, err
	}
	return m.Addr(), m.Close, nil
}
