package shophttp

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

const (
	// lookEvery is how often a process asks the database for the stock. It is how long a unit that
	// came back may be unknown to a process, and a stock that is gone likewise.
	lookEvery = 50 * time.Millisecond
	// lease is how long the task of a process that died is kept from the others.
	lease = lockTTL
)

var (
	errSoldOut = errors.New("sold out for now: units that are not paid come back")
	errHasOne  = errors.New("one each")
	errOver    = errors.New("sold out: all are paid")
)

// service is one process's part in the sale. The sale can go on without it: orders and stock are in
// the database, the lock and the tasks on Redis.
type service struct {
	assignment
	store *store
	guard Guard
	queue *sluice.Queue

	// What the process knows of the stock, so that it answers most requests from memory.
	stock   atomic.Int64
	over    atomic.Bool
	waiting atomic.Int64 // requests that wait for their turn, or have it
}

// serve sells and cancels until ctx ends.
func serve(ctx context.Context, a assignment, listener net.Listener, others map[string]OpenGuard, say func(report)) error {
	db, err := openStore(a.DB)
	if err != nil {
		return err
	}
	defer db.close()
	rdb := connect(a.Redis)
	defer rdb.Close()
	guard, closeGuard, err := openGuard(rdb, a.Method, a.Run, others)
	if err != nil {
		return err
	}
	defer closeGuard()
	s := &service{assignment: a, store: db, guard: guard}
	if s.queue, err = sluice.NewQueue(rdb, a.Run); err != nil {
		return err
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go func() { _ = server.Serve(listener) }() // ended by Close
	defer server.Close()
	go s.keepLooking(ctx, say) // ends with ctx
	worker := &sluice.Worker{Queue: s.queue, Handler: s.cancel, Lease: lease, Backoff: func(int, error) time.Duration { return lookEvery }}
	return worker.Run(ctx)
}

// keepLooking keeps what is known of the stock fresh, and reports, until ctx ends.
func (s *service) keepLooking(ctx context.Context, say func(report)) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		say(report{Waiting: s.waiting.Load(), Transactions: s.store.transactions.Swap(0)})
		select {
		case <-tick.C:
			_ = s.look(ctx) // if it fails, the next one tells
		case <-ctx.Done():
			return
		}
	}
}

func (s *service) look(ctx context.Context) error {
	stock, over, err := s.store.left(ctx, s.Method)
	if err == nil {
		s.stock.Store(int64(stock))
		s.over.Store(over)
	}
	return err
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /buy/{customer}", func(w http.ResponseWriter, r *http.Request) {
		customer, err := strconv.Atoi(r.PathValue("customer"))
		if err != nil {
			http.Error(w, "no such customer", http.StatusNotFound)
			return
		}
		id, err := s.buy(r.Context(), customer)
		answer(w, http.StatusCreated, id, err)
	})
	mux.HandleFunc("POST /pay/{order}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, http.StatusOK, "paid", s.pay(r.Context(), r.PathValue("order")))
	})
	return mux
}

func answer(w http.ResponseWriter, status int, text string, err error) {
	switch {
	case err == nil:
	case errors.Is(err, errSoldOut):
		status, text = http.StatusTooManyRequests, err.Error()
		w.Header().Set("Retry-After", "1")
	case errors.Is(err, errOver):
		status, text = http.StatusGone, err.Error()
	case errors.Is(err, errHasOne), errors.Is(err, errOvertaken):
		status, text = http.StatusConflict, err.Error()
	default: // its text is not the customer's business
		status, text = http.StatusServiceUnavailable, "try again"
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// buy sells the customer a unit. Once the stock is gone it answers from memory, which is what
// happens to nearly all requests of a flash sale.
func (s *service) buy(ctx context.Context, customer int) (id string, err error) {
	switch {
	case s.over.Load():
		return "", errOver
	case s.stock.Load() <= 0:
		return "", errSoldOut
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	err = s.guard.Do(ctx, func(ctx context.Context, fence uint64) error {
		if s.stock.Load() <= 0 { // gone while this buyer waited
			return errSoldOut
		}
		id, err = s.take(ctx, customer, fence)
		return err
	})
	return id, err
}

// take is a buyer's turn: look, work, write and commit.
func (s *service) take(ctx context.Context, customer int, fence uint64) (string, error) {
	stock, has, err := s.store.look(ctx, customer)
	switch {
	case err != nil:
		return "", err
	case stock <= 0:
		s.stock.Store(0)
		return "", errSoldOut
	case has:
		return "", errHasOne
	}
	// Enqueue before the commit: a process that dies between the two leaves a task without an
	// order, which the handler drops. In the other order it would leave an order that is never
	// cancelled.
	o := order{id: rand.Text(), customer: customer, fence: fence, due: time.Now().Add(s.PayWithin)}
	if _, err := s.queue.Enqueue(ctx, sluice.Task{ID: o.id, Delay: s.PayWithin}); err != nil {
		return "", err
	}
	if err := s.store.place(ctx, s.Method, o, stock); err != nil {
		return "", err // the task finds no order
	}
	s.stock.Store(int64(stock - 1))
	return o.id, nil
}

// pay pays an order. The row decides. Cancel only spares a worker the look at a paid order, so its
// errors can be ignored.
func (s *service) pay(ctx context.Context, id string) error {
	err := s.store.pay(ctx, id)
	if err == nil {
		_, _ = s.queue.Cancel(ctx, id)
	}
	return err
}

// cancel handles the task of an order that was not paid in time, or of one that was never
// committed. An error has it tried again. It changes the stock, which a buyer may have read, and so
// takes a turn.
func (s *service) cancel(ctx context.Context, task sluice.Entry) error {
	err := s.guard.Do(ctx, func(ctx context.Context, fence uint64) error {
		return s.store.cancel(ctx, task.ID, fence)
	})
	if err == nil {
		_ = s.look(ctx)
	}
	return err
}

// connect makes a client whose calls end with their context. An address without a port is a Unix
// socket.
func connect(addr string) *redis.Client {
	quiet()
	network := "tcp"
	if _, _, err := net.SplitHostPort(addr); err != nil {
		network = "unix"
	}
	return redis.NewClient(&redis.Options{Network: network, Addr: addr, ContextTimeoutEnabled: true, PoolSize: 64})
}

// quiet keeps go-redis from logging each connection that is refused while Redis is away.
var quiet = sync.OnceFunc(func() { redis.SetLogger(discard{}) })

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}
