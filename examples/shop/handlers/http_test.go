package handlers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/examples/shop/sale"
)

// fake answers with what the request names.
type fake struct{}

func (fake) Buy(_ context.Context, user string) (sale.Answer, error) {
	if user == "unlucky" {
		return sale.Answer{}, errors.New("secret")
	}
	return sale.Answer{Result: user, Order: "7"}, nil
}

func (fake) Pay(_ context.Context, order string) (string, error) { return order, nil }

func (fake) Figures(context.Context) (sale.Figures, error) {
	return sale.Figures{Item: sale.Item{ID: "<phone>", Total: 10}, Scheduled: 4711}, nil
}

func TestNew_AnswersByStatus(t *testing.T) {
	t.Parallel()
	gin.SetMode(gin.TestMode)
	web := New(fake{})
	for _, tc := range []struct {
		request string
		status  int
		body    string
	}{
		{"/buy?user=accepted", 202, `{"result":"accepted","order":"7"}`},
		{"/buy?user=have", 200, `{"result":"have","order":"7"}`},
		{"/buy?user=sold+out", 409, `{"result":"sold out","order":"7"}`},
		{"/buy?user=closed", 503, `{"result":"closed","order":"7"}`},
		{"/buy?user=unlucky", 503, `{"error":"try again"}`},
		{"/buy", 400, `{"error":"no user"}`},
		{"/pay?order=paid", 200, `{"state":"paid"}`},
		{"/pay?order=canceled", 409, `{"state":"canceled"}`},
	} {
		w := httptest.NewRecorder()
		web.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, tc.request, http.NoBody))
		require.Equal(t, tc.status, w.Code, tc.request)
		require.Equal(t, tc.body, w.Body.String(), tc.request)
	}
}

func TestNew_ShowsThePage(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	New(fake{}).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Body.String(), "&lt;phone&gt;")
	require.Contains(t, w.Body.String(), "4711")
}
