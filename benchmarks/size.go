package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

var bytesEach = measure{"bytes", less, func(v float64) string { return fmt.Sprintf("%.0f B", v) }}

func randomUpTo(d time.Duration) time.Duration { return rand.N(d) }

// memory measures how much memory of the server a scheduled task needs.
func memory(payload int) scenario {
	return scenario{
		name:     fmt.Sprint("memory-", payload),
		about:    fmt.Sprintf("the server's memory per scheduled task, IDs of 36 bytes, payloads of %d", payload),
		headline: fmt.Sprintf("What the server keeps for each task that is due later, with a payload of %d bytes", payload),
		measure:  bytesEach,
		entries:  enterQueues(sluiceName, asynqName, bullName, riverName),
		turn: func(ctx context.Context, t turn) (result, error) {
			return memoryTurn(ctx, t, bytes.Repeat([]byte{'x'}, payload))
		},
	}
}

func memoryTurn(ctx context.Context, t turn, payload []byte) (result, error) {
	tasks := 200_000
	if t.quick {
		tasks = 5000
	}
	used, notes := usedMemory(t.setup.Addr), ""
	if q, ok := t.queue.(sized); ok {
		used, notes = q.used, "on disk, with the indexes"
	}
	before, err := used(ctx)
	if err != nil {
		return result{}, err
	}
	later := time.Now().Add(time.Hour)
	err = t.queue.Fill(ctx, tasks, payload, func(id int) time.Time { return later.Add(time.Duration(id) * time.Millisecond) })
	if err != nil {
		return result{}, err
	}
	after, err := used(ctx)
	return result{value: (after - before) / float64(tasks), held: tasks, notes: notes}, err
}

// usedMemory returns a function that asks a server how much memory it uses.
func usedMemory(addr string) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		stats, err := info(ctx, addr, "memory")
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(stats["used_memory"], 64)
	}
}

const (
	enqueueTime = "enqueue"
	slowScripts = "scripts > 2ms"
)

// depth measures claims and enqueues beside many scheduled tasks.
func depth(scheduled int) scenario {
	return scenario{
		name:    fmt.Sprint("depth-", scheduled),
		about:   fmt.Sprintf("a claim of 100 due tasks, and an enqueue, beside %d scheduled ones", scheduled),
		measure: duration,
		entries: enterQueues(sluiceName),
		columns: []column{{enqueueTime, median, inTime}, {slowScripts, slices.Max[[]float64], whole}},
		turn:    func(ctx context.Context, t turn) (result, error) { return depthTurn(ctx, t, scheduled) },
	}
}

func depthTurn(ctx context.Context, t turn, scheduled int) (result, error) {
	if t.quick {
		scheduled /= 100
	}
	q, ok := t.queue.(taskQueue)
	if !ok {
		return result{}, errors.New("for Sluice only")
	}
	later := time.Now().Add(24 * time.Hour)
	err := q.Fill(ctx, scheduled, nil, func(id int) time.Time { return later.Add(time.Duration(id%86400) * time.Second) })
	if err != nil {
		return result{}, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: t.setup.Addr})
	defer func() { _ = rdb.Close() }()
	if err := errors.Join(rdb.ConfigSet(ctx, "slowlog-log-slower-than", "2000").Err(), rdb.Do(ctx, "SLOWLOG", "RESET").Err()); err != nil {
		return result{}, err
	}
	var claims, enqueues []float64
	for i := range 200 {
		claim, enqueue, err := beside(ctx, q, i)
		if err != nil {
			return result{}, err
		}
		claims, enqueues = append(claims, float64(claim)), append(enqueues, float64(enqueue))
	}
	slow, err := rdb.Do(ctx, "SLOWLOG", "LEN").Int64()
	return result{
		value: median(claims),
		extra: map[string]float64{enqueueTime: median(enqueues), slowScripts: float64(slow)},
	}, err
}

// beside measures one enqueue, and a claim of 100 tasks.
func beside(ctx context.Context, q taskQueue, round int) (claim, enqueue time.Duration, err error) {
	tasks := make([]sluice.Task, 99)
	for i := range tasks {
		tasks[i].ID = fmt.Sprintf("due-%d-%d", round, i)
	}
	if _, err := q.EnqueueBatch(ctx, tasks); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if _, err := q.Queue.Enqueue(ctx, sluice.Task{ID: fmt.Sprint("due-", round)}); err != nil {
		return 0, 0, err
	}
	enqueue = time.Since(began)
	time.Sleep(time.Millisecond) // the tasks of a batch become due one microsecond after the other
	began = time.Now()
	entries, err := q.Claim(ctx, 100, time.Minute)
	claim = time.Since(began)
	if err == nil && len(entries) != 100 {
		err = fmt.Errorf("claimed %d of 100", len(entries))
	}
	return claim, enqueue, errors.Join(err, q.Dequeue(ctx, entries...))
}
