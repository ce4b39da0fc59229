package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

// outboxQueue is the queue of Sluice, each of whose tasks belongs to a transaction that writes an
// order.
type outboxQueue struct {
	taskQueue
	pool  *pgxpool.Pool
	db    *sql.DB
	relay *sluicesql.Relay // nil: the task is enqueued before the commit
}

var benchOutbox = sluicesql.Outbox{Table: "benchmark_outbox"}

func openOutbox(relayed bool) func(s setup) (queue, error) {
	return func(s setup) (_ queue, err error) {
		ctx := context.Background()
		q := outboxQueue{}
		if q.pool, err = ordersPool(ctx, s); err != nil {
			return nil, err
		}
		if q.taskQueue, err = newTaskQueue(s, sluice.WithDuplicates(sluice.DuplicatesKeep)); err != nil {
			return nil, err
		}
		q.db = stdlib.OpenDBFromPool(q.pool)
		if err := benchOutbox.Migrate(ctx, q.db); err != nil {
			return nil, err
		}
		if relayed {
			q.relay = &sluicesql.Relay{DB: q.db, Outbox: benchOutbox, Queues: []*sluice.Queue{q.Queue}, Logger: slog.New(slog.DiscardHandler)}
		}
		return q, nil
	}
}

// ordersPool returns a pool of connections to a database with an empty table of orders.
func ordersPool(ctx context.Context, s setup) (*pgxpool.Pool, error) {
	url, err := s.postgres.address(ctx)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS benchmark_orders (id BIGINT PRIMARY KEY); TRUNCATE benchmark_orders; DROP TABLE IF EXISTS benchmark_outbox")
	return pool, err
}

func addOrder(ctx context.Context, tx pgx.Tx, id int) error {
	_, err := tx.Exec(ctx, "INSERT INTO benchmark_orders (id) VALUES ($1)", id)
	return err
}

func (q outboxQueue) Enqueue(ctx context.Context, id int, payload []byte, due time.Time) error {
	task := sluice.Task{ID: taskID(id), Payload: payload, At: due}
	if q.relay == nil {
		return pgx.BeginFunc(ctx, q.pool, func(tx pgx.Tx) error {
			_, err := q.Queue.Enqueue(ctx, task)
			return errors.Join(err, addOrder(ctx, tx, id))
		})
	}
	tx, err := q.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	_, err = tx.ExecContext(ctx, "INSERT INTO benchmark_orders (id) VALUES ($1)", id)
	if err := errors.Join(err, benchOutbox.Enqueue(ctx, tx, q.Name(), task), tx.Commit()); err != nil {
		return err
	}
	q.relay.Kick()
	return nil
}

func (q outboxQueue) Fill(ctx context.Context, n int, payload []byte, due func(int) time.Time) error {
	return fillSingly(ctx, q, n, payload, due)
}

func (q outboxQueue) Work(ctx context.Context, concurrency int, handler func(id int)) error {
	var all errgroup.Group
	if q.relay != nil {
		all.Go(func() error { return q.relay.Run(ctx) })
	}
	all.Go(func() error { return q.taskQueue.Work(ctx, concurrency, handler) })
	return all.Wait()
}

func (q outboxQueue) Close() error {
	err := errors.Join(q.taskQueue.Close(), q.db.Close())
	q.pool.Close()
	return err
}

// riverTx is River, each of whose jobs belongs to a transaction that writes an order.
type riverTx struct {
	riverQueue
	orders *pgxpool.Pool
}

func openRiverTx(fetch time.Duration) func(s setup) (queue, error) {
	return func(s setup) (queue, error) {
		q, err := openRiver(fetch)(s)
		if err != nil {
			return nil, err
		}
		orders, err := ordersPool(context.Background(), s)
		return riverTx{q.(riverQueue), orders}, err //nolint:forcetypeassert // it is what openRiver returns
	}
}

func (q riverTx) Enqueue(ctx context.Context, id int, payload []byte, due time.Time) error {
	return pgx.BeginFunc(ctx, q.orders, func(tx pgx.Tx) error {
		_, err := q.InsertTx(ctx, tx, riverTask{id, string(payload)}, &river.InsertOpts{ScheduledAt: due})
		return errors.Join(err, addOrder(ctx, tx, id))
	})
}

func (q riverTx) Fill(ctx context.Context, n int, payload []byte, due func(int) time.Time) error {
	return fillSingly(ctx, q, n, payload, due)
}

func (q riverTx) Close() error {
	q.orders.Close()
	return q.riverQueue.Close()
}

const (
	commitsPerSecond = "commits/s"
	soonest          = "p50"
	ninetyNine       = "p99"
)

// outbox measures tasks that belong to transactions of a database.
func outbox() scenario {
	const same = "on PostgreSQL with synchronous_commit=off, pools of 64 connections"
	return scenario{
		name: "outbox",
		about: "50000 transactions on PostgreSQL, 64 at once, each with an order and its task; then, from the first look until all are handled, 64 handlers" +
			" at once that do nothing; then 1000 transactions a second for 3s: from before the commit to the handler",
		measure: tasksPerSecond,
		length:  3 * time.Second,
		entries: []entrant{
			{name: sluiceName + ", outbox", settings: "sluicesql, one relay, Kick, " + same, openQueue: openOutbox(true), unmetered: ofRedis},
			{name: sluiceName + ", no outbox", settings: "Enqueue before the commit, " + same, openQueue: openOutbox(false), unmetered: ofRedis},
			{name: riverName, settings: "InsertTx, " + riverSettings, openQueue: openRiverTx(0), fewer: 10, unmetered: ofRedis},
			{name: riverFastName, settings: "InsertTx, " + riverSettings + ", FetchCooldown and FetchPollInterval 1ms", openQueue: openRiverTx(time.Millisecond), fewer: 10, unmetered: ofRedis},
		},
		columns: []column{{commitsPerSecond, median, whole}, {soonest, median, inTime}, {ninetyNine, median, inTime}},
		turn:    outboxTurn,
	}
}

func outboxTurn(ctx context.Context, t turn) (result, error) {
	tasks, steady := t.tasks(50_000), int(1000*t.length.Seconds())
	began := time.Now()
	if err := t.queue.Fill(ctx, tasks, nil, atOnce); err != nil {
		return result{}, err
	}
	committed := time.Since(began)
	l := newLedger(tasks)
	took, err := l.workThrough(ctx, t.queue, 64, l.enter)
	if err != nil {
		return result{}, err
	}
	waits, err := steadily(ctx, t.queue, tasks, steady)
	if err != nil {
		return result{}, err
	}
	w := waitsOf(waits)
	return result{value: float64(tasks) / took.Seconds(), ops: float64(tasks), extra: map[string]float64{
		commitsPerSecond: float64(tasks) / committed.Seconds(), soonest: float64(w.ValueAtQuantile(50)), ninetyNine: float64(w.ValueAtQuantile(99)),
	}}, nil
}

// steadily enqueues n tasks, a thousand a second, beside a worker, and returns how long each took
// from before its enqueue to its handler.
func steadily(ctx context.Context, q queue, from, n int) ([]time.Duration, error) {
	enqueued, waits := make([]atomic.Int64, n), make([]time.Duration, n)
	l := newLedger(n)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		_, err := l.workThrough(ctx, q, 64, func(id int) {
			if id -= from; id < 0 || id >= n {
				return
			}
			waits[id] = time.Duration(time.Now().UnixNano() - enqueued[id].Load())
			l.enter(id)
		})
		return err
	})
	sleep(ctx, 200*time.Millisecond) // the worker listens
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := range n {
		<-tick.C
		enqueued[i].Store(time.Now().UnixNano())
		group.Go(func() error {
			if err := q.Enqueue(ctx, from+i, nil, time.Time{}); err != nil {
				return fmt.Errorf("task %s: %w", strconv.Itoa(from+i), err)
			}
			return nil
		})
	}
	return waits, group.Wait()
}
