// Service is a shop as a typical application has it: six kinds of tasks on three queues, critical,
// default and low, whose Pool shares one number of handlers; a web server that sells and enqueues,
// and a stop that loses nothing. What it sells, and how, is in package shop. Folder asynq has the
// same service by asynq and redislock.
//
//	go run -C examples ./service
//	curl -X POST 'http://127.0.0.1:8081/buy?id=7'
//	curl -X POST 'http://127.0.0.1:8081/pay?id=7&to=ann@example.com'
package main

import (
	"cmp"
	"context"
	"errors"
	"expvar"
	"flag"
	"fmt"
	"io"
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
	"github.com/sluice-go/sluice/examples/service/shop"
)

// Service sells phones.
type Service struct {
	Shop                   *shop.Shop
	Locker                 *sluice.Locker
	Critical, Default, Low *sluice.Queue
	Receipts               sluice.Typed[Email]
	Config
}

// Config is what differs between a test and real life.
type Config struct {
	PayIn   time.Duration // from the order until it is cancelled
	Sweep   time.Duration // between two sweeps
	Crash   time.Duration // for how long a process that died holds up its lock and its tasks
	Partner string        // the URL of the webhook
}

// feature: kinds, queues and worker

// Pool works on all kinds. The transaction is within the lock, so that it is committed when the
// lock is released.
func (s *Service) Pool() *sluice.Pool {
	mux := &sluice.Mux{}
	mux.Use(logged, counted)
	mux.Handle("receipt", s.locked(s.inTx(s.Receipts.Handler(s.receipt))), sluice.KindTimeout(10*time.Second))
	mux.Handle("cancel", s.locked(s.inTx(s.cancel)), sluice.KindTimeout(10*time.Second))
	mux.Handle("webhook", s.webhook, sluice.KindTimeout(10*time.Second), sluice.KindMaxAttempts(10), sluice.KindBackoff(steadily))
	mux.Handle("thumbnail", s.thumbnail, sluice.KindTimeout(time.Minute))
	mux.Handle("export", s.export, sluice.KindTimeout(10*time.Minute))
	mux.Handle("sweep", s.inTx(s.sweep))
	sweep := sluice.Periodic{ID: "sweep", Kind: "sweep", Schedule: sluice.Every(s.Sweep)}
	return &sluice.Pool{Concurrency: 16, Grace: 5 * time.Second, Workers: []*sluice.Worker{
		{Queue: s.Critical, Weight: 6, Handler: mux.Serve, Lease: s.Crash},
		{Queue: s.Default, Weight: 3, Handler: mux.Serve, Lease: s.Crash, Periodic: []sluice.Periodic{sweep}},
		{Queue: s.Low, Weight: 1, Handler: mux.Serve, Lease: s.Crash},
	}}
}

// feature: receipt

// Email is the payload of a receipt.
type Email struct{ Order, To string }

// receipt sends a mail. Its task was enqueued before the order's row was committed, under the lock:
// who holds the lock sees what became of the row.
func (s *Service) receipt(ctx context.Context, e sluice.Entry, m Email) error {
	if state, err := s.Shop.State(ctx, m.Order); err != nil || state != "paid" {
		return err
	}
	return s.Shop.Record(ctx, e.ID, []byte("to "+m.To)) // a real one gives it to a mail server
}

// feature: cancel

// cancel does nothing for an order that is paid, cancelled, or was never committed.
func (s *Service) cancel(ctx context.Context, e sluice.Entry) error {
	return s.Shop.Cancel(ctx, string(e.Payload))
}

// feature: webhook

// webhook tells the partner of a paid order, without the lock and without a transaction: a partner
// may be slow.
func (s *Service) webhook(ctx context.Context, e sluice.Entry) error {
	var state string
	order := string(e.Payload)
	err := s.Locker.Do(ctx, stock, func(ctx context.Context) (err error) {
		state, err = s.Shop.State(ctx, order)
		return err
	})
	if err != nil || state != "paid" {
		return err
	}
	again, err := shop.Notify(ctx, s.Partner, order)
	switch {
	case err != nil && again > 0:
		return sluice.RetryIn(again, err)
	case err != nil:
		return err
	}
	return s.Shop.Record(ctx, e.ID, nil)
}

func steadily(attempt int, _ error) time.Duration { return time.Duration(attempt) * time.Second }

// feature: thumbnail

func (s *Service) thumbnail(ctx context.Context, e sluice.Entry) error {
	small, err := shop.Thumbnail(e.Payload)
	if err != nil {
		return sluice.Permanent(err) // it will be no PNG the next time either
	}
	return s.Shop.Record(ctx, e.ID, small)
}

// feature: export

func (s *Service) export(ctx context.Context, e sluice.Entry) error {
	lines, err := s.Shop.Export(ctx)
	if err != nil {
		return err
	}
	return s.Shop.Record(ctx, e.ID, lines)
}

// feature: sweep

// sweep takes the time of the schedule, not that of the clock: so a late or repeated one does the
// same.
func (s *Service) sweep(ctx context.Context, e sluice.Entry) error {
	return errors.Join(s.Shop.Sweep(ctx, e.Due.AddDate(0, 0, -1)), s.Shop.Record(ctx, e.ID, []byte(e.Due.String())))
}

// feature: logging

func logged(next sluice.Handler) sluice.Handler {
	return func(ctx context.Context, e sluice.Entry) error {
		began := time.Now()
		err := next(ctx, e)
		slog.DebugContext(ctx, "task", "kind", e.Kind, "id", e.ID, "attempt", e.Attempt, "took", time.Since(began), "error", err)
		return err
	}
}

// feature: metrics

var tasks = expvar.NewMap("tasks") // GET /debug/vars

func counted(next sluice.Handler) sluice.Handler {
	return func(ctx context.Context, e sluice.Entry) error {
		result := "panicked"
		defer func() { tasks.Add(e.Kind+" "+result, 1) }()
		err := next(ctx, e)
		if result = "done"; err != nil {
			result = "failed"
		}
		return err
	}
}

// feature: transaction

func (s *Service) inTx(next sluice.Handler) sluice.Handler {
	return func(ctx context.Context, e sluice.Entry) error {
		return s.Shop.Tx(ctx, func(ctx context.Context) error { return next(ctx, e) })
	}
}

// feature: lock

const stock = "stock:phone"

func (s *Service) locked(next sluice.Handler) sluice.Handler {
	return func(ctx context.Context, e sluice.Entry) error {
		return s.Locker.Do(ctx, stock, func(ctx context.Context) error { return next(ctx, e) })
	}
}

// change changes an order in a transaction, while it holds the lock.
func (s *Service) change(ctx context.Context, fn func(ctx context.Context) error) error {
	return s.Locker.Do(ctx, stock, func(ctx context.Context) error { return s.Shop.Tx(ctx, fn) }, sluice.WithMaxWait(3*time.Second))
}

// feature: buy and pay

// Buy takes a phone from the stock, once for an order. The cancellation is enqueued before the
// commit: a crash between the two leaves a task that finds no order. The other way round, it would
// leave an order that nothing cancels.
func (s *Service) Buy(ctx context.Context, order string) error {
	return s.change(ctx, func(ctx context.Context) error {
		switch state, err := s.Shop.State(ctx, order); {
		case err != nil:
			return err
		case state == "canceled":
			return shop.ErrNotUnpaid
		case state != "":
			return nil // a repeat: the answer was lost
		}
		if err := s.Shop.Sell(ctx, order); err != nil {
			return err
		}
		_, err := s.Critical.Enqueue(ctx, sluice.Task{ID: "cancel:" + order, Kind: "cancel", Payload: []byte(order), Delay: s.PayIn})
		return err
	})
}

// Pay pays an order. What follows from that is enqueued before the commit, too.
func (s *Service) Pay(ctx context.Context, order, to string) error {
	err := s.change(ctx, func(ctx context.Context) error {
		if state, err := s.Shop.State(ctx, order); err != nil || state == "paid" {
			return err // nil for a repeat
		}
		if err := s.Shop.Pay(ctx, order); err != nil {
			return err
		}
		_, err1 := s.Receipts.Enqueue(ctx, sluice.Task{ID: "receipt:" + order}, Email{Order: order, To: to})
		_, err2 := s.Default.Enqueue(ctx, sluice.Task{ID: "webhook:" + order, Kind: "webhook", Payload: []byte(order)})
		return errors.Join(err1, err2)
	})
	if err == nil {
		_, _ = s.Critical.Cancel(ctx, "cancel:"+order) // only tidies up: the row decides
	}
	return err
}

// feature: web server

func (s *Service) routes() http.Handler {
	mux := http.NewServeMux()
	post := func(path string, do func(r *http.Request, id string) error) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			shop.Answer(w, do(r, r.URL.Query().Get("id")), sluice.ErrInvalid)
		})
	}
	post("/buy", func(r *http.Request, id string) error { return s.Buy(r.Context(), id) })
	post("/pay", func(r *http.Request, id string) error { return s.Pay(r.Context(), id, r.URL.Query().Get("to")) })
	post("/thumbnail", func(r *http.Request, id string) error {
		data, err := io.ReadAll(io.LimitReader(r.Body, 2<<20)) // more than a task may have
		if err == nil {
			_, err = s.Low.Enqueue(r.Context(), sluice.Task{ID: "thumbnail:" + id, Kind: "thumbnail", Payload: data})
		}
		return err
	})
	post("/export", func(r *http.Request, id string) error {
		_, err := s.Low.Enqueue(r.Context(), sluice.Task{ID: "export:" + id, Kind: "export"})
		return err
	})
	post("/partner", func(*http.Request, string) error { return nil }) // stands for another firm's
	mux.Handle("GET /debug/vars", expvar.Handler())
	return mux
}

// feature: start and stop

// Run serves and works until ctx ends, or one of the two fails. Then it stops in this order: no
// request comes any more; the pool gives back what it has not begun, and waits for its handlers.
// The caller closes the Locker and the client after that.
func (s *Service) Run(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	working, endWork := context.WithCancel(context.WithoutCancel(ctx))
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return s.Pool().Run(working) }) // ends early only for what no retry mends
	all.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	all.Go(func() error {
		<-ctx.Done()
		defer endWork()
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return server.Shutdown(stopping)
	})
	return all.Wait()
}

// feature: flags and connections

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "service:", err)
		os.Exit(1)
	}
}

// run is the process. It closes in the opposite order of what it opens.
func run(ctx context.Context, args []string, out io.Writer) error {
	var c Config
	flags := flag.NewFlagSet("service", flag.ContinueOnError)
	addr := flags.String("redis", "", "`address` of Redis (default: a miniredis within the process)")
	file := flags.String("db", "", "`file` of the database, which all processes share (default: a temporary one)")
	web := flags.String("web", "127.0.0.1:8081", "`address` of the web server")
	flags.StringVar(&c.Partner, "partner", "", "`URL` of the partner (default: one within the process)")
	flags.DurationVar(&c.PayIn, "pay-in", 15*time.Minute, "how `long` a buyer has to pay")
	flags.DurationVar(&c.Sweep, "sweep", time.Hour, "how `long` from a sweep to the next")
	flags.DurationVar(&c.Crash, "crash", 5*time.Second, "how `long` a process that died holds up the others")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *addr == "" {
		m, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer m.Close()
		m.ClockTTL(true)
		*addr = m.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: *addr})
	defer rdb.Close()
	db, err := shop.Open(ctx, *file, 50)
	if err != nil {
		return err
	}
	defer db.Close()
	s, err := NewService(db, rdb, c)
	if err != nil {
		return err
	}
	defer s.Locker.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *web)
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String()
	s.Partner = cmp.Or(c.Partner, url+"/partner")
	fmt.Fprintln(out, url)
	return s.Run(ctx, listener)
}

// NewService returns a service. The caller closes its Locker.
func NewService(db *shop.Shop, rdb redis.UniversalClient, c Config) (*Service, error) {
	locker, err1 := sluice.NewLocker(rdb, sluice.WithTTL(c.Crash))
	critical, err2 := sluice.NewQueue(rdb, "critical")
	normal, err3 := sluice.NewQueue(rdb, "default")
	low, err4 := sluice.NewQueue(rdb, "low")
	receipts := sluice.Typed[Email]{Queue: critical, Kind: "receipt"}
	return &Service{db, locker, critical, normal, low, receipts, c}, errors.Join(err1, err2, err3, err4)
}
