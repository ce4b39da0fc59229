package sluicesql_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

// An order and the task that confirms it, in one transaction; and the handler's effect, once.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	server, _ := miniredis.Run()
	defer server.Close()
	folder, _ := os.MkdirTemp("", "example")
	defer os.RemoveAll(folder)
	db, _ := sql.Open("sqlite", "file:"+filepath.Join(folder, "shop.db")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	defer db.Close()
	outbox := sluicesql.Outbox{Dialect: sluicesql.SQLite}
	_, err := db.ExecContext(ctx, "CREATE TABLE orders (id TEXT PRIMARY KEY, confirmed BOOLEAN NOT NULL DEFAULT false)")
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	orders, err1 := sluice.NewQueue(rdb, "orders", sluice.WithRetention(time.Hour), sluice.WithDuplicates(sluice.DuplicatesOnce))
	if err := errors.Join(err, err1, outbox.Migrate(ctx, db)); err != nil {
		fmt.Println(err)
	}

	relay := &sluicesql.Relay{DB: db, Outbox: outbox, Queues: []*sluice.Queue{orders}}
	worker := &sluice.Worker{Queue: orders, Handler: func(ctx context.Context, e sluice.Entry) error {
		return inTx(ctx, db, func(tx *sql.Tx) error {
			first, err := sluicesql.Once(ctx, tx, e, sluicesql.InQueue("orders"))
			if err != nil || !first {
				return err // it was done before: the task is done
			}
			_, err = tx.ExecContext(ctx, "UPDATE orders SET confirmed = true WHERE id = $1", e.ID)
			return err
		})
	}}
	ended := make(chan error, 2)
	go func() { ended <- relay.Run(ctx) }()
	go func() { ended <- worker.Run(ctx) }()

	err = inTx(ctx, db, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ($1)", "order-7"); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, "orders", sluice.Task{ID: "order-7", Kind: "confirm"})
	})
	relay.Kick() // after the commit
	var task sluice.TaskInfo
	for task.State != sluice.StateDone { // the relay may not have moved it yet
		task, _ = orders.Await(ctx, "order-7")
	}
	var confirmed bool
	err = errors.Join(err, db.QueryRowContext(ctx, "SELECT confirmed FROM orders").Scan(&confirmed))
	fmt.Println(confirmed, err)
	stop()
	fmt.Println(errors.Join(<-ended, <-ended))
	// Output:
	// true <nil>
	// <nil>
}
