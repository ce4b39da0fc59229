// Shop holds a seckill (a flash sale) as it is done in Go shops, with gin and gorm: Redis lets in
// as many buyers as there are units, tasks write the orders and cancel those that are not paid, and
// the database has the last word. Package sale has all of that; this program sells 10 phones to
// 2,000 buyers, and its exit status is 1 unless exactly 10 were sold, one a user.
//
//	go run -C examples ./shop
//	go run -C examples ./shop -addr 127.0.0.1:8082 -stay    # then look at http://127.0.0.1:8082
//	go run -C examples ./shop -redis localhost:6379 -postgres 'host=localhost dbname=shop' -addr :8082 -buyers 0
//
// The last one only serves, and may run many times.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/glebarez/sqlite"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sluice-go/sluice/examples/shop/sale"
)

// config is the command line, and what a test sets.
type config struct {
	redis, postgres, addr string
	sqlite                string // a file, which processes may share
	buyers                int    // 0: serve only
	stay                  bool
	sale.Config
}

func main() {
	c := config{sqlite: ":memory:"}
	flag.StringVar(&c.redis, "redis", "", "`address` of Redis (default: a miniredis within the process)")
	flag.StringVar(&c.postgres, "postgres", "", "`DSN` of PostgreSQL (default: SQLite within the process)")
	flag.StringVar(&c.addr, "addr", "127.0.0.1:0", "`address` of the web server and its page")
	flag.IntVar(&c.buyers, "buyers", 2000, "`number` of buyers; 0 serves until it is stopped")
	flag.BoolVar(&c.stay, "stay", false, "serve on when the sale is over")
	flag.Parse()
	c.Config = sale.Config{Item: "phone", Total: 10, PayIn: 2 * time.Second, Every: 5 * time.Second, Crash: 10 * time.Second}
	if c.buyers == 0 {
		c.PayIn = 15 * time.Minute
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "shop:", err)
		os.Exit(1)
	}
}

// run is the process. It closes in the opposite order of what it opens; serve closes the Shop.
func run(ctx context.Context, c config, out io.Writer) error {
	gin.SetMode(gin.ReleaseMode)
	if c.redis == "" {
		m, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer m.Close()
		m.ClockTTL(true)
		c.redis = m.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: c.redis})
	defer rdb.Close()
	db, closeDB, err := open(c)
	if err != nil {
		return err
	}
	defer closeDB()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.addr)
	if err != nil {
		return err
	}
	defer listener.Close()
	shop, err := sale.Open(ctx, db, rdb, c.Config)
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String()
	fmt.Fprintln(out, url)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return serve(ctx, shop, listener) })
	if c.buyers > 0 {
		all.Go(func() error {
			err := crowd{url: url, out: out, client: client()}.buy(ctx, c.buyers, shop)
			if !c.stay {
				stop()
			}
			return err
		})
	}
	return all.Wait()
}

// open opens the database.
func open(c config) (db *gorm.DB, closeDB func() error, err error) {
	dialector := sqlite.Open(c.sqlite + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if c.postgres != "" {
		dialector = postgres.Open(c.postgres)
	}
	if db, err = gorm.Open(dialector, &gorm.Config{Logger: logger.Discard}); err != nil {
		return nil, nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, nil, err
	}
	pool.SetMaxOpenConns(10)
	if c.postgres == "" {
		pool.SetMaxOpenConns(1) // SQLite has one writer, and a database in memory is its connection's
	}
	return db, pool.Close, nil
}

// crowd is the buyers.
type crowd struct {
	url    string
	out    io.Writer
	client *http.Client
}

func client() *http.Client {
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
}

// buy has all buyers come again and again, until every unit is paid. In the first round only every
// other one who gets a unit pays.
func (c crowd) buy(ctx context.Context, buyers int, shop *sale.Shop) error {
	var f sale.Figures
	for round := 1; round <= 10 && !f.Done(); round++ {
		var accepted, have, soldOut, paid atomic.Int64
		var all errgroup.Group
		all.SetLimit(64)
		for i := range buyers {
			all.Go(func() error {
				a, err := post[sale.Answer](ctx, c, fmt.Sprintf("/buy?user=user-%04d", i))
				switch {
				case a.Result == sale.SoldOut:
					soldOut.Add(1)
				case a.Result == sale.Have:
					have.Add(1)
				case a.Result == sale.Accepted && (accepted.Add(1)%2 == 0 || round > 1):
					return errors.Join(err, c.pay(ctx, a.Order, &paid))
				}
				return err
			})
		}
		if err := all.Wait(); err != nil {
			return err
		}
		fmt.Fprintf(c.out, "round %d: %d asked, %d accepted, %d had one, %d sold out; %d paid\n",
			round, buyers, accepted.Load(), have.Load(), soldOut.Load(), paid.Load())
		var err error
		if f, err = settled(ctx, shop); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.out, "%d of %d paid, by %d users; %d canceled, %d refused; in stock: %d, in Redis: %d\n",
		f.Paid, f.Item.Total, f.Buyers, f.Canceled, f.Refused, f.Item.Stock, f.Stock)
	if !f.Done() {
		return errors.New("not exactly the stock was sold, one unit a user")
	}
	return nil
}

// pay pays an order, as soon as its row is written.
func (c crowd) pay(ctx context.Context, order string, paid *atomic.Int64) error {
	for {
		a, err := post[struct{ State string }](ctx, c, "/pay?order="+order)
		if a.State == sale.Paid {
			paid.Add(1)
		}
		if err != nil || a.State != sale.Accepted {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// settled waits until no order is to be written or to be paid, in the database and in Redis.
func settled(ctx context.Context, shop *sale.Shop) (sale.Figures, error) {
	for {
		f, err := shop.Figures(ctx)
		if err != nil || f.Due == 0 && f.Unpaid == 0 && f.Accepted == f.Paid {
			return f, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// post returns the answer, whatever its status.
func post[T any](ctx context.Context, c crowd, path string) (answer T, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, http.NoBody)
	if err != nil {
		return answer, err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	return answer, json.NewDecoder(response.Body).Decode(&answer)
}
