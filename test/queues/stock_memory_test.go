package queues

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestStock_ASoldOutItemCostsTenCommandsASecond, however many buyers ask, and one that comes back
// is sold within 100ms.
func TestStock_ASoldOutItemCostsTenCommandsASecond(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx, q := t.Context(), systest.NewQueue(t, rdb)
		require.NoError(t, q.SetStock(ctx, "phone", 1))
		outcome, err := q.Enqueue(ctx, phone("first"))
		require.NoError(t, err)
		require.Equal(t, sluice.OutcomeAdded, outcome)
		var soldOut atomic.Int64
		before := m.CommandCount()
		var buyers sync.WaitGroup
		for i := range 100 {
			buyers.Go(func() {
				for j := range 100 {
					outcome, err := q.Enqueue(ctx, phone(fmt.Sprintf("%d.%d", i, j)))
					if err == nil && outcome == sluice.OutcomeSoldOut {
						soldOut.Add(1)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		buyers.Wait()
		require.Equal(t, int64(10_000), soldOut.Load())
		require.LessOrEqual(t, m.CommandCount()-before, 100+11, "the first of all, and ten a second")

		other, err := sluice.NewQueue(rdb, q.Name()) // as of another process
		require.NoError(t, err)
		_, err = other.Cancel(ctx, "first")
		require.NoError(t, err)
		since := time.Now()
		for outcome = 0; outcome != sluice.OutcomeAdded; {
			outcome, err = q.Enqueue(ctx, phone("late"))
			require.NoError(t, err)
			if outcome == sluice.OutcomeSoldOut {
				time.Sleep(time.Millisecond)
			}
		}
		require.LessOrEqual(t, time.Since(since), 101*time.Millisecond)
	})
}

// TestStock_WhatWasSoldOutLongAgoIsAskedAbout, by each of those who come at once: they are not told
// what the server has said then while the first of them asks.
func TestStock_WhatWasSoldOutLongAgoIsAskedAbout(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx, q := t.Context(), systest.NewQueue(t, rdb)
		outcome, err := q.Enqueue(ctx, phone("early"))
		require.NoError(t, err)
		require.Equal(t, sluice.OutcomeSoldOut, outcome)
		other, err := sluice.NewQueue(rdb, q.Name()) // as of another process
		require.NoError(t, err)
		require.NoError(t, other.SetStock(ctx, "phone", 100))
		time.Sleep(time.Second)
		var buyers sync.WaitGroup
		for i := range 20 {
			buyers.Go(func() {
				outcome, err := q.Enqueue(ctx, phone(fmt.Sprint(i)))
				if err != nil || outcome != sluice.OutcomeAdded {
					t.Errorf("%v %v", outcome, err)
				}
			})
		}
		buyers.Wait()
	})
}

// TestStock_WhatComesBackIsSoldAtOnce, if this process has put it back.
func TestStock_WhatComesBackIsSoldAtOnce(t *testing.T) {
	for name, back := range map[string]func(ctx context.Context, q *sluice.Queue) error{
		"cancelled": func(ctx context.Context, q *sluice.Queue) error { _, err := q.Cancel(ctx, "a"); return err },
		"purged":    func(ctx context.Context, q *sluice.Queue) error { return q.Purge(ctx) },
		"added":     func(ctx context.Context, q *sluice.Queue) error { return q.SetStock(ctx, "phone", 2) },
		"dropped": func(ctx context.Context, q *sluice.Queue) error {
			es, err := q.Claim(ctx, 1, time.Minute)
			if err == nil {
				err = q.Bury(ctx, "why", es...)
			}
			if err == nil {
				_, err = q.Drop(ctx, "a")
			}
			return err
		},
		"discarded": func(ctx context.Context, q *sluice.Queue) error {
			ctx, stop := context.WithCancel(ctx)
			w := &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return sluice.Discard(context.Canceled) }}
			time.AfterFunc(50*time.Millisecond, stop)
			return w.Run(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
				ctx, q := t.Context(), systest.NewQueue(t, rdb)
				require.NoError(t, q.SetStock(ctx, "phone", 1))
				enqueue := func(id string, want sluice.Outcome) {
					outcome, err := q.Enqueue(ctx, phone(id))
					require.NoError(t, err)
					require.Equal(t, want, outcome)
				}
				enqueue("a", sluice.OutcomeAdded)
				for range 5 {
					enqueue("b", sluice.OutcomeSoldOut)
				}
				require.NoError(t, back(ctx, q))
				enqueue("b", sluice.OutcomeAdded)
			})
		})
	}
}

// TestStock_ALateAnswerIsNotRemembered: a unit was put back while "sold out" was on its way.
func TestStock_ALateAnswerIsNotRemembered(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx := t.Context()
		hook := &holdReply{held: make(chan struct{}), release: make(chan struct{})}
		rdb.AddHook(hook)
		q := systest.NewQueue(t, rdb)
		require.NoError(t, q.SetStock(ctx, "phone", 1))
		_, err := q.Enqueue(ctx, phone("a"))
		require.NoError(t, err)
		hook.armed.Store(true)
		late := make(chan sluice.Outcome, 1)
		go func() { // ends with the release
			outcome, _ := q.Enqueue(ctx, phone("b"))
			late <- outcome
		}()
		<-hook.held
		_, err = q.Cancel(ctx, "a")
		require.NoError(t, err)
		close(hook.release)
		require.Equal(t, sluice.OutcomeSoldOut, <-late)
		outcome, err := q.Enqueue(ctx, phone("c"))
		require.NoError(t, err)
		require.Equal(t, sluice.OutcomeAdded, outcome)
	})
}

// TestStock_AnAnswerFromBeforeASaleIsNotRemembered: "sold out" was on its way for so long that units
// which another process has added were sold meanwhile.
func TestStock_AnAnswerFromBeforeASaleIsNotRemembered(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		ctx := t.Context()
		hook := &holdReply{held: make(chan struct{}), release: make(chan struct{})}
		rdb.AddHook(hook)
		q := systest.NewQueue(t, rdb)
		_, err := q.Enqueue(ctx, sluice.Task{ID: "a", Take: sluice.Take{Item: "pear"}}) // so that the server knows the script
		require.NoError(t, err)
		hook.armed.Store(true)
		late := make(chan sluice.Outcome, 1)
		go func() { // ends with the release
			outcome, _ := q.Enqueue(ctx, phone("a"))
			late <- outcome
		}()
		<-hook.held
		other, err := sluice.NewQueue(rdb, q.Name()) // as of another process
		require.NoError(t, err)
		require.NoError(t, other.SetStock(ctx, "phone", 100))
		sell := func(id string) {
			t.Helper()
			outcome, err := q.Enqueue(ctx, phone(id))
			require.NoError(t, err)
			require.Equal(t, sluice.OutcomeAdded, outcome)
		}
		time.Sleep(time.Second)
		sell("b")
		close(hook.release)
		require.Equal(t, sluice.OutcomeSoldOut, <-late)
		sell("c")
	})
}

// TestStock_WhoHasAUnitLeavesTheMemoryAlone: that a buyer has one says nothing of what is left.
func TestStock_WhoHasAUnitLeavesTheMemoryAlone(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		var count holdReply
		rdb.AddHook(&count)
		ctx, q := t.Context(), systest.NewQueue(t, rdb)
		require.NoError(t, q.SetStock(ctx, "phone", 1))
		outcome, err := q.Enqueue(ctx, phone("has one"))
		require.NoError(t, err)
		require.Equal(t, sluice.OutcomeAdded, outcome)
		count.commands.Store(0)
		var buyers sync.WaitGroup
		for i := range 100 {
			buyers.Go(func() {
				for j := range 100 {
					id := fmt.Sprintf("%d.%d", i, j)
					if i%2 == 0 {
						id = "has one"
					}
					if _, err := q.Enqueue(ctx, phone(id)); err != nil {
						t.Error(err)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		buyers.Wait()
		t.Log(count.commands.Load())
		require.LessOrEqual(t, count.commands.Load(), int64(100+11), "the first of all, and ten a second")
	})
}

// holdReply holds the next reply back, once it is armed, and counts commands.
type holdReply struct {
	commands      atomic.Int64
	armed         atomic.Bool
	held, release chan struct{}
}

func (h *holdReply) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *holdReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *holdReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.commands.Add(1)
		err := next(ctx, cmd)
		if h.armed.CompareAndSwap(true, false) {
			close(h.held)
			<-h.release
		}
		return err
	}
}

// TestStock_AnUnknownOutcomeIsAskedAbout until the server has answered: also after a repeat that
// did not reach it, and for an ID of a batch.
func TestStock_AnUnknownOutcomeIsAskedAbout(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		require.NoError(t, q.SetStock(ctx, "phone", 2))
		_, err := q.Enqueue(ctx, sluice.Task{ID: "a", Take: sluice.Take{Item: "pear"}}) // so that the server knows the script
		require.NoError(t, err)
		faults.DropReply(1)
		_, err = q.Enqueue(ctx, phone("a"))
		require.ErrorIs(t, err, sluice.ErrUnknown)
		faults.DropReply(1)
		_, err = q.EnqueueBatch(ctx, []sluice.Task{phone("b")})
		require.ErrorIs(t, err, sluice.ErrUnknown)
		over, cancel := context.WithCancel(ctx)
		cancel()
		_, err = q.Enqueue(over, phone("a"))
		require.Error(t, err)
		for id, want := range map[string]sluice.Outcome{"a": sluice.OutcomeKept, "b": sluice.OutcomeKept} {
			outcome, err := q.Enqueue(ctx, phone("late"))
			require.NoError(t, err)
			require.Equal(t, sluice.OutcomeSoldOut, outcome)
			outcome, err = q.Enqueue(ctx, phone(id))
			require.NoError(t, err)
			require.Equal(t, want, outcome, id)
		}
	})
}

// TestStock_LargerTakesLeaveTheMemoryAlone: what is known of one unit stays known, and a Cancel
// that finds nothing changes nothing.
func TestStock_LargerTakesLeaveTheMemoryAlone(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		var count holdReply
		rdb.AddHook(&count)
		ctx, q := t.Context(), systest.NewQueue(t, rdb)
		for i := range 1000 {
			outcome, err := q.Enqueue(ctx, sluice.Task{ID: fmt.Sprint(i), Take: sluice.Take{Item: "phone", Units: 1 + i%7%5}})
			require.NoError(t, err)
			require.Equal(t, sluice.OutcomeSoldOut, outcome)
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, count.commands.Load(), int64(20))
		count.commands.Store(0)
		for i := range 50 {
			_, err := q.Cancel(ctx, "absent")
			require.NoError(t, err)
			_, err = q.Enqueue(ctx, phone(fmt.Sprint(i)))
			require.NoError(t, err)
		}
		require.LessOrEqual(t, count.commands.Load(), int64(50+2))
	})
}

// TestStock_SmallerTakesAskForThemselves: what is too little for one is enough for another.
func TestStock_SmallerTakesAskForThemselves(t *testing.T) {
	eachStock(t, 2, func(s stock) {
		many := func(id string, units int) sluice.Task {
			return sluice.Task{ID: id, Take: sluice.Take{Item: "phone", Units: units}}
		}
		s.Enqueue(sluice.OutcomeSoldOut, many("a", 3))
		s.Enqueue(sluice.OutcomeSoldOut, many("b", 4))
		s.Enqueue(sluice.OutcomeAdded, many("c", 2))
		s.Enqueue(sluice.OutcomeSoldOut, many("d", 1))
	})
}

// TestStock_ALostReplyIsAskedAbout: the buyer perhaps has a unit, and is not told that the item is
// sold out.
func TestStock_ALostReplyIsAskedAbout(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		rdb, faults := s.Faulty(t)
		q := systest.NewQueue(t, rdb)
		require.NoError(t, q.SetStock(ctx, "phone", 1))
		_, err := q.Enqueue(ctx, sluice.Task{ID: "a", Take: sluice.Take{Item: "pear"}}) // so that the server knows the script
		require.NoError(t, err)
		faults.DropReply(1)
		_, err = q.Enqueue(ctx, phone("a"))
		require.ErrorIs(t, err, sluice.ErrUnknown)
		outcome, err := q.Enqueue(ctx, phone("b"))
		require.NoError(t, err)
		require.Equal(t, sluice.OutcomeSoldOut, outcome)
		outcome, err = q.Enqueue(ctx, phone("a"))
		require.NoError(t, err)
		require.Equal(t, sluice.OutcomeKept, outcome)
	})
}
