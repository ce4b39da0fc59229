// Service is a process with several kinds of tasks: a queue and a worker for each, with a concurrency and a timeout of its
// own, a web server that enqueues, and a stop that loses nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

// kind is what a kind of task needs.
type kind struct {
	concurrency int
	timeout     time.Duration
	handle      func(ctx context.Context, e sluice.Entry) error
}

// Service runs workers.
type Service struct {
	queues  map[string]*sluice.Queue
	workers []*sluice.Worker
}

// NewService returns a service with a worker for each kind. A queue for each, so that many slow tasks of one kind do not hold up
// the others.
func NewService(rdb *redis.Client, log *slog.Logger, kinds map[string]kind) (*Service, error) {
	s := &Service{queues: map[string]*sluice.Queue{}}
	for name, k := range kinds {
		queue, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(10), sluice.WithDeadAge(30*24*time.Hour))
		if err != nil {
			return nil, err
		}
		s.queues[name] = queue
		s.workers = append(s.workers, &sluice.Worker{
			Queue: queue, Handler: k.handle, Concurrency: k.concurrency, Timeout: k.timeout, Grace: 5 * time.Second, Logger: log,
		})
	}
	return s, nil
}

// ServeHTTP enqueues a task: POST /mail?id=7.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	queue, known := s.queues[r.PathValue("kind")]
	if !known {
		http.NotFound(w, r)
		return
	}
	outcome, err := queue.Enqueue(r.Context(), sluice.Task{ID: r.FormValue("id")})
	switch {
	case err == nil:
		fmt.Fprintln(w, outcome)
	case errors.Is(err, sluice.ErrInvalid):
		http.Error(w, "bad ID", http.StatusBadRequest)
	default: // Redis is away, or silent: enqueueing the same ID again is safe
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}

// Run serves and works until ctx ends. Then it stops in this order: no request comes any more; the workers give back what they
// have not begun, and wait for their handlers. The caller closes Lockers and the client after that.
func (s *Service) Run(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("POST /{kind}", s)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	working, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	var all errgroup.Group
	for _, w := range s.workers {
		all.Go(func() error { return w.Run(working) }) // ends early only for what no retry mends
	}
	all.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := server.Shutdown(stopping)
	endWork()
	return errors.Join(err, all.Wait())
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "127.0.0.1:8081"); err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
}

// run is the process.
func run(ctx context.Context, addr string) error {
	m, err := miniredis.Run() // a real service connects to its Redis
	if err != nil {
		return err
	}
	defer m.Close()
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	slow := func(ctx context.Context, e sluice.Entry) error {
		slog.Info("working", "task", e.ID)
		select {
		case <-time.After(time.Second):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s, err := NewService(rdb, slog.Default(), map[string]kind{"mail": {16, 10 * time.Second, slow}, "report": {2, time.Hour, slow}})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	slog.Info("try: curl -X POST 'http://" + addr + "/mail?id=7'")
	return s.Run(ctx, listener)
}
