package queues

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestStock_UnitsOfTasksThatAreNoMoreComeBack: a foreign consumer has removed them.
func TestStock_UnitsOfTasksThatAreNoMoreComeBack(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		for _, id := range []string{"a", "b", "c"} {
			s.Enqueue(sluice.OutcomeAdded, phone(id))
		}
		require.NoError(s, s.RDB.ZRem(s.Context(), s.Key, "a", "b").Err())
		s.requireStock(0, 3, 0)
		s.Enqueue(sluice.OutcomeAdded, phone("b")) // gets what it had
		s.requireStock(0, 3, 0)
		stop := systest.StartWorker(s.T, &sluice.Worker{Queue: s.On(s.RDB), Handler: func(ctx context.Context, _ sluice.Entry) error {
			<-ctx.Done()
			return ctx.Err()
		}, Grace: time.Millisecond})
		s.Eventually(func() bool {
			info, err := s.Q.Stock(s.Context(), "phone")
			return err == nil && info == sluice.StockInfo{Total: 3, Left: 1, Held: 2}
		})
		require.NoError(s, stop())
		s.requireStock(1, 2, 0)
	})
}

// TestStock_WhoDoesNotKnowOfTheUnitsEndsThem: an entry from elsewhere, of which only ID and receipt
// are known. A worker sees to the rest.
func TestStock_WhoDoesNotKnowOfTheUnitsEndsThem(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		e := s.ClaimOne(time.Minute)
		require.NoError(s, s.On(s.RDB).Dequeue(s.Context(), sluice.Entry{ID: e.ID, Score: e.Score}))
		s.requireStock(2, 1, 0)
		_, err := s.Q.Get(s.Context(), "a")
		require.ErrorIs(s, err, sluice.ErrNotFound)
		stop := systest.StartWorker(s.T, &sluice.Worker{Queue: s.On(s.RDB), Handler: func(context.Context, sluice.Entry) error { return nil }})
		s.Eventually(func() bool {
			info, err := s.Q.Stock(s.Context(), "phone")
			return err == nil && info.Sold == 1
		})
		require.NoError(s, stop())
		s.requireStock(2, 0, 1)
		s.RequireClean()
	})
}

// TestStock_IsSoldTwiceAtOneMoment: a clock that is set back shows the same microsecond twice. Both
// ends of the ID count.
func TestStock_IsSoldTwiceAtOneMoment(t *testing.T) {
	m := miniredis.RunT(t)
	m.SetTime(time.Now()) // it stands still
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer func() { require.NoError(t, rdb.Close()) }()
	q, err := sluice.NewQueue(rdb, "q")
	require.NoError(t, err)
	require.NoError(t, q.SetStock(t.Context(), "phone", 3))
	for range 2 {
		_, err := q.Enqueue(t.Context(), phone("a"))
		require.NoError(t, err)
		es, err := q.Claim(t.Context(), 1, time.Minute)
		require.NoError(t, err)
		unaware, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		require.NoError(t, unaware.Dequeue(t.Context(), sluice.Entry{ID: "a", Score: es[0].Score}))
	}
	stop := systest.StartWorker(t, &sluice.Worker{Queue: q, Handler: func(context.Context, sluice.Entry) error { return nil }})
	require.Eventually(t, func() bool {
		info, err := q.Stock(t.Context(), "phone")
		return err == nil && info == sluice.StockInfo{Total: 3, Left: 1, Sold: 2}
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, stop())
}

// TestStock_AMalformedTaskKeepsItsUnits as a dead letter: only a foreign program writes such a
// field.
func TestStock_AMalformedTaskKeepsItsUnits(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		e := s.ClaimOne(time.Minute)
		require.NoError(s, s.RDB.HSet(s.Context(), "{"+s.Key+"}:state", "a", "*1,5:phonenonsense").Err())
		require.NoError(s, s.Q.Bury(s.Context(), "why", e))
		s.requireStock(2, 1, 0)
		n, err := s.Q.Drop(s.Context(), "a")
		require.NoError(s, err)
		require.Equal(s, 1, n)
		s.requireStock(3, 0, 0)
	})
}

// TestStock_WhatIsSoldStaysSold: before a worker has seen to what one sold that did not know of the
// units, the ID is cancelled, or enqueued again, by one that does not take any.
func TestStock_WhatIsSoldStaysSold(t *testing.T) {
	for name, meanwhile := range map[string]func(s stock){
		"cancelled": func(s stock) {
			state, err := s.Q.Cancel(s.Context(), "a")
			require.NoError(s, err)
			require.Equal(s, sluice.StateAbsent, state)
		},
		"enqueued and cancelled, twice": func(s stock) {
			s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
			require.Zero(s, s.Get("a").Take)
			require.Equal(s, sluice.Take{}, s.ClaimOne(time.Minute).Take)
			_, err := s.Q.Cancel(s.Context(), "a")
			require.NoError(s, err)
			s.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
			_, err = s.Q.Cancel(s.Context(), "a")
			require.NoError(s, err)
		},
		"enqueued again in a batch": func(s stock) {
			outcomes, err := s.Q.EnqueueBatch(s.Context(), []sluice.Task{{ID: "b"}, {ID: "a"}})
			require.NoError(s, err)
			require.Equal(s, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeAdded}, outcomes)
			require.NoError(s, s.Q.Dequeue(s.Context(), s.Claim(2, time.Minute)...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachStock(t, 3, func(s stock) {
				s.Enqueue(sluice.OutcomeAdded, phone("a"))
				e := s.ClaimOne(time.Minute)
				require.NoError(s, s.On(s.RDB).Dequeue(s.Context(), sluice.Entry{ID: e.ID, Score: e.Score}))
				meanwhile(s)
				stop := systest.StartWorker(s.T, &sluice.Worker{Queue: s.On(s.RDB), Handler: func(context.Context, sluice.Entry) error { return nil }})
				s.Eventually(func() bool {
					info, err := s.Q.Stock(s.Context(), "phone")
					return err == nil && info.Held == 0
				})
				require.NoError(s, stop())
				s.requireStock(2, 0, 1)
				s.RequireClean()
			})
		})
	}
}

// TestStock_ABatchEndsWhatIsNoMoreOnce, although it has the ID twice.
func TestStock_ABatchEndsWhatIsNoMoreOnce(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		require.NoError(s, s.RDB.ZRem(s.Context(), s.Key, "a").Err())
		outcomes, err := s.Q.EnqueueBatch(s.Context(), []sluice.Task{phone("a"), phone("a")})
		require.NoError(s, err)
		require.Equal(s, []sluice.Outcome{sluice.OutcomeAdded, sluice.OutcomeKept}, outcomes)
		s.requireStock(2, 1, 0)
	})
}

// TestStock_IsExactAmongManyBuyers: from several processes, beside plain tasks and workers that end
// theirs in each way.
func TestStock_IsExactAmongManyBuyers(t *testing.T) {
	eachStock(t, 100, func(s stock) {
		const processes, buyers = 3, 16
		var all sync.WaitGroup
		var mu sync.Mutex // guards what follows
		added, ended := 0, map[string]int{}
		for p := range processes {
			q := s.On(s.RDB)
			for i := range buyers {
				all.Go(func() {
					for j := range 10 {
						id := fmt.Sprintf("%d.%d.%d", p, i, j)
						outcome, err := q.Enqueue(s.Context(), phone(id))
						_, plain := q.Enqueue(s.Context(), sluice.Task{ID: "plain" + id})
						mu.Lock()
						if err != nil || plain != nil {
							s.Errorf("%v %v", err, plain)
						} else if outcome == sluice.OutcomeAdded {
							added++
						}
						mu.Unlock()
					}
				})
			}
		}
		all.Wait()
		require.Equal(s, 100, added)
		s.requireStock(0, 100, 0)
		var stops []func() error
		for range processes {
			stops = append(stops, systest.StartWorker(s.T, &sluice.Worker{Queue: s.On(s.RDB), Handler: func(_ context.Context, e sluice.Entry) error {
				if e.Take.Units == 0 {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				switch n := len(ended) % 3; {
				case e.Attempt > 1:
					ended[e.ID]++
					return nil
				case n == 0:
					ended[e.ID]++
					return sluice.Discard(context.Canceled)
				case n == 1:
					ended[e.ID]++
					return sluice.Permanent(context.Canceled)
				default:
					ended[e.ID] = 0
					return sluice.RetryIn(0, context.Canceled)
				}
			}}))
		}
		s.RequireDrained()
		for _, stop := range stops {
			require.NoError(s, stop())
		}
		dead := s.RDB.ZCard(s.Context(), "{"+s.Key+"}:dead").Val()
		info, err := s.Q.Stock(s.Context(), "phone")
		require.NoError(s, err)
		require.Equal(s, int64(100), info.Left+info.Held+info.Sold)
		require.Equal(s, dead, info.Held)
		require.Len(s, ended, 100)
		require.Positive(s, info.Left)
		require.Positive(s, info.Sold)
		for t, err := range s.Q.All(s.Context(), sluice.StateDead) {
			require.NoError(s, err)
			_, err = s.Q.Drop(s.Context(), t.ID)
			require.NoError(s, err)
		}
		s.requireStock(100-info.Sold, 0, info.Sold)
	})
}

// TestStock_WhatARestoredTaskHeldIsNotHeldTwice: a foreign consumer had removed it.
func TestStock_WhatARestoredTaskHeldIsNotHeldTwice(t *testing.T) {
	eachStock(t, 3, func(s stock) {
		s.Enqueue(sluice.OutcomeAdded, phone("a"))
		was := s.Get("a")
		require.NoError(s, s.RDB.ZRem(s.Context(), s.Key, "a").Err())
		_, err := s.Q.Restore(s.Context(), was)
		require.NoError(s, err)
		s.requireStock(2, 1, 0)
	})
}

// TestStock_UnitsComeBackFromAmongThousands: a worker looks at a thousand tasks at a time, and does not
// begin anew each time.
func TestStock_UnitsComeBackFromAmongThousands(t *testing.T) {
	t.Parallel()
	const n, gone = 3000, 30
	b := systest.NewQueueTest(t, redistest.Start(t).Client(t), "q") // miniredis shows all at a time
	require.NoError(t, b.Q.SetStock(t.Context(), "phone", n))
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = phone(fmt.Sprint(i))
	}
	_, err := b.Q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	for i := range gone {
		require.NoError(t, b.RDB.ZRem(t.Context(), b.Key, fmt.Sprint(i*n/gone)).Err())
	}
	for range 4 {
		seen(b)
	}
	info, err := b.Q.Stock(t.Context(), "phone")
	require.NoError(t, err)
	require.Equal(t, sluice.StockInfo{Total: n, Left: gone, Held: n - gone}, info)
}

// seen runs a worker that handles nothing, until it has said that it runs. It says so once more as it ends.
func seen(b systest.QueueTest) {
	b.Helper()
	stop := systest.StartWorker(b.T, &sluice.Worker{Queue: b.On(b.RDB), Grace: time.Millisecond, Handler: func(ctx context.Context, _ sluice.Entry) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	b.Eventually(func() bool {
		workers, err := b.Q.Workers(b.Context())
		return err == nil && len(workers) > 0
	})
	require.NoError(b, stop())
}
