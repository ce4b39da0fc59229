// Outbox shows tasks that belong to a database transaction: the transaction writes them into a
// table, and a relay enqueues them. No task is lost and none is there for what was rolled back, at
// the price of a look at the table.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver, in plain Go

	"github.com/sluice-go/sluice"
)

const schema = `CREATE TABLE customer (name TEXT PRIMARY KEY);
CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB NOT NULL);`

// SignUp stores a customer and, in the same transaction, the task that welcomes the customer.
func SignUp(ctx context.Context, db *sql.DB, name string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	if _, err := tx.ExecContext(ctx, "INSERT INTO customer VALUES (?1); INSERT INTO outbox (payload) VALUES (?1)", name); err != nil {
		return err
	}
	return tx.Commit()
}

// Relay enqueues what is in the outbox.
type Relay struct {
	DB    *sql.DB
	Queue *sluice.Queue
}

// batch is how many rows are relayed at a time.
const batch = 100

// Once relays up to a hundred rows, and returns how many. A crash after the enqueue relays them
// again: their tasks are kept as they are or, if they have been worked on by then, run twice. So
// their handler has to be safe to repeat, as every one.
func (r *Relay) Once(ctx context.Context) (int, error) {
	rows, err := r.DB.QueryContext(ctx, "SELECT id, payload FROM outbox ORDER BY id LIMIT ?", batch)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var tasks []sluice.Task
	var last int64
	for rows.Next() {
		var payload []byte
		if err := rows.Scan(&last, &payload); err != nil {
			return 0, err
		}
		tasks = append(tasks, sluice.Task{ID: fmt.Sprint("outbox-", last), Payload: payload})
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(tasks) == 0 {
		return 0, err
	}
	if _, err := r.Queue.EnqueueBatch(ctx, tasks); err != nil {
		return 0, err // also ErrUnknown: they are enqueued again
	}
	// By ID: a row with a lower one may have been committed since. It has its turn.
	for _, task := range tasks {
		if _, err := r.DB.ExecContext(ctx, "DELETE FROM outbox WHERE 'outbox-' || id = ?", task.ID); err != nil {
			return 0, err
		}
	}
	return len(tasks), nil
}

// Run relays until ctx ends: in one process at a time, which is the lock's holder, so that no row
// is relayed twice without need.
func (r *Relay) Run(ctx context.Context, locker *sluice.Locker, every time.Duration) {
	for ctx.Err() == nil {
		_ = locker.Do(ctx, "outbox", func(ctx context.Context) error {
			for {
				if n, err := r.Once(ctx); err != nil || ctx.Err() != nil {
					return err
				} else if n == batch {
					continue
				}
				select {
				case <-time.After(every):
				case <-ctx.Done():
				}
			}
		})
		select {
		case <-time.After(every): // after an error
		case <-ctx.Done():
		}
	}
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "outbox:", err)
		os.Exit(1)
	}
}

// run signs up two customers, one of them twice.
func run(ctx context.Context, out io.Writer) error {
	rdb, done, err := connect()
	if err != nil {
		return err
	}
	defer done()
	db, err := open(ctx, schema)
	queue, err1 := sluice.NewQueue(rdb, "welcome", sluice.WithDuplicates(sluice.DuplicatesKeep))
	if err := errors.Join(err, err1); err != nil {
		return err
	}
	defer db.Close()
	fmt.Fprintln(out, SignUp(ctx, db, "ann"), SignUp(ctx, db, "bob"), SignUp(ctx, db, "ann") != nil)
	n, err := (&Relay{db, queue}).Once(ctx)
	fmt.Fprintln(out, "relayed:", n)
	return err
}

// connect starts a Redis within this process. A real program connects to its own.
func connect() (rdb *redis.Client, done func(), err error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, nil, err
	}
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { _ = rdb.Close(); m.Close() }, nil
}

// open opens a database in memory. One connection, so that there is one memory.
func open(ctx context.Context, schema string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}
