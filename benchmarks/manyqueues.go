package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

const connections = "connections"

var scriptsPerSecond = measure{"scripts/s", less, func(v float64) string { return threeDigits(v) + "/s" }}

// manyQueues measures what a process sends that serves many queues, all empty.
func manyQueues(n int) scenario {
	eachRuns := func(name, settings string, run func(ctx context.Context, q *sluice.Queue) error) entrant {
		return entrant{name: name, settings: settings, openQueue: func(s setup) (queue, error) {
			q, err := newTaskQueue(s)
			return queuesOnOneClient{q, s, n, run}, err
		}}
	}
	return scenario{
		name:    fmt.Sprint("queues-", n),
		about:   fmt.Sprintf("%d empty queues on one client, each with a worker of 16 handlers, or a caller of Wait: the server's scripts", n),
		measure: scriptsPerSecond,
		entries: []entrant{
			eachRuns(sluiceName, "defaults", runWorker),
			eachRuns(sluiceName+", Wait", "defaults", func(ctx context.Context, q *sluice.Queue) error { return q.Wait(ctx) }),
			{name: asynqName, settings: "v0.26.0, defaults, no logging; in queues, one server for all queues", openQueue: openAsynqForMany(n)},
		},
		length:  4 * time.Second,
		columns: []column{{connections, median, whole}, {"commands/s", median, threeDigits}},
		turn:    manyQueuesTurn,
	}
}

func manyQueuesTurn(ctx context.Context, t turn) (r result, err error) {
	before, err := connected(ctx, t.setup.Addr)
	if err != nil {
		return result{}, err
	}
	working, stop := context.WithCancel(ctx)
	var all errgroup.Group
	defer func() {
		stop()
		err = errors.Join(err, all.Wait())
	}()
	all.Go(func() error { return t.queue.Work(working, 16, func(int) {}) })
	sleep(ctx, t.settling())
	scripts, commands, err := t.meter.during(ctx, max(t.length, minIdle))
	if err != nil {
		return result{}, err
	}
	after, err := connected(ctx, t.setup.Addr)
	return result{value: scripts, extra: map[string]float64{connections: after - before, "commands/s": commands}}, err
}

// connected returns how many connections the server has, with that of the question.
func connected(ctx context.Context, addr string) (float64, error) {
	stats, err := info(ctx, addr, "clients")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(stats["connected_clients"], 64)
}

// queuesOnOneClient has n queues with the client of one.
type queuesOnOneClient struct {
	taskQueue
	setup setup
	n     int
	run   func(ctx context.Context, q *sluice.Queue) error
}

func runWorker(ctx context.Context, q *sluice.Queue) error {
	w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return nil }}
	return w.Run(ctx)
}

// Work runs until ctx ends. The queues are empty, so no handler is called.
func (q queuesOnOneClient) Work(ctx context.Context, _ int, _ func(id int)) error {
	var all errgroup.Group
	for i := range q.n {
		all.Go(func() error {
			one, err := sluice.NewQueue(q.rdb, fmt.Sprint(q.setup.Queue, "-", i))
			if err != nil {
				return err
			}
			if err := q.run(ctx, one); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	return all.Wait()
}

// asynqForMany is one server for n queues.
type asynqForMany struct {
	asynqQueue
	n int
}

func openAsynqForMany(n int) func(setup) (queue, error) {
	return func(s setup) (queue, error) {
		options := asynq.RedisClientOpt{Addr: s.Addr, PoolSize: poolSize}
		return asynqForMany{asynqQueue{asynq.NewClient(options), options, s.Queue, 0}, n}, nil
	}
}

func (q asynqForMany) Work(ctx context.Context, concurrency int, handler func(id int)) error {
	queues := map[string]int{}
	for i := range q.n {
		queues[fmt.Sprint(q.name, "-", i)] = 1
	}
	return q.workOn(ctx, concurrency, queues, handler)
}
