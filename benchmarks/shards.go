package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

// busiestNode is a column of scenarios with several servers: the server CPU per task of the one
// that had most to do.
const busiestNode = "CPU/op, busiest node"

// shards measures a backlog of a queue in several shards, on one server and on a Cluster.
func shards() scenario {
	entries := []entrant{shardsOnCluster(6)}
	for _, n := range []int{64, 16, 6, 4, 1} {
		entries = append([]entrant{shardsOnServer(n)}, entries...)
	}
	return scenario{
		name:    "shards",
		about:   "100000 tasks due, 64 handlers at once that do nothing, in shards on one server, and on 3 primaries with a replica each",
		measure: tasksPerSecond,
		entries: entries,
		columns: []column{scriptsColumn, commandsColumn, serverCPUColumn, {busiestNode, median, inTime}},
		turn:    shardsTurn,
	}
}

func nameOfShards(n int) string {
	if n == 1 {
		return sluiceName + ", 1 shard"
	}
	return fmt.Sprintf("%s, %d shards", sluiceName, n)
}

func shardsOnServer(n int) entrant {
	return entrant{name: nameOfShards(n), settings: fmt.Sprintf("WithShards(%d)", n), openQueue: func(s setup) (queue, error) {
		q, err := newTaskQueue(s, sluice.WithShards(n))
		return shardedQueue{q, []string{s.Addr}}, err
	}}
}

func shardsOnCluster(n int) entrant {
	return entrant{name: nameOfShards(n) + ", Cluster", settings: fmt.Sprintf("WithShards(%d)", n), openQueue: func(s setup) (queue, error) {
		rdb, addrs, err := s.cluster.client()
		if err != nil {
			return nil, err
		}
		q, err := sluice.NewQueue(rdb, s.Queue, sluice.WithShards(n))
		return shardedQueue{taskQueue{q, rdb, rdb.Close}, addrs}, err
	}}
}

// shardedQueue is a queue on one server or several.
type shardedQueue struct {
	taskQueue
	servers []string
}

// Fill enqueues tasks one by one, from many goroutines.
func (q shardedQueue) Fill(ctx context.Context, n int, payload []byte, due func(id int) time.Time) error {
	return inParallel(ctx, 256, n, func(ctx context.Context, id int) error { return q.Enqueue(ctx, id, payload, due(id)) })
}

// used returns what each server has used.
func (q shardedQueue) used(ctx context.Context) ([]usage, error) {
	all := make([]usage, len(q.servers))
	for i, addr := range q.servers {
		var err error
		if all[i], err = used(ctx, addr); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func shardsTurn(ctx context.Context, t turn) (result, error) {
	tasks, q := 100_000, t.queue.(shardedQueue)
	if t.quick {
		tasks /= 100
	}
	if err := q.Fill(ctx, tasks, nil, atOnce); err != nil {
		return result{}, err
	}
	before, err := q.used(ctx)
	if err != nil {
		return result{}, err
	}
	l := newLedger(tasks)
	took, err := l.workThrough(ctx, q, 64, l.enter)
	if err != nil {
		return result{}, err
	}
	after, err := q.used(ctx)
	if err != nil {
		return result{}, err
	}
	r := result{value: float64(tasks) / took.Seconds(), extra: map[string]float64{}}
	for i := range after {
		u := after[i].minus(before[i])
		r.extra[scriptsPerOp] += u.scripts / float64(tasks)
		r.extra[commandsPerOp] += u.commands / float64(tasks)
		r.extra[serverCPUPerOp] += u.cpu / float64(tasks)
		r.extra[busiestNode] = max(r.extra[busiestNode], u.cpu/float64(tasks))
	}
	return r, nil
}

// shardsIdle measures what idle workers send, each on a client of its own.
func shardsIdle(workers int) scenario {
	idle := func(n int) entrant {
		return entrant{name: nameOfShards(n), settings: fmt.Sprintf("WithShards(%d), default poll interval", n), openQueue: func(s setup) (queue, error) {
			q, err := newTaskQueue(s, sluice.WithShards(n))
			return idleWorkers{q, s, workers, n}, err
		}}
	}
	return scenario{
		name:    "shards-idle",
		about:   fmt.Sprintf("%d workers, each on a client of its own, on one empty queue: the server's commands", workers),
		measure: commandsPerSecond,
		entries: []entrant{idle(1), idle(16)},
		length:  4 * time.Second,
		columns: []column{{"scripts/s", median, threeDigits}, {"server CPU", median, func(v float64) string { return fmt.Sprintf("%.1f%%", v) }}},
		turn:    shardsIdleTurn,
	}
}

// idleWorkers is a queue with several workers.
type idleWorkers struct {
	taskQueue
	setup      setup
	workers, n int
}

// Work runs until ctx ends. The queue is empty, so no handler is called.
func (q idleWorkers) Work(ctx context.Context, _ int, _ func(id int)) error {
	var all errgroup.Group
	for range q.workers {
		all.Go(func() error {
			one, err := newTaskQueue(q.setup, sluice.WithShards(q.n))
			if err != nil {
				return err
			}
			return errors.Join(runWorker(ctx, one.Queue), one.closeClient())
		})
	}
	return all.Wait()
}

func shardsIdleTurn(ctx context.Context, t turn) (r result, err error) {
	working, stop := context.WithCancel(ctx)
	var all errgroup.Group
	defer func() {
		stop()
		err = errors.Join(err, all.Wait())
	}()
	all.Go(func() error { return t.queue.Work(working, 16, func(int) {}) })
	sleep(ctx, 4*t.settling())
	length := max(t.length, minIdle)
	scripts, commands, err := t.meter.during(ctx, length)
	if err != nil {
		return result{}, err
	}
	u, err := t.meter.read(ctx)
	return result{value: commands, extra: map[string]float64{"scripts/s": scripts, "server CPU": 100 * u.cpu / float64(length)}}, err
}
