// Sale sells a hundred phones to thousands of buyers, from three processes of a shop: an order is one
// task from the first click to the payment, and its phone goes where the task goes. A fifth of the
// buyers never pays. What they had is sold again.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver, in plain Go

	"github.com/sluice-go/sluice"
)

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // a line for each order that is not paid
	if err := run(context.Background(), os.Stdout, 100, 1000); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
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
	db, err := OpenDB(filepath.Join(dir, "shop.db"))
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

// OpenDB opens the shop's database, with its table.
func OpenDB(file string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", file+"?_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	_, err = db.Exec(Schema)
	return db, err
}

// NewShop returns a process of the shop.
func NewShop(rdb redis.UniversalClient, db *sql.DB, payIn time.Duration) (*Shop, error) {
	queue, err := sluice.NewQueue(rdb, "orders", sluice.WithRetention(24*time.Hour)) // for as long as the sale lasts
	return &Shop{DB: db, Queue: queue, PayIn: payIn}, err
}
