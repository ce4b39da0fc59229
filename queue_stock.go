package sluice

import (
	"cmp"
	"context"
	"fmt"

	"github.com/sluice-go/sluice/internal/store"
)

// Take is units of an item that is for sale, such as ten phones at half price: a Task takes them in
// the step that enqueues it.
//
// A unit is left, or a task holds it, or it is sold. How the task ends decides. When it is done
// (its handler returns nil, or Dequeue or Pop takes it out), its units are sold. When it is
// discarded, cancelled, purged or dropped as a dead letter, they are put back by the same script.
// As long as it waits, is leased, is tried again or is a dead letter, it holds them. StockInfo
// counts all three, and their sum is the total of SetStock.
//
// If fewer units are left than it takes, the task is not enqueued: OutcomeSoldOut. For 100ms after
// the server has said so, a Queue answers without asking it. Then one caller asks again, and the
// others get the old answer for 100ms more at most. What this Queue puts back ends that at once.
// Such an answer looks at no ID. An item without a stock is sold out.
//
// A task that holds units is not replaced. An enqueue of its ID is OutcomeKept, whatever the
// policy: so with the buyer in the ID, a repeat after ErrUnknown says that this buyer has units.
// With DuplicatesOnce a buyer who has bought is OutcomeDone, and may buy again otherwise. A task
// that takes units is ErrInvalid where the task of that ID holds another Item, or nothing, dead
// letters included; so a buyer who may have several items has an ID for each.
//
// A failover to a replica that has not received an enqueue or an end undoes that, as it does for
// any task: the row in a database has the last word.
type Take struct {
	// Item names what is for sale: 1 to 256 bytes. "" takes nothing.
	Item string
	// Units is how many: 1 to 1,000,000. Defaults to 1.
	Units int
	// Restore has the task hold its units whatever is left, so that Left may be below 0. It fills a
	// Redis that came back empty: first enqueue all orders that are not cancelled, the paid ones too,
	// with Restore; then SetStock of the whole total.
	Restore bool
}

// The most that a Take may have.
const maxItem, maxUnits = 256, 1_000_000

// check says what is wrong with it.
func (t Take) check() error {
	switch {
	case t == Take{}:
		return nil
	case len(t.Item) == 0 || len(t.Item) > maxItem:
		return fmt.Errorf("%w: Take.Item must be 1 to %d bytes", ErrInvalid, maxItem)
	case t.Units < 0 || t.Units > maxUnits:
		return fmt.Errorf("%w: Take.Units must be 1 to %d", ErrInvalid, maxUnits)
	}
	return nil
}

// draft returns it as the engine takes it.
func (t Take) draft() store.Take {
	if t.Item == "" {
		return store.Take{}
	}
	return store.Take{Item: t.Item, Units: cmp.Or(t.Units, 1), Restore: t.Restore}
}

// StockInfo is how many units of an item there are: Total is Left, Held and Sold together.
type StockInfo struct {
	Total int64 // what SetStock said
	Left  int64 // may be taken; below 0 if more are held and sold than there are
	Held  int64 // tasks have them, dead letters too
	Sold  int64 // tasks that had them are done
}

func stockInfo(s store.Stock) StockInfo {
	return StockInfo{Total: s.Total, Left: s.Total - s.Held - s.Sold, Held: s.Held, Sold: s.Sold}
}

// SetStock says how many units of an item there are in all: those that are left, held and sold. It
// may be called again, with the same total or another one: what is held and sold stays, and what is
// left follows.
//
// ErrInvalid: a total below 0, or an item of more than 256 bytes. After ErrUnknown call it again; the
// request that had no reply may still arrive later, and set its total.
func (q *Queue) SetStock(ctx context.Context, item string, total int64) error {
	if err := q.checkArgument("set stock", badUnless(total >= 0, "total must be 0 or more")); err != nil {
		return err
	}
	return q.ofItem("set stock", item, func() error { return q.engine.SetStock(ctx, item, total) })
}

// Stock returns how many units of an item are left, held and sold; ErrNotFound if there has been no
// SetStock, and no task holds any.
func (q *Queue) Stock(ctx context.Context, item string) (info StockInfo, err error) {
	err = q.ofItem("stock", item, func() error {
		s, err := q.engine.Stock(ctx, item)
		info = stockInfo(s)
		return err
	})
	return info, err
}

// Stocks returns the stocks of all items. It reads them at once: they should be some thousands at
// most.
func (q *Queue) Stocks(ctx context.Context) (map[string]StockInfo, error) {
	infos := map[string]StockInfo{}
	err := q.do("stocks", func() error {
		stocks, err := q.engine.Stocks(ctx)
		for item, s := range stocks {
			infos[item] = stockInfo(s)
		}
		return err
	})
	return infos, err
}

// DeleteStock ends the sale of an item: its total and what was sold are forgotten, and it is sold
// out. What tasks hold is counted on, until a DeleteStock when nothing is held. After ErrUnknown it
// may be called again.
func (q *Queue) DeleteStock(ctx context.Context, item string) error {
	return q.ofItem("delete stock", item, func() error { return q.engine.DeleteStock(ctx, item) })
}

// ofItem carries out an operation on an item's stock.
func (q *Queue) ofItem(op, item string, do func() error) error {
	if err := q.checkArgument(op, badUnless(item != "" && len(item) <= maxItem, fmt.Sprintf("item must be 1 to %d bytes", maxItem))); err != nil {
		return err
	}
	return q.do(op, do)
}
