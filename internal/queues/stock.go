package queues

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// SetStock says how many units of an item there are in all.
func (q *Queue) SetStock(ctx context.Context, item string, n int64) error {
	defer q.soldOut.forget()
	return q.Change(ctx, q.Store.SetStock(item, n))
}

// DeleteStock removes an item's stock.
func (q *Queue) DeleteStock(ctx context.Context, item string) error {
	return q.Change(ctx, q.Store.DeleteStock(item))
}

// Purge removes all tasks.
func (q *Queue) Purge(ctx context.Context) error {
	defer q.soldOut.forget()
	return q.Change(ctx, q.Store.Purge())
}

// Stock returns an item's stock.
func (q *Queue) Stock(ctx context.Context, item string) (store.Stock, error) {
	return ask(ctx, q, q.Store.Stock(item), func(value any) (store.Stock, error) {
		s, known, err := store.DecodeStock(value)
		if err == nil && !known {
			err = ErrNotFound
		}
		return s, err
	})
}

// Stocks returns those of all items.
func (q *Queue) Stocks(ctx context.Context) (map[string]store.Stock, error) {
	return ask(ctx, q, q.Store.Stocks(), store.DecodeStocks)
}

const (
	// soldOutFor is for how long an answer of the server counts.
	soldOutFor = 100 * time.Millisecond
	// mostSoldOut is how many items, and IDs, are remembered at most.
	mostSoldOut = 10_000
)

// soldOut remembers of which items too little was left: a million buyers who come too late do not
// all ask the server. When an answer is too old, one caller asks again, and until it has an answer
// the others are told what the last one was, for as long again at most.
type soldOut struct {
	mu    sync.Mutex // guards what follows
	items map[string]refusal
	// forgotten counts calls of forget: an answer to what was sent before the last one says
	// nothing.
	forgotten int
	// unsure has the IDs of tasks with an unknown outcome: perhaps they have their units. So the
	// server is asked about them.
	unsure map[string]struct{}
}

// refusal is what the server has said of an item.
type refusal struct {
	units int       // which were more than what was left; 0 if it has sold some
	asked time.Time // before the server has said so
	until time.Time // then a caller asks
	last  time.Time // then all do
}

// question is what learn needs to know of one that the server was asked.
type question struct {
	asked     time.Time
	forgotten int // of soldOut
}

// knows reports whether a take is known to be in vain. If it is not, the caller is to ask the
// server, and to have learn know the answer.
func (s *soldOut) knows(id string, take store.Take) (known bool, q question) {
	if take.Units == 0 || take.Restore {
		return false, question{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, now := s.items[take.Item], time.Now()
	q = question{now, s.forgotten}
	if r.units == 0 || take.Units < r.units {
		return false, q
	}
	if _, unsure := s.unsure[id]; unsure {
		return false, q
	}
	switch {
	case now.Before(r.until):
		return true, question{}
	case now.Before(r.last):
		r.until = r.last // this caller asks
		s.items[take.Item] = r
	default:
		delete(s.items, take.Item)
	}
	return false, q
}

// learn notes what the server has said of a task that takes units, or that its outcome is not
// known.
func (s *soldOut) learn(id string, take store.Take, q question, outcome int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, redisexec.ErrUnknown) {
		s.unsure = roomIn(s.unsure)
		s.unsure[id] = struct{}{}
		delete(s.items, take.Item)
	}
	if outcome == 0 {
		return // it was not asked, as far as is known
	}
	delete(s.unsure, id)
	now, old := time.Now(), s.items[take.Item]
	switch {
	case take.Restore || q.asked.Before(old.asked): // it says nothing of what is left, or less than is known
	case outcome == store.Added:
		s.items = roomIn(s.items)
		s.items[take.Item] = refusal{asked: q.asked}
	case outcome == store.SoldOut && q.forgotten == s.forgotten && (take.Units <= old.units || !now.Before(old.last)): // to one that takes more it says less
		s.items = roomIn(s.items)
		s.items[take.Item] = refusal{take.Units, q.asked, now.Add(soldOutFor), now.Add(2 * soldOutFor)}
	}
}

// roomIn returns a map that has room for another entry: it drops any one of too many.
func roomIn[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	for key := range m {
		if len(m) < mostSoldOut {
			break
		}
		delete(m, key)
	}
	return m
}

// forget forgets what the server has said: units have been put back.
func (s *soldOut) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.items)
	s.forgotten++
}
