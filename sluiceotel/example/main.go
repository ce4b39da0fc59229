// A shop whose orders are paid later, with traces and metrics: "sell" enqueues tasks, "work"
// handles them and serves its metrics for Prometheus. Each prints its spans to standard output.
//
//	go run -C sluiceotel ./example work -redis 127.0.0.1:6379 -metrics 127.0.0.1:9464
//	go run -C sluiceotel ./example sell -redis 127.0.0.1:6379 order-1 order-2
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluiceotel"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: example sell|work [flags] [orders]")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	addr := flags.String("redis", "127.0.0.1:6379", "address of Redis")
	metrics := flags.String("metrics", "127.0.0.1:9464", "where metrics are served")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	spans, err := stdouttrace.New()
	if err != nil {
		return err
	}
	tracers := trace.NewTracerProvider(trace.WithSyncer(spans))
	defer func() { _ = tracers.Shutdown(context.WithoutCancel(ctx)) }()
	exporter, err := prometheus.New()
	if err != nil {
		return err
	}
	meters := metric.NewMeterProvider(metric.WithReader(exporter))
	telemetry, err := sluiceotel.New(sluiceotel.WithTracerProvider(tracers), sluiceotel.WithMeterProvider(meters),
		sluiceotel.WithLockName(func(string) string { return "order" }))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: *addr})
	defer func() { _ = rdb.Close() }()
	s := shop{telemetry: telemetry}
	if s.orders, err = sluice.NewQueue(rdb, "orders", sluice.WithQueueHooks(telemetry.QueueHooks())); err != nil {
		return err
	}
	if args[0] == "sell" {
		return s.sell(ctx, flags.Args())
	}
	if s.locker, err = sluice.NewLocker(rdb, sluice.WithLockHooks(telemetry.LockHooks())); err != nil {
		return err
	}
	defer func() { _ = s.locker.Close() }()
	return s.work(ctx, *metrics)
}

type shop struct {
	telemetry *sluiceotel.Telemetry
	orders    *sluice.Queue
	locker    *sluice.Locker
}

// sell enqueues a task for each order.
func (s shop) sell(ctx context.Context, orders []string) error {
	for _, id := range orders {
		if _, err := s.orders.Enqueue(ctx, sluice.Task{ID: id}); err != nil {
			return err
		}
	}
	return nil
}

// work handles orders, and serves metrics, until ctx ends.
func (s shop) work(ctx context.Context, addr string) error {
	registration, err := s.telemetry.Observe(s.orders)
	if err != nil {
		return err
	}
	defer func() { _ = registration.Unregister() }()
	stock, err := s.telemetry.ObserveStock(s.orders, "phone")
	if err != nil {
		return err
	}
	defer func() { _ = stock.Unregister() }()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "metrics at http://"+listener.Addr().String()+"/metrics")
	server := &http.Server{Handler: promhttp.Handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	w := sluice.Worker{Queue: s.orders, Handler: s.settle}
	return w.Run(ctx)
}

// settle does an order's work under its lock, and has a receipt sent. Enqueue is given the
// handler's ctx, so that its span is a child of the order's.
func (s shop) settle(ctx context.Context, e sluice.Entry) error {
	if strings.HasPrefix(e.ID, "receipt-") {
		return nil
	}
	return s.locker.Do(ctx, e.ID, func(ctx context.Context) error {
		if e.ID == "order-refused" {
			return sluice.Permanent(errors.New("the bank has refused it"))
		}
		_, err := s.orders.Enqueue(ctx, sluice.Task{ID: "receipt-" + e.ID})
		return err
	})
}
