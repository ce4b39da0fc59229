package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// largeLog measures what an extension writes to the server's append-only file.
func largeLog() scenario {
	return scenario{
		name: "large-log",
		about: "80 extensions of 16 tasks of 1 MB, on a server of its own with an append-only file:" +
			" by how much the file grows with each extension",
		measure: bytesEach,
		entries: []entrant{
			{name: sluiceName, settings: "in large: WithMaxAttempts(3)", openQueue: onLog(openLarge)},
			{name: floorName, settings: "in large-log: one ZADD an extension", openQueue: onLog(openLargeFloor)},
		},
		turn: largeLogTurn,
	}
}

// loggedQueue is a queue on a server of its own, which has an append-only file.
type loggedQueue struct {
	queue
	server *redistest.Server
}

func onLog(open func(setup) (queue, error)) func(setup) (queue, error) {
	return func(s setup) (queue, error) {
		server, err := redistest.StartIn("", nil, "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")
		if err != nil {
			return nil, fmt.Errorf("redis-server: %w", err)
		}
		s.Addr = server.Addr
		q, err := open(s)
		return loggedQueue{q, server}, err
	}
}

func (q loggedQueue) Close() error {
	err := q.queue.Close()
	q.server.Down()
	return err
}

func largeLogTurn(ctx context.Context, t turn) (result, error) {
	const rounds = 5
	tasks := make([]sluice.Task, 16)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: taskID(i), Payload: make([]byte, 1<<20)}
	}
	logged := t.queue.(loggedQueue)
	steps := map[string]largeStep{}
	for _, s := range logged.queue.(largeQueue).steps(tasks) {
		steps[s.operation] = s
	}
	if err := errors.Join(steps["enqueue"].do(ctx), steps["claim"].do(ctx)); err != nil {
		return result{}, err
	}
	before, err := loggedBytes(ctx, logged.server.Addr)
	for range rounds {
		err = errors.Join(err, steps["extend"].do(ctx))
	}
	after, failed := loggedBytes(ctx, logged.server.Addr)
	return result{value: (after - before) / float64(rounds*len(tasks))}, errors.Join(err, failed)
}

// loggedBytes returns the size of the append-only file, once it has all that was written.
func loggedBytes(ctx context.Context, addr string) (float64, error) {
	for ctx.Err() == nil {
		stats, err := info(ctx, addr, "persistence")
		if err != nil {
			return 0, err
		}
		if stats["aof_buffer_length"] == "0" {
			return strconv.ParseFloat(stats["aof_current_size"], 64)
		}
		sleep(ctx, 10*time.Millisecond)
	}
	return 0, ctx.Err()
}
