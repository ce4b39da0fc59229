// Webhook takes payments that a provider reports: it may report each several times, at once or
// hours later, and each is booked once. The event's ID is the task's, as an idempotency key
// (DuplicatesOnce). A browser waits up to two seconds for the result of the task.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// Payments are booked by a worker.
type Payments struct {
	Queue    *sluice.Queue
	Book     func(ctx context.Context, id string, event []byte) (receipt string, err error) // it must bear to be called again, if rarely
	Patience time.Duration                                                                  // for how long a request waits for one
}

// NewPayments returns those of a queue that remembers an event for a day: longer than its provider
// repeats it.
func NewPayments(rdb redis.UniversalClient, book func(ctx context.Context, id string, event []byte) (string, error)) (*Payments, error) {
	q, err := sluice.NewQueue(rdb, "payments", sluice.WithRetention(24*time.Hour), sluice.WithDuplicates(sluice.DuplicatesOnce))
	return &Payments{q, book, 2 * time.Second}, err
}

// Handle is the handler of the worker.
func (p *Payments) Handle(ctx context.Context, e sluice.Entry) error {
	receipt, err := p.Book(ctx, e.ID, e.Payload)
	if err != nil {
		return err
	}
	return sluice.RecordResult(ctx, []byte(receipt))
}

// Routes are for the provider, and for who waits.
func (p *Payments) Routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /webhook/{id}", p.receive)
	mux.HandleFunc("GET /payments/{id}", p.show)
	return mux
}

// receive answers 202 for a payment that is new or waits, and 200 for one that is booked. The
// provider comes again after anything else.
func (p *Payments) receive(w http.ResponseWriter, r *http.Request) {
	event, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
	if err != nil {
		http.Error(w, "event", http.StatusBadRequest)
		return
	}
	outcome, err := p.Queue.Enqueue(r.Context(), sluice.Task{ID: r.PathValue("id"), Payload: event})
	switch {
	case errors.Is(err, sluice.ErrInvalid):
		http.Error(w, "event", http.StatusBadRequest)
	case err != nil: // it may have been enqueued: to come again is safe
		http.Error(w, "later", http.StatusServiceUnavailable)
	case outcome == sluice.OutcomeDone:
		w.WriteHeader(http.StatusOK)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// show waits for a payment to be booked, and tells what became of it: 202 if it is not yet, and
// the browser asks again.
func (p *Payments) show(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), p.Patience)
	defer cancel()
	t, err := p.Queue.Await(ctx, r.PathValue("id"))
	switch {
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, sluice.ErrUnavailable):
		w.WriteHeader(http.StatusAccepted)
		return
	case errors.Is(err, sluice.ErrNotFound):
		http.NotFound(w, r)
		return
	case err != nil:
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"state": t.State.String(), "receipt": string(t.Result)})
}

func run(ctx context.Context, out io.Writer) error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	var booked atomic.Int64
	payments, err := NewPayments(rdb, func(_ context.Context, id string, _ []byte) (string, error) {
		return fmt.Sprintf("receipt %d of %s", booked.Add(1), id), nil
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- (&sluice.Worker{Queue: payments.Queue, Handler: payments.Handle}).Run(ctx) }()
	web := httptest.NewServer(payments.Routes())
	defer web.Close()
	for i := range 3 {
		answer, err := http.Post(web.URL+"/webhook/event-7", "application/json", strings.NewReader(`{"order": 7}`))
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
		fmt.Fprintf(out, "delivery %d: %s\n", i+1, answer.Status)
		if answer, err = http.Get(web.URL + "/payments/event-7"); err != nil {
			return err
		}
		_, err = io.Copy(out, answer.Body)
		if err = errors.Join(err, answer.Body.Close()); err != nil {
			return err
		}
	}
	stop()
	fmt.Fprintln(out, "booked:", booked.Load())
	return <-ended
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
