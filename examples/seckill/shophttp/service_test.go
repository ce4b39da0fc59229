package shophttp

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// newService returns a process's part in a sale of its own, without its worker and its looks.
func newService(t *testing.T, stock int) *service {
	t.Helper()
	rdb := connect(miniredis.RunT(t).Addr())
	t.Cleanup(func() { _ = rdb.Close() })
	s := &service{assignment: assignment{Run: "test", Stock: stock, PayWithin: time.Hour}, store: newStore(t)}
	way, err := openWay(ByStock, nil, s.site(rdb, s.store))
	require.NoError(t, err)
	require.NoError(t, way.Begin(t.Context()))
	s.way = way
	return s
}

// post asks the service, and returns the status and the text.
func (s *service) post(t *testing.T, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, http.NoBody))
	return w.Code, w.Body.String()
}

// work has a worker, which waits so long for payments, handle the orders until the stock is as
// wanted.
func (s *service) work(t *testing.T, payWithin time.Duration, want sluice.StockInfo) {
	t.Helper()
	way := s.way.(byStock)
	way.PayWithin = payWithin
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- way.Work(ctx) }()
	require.Eventually(t, func() bool {
		info, err := way.queue.Stock(t.Context(), item)
		row := number(t, s.store, `SELECT count(*) FROM orders WHERE status = 'unpaid'`)
		return err == nil && info == want && row == int(want.Held)
	}, time.Minute, 5*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

func TestService_SellsAnUnpaidUnitAgain(t *testing.T) {
	t.Parallel()
	s := newService(t, 1)
	status, first := s.post(t, "/buy/1")
	require.Equal(t, http.StatusCreated, status)
	status, _ = s.post(t, "/buy/2")
	require.Equal(t, http.StatusTooManyRequests, status)
	status, _ = s.post(t, "/pay/"+first)
	require.Equal(t, http.StatusServiceUnavailable, status, "it has no row so far")

	s.work(t, time.Millisecond, sluice.StockInfo{Total: 1, Left: 1})
	status, _ = s.post(t, "/pay/"+first)
	require.Equal(t, http.StatusConflict, status, "it was cancelled")
	status, second := s.post(t, "/buy/2")
	require.Equal(t, http.StatusCreated, status)
	s.work(t, time.Hour, sluice.StockInfo{Total: 1, Held: 1})
	for range 2 { // asked again after a lost answer
		status, _ = s.post(t, "/pay/"+second)
		require.Equal(t, http.StatusOK, status)
	}
	s.work(t, time.Hour, sluice.StockInfo{Total: 1, Sold: 1})

	status, _ = s.post(t, "/buy/1")
	require.Equal(t, http.StatusTooManyRequests, status)
	require.NoError(t, s.look(t.Context()))
	status, _ = s.post(t, "/buy/1")
	require.Equal(t, http.StatusGone, status)
	status, _ = s.post(t, "/buy/nobody")
	require.Equal(t, http.StatusNotFound, status)
}

func TestService_SellsACustomerOne(t *testing.T) {
	t.Parallel()
	s := newService(t, 5)
	status, order := s.post(t, "/buy/1")
	require.Equal(t, http.StatusCreated, status)
	status, _ = s.post(t, "/buy/1")
	require.Equal(t, http.StatusConflict, status, "held")
	s.work(t, time.Hour, sluice.StockInfo{Total: 5, Left: 4, Held: 1})
	status, _ = s.post(t, "/pay/"+order)
	require.Equal(t, http.StatusOK, status)
	s.work(t, time.Hour, sluice.StockInfo{Total: 5, Left: 4, Sold: 1})
	status, _ = s.post(t, "/buy/1")
	require.Equal(t, http.StatusConflict, status, "sold")
}

// TestService_AnOrderThatRedisLostKeepsItsUnit: its customer, who has paid, may buy again, and holds
// one unit then, not none.
func TestService_AnOrderThatRedisLostKeepsItsUnit(t *testing.T) {
	t.Parallel()
	s := newService(t, 2)
	_, order := s.post(t, "/buy/1")
	s.work(t, time.Hour, sluice.StockInfo{Total: 2, Left: 1, Held: 1})
	status, _ := s.post(t, "/pay/"+order)
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, s.way.(byStock).Redis.FlushDB(t.Context()).Err()) // as after a failover
	require.NoError(t, s.way.Begin(t.Context()))
	status, _ = s.post(t, "/buy/1")
	require.Equal(t, http.StatusCreated, status)
	s.work(t, time.Hour, sluice.StockInfo{Total: 2, Left: 1, Sold: 1})
	require.Equal(t, 1, number(t, s.store, `SELECT count(*) FROM orders`))
}

// TestService_ACrashLeavesNothing: after each of the steps of a sale a process may die. What it has
// done stays, another Worker has the task again, and the unit is sold once.
func TestService_ACrashLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, 1)
	way := s.way.(byStock)
	status, order := s.post(t, "/buy/1") // 1: the unit is taken. No Worker has the task so far
	require.Equal(t, http.StatusCreated, status)
	task, err := way.queue.Get(t.Context(), "1")
	require.NoError(t, err)
	for range 2 { // 2 and 3: the row is written, and the report is lost
		require.Error(t, way.Order(t.Context(), task.Entry))
	}
	require.Equal(t, 1, number(t, s.store, `SELECT count(*) FROM orders`))
	_, err = s.store.Pay(t.Context(), order) // 4: it is paid, and Reschedule is not reached
	require.NoError(t, err)
	require.NoError(t, way.Order(t.Context(), task.Entry)) // 5: it is done, and the report is lost
	info, err := way.queue.Stock(t.Context(), item)
	require.NoError(t, err)
	require.Equal(t, sluice.StockInfo{Total: 1, Held: 1}, info)
	s.work(t, time.Hour, sluice.StockInfo{Total: 1, Sold: 1})
}

func TestService_AnswersFromMemoryOnceTheStockIsGone(t *testing.T) {
	t.Parallel()
	s := newService(t, 1)
	_, _ = s.post(t, "/buy/1")
	_, _ = s.post(t, "/buy/2")
	rdb := s.way.(byStock).Redis
	before, began := rdb.PoolStats().Hits, time.Now()
	for range 100 {
		status, _ := s.post(t, "/buy/3")
		require.Equal(t, http.StatusTooManyRequests, status)
	}
	asked := rdb.PoolStats().Hits - before
	require.LessOrEqual(t, time.Duration(asked), 2+time.Since(began)/(100*time.Millisecond))
}

func TestStore_TheRowDecides(t *testing.T) {
	t.Parallel()
	s, ctx := newStore(t), t.Context()
	order := func(want, id string, customer int, payWithin time.Duration) {
		status, _, err := s.Order(ctx, id, customer, payWithin)
		require.NoError(t, err, id)
		require.Equal(t, want, status, id)
	}
	order(Unpaid, "paid", 1, time.Millisecond)
	order(Unpaid, "late", 2, time.Millisecond)
	customer, err := s.Pay(ctx, "paid")
	require.NoError(t, err)
	require.Equal(t, 1, customer)
	_, err = s.Pay(ctx, "absent")
	require.ErrorIs(t, err, ErrNotYet)
	require.Eventually(t, func() bool {
		status, _, err := s.Order(ctx, "late", 2, time.Hour)
		return err == nil && status == Cancelled
	}, 5*time.Second, time.Millisecond)
	_, err = s.Pay(ctx, "late")
	require.ErrorIs(t, err, ErrOvertaken)
	for range 2 {
		order(Paid, "paid", 1, 0)
		order(Cancelled, "late", 2, 0)
	}
	order(Unpaid, "again", 2, time.Hour)
	order(Paid, "second", 1, time.Hour) // one each: the first decides for both
	order(Unpaid, "third", 2, time.Hour)
	n, err := s.standing(ctx)
	require.NoError(t, err)
	require.Equal(t, standing{Unpaid: 1, Paid: 1, Cancelled: 1}, n)
}

func TestPage_ShowsTheSale(t *testing.T) {
	t.Parallel()
	p, err := OpenPage(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	p.show(Result{Options: Options{Method: "<b>", Stock: 10}, Told: report{Requests: 1234567}, Samples: []Sample{
		{At: time.Second, Requests: 5000, P99: 20 * time.Millisecond, Stock: 3, Unpaid: 2, Paid: 5, UnderWay: 7},
		{At: 2 * time.Second, Requests: 11000, Paid: 10},
	}, Events: []Event{{time.Second, "kill -9"}}})
	get := func(path string) (string, http.Header) {
		r, err := http.Get(strings.TrimSuffix(p.URL(), "/") + path)
		require.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, r.StatusCode, path)
		return string(text), r.Header
	}
	text, header := get("/")
	require.Contains(t, text, "1,234,567")
	require.Contains(t, text, "kill -9")
	require.Contains(t, text, "&lt;b&gt;")
	require.Contains(t, text, "M454.0") // a line begins at the first sample
	require.NotContains(t, text, "ZgotmplZ")
	require.NotContains(t, text, "<style")
	require.Contains(t, header.Get("Content-Security-Policy"), "default-src 'none'")
	require.NotContains(t, header.Get("Content-Security-Policy"), "unsafe")
	for _, path := range []string{"/page.css", "/chart.css", "/page.js"} {
		text, _ := get(path)
		require.NotEmpty(t, text)
	}
}
