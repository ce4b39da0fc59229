package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// stockRow is an item's stock.
type stockRow struct {
	item string
	sluice.StockInfo
}

// stockColumns are what a table shows of stocks.
var stockColumns = []column[stockRow]{
	{"item", false, func(r stockRow) any { return show(r.item) }},
	{"total", true, func(r stockRow) any { return r.Total }},
	{"left", true, func(r stockRow) any { return r.Left }},
	{"held", true, func(r stockRow) any { return r.Held }},
	{"sold", true, func(r stockRow) any { return r.Sold }},
}

// itemJSON is an item's stock in JSON.
type itemJSON struct {
	Item       string `json:"item"`
	ItemBase64 string `json:"item_base64,omitempty"`
	Total      int64  `json:"total"`
	Left       int64  `json:"left"`
	Held       int64  `json:"held"`
	Sold       int64  `json:"sold"`
}

// stockJSON is what stock has found or done, in JSON.
type stockJSON struct {
	Queue       string     `json:"queue"`
	QueueBase64 string     `json:"queue_base64,omitempty"`
	Changed     bool       `json:"changed"`
	DryRun      bool       `json:"dry_run"`
	Items       []itemJSON `json:"items"`
}

func (a *app) stockCommand() *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use: "stock QUEUE", Short: "Show how many units of what a queue sells are left, held and sold",
		Long: `Show the stocks of a queue: of each item how many units there are in all, how many of them are left, held by tasks (dead
letters too), and sold.

set says how many units of an item there are in all: what is held and sold stays, and what is left follows. delete ends
the sale of an item: nothing is left of it, and what tasks hold is counted on.`,
		Example: `  sluice stock orders
  sluice stock set orders phone 100
  sluice stock delete orders phone`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.stock(cmd.Context(), args[0], stockJSON{}, nil)
		},
	}
	change := func(use, short string, args int, read func(args []string) (func(ctx context.Context, q *sluice.Queue) error, error)) {
		sub := &cobra.Command{Use: use, Short: short, Args: usageArgs(cobra.ExactArgs(args)), RunE: func(cmd *cobra.Command, args []string) error {
			do, err := read(args)
			if err != nil {
				return err
			}
			return a.stock(cmd.Context(), args[0], stockJSON{Changed: true, DryRun: dryRun}, do)
		}}
		sub.Flags().BoolVar(&dryRun, "dry-run", false, "say what the stocks are, and do nothing")
		c.AddCommand(sub)
	}
	change("set QUEUE ITEM TOTAL", "Say how many units of an item there are in all", 3, func(args []string) (func(context.Context, *sluice.Queue) error, error) {
		item, err := a.argument(args[1])
		total, wrong := strconv.ParseInt(args[2], 10, 64)
		if wrong != nil || total < 0 {
			return nil, usagef("TOTAL is a number from 0 on, not %s", show(args[2]))
		}
		return func(ctx context.Context, q *sluice.Queue) error { return q.SetStock(ctx, item, total) }, err
	})
	change("delete QUEUE ITEM", "End the sale of an item", 2, func(args []string) (func(context.Context, *sluice.Queue) error, error) {
		item, err := a.argument(args[1])
		return func(ctx context.Context, q *sluice.Queue) error {
			if _, err := q.Stock(ctx, item); err != nil { // a typing mistake, perhaps
				return err
			}
			return q.DeleteStock(ctx, item)
		}, err
	})
	return c
}

// stock changes a queue's stocks, unless it is to do nothing, and shows them.
func (a *app) stock(ctx context.Context, argument string, j stockJSON, change func(ctx context.Context, q *sluice.Queue) error) error {
	q, name, err := a.open(ctx, argument)
	if err == nil && change != nil && !j.DryRun {
		err = change(ctx, q)
	}
	if err != nil {
		return err
	}
	stocks, err := q.Stocks(ctx)
	if err != nil {
		return err
	}
	var rows []stockRow
	for item, info := range stocks {
		rows = append(rows, stockRow{item, info})
	}
	slices.SortFunc(rows, func(a, b stockRow) int { return cmp.Compare(a.item, b.item) })
	if a.json {
		j.Items = []itemJSON{}
		for _, r := range rows {
			i := itemJSON{Total: r.Total, Left: r.Left, Held: r.Held, Sold: r.Sold}
			i.Item, i.ItemBase64 = report.Bytes(r.item)
			j.Items = append(j.Items, i)
		}
		j.Queue, j.QueueBase64 = report.Bytes(name)
		return report.Print(a.out, j)
	}
	if len(rows) == 0 {
		_, err = fmt.Fprintf(a.out, "%s: no stocks\n", show(name))
		return err
	}
	_, err = fmt.Fprintln(a.out, tableWithin(a.width(), stockColumns, rows))
	return err
}
