// Manyqueues has several queues share the tasks of one name, so that several primaries of a Cluster
// do the work. Then it changes the number of queues while producers go on. docs/queues.md has the
// steps in words, and what does not work meanwhile.
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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

// Target is where the producers of a process enqueue.
type Target struct {
	mu     sync.RWMutex // guards queues; held for reading during a call
	queues sluice.Queues
}

// Enqueue enqueues a task, or several at once.
func (t *Target) Enqueue(ctx context.Context, tasks ...sluice.Task) (err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(tasks) == 1 {
		_, err = t.queues.Of(tasks[0].ID).Enqueue(ctx, tasks[0])
	} else {
		_, err = t.queues.EnqueueBatch(ctx, tasks)
	}
	return err
}

// Switch changes to other queues. When it returns, no call is under way to those before.
func (t *Target) Switch(queues sluice.Queues) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queues = queues
}

// start runs a Pool that works on queues. It returns what stops the Pool and waits for its end.
func start(ctx context.Context, queues sluice.Queues, handler sluice.Handler) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	pool := &sluice.Pool{Workers: queues.Workers(&sluice.Worker{Handler: handler}), Concurrency: 8}
	go func() { ended <- pool.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

// waitUntilEmpty waits until nothing is left in queues. If no producer uses them, they stay empty.
func waitUntilEmpty(ctx context.Context, queues sluice.Queues) error {
	left := ""
	for i := 0; i < len(queues); {
		s, err := queues[i].Stats(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %s%w", queues[i].Name(), left, err)
		case s.Due+s.Scheduled+s.Leased+s.Dead == 0:
			i, left = i+1, ""
		default:
			left = fmt.Sprintf("due %d, scheduled %d, leased %d, dead %d: ",
				s.Due, s.Scheduled, s.Leased, s.Dead)
			time.Sleep(50 * time.Millisecond) // the Pool works meanwhile
		}
	}
	return nil
}

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 0 if all went well, 1 if something failed, 2 for bad flags.
func run(ctx context.Context, args []string, out, log io.Writer) int {
	f := flag.NewFlagSet("manyqueues", flag.ContinueOnError)
	f.SetOutput(log)
	addrs := f.String("redis", "", "`address` of a server, as host:port, or several of a Cluster\n"+
		"with commas between them (default: an embedded server)")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if f.NArg() > 0 {
		fmt.Fprintln(log, "manyqueues: no arguments")
		return 2
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := demonstrate(ctx, *addrs, out); err != nil {
		fmt.Fprintln(log, "manyqueues:", err)
		return 1
	}
	return 0
}

// demonstrate changes the number of queues under producers, and counts what was handled.
func demonstrate(ctx context.Context, addrs string, out io.Writer) error {
	if addrs == "" {
		m, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer m.Close()
		addrs = m.Addr()
	}
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: strings.Split(addrs, ",")})
	defer rdb.Close()
	old, err := sluice.NewQueues(rdb, "orders", 4)
	next, errNext := sluice.NewQueues(rdb, "orders-12", 12)
	if err = errors.Join(err, errNext); err != nil {
		return err
	}
	handled := &tally{times: map[string]int{}, by: map[string]int{}}
	stopOld := start(ctx, old, handled.handler("old"))
	stopNext := start(ctx, next, handled.handler("new"))

	target := &Target{queues: old}
	var sent atomic.Int64
	producers, producing := errgroup.WithContext(ctx)
	for range 3 {
		producers.Go(func() error { return produce(producing, target, &sent) })
	}
	for sent.Load() < 200 && producing.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	target.Switch(next) // the producers go on
	err = errors.Join(waitUntilEmpty(ctx, old), stopOld())
	err = errors.Join(err, producers.Wait(), waitUntilEmpty(ctx, next), stopNext())
	if err != nil {
		return err
	}
	return handled.report(out, int(sent.Load()))
}

// produce enqueues 200 tasks, half of them with a delay. It counts them in sent.
func produce(ctx context.Context, target *Target, sent *atomic.Int64) error {
	for range 50 {
		var tasks []sluice.Task
		for len(tasks) < 4 {
			n := sent.Add(1)
			delay := time.Duration(n%2) * 500 * time.Millisecond
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint("order-", n), Delay: delay})
		}
		err := errors.Join(target.Enqueue(ctx, tasks[0]), target.Enqueue(ctx, tasks[1:]...))
		if err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// tally counts how often each task was handled, and how many tasks by which queues.
type tally struct {
	mu        sync.Mutex // guards what follows
	times, by map[string]int
}

// handler returns the handler of a Worker of those queues.
func (t *tally) handler(queues string) sluice.Handler {
	return func(_ context.Context, e sluice.Entry) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.times[e.ID]++
		t.by[queues]++
		return nil
	}
}

// report prints what was handled, and returns an error if that is not each task once.
func (t *tally) report(out io.Writer, sent int) error {
	once := 0
	for _, n := range t.times {
		if n == 1 {
			once++
		}
	}
	fmt.Fprintf(out, "%d tasks, %d of them handled once: %d by the old queues, %d by the new\n",
		sent, once, t.by["old"], t.by["new"])
	if once != sent {
		return errors.New("not every task was handled once")
	}
	return nil
}
