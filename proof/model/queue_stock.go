package model

import (
	"maps"
	"slices"

	"github.com/sluice-go/sluice"
)

// Stock is what the server knows of an item that is for sale.
type Stock struct {
	OnSale            bool // there has been a SetStock, and no DeleteStock since
	Total, Held, Sold int64
	Counted           bool // what is held has been counted, also if it is 0 now
}

// known says whether Stock has an answer.
func (s Stock) known() bool { return s.OnSale || s.Counted || s.Sold > 0 }

func (s Stock) left() int64 { return s.Total - s.Held - s.Sold }

// changeStock changes the stock of an item.
func (q *Queue) changeStock(item string, change func(s *Stock)) {
	s := q.Stocks[item]
	change(&s)
	if q.Stocks == nil {
		q.Stocks = map[string]Stock{}
	}
	q.Stocks[item] = s
	maps.DeleteFunc(q.Stocks, func(_ string, s Stock) bool { return !s.known() })
}

// SetStock says how many units of an item there are.
func (q *Queue) SetStock(item string, total int64) {
	q.changeStock(item, func(s *Stock) { s.OnSale, s.Total = true, total })
}

// DeleteStock ends the sale of an item. What is held is counted on.
func (q *Queue) DeleteStock(item string) {
	q.changeStock(item, func(s *Stock) { *s = Stock{Held: s.Held, Counted: s.Counted && s.Held != 0} })
}

// Stock returns the stock of an item.
func (q *Queue) Stock(item string) (info sluice.StockInfo, ok bool) {
	s, ok := q.Stocks[item]
	return sluice.StockInfo{Total: s.Total, Left: s.left(), Held: s.Held, Sold: s.Sold}, ok
}

// Holding returns how many units of each item are held: by tasks in the queue, by dead letters,
// and by what a sweep ends.
func (q *Queue) Holding() map[string]int64 {
	holding := map[string]int64{}
	for _, it := range q.Items {
		if it.Take.Units > 0 {
			holding[it.Take.Item] += int64(it.Take.Units)
		}
	}
	for _, take := range q.Owed {
		holding[take.Item] += int64(take.Units)
	}
	return holding
}

// EnqueueTake adds a task that takes units: if they are left, or whatever is left with Restore.
// within is for how many seconds what is done keeps its ID, 0 if the policy is not DuplicatesOnce.
// The outcome is 0 if the ID's task holds units of another item, or none.
func (q *Queue) EnqueueTake(now, within float64, id string, due float64, payload string, take sluice.Take) sluice.Outcome {
	it := q.Item(id)
	if it.Queued || it.Listed {
		if it.Take.Item == take.Item {
			return sluice.OutcomeKept
		}
		return 0
	}
	q.PutBack(id)
	if r, ok := q.shown(id); ok && within > 0 && r.At > now-within {
		return sluice.OutcomeDone
	}
	if s := q.Stocks[take.Item]; !take.Restore && (!s.OnSale || s.left() < int64(take.Units)) {
		return sluice.OutcomeSoldOut
	}
	take.Restore = false
	q.changeStock(take.Item, func(s *Stock) { s.Held, s.Counted = s.Held+int64(take.Units), true })
	*q.Item(id) = Item{ID: id, Payload: payload, Queued: true, Score: due, Holds: Holds{Take: take}}
	return sluice.OutcomeAdded
}

// PutBack puts back the units of tasks that a foreign consumer has removed, or that were dropped
// by who did not know of them. A script does so with all tasks that are to take units, before the
// first does.
func (q *Queue) PutBack(ids ...string) {
	for _, id := range ids {
		if it := q.Item(id); !it.Queued && !it.Listed {
			q.leave(it, false)
		}
	}
}

// settle ends what a task holds.
func (q *Queue) settle(take sluice.Take, isSold bool) {
	if take.Units == 0 {
		return
	}
	q.changeStock(take.Item, func(s *Stock) {
		s.Held, s.Counted = s.Held-int64(take.Units), true
		if isSold {
			s.Sold += int64(take.Units)
		}
	})
}

// leave removes what is there of a task, except a payload of one that is not there any more. Its
// units are put back, unless who removes it does not know that it has any: then a sweep does that.
func (q *Queue) leave(it *Item, unaware bool) {
	gone := Item{ID: it.ID}
	if !it.Listed {
		gone.Payload = it.Payload
	}
	if unaware {
		gone.Take = it.Take
	} else {
		q.settle(it.Take, false)
	}
	*it = gone
}

// Sweep ends the units of tasks that are no more.
func (q *Queue) Sweep() {
	for i := range q.Items {
		if it := &q.Items[i]; it.Take.Units > 0 && !it.Queued && !it.Listed {
			q.leave(it, false)
		}
	}
	for _, take := range q.Owed {
		q.settle(take, true)
	}
	q.Owed = nil
}

// Purge removes everything, except how many units there are, and are sold.
func (q *Queue) Purge() {
	q.Items, q.Records, q.Owed, q.Playing, q.Awaiting = nil, nil, nil, nil, nil
	for item := range maps.Clone(q.Stocks) {
		q.changeStock(item, func(s *Stock) { s.Held, s.Counted = 0, false })
	}
}

// Clone returns a copy.
func (q *Queue) Clone() *Queue {
	c := *q
	c.Items, c.Records, c.Stocks, c.Owed = slices.Clone(q.Items), slices.Clone(q.Records), maps.Clone(q.Stocks), slices.Clone(q.Owed)
	c.Playing, c.Awaiting = slices.Clone(q.Playing), slices.Clone(q.Awaiting)
	return &c
}

// Tidy removes the items that hold nothing.
func (q *Queue) Tidy() {
	q.Items = slices.DeleteFunc(q.Items, func(it Item) bool { return it == Item{ID: it.ID} })
}
