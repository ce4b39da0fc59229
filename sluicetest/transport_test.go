package sluicetest_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

// TestTransport_AServiceInABubble: a service takes an order over HTTP; 15 minutes later, which take
// no time, a worker tells another service over HTTP that it is canceled.
func TestTransport_AServiceInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		queue, err := sluice.NewQueue(r.Client(), "orders")
		require.NoError(t, err)
		var shop, mail http.ServeMux
		shop.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
			payload, err := io.ReadAll(r.Body)
			if err == nil {
				_, err = queue.Enqueue(r.Context(), sluice.Task{ID: r.PathValue("id"), Payload: payload, Delay: 15 * time.Minute})
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			require.Equal(t, r.RequestURI, r.URL.String(), "as a server sees it")
			require.Equal(t, "shop.example", r.Host)
			w.Header().Set("Location", r.RequestURI)
			w.WriteHeader(http.StatusAccepted)
		})
		told := make(chan string, 1)
		mail.HandleFunc("PUT mail.example/canceled/{id}", func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			told <- r.PathValue("id") + ": " + string(body)
		})
		client := &http.Client{Transport: sluicetest.Transport(&mail), Timeout: time.Minute}
		worker := &sluice.Worker{Queue: queue, Handler: func(ctx context.Context, e sluice.Entry) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://mail.example/canceled/"+e.ID, strings.NewReader(string(e.Payload)))
			require.NoError(t, err)
			response, err := client.Do(request)
			if err == nil {
				err = response.Body.Close()
			}
			return err
		}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- worker.Run(ctx) }()

		buyer := &http.Client{Transport: sluicetest.Transport(&shop)}
		response, err := buyer.Post("http://shop.example/orders/7?from=a", "text/plain", strings.NewReader("a phone"))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusAccepted, response.StatusCode)
		require.Equal(t, "/orders/7?from=a", response.Header.Get("Location"))
		require.Equal(t, "shop.example", response.Request.URL.Host)

		r.Advance(15*time.Minute - time.Millisecond)
		require.Empty(t, told)
		r.Advance(2 * time.Millisecond)
		require.Equal(t, "7: a phone", <-told)
		stop()
		require.NoError(t, <-ended)
	})
}

// TestTransport_ARequestEnds with its context: the handler sees it, and the client's Timeout holds.
func TestTransport_ARequestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			require.Equal(t, http.NoBody, r.Body)
			<-r.Context().Done()
		})
		began := time.Now()
		client := &http.Client{Transport: sluicetest.Transport(slow), Timeout: time.Minute}
		response, err := client.Get("http://slow.example/")
		if err == nil {
			require.NoError(t, response.Body.Close())
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began))
	})
}
