// Basket sells baskets of several items to many buyers at once. All items of a basket are locked together, by DoAll: a buyer
// gets the whole basket or nothing, no item is oversold, and buyers whose baskets overlap never wait for each other in a
// circle, in whatever order they name the items.
//
// Without flags it needs no other program: Redis is a miniredis within the process, and so is the shop's table.
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

// config is the command line.
type config struct {
	redis  string
	buyers int
	stock  int
}

// run returns the exit status: 0 if all adds up, 1 if something failed, 2 for bad flags.
func run(args []string, out, log io.Writer) int {
	var c config
	f := flag.NewFlagSet("basket", flag.ContinueOnError)
	f.SetOutput(log)
	f.StringVar(&c.redis, "redis", "", "`address` of a Redis server, as host:port (default: an embedded one)")
	f.IntVar(&c.buyers, "buyers", 200, "`number` of buyers, each with one basket")
	f.IntVar(&c.stock, "stock", 40, "`number` of pieces of each item")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if c.buyers < 0 || c.stock < 0 || f.NArg() > 0 {
		fmt.Fprintln(log, "basket: -buyers and -stock must not be negative; no arguments")
		return 2
	}
	if err := sell(context.Background(), c, out); err != nil {
		fmt.Fprintln(log, "basket:", err)
		return 1
	}
	return 0
}

var errSoldOut = errors.New("sold out")

// shop is what the locks guard: a table that is read, looked at and written back, item by item. It is a sync.Map
// only because the items are rows of their own; nothing in it keeps two buyers of one item apart.
type shop struct{ left sync.Map }

// buy takes one piece of each item, or nothing. Its caller holds the locks of all of them.
func (s *shop) buy(ctx context.Context, basket []string) error {
	for _, item := range basket {
		if left, _ := s.left.Load(item); left.(int) == 0 {
			return errSoldOut
		}
	}
	time.Sleep(rand.N(time.Millisecond)) // a payment service, say
	if err := ctx.Err(); err != nil {
		return err // a lock was lost: leave everything as it is
	}
	for _, item := range basket {
		left, _ := s.left.Load(item)
		s.left.Store(item, left.(int)-1)
	}
	return nil
}

var items = []string{"phone", "case", "charger", "cable", "headset", "film"}

func sell(ctx context.Context, c config, out io.Writer) error {
	if c.redis == "" {
		m, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer m.Close()
		c.redis = m.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: c.redis})
	defer func() { _ = rdb.Close() }()
	locker, err := sluice.NewLocker(rdb, sluice.WithLockPrefix("Basket:"), sluice.WithMaxWait(time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = locker.Close() }()

	s := new(shop)
	for _, item := range items {
		s.left.Store(item, c.stock)
	}
	var mu sync.Mutex // guards what follows
	var sold, pieces, soldOut int
	var failed error
	var buyers sync.WaitGroup
	for range c.buyers {
		buyers.Go(func() {
			var basket []string
			for _, i := range rand.Perm(len(items))[:2+rand.IntN(3)] { // two to four items, in any order
				basket = append(basket, items[i])
			}
			err := locker.DoAll(ctx, basket, func(ctx context.Context) error { return s.buy(ctx, basket) })
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				sold, pieces = sold+1, pieces+len(basket)
			case errors.Is(err, errSoldOut):
				soldOut++
			default:
				failed = errors.Join(failed, err)
			}
		})
	}
	buyers.Wait()
	gone := 0
	for _, item := range items {
		left, _ := s.left.Load(item)
		gone += c.stock - left.(int)
	}
	fmt.Fprintf(out, "%d buyers: %d baskets sold, %d sold out; %d pieces in the baskets, %d gone from the shop\n",
		c.buyers, sold, soldOut, pieces, gone)
	if gone != pieces {
		failed = errors.Join(failed, errors.New("the books do not balance"))
	}
	return failed
}
