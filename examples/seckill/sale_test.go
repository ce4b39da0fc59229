package main

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

func TestSale_SellsExactlyItsStock(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]bool{"by Task.Take": false, "by a lock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "sale.db")
			c := config{Buyers: 60, Stock: 20, Procs: 1, Seed: 3}
			f, err := saleOnRedis(within(t, 2*time.Minute), c, lock, file, quiet(t))
			require.NoError(t, err)
			require.NoError(t, f.check())
			require.Zero(t, f.overtaken)
			require.Equal(t, lock, f.waited.n > 0)

			db, err := openShop(file)
			require.NoError(t, err)
			defer db.close()
			require.Equal(t, 20, count(t, db, `SELECT count(*) FROM orders WHERE status = 'paid'`))
			require.Equal(t, 20, count(t, db, `SELECT count(DISTINCT customer) FROM orders WHERE status = 'paid'`))
			require.Zero(t, count(t, db, `SELECT count(*) FROM orders WHERE status = 'unpaid'`))
			require.Zero(t, count(t, db, `SELECT stock FROM item`))
			require.Equal(t, -20, count(t, db, `SELECT sum(units) FROM movement`))
			require.Zero(t, count(t, db, `SELECT count(*) FROM orders WHERE cancelled < due`))
		})
	}
}

func TestSale_OversellsWithoutALock(t *testing.T) {
	t.Parallel()
	c := config{Buyers: 100, Stock: 20, Procs: 1, Seed: 3}
	f, err := saleWithoutLock(t.Context(), c, filepath.Join(t.TempDir(), "sale.db"))
	require.NoError(t, err)
	require.Positive(t, f.oversold)
	require.Error(t, f.check())
}

// TestSale_NeedsTheLock removes the lock, to show that the lock keeps buyers from overtaking
// each other: the database only detects it.
func TestSale_NeedsTheLock(t *testing.T) {
	t.Parallel()
	const buyers = 2 * atOnce
	for name, locked := range map[string]bool{"locked": true, "not locked": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSale(t, config{Buyers: buyers, Stock: buyers})
			var overtakings atomic.Int32
			var g errgroup.Group
			for customer := range buyers {
				g.Go(func() error {
					buy := s.inside
					if locked {
						buy = func(ctx context.Context, customer int) (purchase, error) {
							return s.buy(ctx, customer, view{stock: buyers})
						}
					}
					p, err := buy(t.Context(), customer)
					for errors.Is(err, sluice.ErrLost) { // a busy machine stood still for longer than the TTL: the customer asks again
						p, err = buy(t.Context(), customer)
					}
					if p.result == overtaken {
						overtakings.Add(1)
						return nil
					}
					return err
				})
			}
			require.NoError(t, g.Wait())
			require.Equal(t, !locked, overtakings.Load() > 0, "%d overtakings", overtakings.Load())
			require.Equal(t, buyers, count(t, s.shop, `SELECT stock + (SELECT count(*) FROM orders) FROM item`))
		})
	}
}

// TestSale_WaitsForTheTTLOfADeadHolder leaves the lock held, like a process that is killed. The
// sale waits for its TTL, and for nothing else.
func TestSale_WaitsForTheTTLOfADeadHolder(t *testing.T) {
	t.Parallel()
	s := newSale(t, config{Buyers: 20, Stock: 5, Procs: 1})
	dead := join(t, s.assignment, s.shop)
	_, err := dead.locker.Lock(t.Context(), s.Run)
	require.NoError(t, err)

	began := time.Now()
	p, err := s.buy(within(t, 2*lockTTL), 0, view{stock: 5})
	require.NoError(t, err)
	require.Equal(t, sold, p.result)
	require.Greater(t, time.Since(began), lockTTL/2)

	all := &seller{assignment: s.assignment, shop: s.shop, way: s, buyers: newBuyerQueue(s.share(0, 1))}
	require.NoError(t, all.run(within(t, 2*time.Minute)))
	f, err := s.shop.figures(t.Context(), 0)
	require.NoError(t, err)
	require.NoError(t, f.check())
}

// TestSale_DropsATaskWithoutAnOrder leaves a task whose order was never committed, like a
// process that is killed between the two.
func TestSale_DropsATaskWithoutAnOrder(t *testing.T) {
	t.Parallel()
	s := newSale(t, config{Stock: 1})
	_, err := s.queue.Enqueue(t.Context(), sluice.Task{ID: "lost"})
	require.NoError(t, err)
	tasks, err := s.queue.Claim(t.Context(), batch, lease)
	require.NoError(t, err)
	require.NoError(t, s.cancel(t.Context(), tasks))

	_, err = s.queue.Get(t.Context(), "lost")
	require.ErrorIs(t, err, sluice.ErrNotFound)
	require.Equal(t, 1, count(t, s.shop, `SELECT stock FROM item`))

	// If the process was only stopped, its commit comes too late.
	err = s.shop.place(t.Context(), order{id: "lost"}, 1)
	require.ErrorIs(t, err, errOvertaken)
	require.Equal(t, 1, count(t, s.shop, `SELECT stock FROM item`))
}

// TestSale_CancelsOnceAfterAWorkerDied leaves claimed tasks, one before and one after its order
// was cancelled. Another worker claims them when the lease ends, and each unit comes back once.
func TestSale_CancelsOnceAfterAWorkerDied(t *testing.T) {
	t.Parallel()
	s := newSale(t, config{Stock: 2})
	for i, id := range []string{"before", "after"} {
		_, err := s.queue.Enqueue(t.Context(), sluice.Task{ID: id})
		require.NoError(t, err)
		require.NoError(t, s.shop.place(t.Context(), order{id: id, customer: i}, 2-i))
	}
	tasks, err := s.queue.Claim(t.Context(), batch, 2*time.Second)
	require.NoError(t, err)
	require.Len(t, tasks, 2)
	require.NoError(t, s.shop.cancel(t.Context(), "after"))

	require.NoError(t, s.queue.Wait(within(t, time.Minute)))
	tasks, err = s.queue.Claim(t.Context(), batch, lease)
	require.NoError(t, err)
	require.Len(t, tasks, 2)
	require.NoError(t, s.cancel(t.Context(), tasks))
	require.Equal(t, 2, count(t, s.shop, `SELECT stock FROM item`))
	require.Equal(t, 2, count(t, s.shop, `SELECT count(*) FROM orders WHERE status = 'cancelled'`))
}
