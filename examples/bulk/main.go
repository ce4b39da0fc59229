// Bulk writes page views into a database: each is a task of its own, with its own retries, and one
// INSERT takes 500 of them (sluice.Batch). It does the same one row by one, and prints the rates.
//
//	go run -C examples ./bulk
//	go run -C examples ./bulk -redis localhost:6379 -postgres 'host=localhost dbname=shop' -rows 100000
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/sluice-go/sluice"
)

// rowsOf returns a handler that writes up to size rows by one statement. A task that is handed out
// again finds its row there.
func rowsOf(db *sql.DB, size int) sluice.Handler {
	return sluice.Batch(size, 50*time.Millisecond, func(ctx context.Context, es []sluice.Entry) []error {
		places, values := make([]string, len(es)), make([]any, 0, 2*len(es))
		for i, e := range es {
			places[i] = fmt.Sprintf("($%d, $%d)", 2*i+1, 2*i+2)
			values = append(values, e.ID, string(e.Payload))
		}
		_, err := db.ExecContext(ctx, "INSERT INTO views (id, page) VALUES "+strings.Join(places, ", ")+" ON CONFLICT DO NOTHING", values...)
		errs := make([]error, len(es))
		for i := range errs {
			errs[i] = err // each is tried again, perhaps in another company
		}
		return errs
	})
}

// work enqueues n views, has them written, and returns how many were in a second.
func work(ctx context.Context, rdb redis.UniversalClient, db *sql.DB, n, size int) (float64, error) {
	q, err := sluice.NewQueue(rdb, "example:views")
	if err != nil {
		return 0, err
	}
	if _, err := db.ExecContext(ctx, "DELETE FROM views"); err != nil {
		return 0, err
	}
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint("view-", i), Payload: []byte("/phones")}
	}
	if _, err := q.EnqueueBatch(ctx, tasks); err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w := &sluice.Worker{Queue: q, Concurrency: max(16, 2*size), Handler: rowsOf(db, size)} // the next batch fills up meanwhile
	ended, began := make(chan error, 1), time.Now()
	go func() { ended <- w.Run(ctx) }()
	for w.Stats().Done < int64(n) {
		select {
		case err := <-ended:
			return 0, err
		case <-time.After(time.Millisecond):
		}
	}
	took := time.Since(began)
	stop()
	return float64(n) / took.Seconds(), <-ended
}

func run(ctx context.Context, out io.Writer, rdb redis.UniversalClient, driver, dsn string, n int) error {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(4)
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS views (id VARCHAR(64) PRIMARY KEY, page VARCHAR(64))"); err != nil {
		return err
	}
	for _, size := range []int{1, 500} {
		rate, err := work(ctx, rdb, db, n, size)
		if err != nil {
			return err
		}
		var rows int
		if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM views").Scan(&rows); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s, up to %d rows a statement: %d rows, %.0f a second\n", driver, size, rows, rate)
	}
	return nil
}

func main() {
	addr, postgres := flag.String("redis", "", "`address` of Redis (default: one within the process)"), flag.String("postgres", "", "`DSN` of PostgreSQL (default: SQLite)")
	rows := flag.Int("rows", 5000, "how many rows")
	flag.Parse()
	if err := start(context.Background(), *addr, *postgres, *rows); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func start(ctx context.Context, addr, postgres string, rows int) error {
	if addr == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		addr = server.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	if postgres != "" {
		return run(ctx, os.Stdout, rdb, "pgx", postgres, rows)
	}
	folder, err := os.MkdirTemp("", "bulk")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	return run(ctx, os.Stdout, rdb, "sqlite", "file:"+filepath.Join(folder, "views.db")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)", rows)
}
