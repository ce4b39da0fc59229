// Package shophttp holds a flash sale over HTTP, at its size: a million requests for ten phones.
//
// The service is several processes, which share a port, a Redis server and a SQLite database. An
// order is one task, which takes the unit in the step that enqueues it: see stock.go. Its handler
// writes the order's row, and cancels it if it is not paid in time. Once the stock is gone a
// process answers from memory. Other processes generate the load. Processes may be killed in the
// middle.
package shophttp

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

const usage = `Usage: seckill -http [flags]

Holds a flash sale over HTTP, in processes of the service and of a load generator, on
a redis-server and a SQLite database of its own. A page shows it live. The exit status
is 1 unless exactly the stock was sold, one unit a customer.

`

// command is the command line.
type command struct {
	Options
	page, picture string
	stay          bool
}

// Command is the program: it returns its exit status.
func Command(args []string, out, errOut io.Writer) int {
	c, err := parse(args, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(errOut, "seckill -http:", err)
		return 2
	}
	var mu sync.Mutex
	c.Say = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(out, format+"\n", args...)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(errOut, "seckill -http:", err)
		return 1
	}
	return 0
}

func (c command) run(ctx context.Context) error {
	page, err := OpenPage(ctx, c.page)
	if err != nil {
		return err
	}
	c.Say("%s requests for %s units; live at %s", count(c.Requests), count(c.Stock), page.URL())
	r, err := Hold(ctx, c.Options, page)
	if err != nil {
		return err
	}
	c.Say("%s", r.Table())
	if c.picture != "" {
		if err := r.SavePicture(c.picture); err != nil {
			return err
		}
		c.Say("picture: %s", c.picture)
	}
	err = r.Check()
	if err == nil && c.stay {
		c.Say("the page stays until Ctrl-C")
		<-ctx.Done()
	}
	return err
}

func parse(args []string, errOut io.Writer) (command, error) {
	c := command{Options: Options{Method: ByStock}}
	f := flag.NewFlagSet("seckill -http", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprint(errOut, usage)
		f.PrintDefaults()
	}
	c.Flags(f)
	f.StringVar(&c.page, "page", "127.0.0.1:0", "`address` of the live page")
	f.StringVar(&c.picture, "picture", "", "`file` to draw the sale into, as SVG")
	f.BoolVar(&c.stay, "stay", false, "keep the page when the sale is over, until Ctrl-C")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, errors.New("flags only, no arguments")
	}
	return c, c.Complete()
}

// Flags has a command line fill in the options that all programs have.
func (o *Options) Flags(f *flag.FlagSet) {
	f.StringVar(&o.Redis, "redis", "", "`address` of a Redis server, as host:port (default: a redis-server is started)")
	f.IntVar(&o.Requests, "requests", 1_000_000, "`number` of requests to buy, at least")
	f.IntVar(&o.Stock, "stock", 10, "`number` of units for sale")
	f.IntVar(&o.Customers, "customers", 0, "`number` of customers (default: a quarter of the requests); every tenth request is a second device")
	f.IntVar(&o.Processes, "procs", 3, "`number` of processes of the service")
	f.IntVar(&o.Generators, "generators", 2, "`number` of processes of the load generator")
	f.IntVar(&o.Connections, "connections", 64, "`number` of connections of each of them")
	f.BoolVar(&o.Faults, "faults", false, "kill -9 a process, Redis, and another process in the middle of the sale")
	f.DurationVar(&o.PayWithin, "pay", 2*time.Second, "`time` after which an unpaid order is cancelled")
}

// Complete checks the options, and sets what has no value.
func (o *Options) Complete() error {
	if o.Customers == 0 {
		o.Customers = max(o.Requests/4, 2*o.Stock)
	}
	switch {
	case o.Stock < 1:
		return errors.New("-stock must be at least 1")
	case o.Processes < 1 || o.Processes > 64 || o.Generators < 1 || o.Generators > 64:
		return errors.New("-procs and -generators must be 1 to 64")
	case o.Connections < 1 || o.Requests < o.Generators:
		return errors.New("-connections and -requests must be positive")
	case o.PayWithin < 100*time.Millisecond:
		return errors.New("-pay must be at least 100ms")
	case o.Customers/o.Generators/10*7*o.Generators < o.Stock:
		return fmt.Errorf("-customers %d: too few for -stock %d, since 7 of 10 pay at once", o.Customers, o.Stock)
	}
	return nil
}

// Table returns the figures of a sale.
func (r Result) Table() string {
	t := table.NewWriter()
	t.SetStyle(table.StyleRounded)
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 2, Align: text.AlignRight}})
	transactions, commands := r.PerRequest()
	t.AppendRows([]table.Row{
		{"units for sale", count(r.Rows.Total)},
		{"sold (paid)", count(r.Rows.Paid)},
		{"oversold", count(r.Oversold())},
		{"customers who got two", count(r.Rows.Twice)},
		{"orders cancelled, unit sold again", count(r.Rows.Cancelled)},
		{"all paid after", round(r.AllPaid())},
	})
	t.AppendSeparator()
	t.AppendRows([]table.Row{
		{"requests", count(r.Told.Requests)},
		{"a second", count(r.Rate())},
		{"answered within: p50 / p99 / longest", round(r.Told.Times.percentile(50)) + " / " + round(r.P99()) + " / " + round(r.Longest())},
		{"broken off by a kill", count(r.Told.Broken)},
		{"told to try again", count(r.Told.Failed)},
		{"database transactions a request", fmt.Sprintf("%.3f", transactions)},
	})
	if r.Commands > 0 {
		t.AppendRow(table.Row{"Redis commands a request", fmt.Sprintf("%.3f", commands)})
	}
	return t.Render()
}
