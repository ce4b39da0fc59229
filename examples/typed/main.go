// Typed shows tasks whose payloads are Go values: a few lines of generics and JSON around a queue.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// Tasks is a queue of tasks with payloads of a type.
type Tasks[T any] struct{ Queue *sluice.Queue }

// Enqueue enqueues a task that is due after delay.
func (q Tasks[T]) Enqueue(ctx context.Context, id string, payload T, delay time.Duration) (sluice.Outcome, error) {
	data, err := json.Marshal(payload)
	if err != nil {
		return 0, err
	}
	return q.Queue.Enqueue(ctx, sluice.Task{ID: id, Payload: data, Delay: delay})
}

// Handler returns a Worker's handler of one that takes the payload. What is no such payload will never be one: it
// goes to the dead letters at once. Its error must not show the payload, which may be secret.
func (Tasks[T]) Handler(handle func(ctx context.Context, e sluice.Entry, payload T) error) func(context.Context, sluice.Entry) error {
	return func(ctx context.Context, e sluice.Entry) error {
		var payload T
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			return sluice.Permanent(fmt.Errorf("no payload of type %T: %T", payload, err))
		}
		return handle(ctx, e, payload)
	}
}

// Mail is a payload. Add fields as you like: a worker of the new version finds them empty in tasks of the old one.
type Mail struct {
	To      string `json:"to"`
	Subject string `json:"subject"`
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "typed:", err)
		os.Exit(1)
	}
}

// run sends a mail.
func run(ctx context.Context, out io.Writer) error {
	rdb, done, err := connect()
	if err != nil {
		return err
	}
	defer done()
	queue, err := sluice.NewQueue(rdb, "mail")
	if err != nil {
		return err
	}
	mails := Tasks[Mail]{queue}
	if _, err := mails.Enqueue(ctx, "welcome-7", Mail{To: "ann@example.com", Subject: "Welcome"}, 100*time.Millisecond); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	worker := &sluice.Worker{Queue: queue, Handler: mails.Handler(func(_ context.Context, e sluice.Entry, m Mail) error {
		defer stop() // a real worker goes on
		_, err := fmt.Fprintf(out, "%s: %q to %s\n", e.ID, m.Subject, m.To)
		return err
	})}
	return worker.Run(ctx)
}

// connect starts a Redis within this process. A real program connects to its own.
func connect() (rdb *redis.Client, done func(), err error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, nil, err
	}
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { _ = rdb.Close(); m.Close() }, nil
}
