// Package sluiceotel reports what Sluice's locks, queues and workers do to OpenTelemetry: as
// traces, in which the work on a task is linked to the call that has enqueued it, and as
// metrics.
//
//	telemetry, err := sluiceotel.New()
//	locker, err := sluice.NewLocker(rdb, sluice.WithLockHooks(telemetry.LockHooks()))
//	queue, err := sluice.NewQueue(rdb, "mail", sluice.WithQueueHooks(telemetry.QueueHooks()))
//	registration, err := telemetry.Observe(queue)
//
// Names follow OpenTelemetry's semantic conventions for messaging, which are still in
// development: they may change with a version of this package. What has no place there is
// named sluice.*: see [Telemetry.LockHooks], [Telemetry.QueueHooks], [Telemetry.Observe] and
// [Telemetry.ObserveStock].
//
// IDs of tasks are in spans, not in metrics. Names of locks are in metrics only if WithLockName
// says how. Payloads, headers and tokens are in neither. The text of a handler's error is in
// its span.
package sluiceotel

import (
	"fmt"
	"runtime/debug"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation.
const scope = "github.com/sluice-go/sluice/sluiceotel"

// version returns the version of this module in the program, "" if the program was built without
// modules.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == scope {
			return m.Version
		}
	}
	return ""
}

// Telemetry reports to OpenTelemetry. It is safe for concurrent use, by any number of Lockers and
// Queues.
type Telemetry struct {
	config
	tracer trace.Tracer
	meter  metric.Meter
	instruments
}

type config struct {
	tracers    trace.TracerProvider
	meters     metric.MeterProvider
	propagator propagation.TextMapPropagator
	lockName   func(name string) string
}

// Option sets something about a Telemetry.
type Option func(*config)

// WithTracerProvider sets where spans go. Defaults to otel.GetTracerProvider().
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) { c.tracers = p }
}

// WithMeterProvider sets where metrics go. Defaults to otel.GetMeterProvider().
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.meters = p }
}

// WithPropagator sets how a span's context is written to a task's header and read from it.
// Defaults to W3C's trace context: the key traceparent, and tracestate if there is one.
func WithPropagator(p propagation.TextMapPropagator) Option {
	return func(c *config) { c.propagator = p }
}

// WithLockName has f name locks in metrics, as the attribute sluice.lock.name: each value that it
// returns is a series of its own for ever, so it should return few. For a lock stock:4711 it may
// return "stock". Without it metrics do not tell locks apart.
func WithLockName(f func(name string) string) Option {
	return func(c *config) { c.lockName = f }
}

// New returns a Telemetry. The error is the one of the meter provider, if it refuses an instrument.
func New(opts ...Option) (*Telemetry, error) {
	c := config{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider(), propagator: propagation.TraceContext{}}
	for _, o := range opts {
		o(&c)
	}
	t := &Telemetry{
		config: c,
		tracer: c.tracers.Tracer(scope, trace.WithInstrumentationVersion(version()), trace.WithSchemaURL(semconv.SchemaURL)),
		meter:  c.meters.Meter(scope, metric.WithInstrumentationVersion(version()), metric.WithSchemaURL(semconv.SchemaURL)),
	}
	var err error
	if t.instruments, err = newInstruments(t.meter); err != nil {
		return nil, fmt.Errorf("sluiceotel: %w", err)
	}
	return t, nil
}
