package store

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// Stock is how many units of an item there are.
type Stock struct{ Total, Held, Sold int64 }

// SetStock says how many units of an item there are in all.
func (q *Queue) SetStock(item string, n int64) redisexec.Request {
	return q.replicated(q.scripts.SetStock.Request(q.stock, item, n))
}

// DeleteStock removes an item's stock.
func (q *Queue) DeleteStock(item string) redisexec.Request {
	return q.replicated(q.scripts.SetStock.Request(q.stock, item, ""))
}

// Stock asks for one item.
func (q *Queue) Stock(item string) redisexec.Request { return q.scripts.Stocks.Request(q.stock, item) }

// Stocks asks for all items.
func (q *Queue) Stocks() redisexec.Request { return q.scripts.Stocks.Request(q.stock) }

// DecodeStock reads the answer about one item, and whether there is one.
func DecodeStock(value any) (s Stock, known bool, err error) {
	r := newReader(value)
	for _, n := range []*int64{&s.Total, &s.Held, &s.Sold} {
		text := r.text()
		known = known || text != ""
		*n = r.number(cmp.Or(text, "0"))
	}
	return s, known, r.err()
}

// DecodeStocks reads the answer about all items.
func DecodeStocks(value any) (map[string]Stock, error) {
	stocks, r := map[string]Stock{}, newReader(value)
	for r.more() {
		what, item, isItem := strings.Cut(r.text(), ":")
		text := r.text()
		if !isItem {
			continue // how far the sweep has come
		}
		s := stocks[item]
		switch n := r.number(text); what {
		case "total":
			s.Total = n
		case "held":
			s.Held = n
		case "sold":
			s.Sold = n
		}
		stocks[item] = s
	}
	return stocks, r.err()
}

// number reads a text that was a part.
func (r *reader) number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	r.bad = r.bad || err != nil
	return n
}
