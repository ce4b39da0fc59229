// Outbox shows tasks that belong to a database transaction, on the way in and on the way out: the
// transaction that stores a customer writes the task that welcomes the customer, and a relay moves it
// into its queue; the handler's transaction notes that the welcome is stored. A customer that was
// rolled back is never welcomed, and no customer twice.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver, in plain Go

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

var outbox = sluicesql.Outbox{Dialect: sluicesql.SQLite}

// SignUp stores a customer and, in the same transaction, the task that welcomes the customer.
func SignUp(ctx context.Context, db *sql.DB, name string) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO customer (name) VALUES (?)", name); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, "welcome", sluice.Task{ID: name})
	})
}

// Welcome is the handler. It may be called several times for one customer.
func Welcome(db *sql.DB) sluice.Handler {
	return func(ctx context.Context, e sluice.Entry) error {
		return inTx(ctx, db, func(tx *sql.Tx) error {
			first, err := sluicesql.Once(ctx, tx, e)
			if err != nil || !first {
				return err
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO mail (customer) VALUES (?)", e.ID)
			return err
		})
	}
}

// inTx runs f in a transaction.
func inTx(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "outbox:", err)
		os.Exit(1)
	}
}

// run signs up two customers, one of them twice.
func run(ctx context.Context, out io.Writer) (err error) {
	m, err := miniredis.Run() // a real program connects to its own
	if err != nil {
		return err
	}
	defer m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	folder, err := os.MkdirTemp("", "outbox")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	db, err := open(ctx, filepath.Join(folder, "shop.db"))
	if err != nil {
		return err
	}
	defer db.Close()

	ctx, stop := context.WithCancel(ctx)
	queue, err := sluice.NewQueue(rdb, "welcome", sluice.WithRetention(time.Hour), sluice.WithDuplicates(sluice.DuplicatesOnce))
	if err != nil {
		stop()
		return err
	}
	relay := &sluicesql.Relay{DB: db, Outbox: outbox, Queues: []*sluice.Queue{queue}}
	worker := &sluice.Worker{Queue: queue, Handler: Welcome(db)}
	ended := make(chan error, 2)
	go func() { ended <- relay.Run(ctx) }()
	go func() { ended <- worker.Run(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended, <-ended)
	}()

	fmt.Fprintln(out, SignUp(ctx, db, "ann"), SignUp(ctx, db, "bob"), SignUp(ctx, db, "ann") != nil)
	relay.Kick() // after the commit: else it looks each second
	for worker.Stats().Done < 2 {
		time.Sleep(time.Millisecond) // until both are welcomed
	}
	var mails int
	err = db.QueryRowContext(ctx, "SELECT COUNT(*) FROM mail").Scan(&mails)
	fmt.Fprintln(out, "welcomed:", mails)
	return err
}

// open opens a database in a file. Its transactions write, so they begin as ones that do.
func open(ctx context.Context, path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	_, err = db.ExecContext(ctx, "CREATE TABLE customer (name TEXT PRIMARY KEY); CREATE TABLE mail (customer TEXT)")
	if err = errors.Join(err, outbox.Migrate(ctx, db)); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}
