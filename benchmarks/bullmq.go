package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	bullName     = "BullMQ"
	bullFolder   = "bullmq"
	bullSettings = "6.7.0 on Node, removeOnComplete; one process, whose event loop both adds and works; a tenth of the tasks where a rate is measured"
)

// bullQueue is BullMQ in a Node process, bullmq/contender.mjs, which is told what to do.
type bullQueue struct {
	process *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
}

// bullOrder is what the process is told to do with the tasks from From on, or with workers.
type bullOrder struct {
	Do          string    `json:"do"`
	From        int       `json:"from"`
	Count       int       `json:"count"`
	Payload     int       `json:"payload"`
	Due         []float64 `json:"due,omitempty"` // in ms since 1970; without it, at once
	Callers     int       `json:"callers,omitempty"`
	Concurrency int       `json:"concurrency,omitempty"`
}

// bullAnswer ends an order if it is done.
type bullAnswer struct {
	Done    bool      `json:"done"`
	Error   string    `json:"error"`
	Handled []int     `json:"handled"`
	Jobs    int       `json:"jobs"`
	Took    float64   `json:"took"`  // in ms, as Times
	Times   []float64 `json:"times"` // of calls
}

func openBull(s setup) (queue, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, fmt.Errorf("%w: there is no Node on this machine (Debian: nodejs)", errNotHere)
	}
	if _, err := os.Stat(bullFolder + "/node_modules/bullmq"); err != nil {
		return nil, fmt.Errorf("%w: BullMQ is not installed (npm install --prefix benchmarks/bullmq)", errNotHere)
	}
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return nil, err
	}
	q := &bullQueue{process: exec.Command(node, bullFolder+"/contender.mjs", host, port, s.Queue)} //nolint:noctx // Close ends it
	q.process.Stderr = os.Stderr
	var stdout io.Reader
	if q.stdin, err = q.process.StdinPipe(); err == nil {
		stdout, err = q.process.StdoutPipe()
	}
	if err == nil {
		err = q.process.Start()
	}
	if err != nil {
		return nil, err
	}
	q.answers = json.NewDecoder(stdout)
	if _, err = q.next(); err != nil { // once it is connected
		_ = q.process.Process.Kill()
		return nil, errors.Join(err, q.process.Wait())
	}
	return q, nil
}

// next reads an answer.
func (q *bullQueue) next() (a bullAnswer, err error) {
	if err := q.answers.Decode(&a); err != nil {
		return a, fmt.Errorf("BullMQ's process: %w", err)
	}
	if a.Error != "" {
		err = errors.New(strings.TrimSpace(a.Error))
	}
	return a, err
}

func (q *bullQueue) send(o bullOrder) error {
	b, err := json.Marshal(o)
	if err == nil {
		_, err = q.stdin.Write(append(b, '\n'))
	}
	return err
}

// order sends an order and waits until it is done.
func (q *bullQueue) order(o bullOrder) (bullAnswer, error) {
	if err := q.send(o); err != nil {
		return bullAnswer{}, err
	}
	for {
		if a, err := q.next(); a.Done || err != nil {
			return a, err
		}
	}
}

// tasks fills in which tasks an order is about.
func (o bullOrder) tasks(from, n int, payload []byte, due func(id int) time.Time) bullOrder {
	o.From, o.Count, o.Payload = from, n, len(payload)
	for id := from; id < from+n; id++ {
		at := due(id)
		if at.IsZero() {
			break // then all are due at once
		}
		o.Due = append(o.Due, float64(at.UnixMicro())/1000)
	}
	return o
}

func (q *bullQueue) Enqueue(_ context.Context, id int, payload []byte, due time.Time) error {
	_, err := q.order(bullOrder{Do: "fill"}.tasks(id, 1, payload, func(int) time.Time { return due }))
	return err
}

func (q *bullQueue) Fill(_ context.Context, n int, payload []byte, due func(int) time.Time) error {
	const batch = 5000
	for from := 0; from < n; from += batch {
		if _, err := q.order(bullOrder{Do: "fill"}.tasks(from, min(batch, n-from), payload, due)); err != nil {
			return err
		}
	}
	return nil
}

// EnqueueTimed has the process enqueue and time the calls itself: an order for each would cost
// more than the call.
func (q *bullQueue) EnqueueTimed(callers, from, n int, due func(id int) time.Time) (time.Duration, []time.Duration, error) {
	a, err := q.order(bullOrder{Do: "add", Callers: callers}.tasks(from, n, nil, due))
	times := make([]time.Duration, len(a.Times))
	for i, ms := range a.Times {
		times[i] = milliseconds(ms)
	}
	return milliseconds(a.Took), times, err
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func (q *bullQueue) Work(ctx context.Context, concurrency int, handler func(id int)) error {
	if _, err := q.order(bullOrder{Do: "work", Concurrency: concurrency}); err != nil {
		return err
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { stopped <- q.send(bullOrder{Do: "stop"}) })
	defer stop()
	for {
		a, err := q.next()
		if err != nil {
			return err
		}
		for _, id := range a.Handled {
			handler(id)
		}
		if a.Done { // the answer to stop
			return <-stopped
		}
	}
}

func (q *bullQueue) count(context.Context) (int, error) {
	a, err := q.order(bullOrder{Do: "count"})
	return a.Jobs, err
}

func (q *bullQueue) Close() error {
	_, err := q.order(bullOrder{Do: "clear"})
	return errors.Join(err, q.stdin.Close(), q.process.Wait())
}
