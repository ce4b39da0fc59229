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
	guard, closeGuard, err := openSluice(rdb, "test")
	require.NoError(t, err)
	queue, err := sluice.NewQueue(rdb, "test")
	require.NoError(t, err)
	t.Cleanup(func() {
		closeGuard()
		_ = rdb.Close()
	})
	a := assignment{Method: Sluice, PayWithin: time.Millisecond}
	s := &service{assignment: a, store: newStore(t, stock), guard: guard, queue: queue}
	require.NoError(t, s.look(t.Context()))
	return s
}

// post asks the service, and returns the status and the text.
func (s *service) post(t *testing.T, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, http.NoBody))
	return w.Code, w.Body.String()
}

// cancelDue handles the tasks that are due, and returns how many.
func (s *service) cancelDue(t *testing.T) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.NoError(t, s.queue.Wait(ctx))
	tasks, err := s.queue.Claim(ctx, 10, lease)
	require.NoError(t, err)
	for _, task := range tasks {
		require.NoError(t, s.cancel(ctx, task))
	}
	require.NoError(t, s.queue.Dequeue(ctx, tasks...))
	return len(tasks)
}

func TestService_SellsAnUnpaidUnitAgain(t *testing.T) {
	t.Parallel()
	s := newService(t, 1)
	status, first := s.post(t, "/buy/1")
	require.Equal(t, http.StatusCreated, status)
	status, _ = s.post(t, "/buy/2")
	require.Equal(t, http.StatusTooManyRequests, status)

	require.Equal(t, 1, s.cancelDue(t))
	status, _ = s.post(t, "/pay/"+first)
	require.Equal(t, http.StatusConflict, status, "it was cancelled")
	status, second := s.post(t, "/buy/2")
	require.Equal(t, http.StatusCreated, status)
	status, _ = s.post(t, "/pay/"+second)
	require.Equal(t, http.StatusOK, status)
	status, _ = s.post(t, "/pay/"+second)
	require.Equal(t, http.StatusOK, status, "asked again after a lost answer")

	require.NoError(t, s.look(t.Context()))
	status, _ = s.post(t, "/buy/1")
	require.Equal(t, http.StatusGone, status)
	status, _ = s.post(t, "/buy/nobody")
	require.Equal(t, http.StatusNotFound, status)
}

func TestService_AnswersFromMemoryOnceTheStockIsGone(t *testing.T) {
	t.Parallel()
	s := newService(t, 1)
	_, _ = s.post(t, "/buy/1")
	s.guard = closed{t}
	before := s.store.transactions.Load()
	for range 100 {
		status, _ := s.post(t, "/buy/2")
		require.Equal(t, http.StatusTooManyRequests, status)
	}
	require.Equal(t, before, s.store.transactions.Load())
}

// closed is a guard that no caller may ask.
type closed struct{ t *testing.T }

func (c closed) Do(context.Context, func(ctx context.Context, fence uint64) error) error {
	c.t.Error("a request took a turn")
	return nil
}

func TestService_SellsACustomerOne(t *testing.T) {
	t.Parallel()
	s := newService(t, 5)
	status, _ := s.post(t, "/buy/1")
	require.Equal(t, http.StatusCreated, status)
	status, _ = s.post(t, "/buy/1")
	require.Equal(t, http.StatusConflict, status)
	require.Equal(t, 4, number(t, s.store, `SELECT stock FROM item`))
}

// TestService_EnqueuesBeforeTheCommit has the commit fail, like a process that dies just before it.
func TestService_EnqueuesBeforeTheCommit(t *testing.T) {
	t.Parallel()
	s := newService(t, 1)
	_, err := s.store.write.ExecContext(t.Context(), `CREATE TRIGGER crash BEFORE INSERT ON orders WHEN new.status = 'unpaid'
		BEGIN SELECT RAISE(ABORT, 'crash'); END`)
	require.NoError(t, err)
	status, text := s.post(t, "/buy/1")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.NotContains(t, text, "crash")
	require.Equal(t, 1, s.cancelDue(t), "the task that reminds of the order is there")
	require.Equal(t, 1, number(t, s.store, `SELECT stock FROM item`))
	require.Equal(t, 1, number(t, s.store, `SELECT count(*) FROM orders WHERE status = 'void'`))
}

func TestStore_TheRowDecides(t *testing.T) {
	t.Parallel()
	s := newStore(t, 3)
	require.NoError(t, s.place(t.Context(), Sluice, order{id: "paid", customer: 1}, 3))
	require.NoError(t, s.place(t.Context(), Sluice, order{id: "cancelled", customer: 2}, 2))
	require.NoError(t, s.pay(t.Context(), "paid"))
	for range 2 {
		require.NoError(t, s.cancel(t.Context(), "paid", 0))
		require.NoError(t, s.cancel(t.Context(), "cancelled", 0))
	}
	require.ErrorIs(t, s.pay(t.Context(), "cancelled"), errOvertaken)
	require.NoError(t, s.cancel(t.Context(), "late", 0))
	require.ErrorIs(t, s.place(t.Context(), Sluice, order{id: "late", customer: 3}, 2), errOvertaken)
	n, err := s.standing(t.Context())
	require.NoError(t, err)
	require.Equal(t, standing{Total: 3, Stock: 2, Paid: 1, Cancelled: 1, Early: 0}, n)
}

// TestStore_RefusesAFormerTurn has a process write that was stopped during its turn.
func TestStore_RefusesAFormerTurn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		o    order
		seen int
	}{
		"a lower fence":             {order{id: "new", customer: 2, fence: 6}, 2},
		"another stock":             {order{id: "new", customer: 2, fence: 8}, 3},
		"the customer has an order": {order{id: "new", customer: 1, fence: 8}, 2},
	} {
		s := newStore(t, 3)
		require.NoError(t, s.place(t.Context(), Sluice, order{id: "old", customer: 1, fence: 7}, 3), name)
		require.ErrorIs(t, s.place(t.Context(), Sluice, tc.o, tc.seen), errOvertaken, name)
		require.Equal(t, 2, number(t, s, `SELECT stock FROM item`), name)
		require.Equal(t, 1, number(t, s, `SELECT count(*) FROM orders`), name)
	}
}

func TestPage_ShowsTheSale(t *testing.T) {
	t.Parallel()
	p, err := OpenPage(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	p.show(Result{Options: Options{Method: "<b>", Stock: 10}, Told: report{Requests: 1234567}, Samples: []Sample{
		{At: time.Second, Requests: 5000, P99: 20 * time.Millisecond, Stock: 3, Unpaid: 2, Paid: 5, Waiting: 7},
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
