// Worker sends mail. It retries a mail that fails after a growing pause, buries a mail that can
// never succeed, and stops gracefully on SIGTERM or Ctrl-C.
//
// Without flags it needs no other program: Redis is a miniredis within the process, the mail
// is not real, and the program ends after some seconds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// config is the command line.
type config struct {
	redis    string
	queue    string
	mails    int
	duration time.Duration
}

// run returns the exit status: 0 after a clean stop, 1 if something failed or was left, 2 for
// bad flags.
func run(args []string, out, log io.Writer) int {
	var c config
	f := flag.NewFlagSet("worker", flag.ContinueOnError)
	f.SetOutput(log)
	f.StringVar(&c.redis, "redis", "", "`address` of a Redis server, as host:port (default: an embedded one)")
	f.StringVar(&c.queue, "queue", "mail", "`name` of the queue")
	f.IntVar(&c.mails, "mails", 30, "`number` of mails to enqueue; 0 to send only the mails of other processes")
	f.DurationVar(&c.duration, "for", 5*time.Second, "how `long` to work; 0 until SIGTERM or Ctrl-C")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if c.mails < 0 || c.duration < 0 || f.NArg() > 0 {
		fmt.Fprintln(log, "worker: -mails and -for must not be negative; no arguments")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := work(ctx, c, out, log); err != nil {
		fmt.Fprintln(log, "worker:", err)
		return 1
	}
	return 0
}

// work enqueues mails, sends mails until ctx or the time ends, and prints a report.
func work(ctx context.Context, c config, out, log io.Writer) error {
	if c.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.duration)
		defer cancel()
	}
	addr, closeServer, err := server(c.redis)
	if err != nil {
		return err
	}
	defer closeServer()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	queue, err := sluice.NewQueue(rdb, c.queue, sluice.WithMaxAttempts(5))
	if err != nil {
		return err
	}
	if err := enqueue(ctx, queue, c.mails); err != nil {
		return err
	}

	worker := &sluice.Worker{
		Queue:       queue,
		Handler:     send,
		Concurrency: 4,
		Timeout:     2 * time.Second,
		Backoff:     backoff,
		Grace:       3 * time.Second,
		Logger:      slog.New(slog.NewTextHandler(log, nil)),
	}
	err = worker.Run(ctx)
	return errors.Join(err, report(out, queue, worker.Stats()))
}

// server returns the address of the Redis server: the one that the flag names, or a miniredis
// in this process.
func server(addr string) (string, func(), error) {
	if addr != "" {
		return addr, func() {}, nil
	}
	m, err := miniredis.Run()
	if err != nil {
		return "", nil, err
	}
	m.ClockTTL(true)
	return m.Addr(), m.Close, nil
}

// enqueue enqueues mails that are due within the next two seconds.
func enqueue(ctx context.Context, queue *sluice.Queue, n int) error {
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		to := "customer"
		switch i % 10 {
		case 3:
			to = "unknown" // has no address
		case 6:
			to = "full" // has a full mailbox
		}
		tasks[i] = sluice.Task{ID: fmt.Sprintf("mail-%d", i), Payload: []byte(to), Delay: rand.N(2 * time.Second)}
	}
	_, err := queue.EnqueueBatch(ctx, tasks)
	return err
}

// send is the handler. Like every handler, it may run twice for one task. A real one would pass
// the mail's ID to the mail server, which then drops the second copy.
func send(ctx context.Context, e sluice.Entry) error {
	select {
	case <-time.After(rand.N(100 * time.Millisecond)): // the connection to the mail server
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch to := string(e.Payload); {
	case to == "unknown":
		return sluice.Permanent(errors.New("no such address"))
	case to == "full":
		return errors.New("mailbox full") // five times, and then a dead letter
	case e.Attempt == 1 && rand.N(4) == 0:
		return errors.New("connection reset")
	}
	return nil
}

// backoff doubles from 100 ms, with jitter. The default begins at a second, which is too long
// for a demonstration.
func backoff(attempt int, _ error) time.Duration {
	return 100*time.Millisecond<<min(attempt-1, 6) + rand.N(50*time.Millisecond)
}

// report prints the results.
func report(out io.Writer, queue *sluice.Queue, done sluice.WorkerStats) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	stats, err := queue.Stats(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "sent %d, failed attempts %d, given up %d, given back %d; still in the queue: %d\n",
		done.Done, done.Retried, done.Buried, done.Released, stats.Due+stats.Scheduled+stats.Leased)
	letters, err := queue.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 100)
	for _, letter := range letters {
		fmt.Fprintf(out, "dead letter %s to %s after attempt %d: %s\n", letter.ID, letter.Payload, letter.Attempt, letter.Reason)
	}
	return err
}
