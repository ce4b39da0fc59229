// Sale sells a hundred phones to thousands of buyers, from three processes of a shop: an order is
// one task from the first click to the payment, and its phone goes where the task goes. A fifth of
// the buyers never pays. What they had is sold again. The exit status is 1 unless the stock and the
// rows agree.
//
//	go run -C examples ./sale
//	go run -C examples ./sale -addr :8080 -redis localhost:6379 -postgres 'host=localhost dbname=shop'
//
// The second one is a process of a shop that serves POST /buy?buyer=NAME and POST /pay?buyer=NAME,
// and may run many times.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver of PostgreSQL
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver of SQLite, in plain Go

	"github.com/sluice-go/sluice"
)

// config says where a shop is that serves.
type config struct {
	Redis, Postgres, SQLite, Addr string

	Phones int64 // for a Redis that has no stock yet
	PayIn  time.Duration
}

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // a line for each order that is not paid
	var c config
	flag.StringVar(&c.Addr, "addr", "", "`address` to serve on; without it, a whole sale is held in this process")
	flag.StringVar(&c.Redis, "redis", "localhost:6379", "`address` of Redis")
	flag.StringVar(&c.Postgres, "postgres", "", "`DSN` of PostgreSQL (default: the file of -sqlite)")
	flag.StringVar(&c.SQLite, "sqlite", "shop.db", "`file` of SQLite")
	flag.Int64Var(&c.Phones, "phones", 0, "how many there are in all, for the first process: it fills a Redis that is empty")
	flag.DurationVar(&c.PayIn, "pay-in", 15*time.Minute, "how long a buyer may take to pay")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := func() error {
		if c.Addr == "" {
			return run(ctx, os.Stdout, 100, 1000)
		}
		return process(ctx, os.Stdout, c)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sale:", err)
		os.Exit(1)
	}
}

// process is one process of the shop. It prints its address, and serves until ctx ends.
func process(ctx context.Context, out io.Writer, c config) (err error) {
	driver, source := "pgx", c.Postgres
	if source == "" {
		driver, source = "sqlite", c.SQLite
	}
	db, err := OpenDB(ctx, driver, source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	rdb := redis.NewClient(&redis.Options{Addr: c.Redis})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	shop, err := NewShop(rdb, db, c.PayIn)
	if err != nil {
		return err
	}
	if c.Phones > 0 {
		if _, err = shop.Queue.Stock(ctx, item); errors.Is(err, sluice.ErrNotFound) {
			err = shop.Refill(ctx, c.Phones)
		}
		if err != nil {
			return err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Addr)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "http://%s\n", listener.Addr())
	return serve(ctx, shop, listener)
}

// run sells so many phones to so many buyers.
func run(ctx context.Context, out io.Writer, phones int64, buyers int) (err error) {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	dir, err := os.MkdirTemp("", "sale")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := OpenDB(ctx, "sqlite", filepath.Join(dir, "shop.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	var shops []*Shop
	working, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for range 3 {
		shop, err := NewShop(redis.NewClient(&redis.Options{Addr: server.Addr()}), db, 200*time.Millisecond)
		if err != nil {
			return err
		}
		shops = append(shops, shop)
		all.Go(func() { _ = shop.Work(working) })
	}
	if err := shops[0].Refill(ctx, phones); err != nil { // of an empty shop: SetStock
		return err
	}
	fmt.Fprintf(out, "%d phones, %d buyers\n", phones, buyers)
	var crowd sync.WaitGroup
	shopping, end := context.WithCancel(ctx)
	for i := range buyers {
		crowd.Go(func() { buy(shopping, shops[i%len(shops)], fmt.Sprint("buyer-", i), i%5 != 0) })
	}
	err = report(ctx, out, shops[0], func(info sluice.StockInfo) bool { return info.Sold == phones })
	end()
	crowd.Wait()
	return err
}

// buy has a buyer try to buy a phone until the shop closes, and pay for it.
func buy(ctx context.Context, s *Shop, buyer string, pays bool) {
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		outcome, err := s.Buy(ctx, buyer)
		if err == nil && outcome != sluice.OutcomeSoldOut && (!pays || s.Pay(ctx, buyer) == nil) {
			return
		}
	}
}

// report waits until the sale is over, and compares the stock with the rows.
func report(ctx context.Context, out io.Writer, s *Shop, isOver func(sluice.StockInfo) bool) error {
	for {
		info, err := s.Queue.Stock(ctx, item)
		if err != nil {
			return err
		}
		if !isOver(info) {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		paid, err := s.Paid(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "left %d, held %d, sold %d; rows paid: %d\n", info.Left, info.Held, info.Sold, paid)
		if info.Sold != paid || info.Left+info.Sold != info.Total {
			return errors.New("stock and rows differ")
		}
		return nil
	}
}

// OpenDB opens the shop's database, and makes its table if it has none.
func OpenDB(ctx context.Context, driver, source string) (*sql.DB, error) {
	if driver == "sqlite" {
		source += "?_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_pragma=busy_timeout(5000)"
	}
	db, err := sql.Open(driver, source)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(8)
	if driver == "sqlite" {
		db.SetMaxOpenConns(1)
	}
	if _, err = db.ExecContext(ctx, Schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// NewShop returns a process of the shop.
func NewShop(rdb redis.UniversalClient, db *sql.DB, payIn time.Duration) (*Shop, error) {
	queue, err := sluice.NewQueue(rdb, "orders",
		sluice.WithRetention(24*time.Hour), // for as long as the sale lasts
		sluice.WithMaxAttempts(3600))       // one a second: an hour without the database
	return &Shop{DB: db, Queue: queue, PayIn: payIn}, err
}
