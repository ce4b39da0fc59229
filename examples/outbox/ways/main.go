// Ways gives an outbox transactions of gorm, sqlx and pgx, on PostgreSQL:
//
//	go run -C examples ./outbox/ways -postgres 'host=localhost dbname=shop' -redis localhost:6379
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

var outbox = sluicesql.Outbox{Dialect: sluicesql.Postgres}

// way is the shop by one of the libraries.
type way struct {
	db      *sql.DB                                      // of the relay
	signUp  func(ctx context.Context, name string) error // stores a customer, and the task that welcomes the customer
	welcome sluice.Handler                               // has its effect once
}

var ways = map[string]func(dsn string) (way, error){"gorm": withGorm, "sqlx": withSqlx, "pgx": withPgx}

func main() {
	dsn, addr := flag.String("postgres", "host=localhost", "`DSN` of PostgreSQL"), flag.String("redis", "localhost:6379", "`address` of Redis")
	flag.Parse()
	rdb := redis.NewClient(&redis.Options{Addr: *addr})
	defer rdb.Close()
	for name := range ways {
		if err := run(context.Background(), os.Stdout, name, *dsn, rdb); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
	}
}

// run signs a customer up, and waits until the customer is welcomed.
func run(ctx context.Context, out io.Writer, name, dsn string, rdb redis.UniversalClient) (err error) {
	w, err := ways[name](dsn)
	if err != nil {
		return err
	}
	defer w.db.Close()
	_, err = w.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS customers (name TEXT PRIMARY KEY, welcomed BOOLEAN NOT NULL DEFAULT false)")
	if err := errors.Join(err, outbox.Migrate(ctx, w.db)); err != nil {
		return err
	}
	queue, err := sluice.NewQueue(rdb, "welcome", sluice.WithRetention(time.Hour), sluice.WithDuplicates(sluice.DuplicatesOnce))
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	relay := &sluicesql.Relay{DB: w.db, Outbox: outbox, Queues: []*sluice.Queue{queue}}
	worker := &sluice.Worker{Queue: queue, Handler: w.welcome}
	ended := make(chan error, 2)
	go func() { ended <- relay.Run(running) }()
	go func() { ended <- worker.Run(running) }()
	defer func() { stop(); err = errors.Join(err, <-ended, <-ended) }()

	customer := sluice.NewID()
	if err := w.signUp(ctx, customer); err != nil {
		return err
	}
	if err := w.signUp(ctx, customer); err == nil { // rolled back, with its task
		return errors.New("a customer signed up twice")
	}
	relay.Kick()
	for welcomed := false; err == nil && !welcomed; {
		time.Sleep(time.Millisecond) // between two looks
		err = w.db.QueryRowContext(ctx, "SELECT welcomed FROM customers WHERE name = $1", customer).Scan(&welcomed)
	}
	if err == nil {
		fmt.Fprintln(out, name+": welcomed")
	}
	return err
}
