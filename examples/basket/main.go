// Basket sells baskets of several items to many buyers at once. All items of a basket are locked
// together, by DoAll: a buyer gets the whole basket or nothing, no item is oversold, and buyers
// whose baskets overlap never wait for each other in a circle, in whatever order they name the
// items.
//
// Without flags it needs no other program: Redis is a miniredis within the process, and so is the
// shop's table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status.
func run(args []string, out, log io.Writer) int {
	var addr string
	var buyers, stock uint
	f := flag.NewFlagSet("basket", flag.ContinueOnError)
	f.SetOutput(log)
	f.StringVar(&addr, "redis", "", "`address` of a Redis server, as host:port (default: an embedded one)")
	f.UintVar(&buyers, "buyers", 200, "`number` of buyers, each with one basket")
	f.UintVar(&stock, "stock", 40, "`number` of pieces of each item")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if err := sell(context.Background(), addr, buyers, stock, out); err != nil {
		fmt.Fprintln(log, "basket:", err)
		return 1
	}
	return 0
}

var errSoldOut = errors.New("sold out")

// shop is what the locks guard: a table that is read, looked at and written back, item by item. It
// is a sync.Map only because the items are rows of their own; nothing in it keeps two buyers of one
// item apart.
type shop struct{ left sync.Map }

// buy takes one piece of each item, or nothing. Its caller holds the locks of all of them.
func (s *shop) buy(ctx context.Context, basket []string) error {
	for _, item := range basket {
		if left, _ := s.left.Load(item); left.(uint) == 0 {
			return errSoldOut
		}
	}
	time.Sleep(rand.N(time.Millisecond)) // a payment service, say
	if err := ctx.Err(); err != nil {
		return err // a lock was lost: leave everything as it is
	}
	for _, item := range basket {
		left, _ := s.left.Load(item)
		s.left.Store(item, left.(uint)-1)
	}
	return nil
}

var items = []string{"phone", "case", "charger", "cable", "headset", "film"}

func sell(ctx context.Context, addr string, n, stock uint, out io.Writer) error {
	if addr == "" {
		m, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer m.Close()
		addr = m.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	locker, err := sluice.NewLocker(rdb, sluice.WithLockPrefix("Basket:"), sluice.WithMaxWait(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = locker.Close() }()

	s, b := new(shop), new(books)
	for _, item := range items {
		s.left.Store(item, stock)
	}
	var buyers sync.WaitGroup
	for range n {
		buyers.Go(func() {
			basket := fill()
			b.enter(basket, locker.DoAll(ctx, basket, func(ctx context.Context) error { return s.buy(ctx, basket) }))
		})
	}
	buyers.Wait()
	fmt.Fprintf(out, "%d buyers: ", n)
	return b.balance(s, stock, out)
}

// fill fills a basket with two to four items, in any order.
func fill() (basket []string) {
	for _, i := range rand.Perm(len(items))[:2+rand.IntN(3)] {
		basket = append(basket, items[i])
	}
	return basket
}

// books counts what was sold.
type books struct {
	mu                    sync.Mutex // guards what follows
	sold, pieces, soldOut uint
	failed                error
}

// enter enters what became of a basket.
func (b *books) enter(basket []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil:
		b.sold, b.pieces = b.sold+1, b.pieces+uint(len(basket))
	case errors.Is(err, errSoldOut):
		b.soldOut++
	default:
		b.failed = errors.Join(b.failed, err)
	}
}

// balance compares the books with the shop.
func (b *books) balance(s *shop, stock uint, out io.Writer) error {
	gone := uint(0)
	for _, item := range items {
		left, _ := s.left.Load(item)
		gone += stock - left.(uint)
	}
	fmt.Fprintf(out, "%d baskets sold, %d sold out; %d pieces in them, %d gone from the shop\n", b.sold, b.soldOut, b.pieces, gone)
	if gone != b.pieces {
		return errors.Join(b.failed, errors.New("the books do not balance"))
	}
	return b.failed
}
