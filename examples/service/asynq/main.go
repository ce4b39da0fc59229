// Asynq is the service of the folder above by github.com/hibiken/asynq and
// github.com/bsm/redislock, to compare the two. It needs a Redis server.
package main

import (
	"cmp"
	"context"
	"encoding/json"
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
	"slices"
	"syscall"
	"time"

	"github.com/bsm/redislock"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice/examples/service/shop"
)

// Service sells phones.
type Service struct {
	Shop      *shop.Shop
	Locks     *redislock.Client
	Client    *asynq.Client
	Inspector *asynq.Inspector
	Config
}

// Config is what differs between a test and real life.
type Config struct {
	PayIn   time.Duration // from the order until it is cancelled
	Sweep   string        // when to sweep, as a line of cron
	Crash   time.Duration // for how long a process that died holds up its lock; asynq does not let its tasks be had sooner than after 30s
	Partner string        // the URL of the webhook
}

// feature: kinds, queues and worker

// queues are those of each kind, and their weights.
var (
	queues  = map[string]string{"receipt": "critical", "cancel": "critical", "webhook": "default", "sweep": "default", "thumbnail": "low", "export": "low"}
	weights = map[string]int{"critical": 6, "default": 3, "low": 1}
)

// options are those of each kind: they are kept with the task. The sweep has an ID, and is kept
// after it is done, so that the schedulers of several processes do not enqueue it several times.
var options = map[string][]asynq.Option{
	"receipt":   {asynq.Timeout(10 * time.Second)},
	"cancel":    {asynq.Timeout(10 * time.Second)},
	"webhook":   {asynq.Timeout(10 * time.Second), asynq.MaxRetry(9)},
	"thumbnail": {asynq.Timeout(time.Minute)},
	"export":    {asynq.Timeout(10 * time.Minute)},
	"sweep":     {asynq.TaskID("sweep"), asynq.Retention(30 * time.Minute)},
}

// handlers returns those of all kinds. The transaction is within the lock, so that it is committed
// when the lock is released.
func (s *Service) handlers() asynq.Handler {
	mux := asynq.NewServeMux()
	mux.Use(logged, counted)
	mux.Handle("receipt", s.locked(s.inTx(asynq.HandlerFunc(s.receipt))))
	mux.Handle("cancel", s.locked(s.inTx(asynq.HandlerFunc(s.cancel))))
	mux.HandleFunc("webhook", s.webhook)
	mux.HandleFunc("thumbnail", s.thumbnail)
	mux.HandleFunc("export", s.export)
	mux.Handle("sweep", s.inTx(asynq.HandlerFunc(s.sweep)))
	return mux
}

// workers returns the server of asynq. It looks each second for what is due later.
func workers(rdb redis.UniversalClient) *asynq.Server {
	return asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Concurrency: 16, Queues: weights, RetryDelayFunc: retryDelay, DelayedTaskCheckInterval: time.Second, ShutdownTimeout: 5 * time.Second, LogLevel: asynq.ErrorLevel,
	})
}

// feature: enqueue again, ID of a task

// enqueue puts a task into the queue, in place of one that has the same ID. One that is being
// worked on cannot be replaced, and may have looked before the caller's commit: that is an error,
// and the buyer asks again.
func (s *Service) enqueue(ctx context.Context, kind, id string, payload []byte, more ...asynq.Option) error {
	task := asynq.NewTask(kind, payload, slices.Concat(options[kind], []asynq.Option{asynq.Queue(queues[kind]), asynq.TaskID(kind + ":" + id)})...)
	_, err := s.Client.EnqueueContext(ctx, task, more...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		if err := s.Inspector.DeleteTask(queues[kind], kind+":"+id); err != nil && !errors.Is(err, asynq.ErrTaskNotFound) {
			return err
		}
		_, err = s.Client.EnqueueContext(ctx, task, more...)
	}
	return err
}

// record notes that the task of ctx is done.
func (s *Service) record(ctx context.Context, result []byte) error {
	id, _ := asynq.GetTaskID(ctx)
	return s.Shop.Record(ctx, id, result)
}

// feature: receipt

// Email is the payload of a receipt.
type Email struct{ Order, To string }

// receipt sends a mail. Its task was enqueued before the order's row was committed, under the lock:
// who holds the lock sees what became of the row.
func (s *Service) receipt(ctx context.Context, t *asynq.Task) error {
	var m Email
	if err := json.Unmarshal(t.Payload(), &m); err != nil {
		return fmt.Errorf("no e-mail: %w: %w", err, asynq.SkipRetry)
	}
	if state, err := s.Shop.State(ctx, m.Order); err != nil || state != "paid" {
		return err
	}
	return s.record(ctx, []byte("to "+m.To)) // a real one gives it to a mail server
}

func (s *Service) enqueueReceipt(ctx context.Context, m Email) error {
	payload, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return s.enqueue(ctx, "receipt", m.Order, payload)
}

// feature: cancel

// cancel does nothing for an order that is paid, cancelled, or was never committed.
func (s *Service) cancel(ctx context.Context, t *asynq.Task) error {
	return s.Shop.Cancel(ctx, string(t.Payload()))
}

// feature: webhook

// webhook tells the partner of a paid order, without the lock and without a transaction: a partner
// may be slow.
func (s *Service) webhook(ctx context.Context, t *asynq.Task) error {
	var state string
	order := string(t.Payload())
	err := s.do(ctx, 10*time.Second, func(ctx context.Context) (err error) {
		state, err = s.Shop.State(ctx, order)
		return err
	})
	if err != nil || state != "paid" {
		return err
	}
	again, err := shop.Notify(ctx, s.Partner, order)
	switch {
	case err != nil && again > 0:
		return &retryError{again, err}
	case err != nil:
		return err
	}
	return s.record(ctx, nil)
}

// retryError says when to try again.
type retryError struct {
	in  time.Duration
	err error
}

func (e *retryError) Error() string { return e.err.Error() }
func (e *retryError) Unwrap() error { return e.err }

func retryDelay(retried int, err error, t *asynq.Task) time.Duration {
	var retry *retryError
	switch {
	case errors.As(err, &retry):
		return retry.in
	case t.Type() == "webhook":
		return time.Duration(retried+1) * time.Second
	}
	return asynq.DefaultRetryDelayFunc(retried, err, t)
}

// feature: thumbnail

func (s *Service) thumbnail(ctx context.Context, t *asynq.Task) error {
	small, err := shop.Thumbnail(t.Payload())
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry) // it will be no PNG the next time either
	}
	return s.record(ctx, small)
}

// feature: export

func (s *Service) export(ctx context.Context, _ *asynq.Task) error {
	lines, err := s.Shop.Export(ctx)
	if err != nil {
		return err
	}
	return s.record(ctx, lines)
}

// feature: sweep

// sweep takes the time of the clock: asynq does not hand on that of the schedule.
func (s *Service) sweep(ctx context.Context, _ *asynq.Task) error {
	return errors.Join(s.Shop.Sweep(ctx, time.Now().AddDate(0, 0, -1)), s.record(ctx, nil))
}

func (s *Service) scheduler(rdb redis.UniversalClient) (*asynq.Scheduler, error) {
	scheduler := asynq.NewSchedulerFromRedisClient(rdb, &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel})
	_, err := scheduler.Register(s.Sweep, asynq.NewTask("sweep", nil, options["sweep"]...))
	return scheduler, err
}

// feature: logging

func logged(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		began := time.Now()
		err := next.ProcessTask(ctx, t)
		id, _ := asynq.GetTaskID(ctx)
		retried, _ := asynq.GetRetryCount(ctx)
		slog.DebugContext(ctx, "task", "kind", t.Type(), "id", id, "attempt", retried+1, "took", time.Since(began), "error", err)
		return err
	})
}

// feature: metrics

var tasks = expvar.NewMap("tasks") // GET /debug/vars

func counted(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		result := "panicked"
		defer func() { tasks.Add(t.Type()+" "+result, 1) }()
		err := next.ProcessTask(ctx, t)
		if result = "done"; err != nil {
			result = "failed"
		}
		return err
	})
}

// feature: transaction

func (s *Service) inTx(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		return s.Shop.Tx(ctx, func(ctx context.Context) error { return next.ProcessTask(ctx, t) })
	})
}

// feature: lock

const stock = "stock:phone"

func (s *Service) locked(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		return s.do(ctx, 10*time.Second, func(ctx context.Context) error { return next.ProcessTask(ctx, t) })
	})
}

// change changes an order in a transaction, while it holds the lock.
func (s *Service) change(ctx context.Context, fn func(ctx context.Context) error) error {
	return s.do(ctx, 3*time.Second, func(ctx context.Context) error { return s.Shop.Tx(ctx, fn) })
}

// do calls fn while it holds the lock, and renews it. Its ctx ends when that fails.
func (s *Service) do(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	lock, err := s.Locks.Obtain(waiting, stock, s.Crash, &redislock.Options{RetryStrategy: redislock.LinearBackoff(20 * time.Millisecond)})
	if err != nil {
		return err
	}
	defer func() {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = lock.Release(releasing) // else it ends with its TTL
	}()
	held, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	go func() {
		ticks := time.NewTicker(s.Crash / 3)
		defer ticks.Stop()
		for {
			select {
			case <-held.Done():
				return
			case <-ticks.C:
			}
			refreshing, cancel := context.WithTimeout(held, s.Crash/3)
			err := lock.Refresh(refreshing, s.Crash, nil)
			cancel()
			if err != nil {
				lost(err)
				return
			}
		}
	}()
	return fn(held)
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
		return s.enqueue(ctx, "cancel", order, []byte(order), asynq.ProcessIn(s.PayIn))
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
		return errors.Join(s.enqueueReceipt(ctx, Email{Order: order, To: to}), s.enqueue(ctx, "webhook", order, []byte(order)))
	})
	if err == nil {
		_ = s.Inspector.DeleteTask(queues["cancel"], "cancel:"+order) // only tidies up: the row decides
	}
	return err
}

// feature: web server

func (s *Service) routes() http.Handler {
	mux := http.NewServeMux()
	post := func(path string, do func(r *http.Request, id string) error) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			shop.Answer(w, do(r, r.URL.Query().Get("id")), http.ErrNotSupported) // asynq takes every ID and size
		})
	}
	post("/buy", func(r *http.Request, id string) error { return s.Buy(r.Context(), id) })
	post("/pay", func(r *http.Request, id string) error { return s.Pay(r.Context(), id, r.URL.Query().Get("to")) })
	post("/thumbnail", func(r *http.Request, id string) error {
		data, err := io.ReadAll(io.LimitReader(r.Body, 2<<20))
		if err == nil {
			err = s.enqueue(r.Context(), "thumbnail", id, data)
		}
		return err
	})
	post("/export", func(r *http.Request, id string) error { return s.enqueue(r.Context(), "export", id, nil) })
	post("/partner", func(*http.Request, string) error { return nil }) // stands for another firm's
	mux.Handle("GET /debug/vars", expvar.Handler())
	return mux
}

// feature: start and stop

// Run serves and works until ctx ends, or the web server fails. Then it stops in this order: no
// request comes any more; the scheduler; the workers, which push back what they have not ended in
// time.
func (s *Service) Run(ctx context.Context, rdb redis.UniversalClient, listener net.Listener) error {
	scheduler, err := s.scheduler(rdb)
	if err != nil {
		return err
	}
	workers := workers(rdb)
	if err := errors.Join(workers.Start(s.handlers()), scheduler.Start()); err != nil {
		return err
	}
	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	all.Go(func() error {
		<-ctx.Done()
		defer workers.Shutdown()
		defer scheduler.Shutdown()
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
		fmt.Fprintln(os.Stderr, "asynq:", err)
		os.Exit(1)
	}
}

// run is the process. It closes in the opposite order of what it opens.
func run(ctx context.Context, args []string, out io.Writer) error {
	var c Config
	flags := flag.NewFlagSet("asynq", flag.ContinueOnError)
	addr := flags.String("redis", "127.0.0.1:6379", "`address` of Redis")
	file := flags.String("db", "", "`file` of the database, which all processes share (default: a temporary one)")
	web := flags.String("web", "127.0.0.1:8081", "`address` of the web server")
	flags.StringVar(&c.Partner, "partner", "", "`URL` of the partner (default: one within the process)")
	flags.DurationVar(&c.PayIn, "pay-in", 15*time.Minute, "how `long` a buyer has to pay")
	flags.StringVar(&c.Sweep, "sweep", "0 * * * *", "when to sweep, as a `line` of cron")
	flags.DurationVar(&c.Crash, "crash", 5*time.Second, "how `long` a process that died holds up the others")
	if err := flags.Parse(args); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: *addr})
	defer rdb.Close()
	db, err := shop.Open(ctx, *file, 50)
	if err != nil {
		return err
	}
	defer db.Close()
	s := &Service{db, redislock.New(rdb), asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), c}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *web)
	if err != nil {
		return err
	}
	url := "http://" + listener.Addr().String()
	s.Partner = cmp.Or(c.Partner, url+"/partner")
	fmt.Fprintln(out, url)
	return s.Run(ctx, rdb, listener)
}
