package queues

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// sweep has a worker report that it lives.
func (s stock) sweep() {
	s.Helper()
	w := &sluice.Worker{Queue: s.On(s.RDB), Handler: func(context.Context, sluice.Entry) error { return nil }}
	require.NoError(s, s.Q.Pause(s.Context(), 0))
	stop := systest.StartWorker(s.T, w)
	s.Eventually(func() bool {
		stats, err := s.Q.Stats(s.Context())
		return err == nil && stats.Workers > 0
	})
	require.NoError(s, stop())
	require.NoError(s, s.Q.Resume(s.Context()))
}

// TestStock_UnitsComeBackOnce, if the ID of a task that is no more is enqueued twice by one
// script.
func TestStock_UnitsComeBackOnce(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		require.NoError(s, s.RDB.ZRem(s.Context(), s.Key, "a").Err())
		outcomes, err := s.Q.EnqueueBatch(s.Context(), []sluice.Task{phone("a"), phone("a")})
		require.NoError(s, err)
		require.Equal(s, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeKept}, outcomes)
		s.requireStock(2, 1, 0)
	})
}

// TestStock_SoldStaysSold: who ended the task did not know of its units, and the next task of that
// ID comes before a worker has seen to them.
func TestStock_SoldStaysSold(t *testing.T) {
	for name, next := range map[string]func(s stock){
		"cancelled": func(s stock) {
			_, err := s.Q.Cancel(s.Context(), "a")
			require.NoError(s, err)
		},
		"plain": func(s stock) {
			s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
			require.Empty(s, s.Get("a").Take)
			_, err := s.Q.Cancel(s.Context(), "a")
			require.NoError(s, err)
		},
		"foreign": func(s stock) {
			require.NoError(s, s.RDB.ZAdd(s.Context(), s.Key, redis.Z{Score: 1, Member: "a"}).Err())
			require.Empty(s, s.ClaimOne(time.Minute).Take)
			_, err := s.Q.Cancel(s.Context(), "a")
			require.NoError(s, err)
		},
		"sold again": func(s stock) {
			s.Enqueue(sluice.OutcomeAdded, phone("a"))
			e := s.ClaimOne(time.Minute)
			require.NoError(s, s.On(s.RDB).Dequeue(s.Context(), e))
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachStock(t, 3, func(s stock) {
				s.Enqueue(sluice.OutcomeAdded, phone("a"))
				e := s.ClaimOne(time.Minute)
				require.NoError(s, s.On(s.RDB).Dequeue(s.Context(), e))
				next(s)
				s.sweep()
				sold := int64(1)
				if name == "sold again" {
					sold = 2
				}
				s.requireStock(3-sold, 0, sold)
				s.RequireClean()
			})
		})
	}
}

// TestStock_WhatIsNoLetterAnyMoreIsNotKept: a foreign program has put a dead letter back, Revive
// has taken it off the list, and the foreign program has removed it.
func TestStock_WhatIsNoLetterAnyMoreIsNotKept(t *testing.T) {
	for name, next := range map[string]sluice.Task{"takes": phone("a"), "plain": {ID: "a"}} {
		t.Run(name, func(t *testing.T) {
			eachStock(t, 1, func(s stock) {
				s.Enqueue(sluice.OutcomeAdded, phone("a"))
				s.Bury(s.ClaimOne(time.Minute), "why")
				require.NoError(s, s.RDB.ZAdd(s.Context(), s.Key, redis.Z{Score: 1, Member: "a"}).Err())
				s.Revive(0, "a")
				require.NoError(s, s.RDB.ZRem(s.Context(), s.Key, "a").Err())
				s.Enqueue(sluice.OutcomeAdded, next)
				s.requireStock(0, 1, 0)
				require.Equal(s, 1, s.ClaimOne(time.Minute).Attempt)
			})
		})
	}
}

// TestStock_NothingElseIsLeft of a task that a foreign consumer has removed: no place among the
// leased ones, and no error.
func TestStock_NothingElseIsLeft(t *testing.T) {
	for name, next := range map[string]func(s stock){
		"taken again": func(s stock) { s.Enqueue(sluice.OutcomeAdded, phone("a")) },
		"swept":       func(s stock) { s.sweep(); s.Enqueue(sluice.OutcomeAdded, phone("a")) },
	} {
		for was, task := range map[string]sluice.Task{"held": phone("a"), "plain": {ID: "a"}} {
			if name == "swept" && was == "plain" {
				continue // it stays, as in a queue without stocks
			}
			t.Run(name+", it "+was, func(t *testing.T) {
				eachStock(t, 3, func(s stock) {
					s.Enqueue(sluice.OutcomeAdded, task)
					require.NoError(s, s.Q.Retry(s.Context(), 0, "failed", s.ClaimOne(time.Hour)))
					s.ClaimOne(time.Hour)
					require.NoError(s, s.RDB.ZRem(s.Context(), s.Key, "a").Err())
					next(s)
					require.Zero(s, s.Stats().Leased)
					require.NoError(s, s.Q.Retry(s.Context(), 0, "", s.ClaimOne(time.Hour)))
					require.Empty(s, s.Get("a").Reason)
				})
			})
		}
	}
}

// TestRetention_WhatIsNoLetterAnyMoreIsDone: a foreign program has put a dead letter back and removed
// it; an earlier task of that ID is remembered.
func TestRetention_WhatIsNoLetterAnyMoreIsDone(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		once := sluice.Task{ID: "a", Duplicates: sluice.DuplicatesOnce}
		b.Enqueue(sluice.OutcomeAdded, once)
		require.NoError(b, b.Q.Dequeue(b.Context(), b.ClaimOne(time.Minute)))
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		b.Bury(b.ClaimOne(time.Minute), "why")
		require.NoError(b, b.RDB.ZAdd(b.Context(), b.Key, redis.Z{Score: 1, Member: "a"}).Err())
		b.Revive(0, "a")
		require.NoError(b, b.RDB.ZRem(b.Context(), b.Key, "a").Err())
		require.Equal(b, sluice.StateDone, b.Get("a").State)
		done, err := b.Q.List(b.Context(), sluice.StateDone, sluice.TaskInfo{}, 10)
		require.NoError(b, err)
		require.Len(b, done, 1)
		b.Enqueue(sluice.OutcomeDone, once)
	}, sluice.WithRetention(time.Hour))
}

// TestStock_NothingIsLeftOfAnEndedSale: no key with a sweep's place, once the stock is deleted and
// a Worker has lived.
func TestStock_NothingIsLeftOfAnEndedSale(t *testing.T) {
	eachStock(t, 2, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		s.sweep()
		require.NoError(s, s.Q.Dequeue(s.Context(), s.ClaimOne(time.Minute)))
		require.NoError(s, s.Q.DeleteStock(s.Context(), "phone"))
		s.sweep()
		require.Zero(s, s.RDB.Exists(s.Context(), "{"+s.Key+"}:stock").Val())
	})
}
