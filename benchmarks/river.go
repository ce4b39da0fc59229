package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	riverName     = "River"
	riverFastName = "River at 1ms"

	riverSettings = "v0.51.2 on PostgreSQL with synchronous_commit=off and shared_buffers=512MB, a pool of 64 connections; a tenth of the tasks where a rate is measured"
)

// riverQueue is github.com/riverqueue/river. Its jobs have no IDs of their caller's: the task's
// is among the arguments, with the payload.
type riverQueue struct {
	*river.Client[pgx.Tx]
	pool  *pgxpool.Pool
	fetch time.Duration // FetchCooldown and FetchPollInterval; 0 for the defaults, 100ms and 1s
}

type riverTask struct {
	ID      int    `json:"id"`
	Payload string `json:"payload,omitempty"`
}

func (riverTask) Kind() string { return "task" }

func openRiver(fetch time.Duration) func(s setup) (queue, error) {
	return func(s setup) (queue, error) {
		ctx := context.Background()
		url, err := s.postgres.address(ctx)
		if err != nil {
			return nil, err
		}
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			return nil, err
		}
		q := riverQueue{pool: pool, fetch: fetch}
		if err := q.prepare(ctx); err != nil {
			pool.Close()
			return nil, err
		}
		return q, nil
	}
}

// prepare makes the tables, or empties them.
func (q *riverQueue) prepare(ctx context.Context) (err error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(q.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if _, err := q.pool.Exec(ctx, "TRUNCATE river_job"); err != nil {
		return err
	}
	q.Client, err = river.NewClient(riverpgxv5.New(q.pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	return err
}

func (q riverQueue) Enqueue(ctx context.Context, id int, payload []byte, due time.Time) error {
	_, err := q.Insert(ctx, riverTask{id, string(payload)}, &river.InsertOpts{ScheduledAt: due})
	return err
}

func (q riverQueue) Fill(ctx context.Context, n int, payload []byte, due func(int) time.Time) error {
	const batch = 5000
	jobs := make([]river.InsertManyParams, 0, batch)
	for id := range n {
		jobs = append(jobs, river.InsertManyParams{Args: riverTask{id, string(payload)}, InsertOpts: &river.InsertOpts{ScheduledAt: due(id)}})
		if len(jobs) == batch || id == n-1 {
			if _, err := q.InsertManyFast(ctx, jobs); err != nil {
				return err
			}
			jobs = jobs[:0]
		}
	}
	return nil
}

func (q riverQueue) Work(ctx context.Context, concurrency int, handler func(id int)) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[riverTask]) error {
		handler(job.Args.ID)
		return nil
	}))
	client, err := river.NewClient(riverpgxv5.New(q.pool), &river.Config{
		Logger: slog.New(slog.DiscardHandler), Workers: workers,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrency}},
		FetchCooldown: q.fetch, FetchPollInterval: q.fetch,
	})
	if err != nil {
		return err
	}
	unbroken := context.WithoutCancel(ctx) // its end would break off the jobs
	if err := client.Start(unbroken); err != nil {
		return err
	}
	<-ctx.Done()
	return client.Stop(unbroken)
}

// used returns the size of the jobs on disk, with their indexes.
func (q riverQueue) used(ctx context.Context) (bytes float64, err error) {
	err = q.pool.QueryRow(ctx, "SELECT pg_total_relation_size('river_job')::float8").Scan(&bytes)
	return bytes, err
}

func (q riverQueue) count(ctx context.Context) (tasks int, err error) {
	err = q.pool.QueryRow(ctx, "SELECT count(*) FROM river_job").Scan(&tasks)
	return tasks, err
}

func (q riverQueue) Close() error {
	_, err := q.pool.Exec(context.Background(), "TRUNCATE river_job")
	q.pool.Close()
	return err
}
