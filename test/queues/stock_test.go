package queues

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// phone is a task that takes one phone.
func phone(id string) sluice.Task {
	return sluice.Task{ID: id, Take: sluice.Take{Item: "phone"}}
}

// stock is a queue with a stock of phones.
type stock struct {
	systest.QueueTest
	total int64
}

func eachStock(t *testing.T, total int64, test func(s stock), opts ...sluice.QueueOption) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.NoError(b, b.Q.SetStock(b.Context(), "phone", total))
		test(stock{b, total})
	}, opts...)
}

// requireStock compares what is left, held and sold.
func (s stock) requireStock(left, held, sold int64) {
	s.Helper()
	info, err := s.Q.Stock(s.Context(), "phone")
	require.NoError(s, err)
	require.Equal(s, sluice.StockInfo{Total: s.total, Left: left, Held: held, Sold: sold}, info)
	require.Equal(s, s.total, left+held+sold)
}

// TestStock_ATaskTakesUnitsWithItsEnqueue: a unit is left, held or sold.
func TestStock_ATaskTakesUnitsWithItsEnqueue(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		ctx := s.Context()
		s.requireStock(3, 0, 0)
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		s.Enqueue(sluice.OutcomeKept, phone("a"))
		s.Enqueue(sluice.OutcomeKept, sluice.Task{ID: "a"})
		s.Enqueue(sluice.OutcomeSoldOut, sluice.Task{ID: "b", Take: sluice.Take{Item: "phone", Units: 3}})
		s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "b", Take: sluice.Take{Item: "phone", Units: 2}, Payload: []byte("p")})
		s.requireStock(0, 3, 0)
		s.Enqueue(sluice.OutcomeSoldOut, phone("c"))
		s.Enqueue(sluice.OutcomeSoldOut, sluice.Task{ID: "c", Take: sluice.Take{Item: "pear"}})
		_, err := s.Q.Get(ctx, "c")
		require.ErrorIs(s, err, sluice.ErrNotFound)

		es := s.Claim(2, time.Minute)
		require.Equal(s, sluice.Take{Item: "phone", Units: 1}, es[0].Take)
		require.Equal(s, sluice.Take{Item: "phone", Units: 2}, es[1].Take)
		require.Equal(s, 1, es[1].Attempt)
		require.Equal(s, "p", string(es[1].Payload))
		s.requireStock(0, 3, 0)
		require.NoError(s, s.Q.Dequeue(ctx, es[1]))
		s.requireStock(0, 1, 2)
		require.NoError(s, s.Q.Retry(ctx, 0, "failed", es[0]))
		s.requireStock(0, 1, 2)
		state, err := s.Q.Cancel(ctx, "a")
		require.NoError(s, err)
		require.Equal(s, sluice.StateDue, state)
		s.requireStock(1, 0, 2)
		s.RequireDrained()
	})
}

// TestStock_HowTheTaskEndsDecides, whatever has happened to it before.
func TestStock_HowTheTaskEndsDecides(t *testing.T) {
	before := map[string]func(s stock){
		"scheduled": func(s stock) {
			_, err := s.Q.Reschedule(s.Context(), "a", time.Hour)
			require.NoError(s, err)
		},
		"due":    func(stock) {},
		"leased": func(s stock) { s.ClaimOne(time.Minute) },
		"extended": func(s stock) {
			require.NoError(s, s.Q.Extend(s.Context(), s.ClaimOne(time.Minute), time.Hour))
		},
		"retried": func(s stock) {
			require.NoError(s, s.Q.Retry(s.Context(), 0, "failed", s.ClaimOne(time.Minute)))
		},
		"released":      func(s stock) { require.NoError(s, s.Q.Release(s.Context(), s.ClaimOne(time.Minute))) },
		"lease ran out": func(s stock) { s.EndLeaseUnseen(s.ClaimOne(time.Minute)) },
		"rescheduled while leased": func(s stock) {
			e := s.ClaimOne(time.Minute)
			_, err := s.Q.Reschedule(s.Context(), "a", 0)
			require.NoError(s, err)
			require.NoError(s, s.Q.Dequeue(s.Context(), e))
		},
		"dead":    func(s stock) { s.Bury(s.ClaimOne(time.Minute), "why") },
		"revived": func(s stock) { s.Bury(s.ClaimOne(time.Minute), "why"); s.Revive(1, "a") },
	}
	type end struct {
		do         func(s stock) (err error)
		left, sold int64
	}
	claimed := func(s stock, settle func(e sluice.Entry) error) error {
		info, err := s.Q.Get(s.Context(), "a")
		if err != nil || info.State != sluice.StateDue {
			return errors.ErrUnsupported
		}
		return settle(s.ClaimOne(time.Minute))
	}
	ends := map[string]end{
		"cancelled": {func(s stock) error { _, err := s.Q.Cancel(s.Context(), "a"); return err }, 5, 0},
		"purged":    {func(s stock) error { return s.Q.Purge(s.Context()) }, 5, 0},
		"dequeued": {func(s stock) error {
			return claimed(s, func(e sluice.Entry) error { return s.Q.Dequeue(s.Context(), e) })
		}, 3, 2},
		"popped": {func(s stock) error {
			if info, err := s.Q.Get(s.Context(), "a"); err != nil || info.State != sluice.StateDue {
				return errors.ErrUnsupported
			}
			es, err := s.Q.Pop(s.Context(), 1)
			require.Len(s, es, 1)
			require.Equal(s, sluice.Take{Item: "phone", Units: 2}, es[0].Take)
			return err
		}, 3, 2},
		"dropped": {func(s stock) error {
			n, err := s.Q.Drop(s.Context(), "a")
			if n == 0 {
				return errors.ErrUnsupported
			}
			return err
		}, 5, 0},
		"discarded": {func(s stock) error {
			if info, err := s.Q.Get(s.Context(), "a"); err != nil || info.State != sluice.StateDue {
				return errors.ErrUnsupported
			}
			w := &sluice.Worker{Queue: s.Q, Handler: func(context.Context, sluice.Entry) error { return sluice.Discard(errors.ErrUnsupported) }}
			stop := systest.StartWorker(s.T, w)
			s.Eventually(func() bool { return w.Stats().Discarded == 1 })
			return stop()
		}, 5, 0},
	}
	for from, prepare := range before {
		for how, end := range ends {
			t.Run(from+" and "+how, func(t *testing.T) {
				eachStock(t, 5, func(s stock) {
					s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Take: sluice.Take{Item: "phone", Units: 2}})
					prepare(s)
					s.requireStock(3, 2, 0)
					require.Equal(s, sluice.Take{Item: "phone", Units: 2}, s.Get("a").Take)
					s.Enqueue(sluice.OutcomeKept, sluice.Task{ID: "a"})
					_, err := s.Q.Enqueue(s.Context(), sluice.Task{ID: "a", Take: sluice.Take{Item: "pear"}})
					require.ErrorIs(s, err, sluice.ErrInvalid)
					err = end.do(s)
					if errors.Is(err, errors.ErrUnsupported) {
						s.requireStock(3, 2, 0)
						return
					}
					require.NoError(s, err)
					s.requireStock(end.left, 0, end.sold)
					s.RequireClean()
				})
			})
		}
	}
}

// TestStock_AttemptsUsedUpHoldThem: the task is a dead letter, until it is dropped.
func TestStock_AttemptsUsedUpHoldThem(t *testing.T) {
	eachStock(t, 2, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		require.NoError(s, s.Q.Retry(s.Context(), 0, "failed", s.ClaimOne(time.Minute)))
		require.Empty(s, s.Claim(1, time.Minute))
		require.Equal(s, "a", s.Dead(1)[0].ID)
		require.Equal(s, sluice.Take{Item: "phone", Units: 1}, s.Dead(1)[0].Take)
		s.requireStock(1, 1, 0)
		s.Enqueue(sluice.OutcomeKept, phone("a"))
		s.Revive(1, "a")
		s.requireStock(1, 1, 0)
		require.NoError(s, s.Q.Dequeue(s.Context(), s.ClaimOne(time.Minute)))
		s.requireStock(1, 0, 1)
	}, sluice.WithMaxAttempts(1))
}

// TestStock_LimitsOfDeadLettersPutBack: the oldest is dropped when another one dies.
func TestStock_LimitsOfDeadLettersPutBack(t *testing.T) {
	eachStock(t, 5, func(s stock) {
		for i := range 3 {
			s.Enqueue(sluice.OutcomeAdded, phone(fmt.Sprint(i)))
			s.Bury(s.ClaimOne(time.Minute), "why")
		}
		s.Dead(1)
		s.requireStock(4, 1, 0)
	}, sluice.WithDeadLimit(1))
}

// TestStock_RestoreTakesWhatIsNotThere, in the order in which a shop fills an empty Redis.
func TestStock_RestoreTakesWhatIsNotThere(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		s := stock{b, 3}
		order := func(id string) sluice.Task {
			return sluice.Task{ID: id, Take: sluice.Take{Item: "phone", Units: 2, Restore: true}}
		}
		s.Enqueue(sluice.OutcomeAdded, order("a"))
		s.Enqueue(sluice.OutcomeKept, order("a"))
		info, err := s.Q.Stock(s.Context(), "phone")
		require.NoError(s, err)
		require.Equal(s, sluice.StockInfo{Left: -2, Held: 2}, info)
		s.Enqueue(sluice.OutcomeSoldOut, phone("b"))
		require.NoError(s, s.Q.SetStock(s.Context(), "phone", 3))
		s.requireStock(1, 2, 0)
		s.Enqueue(sluice.OutcomeAdded, phone("b"))
		s.Enqueue(sluice.OutcomeAdded, order("c"))
		s.requireStock(-2, 5, 0)
		s.Enqueue(sluice.OutcomeSoldOut, phone("d"))
	})
}

// TestStock_OfEachItem: one queue sells several, with names of any bytes.
func TestStock_OfEachItem(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		want := map[string]sluice.StockInfo{}
		for i, item := range []string{"a", "a:b", "a$", "*1,2:xx", "\x00\n", "held:a", "7", "sweep"} {
			require.NoError(b, b.Q.SetStock(ctx, item, int64(i+2)))
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "1" + item, Take: sluice.Take{Item: item}, Delay: time.Hour})
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "2" + item, Take: sluice.Take{Item: item}})
			e := b.ClaimOne(time.Minute)
			require.Equal(b, item, e.Take.Item)
			require.NoError(b, b.Q.Dequeue(ctx, e))
			want[item] = sluice.StockInfo{Total: int64(i + 2), Left: int64(i), Held: 1, Sold: 1}
			require.Equal(b, item, b.Get("1"+item).Take.Item)
		}
		stocks, err := b.Q.Stocks(ctx)
		require.NoError(b, err)
		require.Equal(b, want, stocks)
		require.NoError(b, b.Q.DeleteStock(ctx, "a"))
		info, err := b.Q.Stock(ctx, "a")
		require.NoError(b, err)
		require.Equal(b, sluice.StockInfo{Left: -1, Held: 1}, info)
		_, err = b.Q.Cancel(ctx, "1a")
		require.NoError(b, err)
		require.NoError(b, b.Q.DeleteStock(ctx, "a"))
		_, err = b.Q.Stock(ctx, "a")
		require.ErrorIs(b, err, sluice.ErrNotFound)
	})
}

// TestStock_BatchTellsEachOutcome: those that come first get the units.
func TestStock_BatchTellsEachOutcome(t *testing.T) {
	eachStock(t, 2, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "plain"})
		outcomes, err := s.Q.EnqueueBatch(s.Context(), []sluice.Task{phone("a"), phone("a"), {ID: "x"}, phone("b"), phone("c"), {ID: "a"}})
		require.NoError(s, err)
		require.Equal(s, []sluice.Outcome{
			sluice.OutcomeAdded, sluice.OutcomeKept, sluice.OutcomeAdded, sluice.OutcomeAdded, sluice.OutcomeSoldOut, sluice.OutcomeKept,
		}, outcomes)
		s.requireStock(0, 2, 0)
		outcomes, err = s.Q.EnqueueBatch(s.Context(), []sluice.Task{phone("a"), phone("plain"), phone("d")})
		require.ErrorIs(s, err, sluice.ErrInvalid)
		require.Equal(s, []sluice.Outcome{sluice.OutcomeKept, 0, sluice.OutcomeSoldOut}, outcomes)
	})
}

// TestStock_BuyersBuyOnce, with DuplicatesOnce.
func TestStock_BuyersBuyOnce(t *testing.T) {
	eachStock(t, 2, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		require.NoError(s, s.Q.Dequeue(s.Context(), s.ClaimOne(time.Minute)))
		s.Enqueue(sluice.OutcomeDone, phone("a"))
		s.requireStock(1, 0, 1)
	}, sluice.WithDuplicates(sluice.DuplicatesOnce), sluice.WithRetention(time.Hour))
}
