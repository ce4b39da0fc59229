// Seckill is a flash sale that sells exactly its stock.
//
// It runs the sale three times: naively, where buyers read the stock, think, and write it back; by
// Task.Take, where an order is one task which takes the unit in the step that enqueues it
// (stock.go); and by a Locker around the naive way (buy.go). In the last two, orders that are not
// paid are cancelled, and other buyers get the units. At the end it counts in the database. The
// exit status says whether the counts are right.
//
// Without flags it needs no other program: Redis is a miniredis within the process, and the
// database is a SQLite file in a temporary folder. With -http as its first flag, the sale is at its
// size: see package shophttp.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/sluice-go/sluice/examples/seckill/shophttp"
)

// saleLimit bounds the sale. Without it, a sale whose server does not come back would never
// end.
const saleLimit = 2 * time.Minute

func main() {
	shophttp.RunChild(nil)
	if spec, ok := os.LookupEnv(childEnv); ok {
		os.Exit(childMain(spec))
	}
	if len(os.Args) > 1 && os.Args[1] == "-http" {
		os.Exit(shophttp.Command(os.Args[2:], os.Stdout, os.Stderr))
	}
	os.Exit(parentMain(os.Args[1:], os.Stdout))
}

// parentMain returns the exit status: 0 if the sale sold exactly its stock, 1 if not, 2 for bad
// flags.
func parentMain(args []string, out *os.File) int {
	c, err := parse(args, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, saleLimit, fmt.Errorf("not over after %v", saleLimit))
	defer cancel()
	if err := hold(ctx, c, newScreen(out)); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		fmt.Fprintln(os.Stderr, "seckill:", err)
		return 1
	}
	return 0
}

// config is the command line. Children get it too.
type config struct {
	Redis  string // address; empty for a miniredis in this process
	Buyers int
	Stock  int
	Procs  int
	Seed   uint64
}

const usage = `Usage: seckill [flags]

Holds a flash sale three times: naively, by Task.Take, and by a lock. It prints how
many units were sold. Orders that are not paid within %v are cancelled, and other
buyers get the units. The exit status is 1 unless the last two sold exactly their
stock. Kill a child process in the middle (-procs): the sale goes on.

With -http as its first flag it is another program: the sale over HTTP, with a million
requests and a live page (seckill -http -help).

`

func parse(args []string, errOut io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet("seckill", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprintf(errOut, usage, payWithin)
		f.PrintDefaults()
	}
	f.StringVar(&c.Redis, "redis", "", "`address` of a Redis server, as host:port (default: an embedded one)")
	f.IntVar(&c.Buyers, "buyers", 300, "`number` of buyers; every tenth is the customer before, on a second device")
	f.IntVar(&c.Stock, "stock", 100, "`number` of units for sale")
	f.IntVar(&c.Procs, "procs", 1, "`number` of processes that sell; more than 1 are children of this one")
	f.Uint64Var(&c.Seed, "seed", 1, "`number` that decides how long buyers think, and who pays")
	err := f.Parse(args)
	if err == nil {
		if err = c.check(f.NArg()); err != nil {
			fmt.Fprintln(errOut, "seckill:", err)
		}
	}
	return c, err
}

func (c config) check(extra int) error {
	switch {
	case extra > 0:
		return errors.New("flags only, no arguments")
	case c.Stock < 1:
		return errors.New("-stock must be at least 1")
	case c.Procs < 1 || c.Procs > 64:
		return errors.New("-procs must be 1 to 64")
	case c.customers() < c.Stock:
		return fmt.Errorf("-buyers %d are %d customers, one unit each: too few for -stock %d",
			c.Buyers, c.customers(), c.Stock)
	}
	return nil
}
