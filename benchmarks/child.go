package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// childEnv holds a child's errand, as JSON.
const childEnv = "BENCHMARKS_ERRAND"

// errand is what a child process is to do.
type errand struct {
	Setup   setup
	Entrant string
	Lock    string
	Guard   string // the file of the shared guard
	Size    int    // of its team; 0 for a single waiter
	Length  time.Duration
}

// A child reads one order per line and answers with one line of JSON. Its first
// answer, "ready" without an order, says that it is connected.
type child struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
}

// order tells a team when to start, in Unix nanoseconds, or a waiter to wait.
type order struct{ Start int64 }

// answer is a team's tally, or when a waiter got the lock.
type answer struct {
	Tally tally
	Waits *hdrhistogram.Snapshot
	At    int64
	Error string
}

// keepFromInterrupts has Ctrl-C reach this process only, which then ends the
// others in order.
func keepFromInterrupts(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// spawn starts a child and waits until it is ready. The child ends when its
// standard input does, so that it does not outlive its parent, or with ctx.
func spawn(ctx context.Context, e errand) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	keepFromInterrupts(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd, stdin, json.NewDecoder(stdout)}
	if _, err := c.answer(); err != nil {
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

func (c *child) order(o order) error {
	b, err := json.Marshal(o)
	if err == nil {
		_, err = c.stdin.Write(append(b, '\n'))
	}
	return err
}

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

func (c *child) end() error {
	_ = c.stdin.Close()
	return c.cmd.Wait()
}

// childMain is the main function of a child.
func childMain(spec string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	orders := make(chan order)
	go func() { // the one reader of standard input, whose end ends everything
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
	if err := obey(ctx, spec, orders, answers); err != nil && ctx.Err() == nil {
		_ = answers.Encode(answer{Error: err.Error()})
		return 1
	}
	return 0
}

func obey(ctx context.Context, spec string, orders <-chan order, answers *json.Encoder) (err error) {
	var e errand
	if err := json.Unmarshal([]byte(spec), &e); err != nil {
		return err
	}
	g, err := openSharedGuard(e.Guard)
	if err != nil {
		return err
	}
	c, err := enter(e.Entrant)[0].open(e.Setup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := warmUp(ctx, c); err != nil {
		return err
	}
	if err := answers.Encode(answer{}); err != nil {
		return err
	}
	for o := range orders {
		var a answer
		if e.Size > 0 {
			a = workAsTold(ctx, e, c, g, o)
		} else {
			a = waitAsTold(ctx, e, c)
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	return nil
}
