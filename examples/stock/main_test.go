package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "order-0 paid <nil>\norder-1 paid <nil>\norder-5 sold out\nin stock: 3\n", out.String())
}

// open returns a shop, and a function that runs its worker until the queue is empty.
func open(t *testing.T) (*Shop, *sluicetest.Redis, func()) {
	r := sluicetest.New(t)
	db, err := sql.Open("sqlite", ":memory:")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	_, err = db.Exec(schema)
	require.NoError(t, err)
	locker, err := sluice.NewLocker(r.Client())
	require.NoError(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	queue, err := sluice.NewQueue(r.Client(), "orders")
	require.NoError(t, err)
	shop := &Shop{db, locker, queue, 15 * time.Minute}
	return shop, r, func() {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- (&sluice.Worker{Queue: queue, Handler: shop.Cancel}).Run(ctx) }()
		require.Eventually(t, func() bool { s := r.Stats("orders"); return s.Due+s.Leased == 0 }, 20*time.Second, time.Millisecond)
		stop()
		require.NoError(t, <-ended)
	}
}

func stock(t *testing.T, s *Shop) (n int) {
	require.NoError(t, s.DB.QueryRow("SELECT stock FROM item").Scan(&n))
	return n
}

// TestShop_NeverOversells: with many buyers at once; what is not paid in time comes back, once.
func TestShop_NeverOversells(t *testing.T) {
	t.Parallel()
	shop, r, work := open(t)
	var all sync.WaitGroup
	var sold atomic.Int64
	for i := range 50 {
		all.Go(func() {
			switch err := shop.Buy(t.Context(), fmt.Sprint(i)); {
			case err == nil:
				sold.Add(1)
			case !errors.Is(err, errSoldOut):
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 5, sold.Load())
	require.Zero(t, stock(t, shop))
	tasks := r.Scheduled("orders")
	require.Len(t, tasks, 5)
	require.NoError(t, shop.Pay(t.Context(), tasks[0].ID))
	r.RequireNotEnqueued("orders", tasks[0].ID)
	require.ErrorIs(t, shop.Pay(t.Context(), "none"), errNotUnpaid)

	r.Advance(16 * time.Minute)
	require.NoError(t, shop.Cancel(t.Context(), sluice.Entry{ID: tasks[1].ID}), "a handler may run twice")
	require.NoError(t, shop.Cancel(t.Context(), sluice.Entry{ID: tasks[0].ID}), "a task whose Cancel failed")
	require.NoError(t, shop.Cancel(t.Context(), sluice.Entry{ID: "none"}), "a task whose order was not committed")
	work()
	require.Equal(t, 4, stock(t, shop))
	require.ErrorIs(t, shop.Pay(t.Context(), tasks[1].ID), errNotUnpaid)
}
