package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// stormLimit ends a contender's turn. "n of 500 got in" then says how many goroutines got the
// lock.
const stormLimit = 20 * time.Second

// storm measures a crowd of goroutines that each want the lock once.
func storm(hold time.Duration) scenario {
	return scenario{
		name:    fmt.Sprint("storm-", hold),
		about:   fmt.Sprintf("500 goroutines on one name, each once, for %v; time until the last is through, %v at most", hold, stormLimit),
		measure: duration,
		entries: append(peers(), enter("local mutex")...),
		retry:   retryForCrowds,
		columns: []column{{"overtaken", median, percent}, commandsColumn},
		turn:    func(ctx context.Context, t turn) (result, error) { return stormTurn(ctx, t, hold) },
	}
}

func stormTurn(ctx context.Context, t turn, hold time.Duration) (result, error) {
	r := result{waits: newWaits()}
	crowd := 500
	if t.quick {
		crowd = 20
		r.notes = "a crowd of 20 only"
	}
	limited, cancel := context.WithTimeoutCause(ctx, stormLimit, errors.New("the time was over"))
	defer cancel()
	s := stormRun{contender: t.contender, name: uniqueName("storm"), hold: hold}
	var wg sync.WaitGroup
	began := time.Now()
	for range crowd {
		wg.Go(func() {
			waited, err := s.getIn(limited)
			s.mu.Lock()
			defer s.mu.Unlock()
			_ = r.waits.RecordValue(int64(waited))
			r.failures.add(err)
		})
	}
	wg.Wait()
	r.value = float64(time.Since(began))
	r.ops = float64(len(s.order))
	r.extra = map[string]float64{"overtaken": overtaken(s.order)}
	if n := len(s.order); n < crowd {
		r.notes = fmt.Sprintf("%d of %d got in", n, crowd)
	}
	return r, s.guard.check()
}

// stormRun is one turn of a storm.
type stormRun struct {
	contender contender
	name      string
	hold      time.Duration
	arrivals  atomic.Int64
	guard     guard
	order     []int64 // arrivals in the order of service; guarded by the measured lock

	mu sync.Mutex // guards the turn's result
}

// getIn gets the lock once.
func (s *stormRun) getIn(ctx context.Context) (waited time.Duration, err error) {
	arrival := s.arrivals.Add(1)
	began := time.Now()
	unlock, err := s.contender.Lock(ctx, s.name)
	waited = time.Since(began)
	if err != nil {
		return waited, fmt.Errorf("lock: %w", err)
	}
	s.guard.enter()
	s.order = append(s.order, arrival)
	time.Sleep(s.hold)
	s.guard.leave()
	if err := unlock(context.WithoutCancel(ctx)); err != nil {
		return waited, fmt.Errorf("unlock: %w", err)
	}
	return waited, nil
}

// overtaken returns the share of pairs that were served in the wrong order: 0 is first come,
// first served; 1/2 is random.
func overtaken(order []int64) float64 {
	wrong, pairs := 0, 0
	for i := range order {
		for j := range i {
			pairs++
			if order[j] > order[i] {
				wrong++
			}
		}
	}
	return float64(wrong) / float64(max(pairs, 1))
}
