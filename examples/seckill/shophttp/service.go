package shophttp

import (
	"context"
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
)

const (
	// lookEvery is how often a process asks whether all is paid.
	lookEvery = 50 * time.Millisecond
	// AnswerWithin is how long a request may take: longer than a lock's TTL, and than a restart of
	// Redis.
	AnswerWithin = 6 * time.Second
)

var errOver = errors.New("sold out: all are paid")

// service is one process's part in the sale. The sale can go on without it: the orders are in the
// database, and their tasks, which hold the units, on Redis.
type service struct {
	assignment
	store *Store
	way   Way

	over     atomic.Bool  // all units are paid
	underWay atomic.Int64 // requests to buy
}

// serve sells and works until ctx ends.
func serve(ctx context.Context, a assignment, listener net.Listener, ways map[string]OpenWay, say func(report)) error {
	db, err := openStore(a.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	rdb := connect(a.Redis)
	defer rdb.Close()
	way, err := openWay(a.Method, ways, a.site(rdb, db))
	if err != nil {
		return err
	}
	defer way.Close()
	s := &service{assignment: a, store: db, way: way}
	if err := s.look(ctx); err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	go func() { _ = server.Serve(listener) }() // ended by Close
	defer server.Close()
	go s.keepLooking(ctx, say) // ends with ctx
	return way.Work(ctx)
}

// keepLooking looks whether the sale is over, and reports, until ctx ends.
func (s *service) keepLooking(ctx context.Context, say func(report)) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		say(report{UnderWay: s.underWay.Load(), Transactions: s.store.transactions.Swap(0)})
		select {
		case <-tick.C:
			_ = s.look(ctx) // if it fails, the next one tells
		case <-ctx.Done():
			return
		}
	}
}

func (s *service) look(ctx context.Context) error {
	paid, err := s.store.paid(ctx)
	if err == nil {
		s.over.Store(paid >= s.Stock)
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
		number, err := s.buy(r.Context(), customer)
		answer(w, http.StatusCreated, number, err)
	})
	mux.HandleFunc("POST /pay/{number}", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), AnswerWithin)
		defer cancel()
		answer(w, http.StatusOK, "paid", s.way.Pay(ctx, r.PathValue("number")))
	})
	return mux
}

func (s *service) buy(ctx context.Context, customer int) (number string, err error) {
	if s.over.Load() {
		return "", errOver
	}
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	ctx, cancel := context.WithTimeout(ctx, AnswerWithin)
	defer cancel()
	return s.way.Buy(ctx, customer)
}

func answer(w http.ResponseWriter, status int, text string, err error) {
	switch {
	case err == nil:
	case errors.Is(err, ErrSoldOut):
		status, text = http.StatusTooManyRequests, err.Error()
		w.Header().Set("Retry-After", "1")
	case errors.Is(err, errOver):
		status, text = http.StatusGone, err.Error()
	case errors.Is(err, ErrHasOne), errors.Is(err, ErrOvertaken):
		status, text = http.StatusConflict, err.Error()
	default: // its text is not the customer's business
		status, text = http.StatusServiceUnavailable, "try again"
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
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
