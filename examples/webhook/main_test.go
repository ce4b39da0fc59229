package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, `delivery 1: 202 Accepted
{"receipt":"receipt 1 of event-7","state":"done"}
delivery 2: 200 OK
{"receipt":"receipt 1 of event-7","state":"done"}
delivery 3: 200 OK
{"receipt":"receipt 1 of event-7","state":"done"}
booked: 1
`, out.String())
}

// TestPayments_AreBookedOnce, however often and by however many each is delivered, also where
// booking fails at first.
func TestPayments_AreBookedOnce(t *testing.T) {
	r := sluicetest.New(t)
	const events, deliveries = 20, 25
	var booked [events]atomic.Int64
	var failed sync.Map
	payments, err := NewPayments(r.Client(), func(_ context.Context, id string, event []byte) (string, error) {
		if _, again := failed.LoadOrStore(id, true); !again {
			return "", errors.New("the database is busy")
		}
		var n int
		_, err := fmt.Sscan(string(event), &n)
		booked[n].Add(1)
		return "r" + id, err
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	w := &sluice.Worker{Queue: payments.Queue, Handler: payments.Handle, Backoff: func(int, error) time.Duration { return 0 }}
	go func() { ended <- w.Run(ctx) }()
	ask := func(method, path, body string) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		payments.Routes().ServeHTTP(answer, httptest.NewRequest(method, path, strings.NewReader(body)))
		return answer
	}
	require.Equal(t, http.StatusNotFound, ask("GET", "/payments/e0", "").Code)
	require.Equal(t, http.StatusBadRequest, ask("POST", "/webhook/"+strings.Repeat("x", 600), "0").Code)
	var all sync.WaitGroup
	for range deliveries {
		all.Go(func() {
			for n := range events {
				code := ask("POST", fmt.Sprintf("/webhook/e%d", n), fmt.Sprint(n)).Code
				if code != http.StatusOK && code != http.StatusAccepted {
					t.Errorf("status %d", code)
				}
			}
		})
	}
	all.Wait()
	require.Eventually(t, func() bool { return w.Stats().Done == events }, 20*time.Second, time.Millisecond)
	for n := range events {
		require.Equal(t, http.StatusOK, ask("POST", fmt.Sprintf("/webhook/e%d", n), fmt.Sprint(n)).Code)
		require.EqualValues(t, 1, booked[n].Load())
		done := r.RequireDone("payments", fmt.Sprintf("e%d", n))
		require.Equal(t, "re"+fmt.Sprint(n), string(done.Result))
		require.Equal(t, 2, done.Attempt)
	}
	stop()
	require.NoError(t, <-ended)
}

// TestPayments_OneThatTakesLongIsAccepted: the request does not wait for ever.
func TestPayments_OneThatTakesLongIsAccepted(t *testing.T) {
	payments, err := NewPayments(sluicetest.New(t).Client(), nil)
	require.NoError(t, err)
	payments.Patience = 10 * time.Millisecond
	_, err = payments.Queue.Enqueue(t.Context(), sluice.Task{ID: "e"})
	require.NoError(t, err)
	answer := httptest.NewRecorder()
	payments.Routes().ServeHTTP(answer, httptest.NewRequest("GET", "/payments/e", nil))
	require.Equal(t, http.StatusAccepted, answer.Code)
}
