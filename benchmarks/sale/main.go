// Sale compares ways to sell on the same HTTP service: the one of examples/seckill -http. Per round
// each way holds a sale of its own. Generator, service and Redis share the machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/sluice-go/sluice/examples/seckill/shophttp"
)

func main() {
	shophttp.RunChild(ways)
	os.Exit(parentMain(os.Args[1:], os.Stdout, os.Stderr))
}

const (
	noLock      = "no lock"
	conditional = "conditional UPDATE"
	script      = "own script, then Enqueue"
	lockerDo    = "Locker.Do"
	redislockDo = "redislock"
	redsyncDo   = "redsync"
)

// methods are the ways to sell, in their order.
var methods = []string{shophttp.ByStock, script, conditional, lockerDo, redislockDo, redsyncDo, noLock}

var ways = map[string]shophttp.OpenWay{
	script:      openScript,
	conditional: turnsBy(takeIfLeft, openUnguarded),
	lockerDo:    turnsBy(takeSeen, openLocked),
	redislockDo: turnsBy(takeSeen, openBSM),
	redsyncDo:   turnsBy(takeSeen, openRedsync),
	noLock:      turnsBy(takeBlindly, openUnguarded),
}

// parentMain returns the exit status: 1 if a sale could not be held, or a way other than "no lock"
// did not sell exactly its stock.
func parentMain(args []string, out, log io.Writer) int {
	var o shophttp.Options
	f := flag.NewFlagSet("sale", flag.ContinueOnError)
	f.SetOutput(log)
	o.Flags(f)
	rounds := f.Int("rounds", 3, "`number` of rounds")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if err := o.Complete(); err != nil {
		fmt.Fprintln(log, "sale:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o.Say, o.Ways = func(string, ...any) {}, ways
	status, results := 0, map[string][]shophttp.Result{}
	for round := range *rounds {
		for _, o.Method = range methods {
			r, err := shophttp.Hold(ctx, o, nil)
			if err != nil {
				fmt.Fprintln(log, "sale:", err)
				return 1
			}
			fmt.Fprintf(log, "round %d: %s: %.0f/s\n", round+1, o.Method, r.Rate())
			if err := r.Check(); err != nil && o.Method != noLock {
				fmt.Fprintf(log, "sale: %s: %v\n", o.Method, err)
				status = 1
			}
			results[o.Method] = append(results[o.Method], r)
		}
	}
	fmt.Fprintln(out, render(results))
	return status
}

// render makes a table in Markdown: medians, and from the least to the most.
func render(results map[string][]shophttp.Result) string {
	t := table.NewWriter()
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"", "sold of " + fmt.Sprint(results[shophttp.ByStock][0].Rows.Total), "oversold", "all paid after, s", "requests/s",
		"p99, ms", "longest, ms", "told to try again", "database transactions a request", "Redis commands a request"})
	for _, method := range methods {
		rs := results[method]
		row := table.Row{method}
		for _, c := range []struct {
			format string
			of     func(shophttp.Result) float64
		}{
			{"%.0f", func(r shophttp.Result) float64 { return float64(r.Sold()) }},
			{"%.0f", func(r shophttp.Result) float64 { return float64(r.Oversold()) }},
			{"%.1f", func(r shophttp.Result) float64 { return r.AllPaid().Seconds() }},
			{"%.0f", shophttp.Result.Rate},
			{"%.0f", func(r shophttp.Result) float64 { return r.P99().Seconds() * 1000 }},
			{"%.0f", func(r shophttp.Result) float64 { return r.Longest().Seconds() * 1000 }},
			{"%.0f", func(r shophttp.Result) float64 { return float64(r.Told.Failed) }},
			{"%.3f", func(r shophttp.Result) float64 { n, _ := r.PerRequest(); return n }},
			{"%.3f", func(r shophttp.Result) float64 { _, n := r.PerRequest(); return n }},
		} {
			row = append(row, spread(rs, c.format, c.of))
		}
		t.AppendRow(row)
	}
	return t.RenderMarkdown()
}

func spread(rs []shophttp.Result, format string, of func(shophttp.Result) float64) string {
	var values []float64
	for _, r := range rs {
		values = append(values, of(r))
	}
	slices.Sort(values)
	show := func(v float64) string { return fmt.Sprintf(format, v) }
	least, median, most := show(values[0]), show(values[len(values)/2]), show(values[len(values)-1])
	if least == most {
		return median
	}
	return strings.Join([]string{median, " (", least, " - ", most, ")"}, "")
}
