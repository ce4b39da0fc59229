package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"

	"golang.org/x/sync/errgroup"
)

const (
	// childEnv holds a child's assignment, as JSON.
	childEnv = "SECKILL_CHILD"
	// replacements is how often a child that died is replaced. A child that dies more
	// often does not die by accident.
	replacements = 5
)

// supervise runs the sale in e.Procs child processes.
func supervise(ctx context.Context, e assignment, s *screen) error {
	g, ctx := errgroup.WithContext(ctx)
	for e.Proc = range e.Procs {
		child := e
		g.Go(func() error { return runChild(ctx, child, s) })
	}
	return g.Wait()
}

// runChild runs a child, and replaces it if it dies. The new child finds in the database which
// buyers have been served. What the dead one left needs no cleaning up: its lock ends with
// the TTL, the database rolls its transaction back, and its unpaid orders have tasks.
func runChild(ctx context.Context, e assignment, s *screen) error {
	for try := 0; ; try++ {
		err := spawn(ctx, e, s)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if try == replacements {
			return fmt.Errorf("process %d of %d: %w", e.Proc+1, e.Procs, err)
		}
		s.say("process %d of %d died (%v): starting another in its place", e.Proc+1, e.Procs, err)
	}
}

// spawn runs a child to its end. The child ends when its standard input ends, so it does not
// outlive its parent.
func spawn(ctx context.Context, e assignment, s *screen) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	spec, err := json.Marshal(e)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		return err
	}
	s.say("process %d of %d: pid %d", e.Proc+1, e.Procs, cmd.Process.Pid)
	return cmd.Wait()
}

// childMain is the main function of a child.
func childMain(spec string) int {
	signal.Ignore(os.Interrupt) // the parent gets it too, and ends its children
	ctx, cancel := context.WithTimeout(context.Background(), saleLimit)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var e assignment
	err := json.Unmarshal([]byte(spec), &e)
	if err == nil {
		err = sellAsOne(ctx, e)
	}
	if err != nil {
		if ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "seckill child:", err)
		}
		return 1
	}
	return 0
}
