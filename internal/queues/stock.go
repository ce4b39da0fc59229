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

// soldOut remembers of which items too little was left: a million buyers who come too late do not all
// ask the server. When an answer is too old, one caller asks again, and until it has an answer the
// others are told what the last one was, for as long again at most.
type soldOut struct {
	mu    sync.Mutex // guards what follows
	items map[string]refusal
	// unsure has the IDs of tasks with an unknown outcome: perhaps they have their units. So the
	// server is asked about them.
	unsure map[string]struct{}
}

// refusal is what the server has said of an item.
type refusal struct {
	units int       // which were more than what was left
	until time.Time // then a caller asks
	last  time.Time // then all do
}

// knows reports whether a take is known to be in vain. If it does not, the caller is to ask the server,
// and to have learn know the answer.
func (s *soldOut) knows(id string, take store.Take) bool {
	if take.Units == 0 || take.Restore {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.items[take.Item]
	if !ok || take.Units < r.units {
		return false
	}
	if _, unsure := s.unsure[id]; unsure {
		return false
	}
	switch now := time.Now(); {
	case now.Before(r.until):
		return true
	case now.Before(r.last):
		r.until = r.last // this caller asks
		s.items[take.Item] = r
	default:
		delete(s.items, take.Item)
	}
	return false
}

// learn notes what has become of a task that takes units.
func (s *soldOut) learn(id string, take store.Take, outcome int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unsure, id)
	switch {
	case errors.Is(err, redisexec.ErrUnknown):
		s.unsure = remembered(s.unsure)
		s.unsure[id] = struct{}{}
		fallthrough
	case outcome != store.SoldOut:
		delete(s.items, take.Item)
	default:
		s.items = remembered(s.items)
		now := time.Now()
		s.items[take.Item] = refusal{take.Units, now.Add(soldOutFor), now.Add(2 * soldOutFor)}
	}
}

// remembered returns a map that has room.
func remembered[V any](m map[string]V) map[string]V {
	if m == nil || len(m) >= mostSoldOut {
		return map[string]V{}
	}
	return m
}

// forget forgets what the server has said: units have been put back.
func (s *soldOut) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.items)
}
