package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

// TestRun: the program sells exactly what there is.
func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, 20, 300))
	require.Contains(t, out.String(), "left 0, held 0, sold 20; rows paid: 20")
}

// errCrash ends a step of a process that has died at this point.
var errCrash = errors.New("crashed")

// crashing is a shop whose process dies now and then: before and after each thing that it does.
// What it has done stays, and nothing that it would do next is done.
type crashing struct {
	*Shop
	rng *rand.Rand
	mu  sync.Mutex // guards rng
}

func (c *crashing) point() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rng.IntN(10) == 0 {
		return errCrash
	}
	return nil
}

// buy is a buyer who goes on until something is decided.
func (c *crashing) buy(ctx context.Context, buyer string, pays bool) {
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if c.point() != nil {
			continue
		}
		outcome, err := c.Buy(ctx, buyer)
		if err != nil || outcome == sluice.OutcomeSoldOut || c.point() != nil {
			continue
		}
		if !pays || c.Pay(ctx, buyer) == nil {
			return
		}
	}
}

// TestSale_CrashesStrandNothing: 30 phones, 300 buyers and three processes, with a crash at every
// tenth point: before and after an enqueue, a row, a payment, and what the worker reports.
func TestSale_CrashesStrandNothing(t *testing.T) {
	const phones = 30
	r := sluicetest.New(t)
	db, err := OpenDB(t.Context(), "sqlite", filepath.Join(t.TempDir(), "shop.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	working, stop := context.WithCancel(t.Context())
	var workers, buyers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	var shops []*crashing
	for i := range 3 {
		shop, err := NewShop(r.NewClient(), db, 100*time.Millisecond)
		require.NoError(t, err)
		c := &crashing{Shop: shop, rng: rand.New(rand.NewPCG(uint64(i), 0))} //nolint:gosec // no secret
		shops = append(shops, c)
		workers.Go(func() {
			_ = (&sluice.Worker{
				Logger: slog.New(slog.DiscardHandler), Queue: shop.Queue, Lease: 200 * time.Millisecond, Backoff: func(int, error) time.Duration { return 0 },
				Handler: func(ctx context.Context, e sluice.Entry) error {
					if c.point() != nil {
						return errCrash
					}
					err := shop.Order(ctx, e)
					if c.point() != nil {
						runtime.Goexit() // after the row, before the report
					}
					return err
				},
			}).Run(working)
		})
	}
	require.NoError(t, shops[0].Refill(t.Context(), phones))
	for i := range 300 {
		buyers.Go(func() { shops[i%3].buy(t.Context(), fmt.Sprint("buyer", i), i%5 != 0) })
	}
	buyers.Wait()
	require.NoError(t, report(t.Context(), t.Output(), shops[0].Shop, func(info sluice.StockInfo) bool { return info.Held == 0 }))
	calm, end := context.WithCancel(t.Context()) // nothing is stranded: the others buy what is left
	for i := range 2 * phones {
		buyers.Go(func() { buy(calm, shops[i%3].Shop, fmt.Sprint("calm", i), true) })
	}
	require.NoError(t, report(t.Context(), t.Output(), shops[0].Shop, func(info sluice.StockInfo) bool { return info.Sold == phones }))
	end()
	buyers.Wait()
	r.RequireStock("orders", item, 0, 0, phones)
}

// TestSale_RefillsAnEmptyRedis: what is paid stays sold, what is open stays held.
func TestSale_RefillsAnEmptyRedis(t *testing.T) {
	ctx, r := t.Context(), sluicetest.New(t)
	db, err := OpenDB(t.Context(), "sqlite", filepath.Join(t.TempDir(), "shop.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	shop, err := NewShop(r.Client(), db, time.Hour)
	require.NoError(t, err)
	require.NoError(t, shop.Refill(ctx, 5))
	orders := []string{"paid", "open", "late"}
	for _, buyer := range orders {
		outcome, err := shop.Buy(ctx, buyer)
		require.NoError(t, err)
		require.Equal(t, sluice.OutcomeAdded, outcome)
		info, err := shop.Queue.Get(ctx, buyer)
		require.NoError(t, err)
		require.Error(t, shop.Order(ctx, info.Entry), "open")
	}
	require.NoError(t, shop.Pay(ctx, "paid"))
	r.RequireStock("orders", item, 2, 3, 0)
	require.NoError(t, r.Client().FlushAll(ctx).Err())
	outcome, err := shop.Buy(ctx, "early")
	require.NoError(t, err)
	require.Equal(t, sluice.OutcomeSoldOut, outcome, "nothing is sold before")
	for range 2 { // it may be repeated
		require.NoError(t, shop.Refill(ctx, 5))
		r.RequireStock("orders", item, 2, 3, 0)
	}
	require.ErrorIs(t, shop.Pay(ctx, "early"), errNoOrder)
	working, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = shop.Work(working) }() // until stop; it ends before the test's Redis does
	require.Eventually(t, func() bool {
		info, err := shop.Queue.Stock(ctx, item)
		return err == nil && info.Sold == 1 && info.Held == 2
	}, 10*time.Second, 10*time.Millisecond, "what is paid is sold")
	outcome, err = shop.Buy(ctx, "paid")
	require.NoError(t, err)
	require.Equal(t, sluice.OutcomeDone, outcome, "who has paid before has one")
}

// TestSale_AFailoverThatLosesAnEnqueueSellsNoMore: a buyer pays for an order that Redis has lost,
// and buys again.
func TestSale_AFailoverThatLosesAnEnqueueSellsNoMore(t *testing.T) {
	ctx, r := t.Context(), sluicetest.New(t)
	db, err := OpenDB(ctx, "sqlite", filepath.Join(t.TempDir(), "shop.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	shop, err := NewShop(r.Client(), db, time.Hour)
	require.NoError(t, err)
	require.NoError(t, shop.Queue.SetStock(ctx, item, 2))
	buy := func(buyer string, want sluice.Outcome) {
		t.Helper()
		outcome, err := shop.Buy(ctx, buyer)
		require.NoError(t, err)
		require.Equal(t, want, outcome)
	}
	buy("ann", sluice.OutcomeAdded)
	info, err := shop.Queue.Get(ctx, "ann")
	require.NoError(t, err)
	require.Error(t, shop.Order(ctx, info.Entry), "open")
	require.NoError(t, r.Client().FlushAll(ctx).Err()) // a replica is promoted that has the stock, and not the order
	require.NoError(t, shop.Queue.SetStock(ctx, item, 2))
	require.NoError(t, shop.Pay(ctx, "ann"))
	buy("ann", sluice.OutcomeAdded)
	working, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = shop.Work(working) }() // until stop
	sold := func(n int64) {
		t.Helper()
		require.Eventually(t, func() bool {
			info, err := shop.Queue.Stock(ctx, item)
			return err == nil && info.Sold == n && info.Held == 0
		}, 10*time.Second, 10*time.Millisecond)
	}
	sold(1)
	buy("bob", sluice.OutcomeAdded)
	require.Eventually(t, func() bool { return shop.Pay(ctx, "bob") == nil }, 10*time.Second, 10*time.Millisecond, "its row is there")
	sold(2)
	buy("cid", sluice.OutcomeSoldOut)
	paid, err := shop.Paid(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, paid, "of two phones")

	require.NoError(t, r.Client().FlushAll(ctx).Err()) // a failover loses what Bob has paid for, and he does not come again
	require.NoError(t, shop.Queue.SetStock(ctx, item, 2))
	for range 2 {
		require.NoError(t, shop.Refill(ctx, 2)) // each minute, while the shop is open
		sold(2)
	}
	buy("cid", sluice.OutcomeSoldOut)
}

// TestShop_OpenSaysWhatTheRowSays: an order is opened once and cancelled once its time is over, and
// what has been paid or cancelled stays so.
func TestShop_OpenSaysWhatTheRowSays(t *testing.T) {
	db, err := OpenDB(t.Context(), "sqlite", filepath.Join(t.TempDir(), "shop.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	soon, late := &Shop{DB: db}, &Shop{DB: db, PayIn: time.Hour}
	open := func(s *Shop, number, buyer string) Row {
		t.Helper()
		row, err := s.Open(t.Context(), number, buyer)
		require.NoError(t, err)
		return row
	}
	for range 2 {
		require.InDelta(t, time.Hour, open(late, "1", "ann").Left, float64(time.Minute))
	}
	require.NoError(t, late.Pay(t.Context(), "ann"))
	requireRow := func(want, got Row, why ...any) {
		want.Left = got.Left
		require.Equal(t, want, got, why...)
	}
	requireRow(Row{Paid: true}, open(soon, "1", "ann"))
	requireRow(Row{Paid: true}, open(late, "9", "ann"), "ann has an order that counts, and it decides for this one")

	open(soon, "2", "cid")
	require.NoError(t, soon.Pay(t.Context(), "cid"))
	requireRow(Row{Paid: true}, open(soon, "2", "cid"), "its time is over, and it was paid before")

	requireRow(Row{}, open(soon, "3", "bob"), "its row says unpaid: not to be discarded yet")
	requireRow(Row{Cancelled: true}, open(late, "3", "bob"), "the time that it was opened with is over")
	require.ErrorIs(t, late.Pay(t.Context(), "bob"), errNoOrder)
	require.Positive(t, open(late, "4", "bob").Left, "the cancelled one does not count")
	require.ErrorIs(t, late.PayOrder(t.Context(), "3", "bob"), errNoOrder, "a payment that comes late")
	require.Positive(t, open(late, "4", "bob").Left, "it is not of this order")
	_, err = db.ExecContext(t.Context(), "UPDATE orders SET state = 'cancelled' WHERE number = '4'")
	require.NoError(t, err)
	requireRow(Row{Cancelled: true}, open(late, "4", "bob"), "cancelled by hand, before its time was over")
}

// TestSale_OverHTTP has the statuses of the shop's web server.
func TestSale_OverHTTP(t *testing.T) {
	r := sluicetest.New(t)
	db, err := OpenDB(t.Context(), "sqlite", filepath.Join(t.TempDir(), "shop.db"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	var rdb redis.UniversalClient = r.Client()
	shop, err := NewShop(rdb, db, time.Hour)
	require.NoError(t, err)
	require.NoError(t, shop.Refill(t.Context(), 1))
	post := func(want int, path string) {
		t.Helper()
		w := httptest.NewRecorder()
		shop.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil))
		require.Equal(t, want, w.Code)
	}
	post(http.StatusOK, "/buy?buyer=a")
	post(http.StatusConflict, "/buy?buyer=a")
	post(http.StatusGone, "/buy?buyer=b")
	post(http.StatusConflict, "/pay?buyer=b")
	post(http.StatusNotFound, "/?buyer=a")
	for _, bad := range []string{"", "%ff", "%00", strings.Repeat("a", 65)} {
		post(http.StatusBadRequest, "/buy?buyer="+bad)
	}
}
