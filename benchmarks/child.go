package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-go/sluice/internal/redistest"
)

// childEnv holds a child's assignment, as JSON.
const childEnv = "BENCHMARKS_CHILD"

// assignment is the work of a child process.
type assignment struct {
	Setup   setup
	Entrant string
	Lock    string
	Guard   string // the file of the shared guard
	// Unguarded says that sections may overlap.
	Unguarded bool
	// Clients share the team evenly; 0 for a single client.
	Clients    int
	Size       int // of the team; 0 for a single waiter
	Lead, Hold time.Duration
	Length     time.Duration
}

// A child process reads orders, one per line, and answers each with a line of JSON. Its first
// answer comes without an order, when it is connected.
type child struct {
	*redistest.Child
	answers *json.Decoder
}

// order makes a team start at a time in Unix nanoseconds, or a waiter wait.
type order struct{ Start int64 }

// answer has a team's tally, or the time when a waiter got the lock.
type answer struct {
	Tally tally
	Waits *hdrhistogram.Snapshot
	At    int64
	Error string
}

// spawn starts a child and waits until it is ready. The child ends when its standard input
// or ctx ends.
func spawn(ctx context.Context, a assignment) (*child, error) {
	spec, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	started, err := redistest.StartChild(ctx, os.Stderr, childEnv+"="+string(spec))
	if err != nil {
		return nil, err
	}
	c := &child{started, json.NewDecoder(started.Stdout)}
	if _, err := c.answer(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// order sends an order.
func (c *child) order(o order) error {
	b, err := json.Marshal(o)
	if err == nil {
		_, err = c.Stdin.Write(append(b, '\n'))
	}
	return err
}

// answer waits for the next answer.
func (c *child) answer() (answer, error) {
	var a answer
	if err := c.answers.Decode(&a); err != nil {
		return a, fmt.Errorf("child process: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("child process: %s", a.Error)
	}
	return a, nil
}

// childMain is the main function of a child.
func childMain(spec string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	orders := make(chan order)
	go func() { // the end of standard input ends the child
		defer cancel()
		defer close(orders)
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			var o order
			if json.Unmarshal(lines.Bytes(), &o) != nil {
				return
			}
			orders <- o
		}
	}()
	answers := json.NewEncoder(os.Stdout)
	if err := carryOut(ctx, spec, orders, answers); err != nil && ctx.Err() == nil {
		_ = answers.Encode(answer{Error: err.Error()})
		return 1
	}
	return 0
}

// carryOut carries out orders until there are no more.
func carryOut(ctx context.Context, spec string, orders <-chan order, answers *json.Encoder) (err error) {
	var e assignment
	if err := json.Unmarshal([]byte(spec), &e); err != nil {
		return err
	}
	g, err := openSharedGuard(e.Guard)
	if err != nil {
		return err
	}
	clients, err := e.open(ctx)
	defer func() { err = errors.Join(err, closeAll(clients)) }()
	if err != nil {
		return err
	}
	if err := answers.Encode(answer{}); err != nil {
		return err
	}
	for o := range orders {
		var a answer
		if e.Size > 0 {
			a = e.work(ctx, clients, g, o)
		} else {
			a = waitAsChild(ctx, e, clients[0])
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	return nil
}
