package sluiceotel_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/sluiceotel"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// telemetry is a Telemetry that reports to memory.
type telemetry struct {
	*sluiceotel.Telemetry
	spans   *tracetest.SpanRecorder
	tracers *trace.TracerProvider
	reader  *metric.ManualReader
}

func newTelemetry(t *testing.T, opts ...sluiceotel.Option) telemetry {
	t.Helper()
	r := telemetry{spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
	r.tracers = trace.NewTracerProvider(trace.WithSpanProcessor(r.spans))
	meters := metric.NewMeterProvider(metric.WithReader(r.reader))
	var err error
	r.Telemetry, err = sluiceotel.New(append([]sluiceotel.Option{sluiceotel.WithTracerProvider(r.tracers), sluiceotel.WithMeterProvider(meters)}, opts...)...)
	require.NoError(t, err)
	return r
}

// named returns the spans of a name that have ended.
func (r telemetry) named(name string) (found []trace.ReadOnlySpan) {
	for _, s := range r.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// points are what was measured: the value of a number, the count of a histogram, by name and
// attributes.
func (r telemetry) points(t *testing.T) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, r.reader.Collect(t.Context(), &all))
	points := map[string]float64{}
	note := func(name string, of attribute.Set, value float64) {
		var labels []string
		for _, a := range of.ToSlice() {
			labels = append(labels, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
		}
		points[name+"{"+strings.Join(labels, ",")+"}"] = value
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					note(m.Name, p.Attributes, float64(p.Count))
				}
			default:
				t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return points
}

func attributes(s trace.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes() {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

func (r telemetry) queue(t *testing.T, rdb redis.UniversalClient, opts ...sluice.QueueOption) *sluice.Queue {
	t.Helper()
	q, err := sluice.NewQueue(rdb, redistest.Name(t), append(opts, sluice.WithQueueHooks(r.QueueHooks()))...)
	require.NoError(t, err)
	return q
}

// work runs a worker until n tasks are finished, in whatever way.
func work(t *testing.T, q *sluice.Queue, n int64, handler func(ctx context.Context, e sluice.Entry) error) {
	t.Helper()
	w := sluice.Worker{Queue: q, Handler: handler, Backoff: func(int, error) time.Duration { return 0 }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	require.Eventually(t, func() bool {
		s := w.Stats()
		return s.Done+s.Buried+s.Again >= n
	}, 20*time.Second, time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

func TestTelemetry_WorkIsLinkedToWhatHasSentIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newTelemetry(t)
		q := r.queue(t, s.Client(t))
		ctx, request := r.tracers.Tracer("test").Start(t.Context(), "POST /orders")
		_, err := q.EnqueueBatch(ctx, []sluice.Task{{ID: "one", Header: map[string]string{"tenant": "7"}}, {ID: "two"}})
		require.NoError(t, err)
		_, err = q.Enqueue(ctx, sluice.Task{ID: "three", Kind: "email"})
		require.NoError(t, err)
		request.End()

		inner := map[string]api.SpanContext{}
		var tenant string
		seen := make(chan struct{}, 1)
		seen <- struct{}{}
		work(t, q, 3, func(ctx context.Context, e sluice.Entry) error {
			<-seen
			defer func() { seen <- struct{}{} }()
			inner[e.ID] = api.SpanContextFromContext(ctx)
			if e.ID == "one" {
				tenant = e.Header["tenant"]
			}
			return nil
		})
		require.Equal(t, "7", tenant)

		sent, processed := r.named("send "+q.Name()), r.named("process "+q.Name())
		require.Len(t, sent, 2)
		require.Len(t, processed, 3)
		batch, single := sent[0], sent[1]
		for _, s := range sent {
			require.Equal(t, api.SpanKindProducer, s.SpanKind())
			require.Equal(t, request.SpanContext().SpanID(), s.Parent().SpanID())
			require.Equal(t, "send", attributes(s)["messaging.operation.type"])
		}
		require.Equal(t, "2", attributes(batch)["messaging.batch.message_count"])
		require.Equal(t, "three", attributes(single)["messaging.message.id"])
		require.Equal(t, "email", attributes(single)["sluice.task.kind"])
		for _, p := range processed {
			of := attributes(p)
			require.Equal(t, api.SpanKindConsumer, p.SpanKind())
			require.False(t, p.Parent().IsValid())
			want := map[string]string{
				"messaging.system": "sluice", "messaging.destination.name": q.Name(), "messaging.operation.name": "process",
				"messaging.operation.type": "process", "messaging.message.id": of["messaging.message.id"],
				"sluice.task.attempt": "1", "sluice.task.lateness": of["sluice.task.lateness"], "sluice.task.disposition": "done",
			}
			producer := batch
			if of["messaging.message.id"] == "three" {
				producer, want["sluice.task.kind"] = single, "email"
			}
			require.Equal(t, want, of)
			require.Len(t, p.Links(), 1)
			require.Equal(t, producer.SpanContext().TraceID(), p.Links()[0].SpanContext.TraceID())
			require.Equal(t, producer.SpanContext().SpanID(), p.Links()[0].SpanContext.SpanID())
			require.Equal(t, p.SpanContext(), inner[of["messaging.message.id"]], "the handler's context carries the span")
		}
	})
}

// renamed is W3C's trace context under another key.
type renamed struct{}

const renamedKey = "x-parent"

func (renamed) Fields() []string { return []string{renamedKey} }

func (renamed) Inject(ctx context.Context, to propagation.TextMapCarrier) {
	inner := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, inner)
	to.Set(renamedKey, inner["traceparent"])
}

func (renamed) Extract(ctx context.Context, from propagation.TextMapCarrier) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": from.Get(renamedKey)})
}

// TestTelemetry_WithPropagator: a task's header is written and read by the propagator, and has
// nothing of the default's.
func TestTelemetry_WithPropagator(t *testing.T) {
	r := newTelemetry(t, sluiceotel.WithPropagator(renamed{}))
	q := r.queue(t, redistest.Mini(t).Client(t))
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	var header map[string]string
	work(t, q, 1, func(_ context.Context, e sluice.Entry) error { header = e.Header; return nil })
	require.Contains(t, header, renamedKey)
	require.NotContains(t, header, "traceparent")
	sent, processed := r.named("send "+q.Name()), r.named("process "+q.Name())
	require.Len(t, sent, 1)
	require.Len(t, processed, 1)
	require.Len(t, processed[0].Links(), 1)
	require.Equal(t, sent[0].SpanContext().SpanID(), processed[0].Links()[0].SpanContext.SpanID())
}

func TestTelemetry_AHeaderThatIsThereStays(t *testing.T) {
	r := newTelemetry(t)
	mine := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	tasks := []sluice.Task{{ID: "a", Header: mine}, {ID: "b"}}
	r.QueueHooks().TasksSending(t.Context(), sluice.TasksSending{Queue: "q", Tasks: tasks})
	require.Equal(t, mine, tasks[0].Header)
	require.Contains(t, tasks[1].Header, "traceparent")
	require.NotEqual(t, mine["traceparent"], tasks[1].Header["traceparent"])
}

func TestTelemetry_TheCallersMapStaysAsItIs(t *testing.T) {
	r := newTelemetry(t)
	header := map[string]string{"tenant": "7"}
	tasks := []sluice.Task{{ID: "a", Header: header}}
	r.QueueHooks().TasksSending(t.Context(), sluice.TasksSending{Queue: "q", Tasks: tasks})
	require.Equal(t, map[string]string{"tenant": "7"}, header)
	require.Equal(t, "7", tasks[0].Header["tenant"])
	require.Contains(t, tasks[0].Header, "traceparent")
}

// dropOne has a limit drop a dead letter of a queue that has one. It is not observed.
func dropOne(t *testing.T, rdb redis.UniversalClient, name string) {
	t.Helper()
	q, err := sluice.NewQueue(rdb, name, sluice.WithDeadLimit(1))
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "worse"})
	require.NoError(t, err)
	es, err := q.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, es, 1)
	require.NoError(t, q.Bury(t.Context(), "worse", es[0]))
}

func TestTelemetry_CountsWhatBecomesOfTasks(t *testing.T) {
	r := newTelemetry(t)
	rdb := redistest.Start(t).Client(t)
	q := r.queue(t, rdb, sluice.WithRetention(time.Hour))
	registration, err := r.Observe(q)
	require.NoError(t, err)
	outcomes := map[string]bool{}
	for _, task := range []sluice.Task{{ID: "done", Kind: "k"}, {ID: "done", Kind: "k"}, {ID: "again"}, {ID: "bad"}, {ID: "snoozed"}, {ID: "discarded"}, {ID: "later", Delay: time.Hour}} {
		outcome, err := q.Enqueue(t.Context(), task)
		require.NoError(t, err)
		outcomes[outcome.String()] = true
	}
	require.Equal(t, map[string]bool{"added": true, "updated": true}, outcomes)
	work(t, q, 4, func(_ context.Context, e sluice.Entry) error {
		switch {
		case e.ID == "again" && e.Attempt == 1:
			return context.DeadlineExceeded
		case e.ID == "bad":
			return sluice.Permanent(errors.New("refused"))
		case e.ID == "discarded":
			return sluice.Discard(errors.New("canceled"))
		case e.ID == "snoozed":
			return fmt.Errorf("busy: %w", sluice.Again(time.Hour))
		}
		return nil
	})
	dropOne(t, rdb, q.Name())
	was, err := q.Cancel(t.Context(), "again")
	require.NoError(t, err)
	require.Equal(t, sluice.StateDone, was)
	queue := "messaging.destination.name=" + q.Name()
	got := r.points(t)
	for point, want := range map[string]float64{
		"messaging.client.sent.messages{" + queue + ",messaging.operation.name=send,messaging.system=sluice,sluice.task.outcome=added}":                    6,
		"messaging.client.sent.messages{" + queue + ",messaging.operation.name=send,messaging.system=sluice,sluice.task.outcome=updated}":                  1,
		"messaging.client.operation.duration{" + queue + ",messaging.operation.name=send,messaging.operation.type=send,messaging.system=sluice}":           7,
		"messaging.client.consumed.messages{" + queue + ",messaging.operation.name=receive,messaging.system=sluice}":                                       6,
		"messaging.process.duration{" + queue + ",messaging.operation.name=process,messaging.system=sluice}":                                               3,
		"messaging.process.duration{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.kind=k}":                            1,
		"messaging.process.duration{error.type=deadline_exceeded," + queue + ",messaging.operation.name=process,messaging.system=sluice}":                  1,
		"sluice.task.lateness{" + queue + ",messaging.operation.name=process,messaging.system=sluice}":                                                     5,
		"sluice.task.lateness{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.kind=k}":                                  1,
		"sluice.task.dispositions{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.disposition=done}":                    1,
		"sluice.task.dispositions{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.disposition=done,sluice.task.kind=k}": 1,
		"sluice.task.dispositions{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.disposition=retried}":                 1,
		"sluice.task.dispositions{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.disposition=again}":                   1,
		"sluice.task.dispositions{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.disposition=discarded}":               1,
		"sluice.task.dispositions{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.disposition=buried}":                  1,
		"sluice.worker.running{" + queue + ",messaging.operation.name=process,messaging.system=sluice}":                                                    0,
		"sluice.worker.running{" + queue + ",messaging.operation.name=process,messaging.system=sluice,sluice.task.kind=k}":                                 0,
		"sluice.queue.tasks{" + queue + ",messaging.system=sluice,sluice.task.state=due}":                                                                  0,
		"sluice.queue.tasks{" + queue + ",messaging.system=sluice,sluice.task.state=scheduled}":                                                            2,
		"sluice.queue.tasks{" + queue + ",messaging.system=sluice,sluice.task.state=leased}":                                                               0,
		"sluice.queue.tasks{" + queue + ",messaging.system=sluice,sluice.task.state=dead}":                                                                 1,
		"sluice.queue.tasks{" + queue + ",messaging.system=sluice,sluice.task.state=done}":                                                                 1, // of two, one was forgotten
		"sluice.queue.lateness{" + queue + ",messaging.system=sluice}":                                                                                     0,
		"sluice.queue.trimmed{" + queue + ",messaging.system=sluice}":                                                                                      1,
		"sluice.queue.finished{" + queue + ",messaging.system=sluice}":                                                                                     3, // with the discarded one
		"sluice.queue.retried{" + queue + ",messaging.system=sluice}":                                                                                      1,
		"sluice.queue.buried{" + queue + ",messaging.system=sluice}":                                                                                       2, // dropOne has, too
		"sluice.queue.lost{" + queue + ",messaging.system=sluice}":                                                                                         0,
		"sluice.queue.workers{" + queue + ",messaging.system=sluice}":                                                                                      0,
		"sluice.queue.paused{" + queue + ",messaging.system=sluice}":                                                                                       0,
		"sluice.queue.waiting{" + queue + ",messaging.system=sluice}":                                                                                      0,
	} {
		value, found := got[point]
		require.True(t, found, "%s is missing in %v", point, got)
		require.Equal(t, want, value, point)
	}
	require.NoError(t, registration.Unregister())
	for point := range r.points(t) {
		require.NotContains(t, point, "sluice.queue.")
	}
	for _, s := range r.named("process " + q.Name()) {
		if attributes(s)["sluice.task.disposition"] == "buried" {
			require.Equal(t, codes.Error, s.Status().Code)
			require.Equal(t, "refused", s.Status().Description)
		}
		if d := attributes(s)["sluice.task.disposition"]; d == "again" || d == "discarded" {
			require.Equal(t, codes.Unset, s.Status().Code, "nothing has failed")
		}
	}
}

// TestTelemetry_CountsStuckHandlers: once, and their spans say when.
func TestTelemetry_CountsStuckHandlers(t *testing.T) {
	r := newTelemetry(t)
	hooks := r.QueueHooks()
	entry := sluice.Entry{ID: "a", Kind: "k", Attempt: 1}
	ctx := hooks.TaskStarted(t.Context(), sluice.TaskStarted{Queue: "q", Entry: entry})
	hooks.TaskStuck(ctx, sluice.TaskStuck{Queue: "q", Entry: entry, Running: time.Hour})
	hooks.TaskFinished(ctx, sluice.TaskFinished{Queue: "q", Entry: entry, Disposition: sluice.DispositionLost})
	require.EqualValues(t, 1, r.points(t)["sluice.task.stuck{messaging.destination.name=q,messaging.operation.name=process,messaging.system=sluice,sluice.task.kind=k}"])
	spans := r.named("process q")
	require.Len(t, spans, 1)
	require.Equal(t, "stuck", spans[0].Events()[0].Name)
}

// TestTelemetry_LimitsAreReportedWhereThereAreAny: a rate by the second, and none as no value, not
// as 0.
func TestTelemetry_LimitsAreReportedWhereThereAreAny(t *testing.T) {
	r := newTelemetry(t)
	q := r.queue(t, redistest.Start(t).Client(t))
	_, err := r.Observe(q)
	require.NoError(t, err)
	limits := func() map[string]float64 {
		found := map[string]float64{}
		for point, value := range r.points(t) {
			if name, ok := strings.CutSuffix(point, "{messaging.destination.name="+q.Name()+",messaging.system=sluice}"); ok && strings.Contains(name, "limit") {
				found[name] = value
			}
		}
		return found
	}
	require.Empty(t, limits())
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Running: 3}))
	require.Equal(t, map[string]float64{"sluice.queue.limit.running": 3}, limits())
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Running: 4, Rate: 90, Per: time.Minute}))
	require.Equal(t, map[string]float64{"sluice.queue.limit.running": 4, "sluice.queue.limit.rate": 1.5}, limits())
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Rate: 10, Per: 500 * time.Millisecond}))
	require.Equal(t, map[string]float64{"sluice.queue.limit.rate": 20}, limits())
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{}))
	require.Empty(t, limits())
}

func TestTelemetry_AQueueThatDoesNotAnswerHasNoNumbers(t *testing.T) {
	r := newTelemetry(t)
	s := redistest.Start(t)
	well, gone := r.queue(t, redistest.Start(t).Client(t)), r.queue(t, s.Client(t))
	_, err := r.Observe(gone, well)
	require.NoError(t, err)
	s.Pause(t)
	defer s.Resume(t)
	var all metricdata.ResourceMetrics
	begun := time.Now()
	require.Error(t, r.reader.Collect(t.Context(), &all))
	require.Less(t, time.Since(begun), 10*time.Second)
	text := fmt.Sprint(all)
	require.Contains(t, text, well.Name())
	require.NotContains(t, text, gone.Name())
}

func TestTelemetry_MeasuresLocks(t *testing.T) {
	r := newTelemetry(t, sluiceotel.WithLockName(func(name string) string { kind, _, _ := strings.Cut(name, ":"); return kind }))
	rdb := redistest.Start(t).Client(t)
	locker, err := sluice.NewLocker(rdb, sluice.WithLockHooks(r.LockHooks()), sluice.WithLockPrefix(redistest.Name(t)+":"))
	require.NoError(t, err)
	defer func() { require.NoError(t, locker.Close()) }()
	require.NoError(t, locker.Do(t.Context(), "stock:1", func(context.Context) error { return nil }))
	k, err := locker.Lock(t.Context(), "stock:2", sluice.WithTTL(500*time.Millisecond))
	require.NoError(t, err)
	<-k.Context().Done()
	require.ErrorIs(t, context.Cause(k.Context()), sluice.ErrLost)
	require.Eventually(t, func() bool { return r.points(t)["sluice.lock.lost{sluice.lock.name=stock}"] == 1 }, 10*time.Second, time.Millisecond)
	got := r.points(t)
	require.Equal(t, 1.0, got["sluice.lock.hold.duration{sluice.lock.name=stock}"])
	require.Equal(t, 2.0, got["sluice.lock.wait.duration{sluice.lock.handed_over=false,sluice.lock.name=stock}"])
	require.NoError(t, locker.Do(t.Context(), "stock:3", func(context.Context) error {
		_, err := locker.Lock(t.Context(), "stock:3", sluice.WithMaxWait(50*time.Millisecond))
		require.ErrorIs(t, err, sluice.ErrLocked)
		return nil
	}))
	require.Equal(t, 1.0, r.points(t)["sluice.lock.wait.failures{error.type=locked,sluice.lock.name=stock}"])
}

// TestTelemetry_HoldsNoSecret: no token, payload or header's value is in a span or a metric,
// whatever happens.
func TestTelemetry_HoldsNoSecret(t *testing.T) {
	const canary = "canary4711"
	r := newTelemetry(t)
	s := redistest.Start(t)
	rdb := s.Client(t)
	q := r.queue(t, rdb)
	locker, err := sluice.NewLocker(rdb, sluice.WithLockHooks(r.LockHooks()))
	require.NoError(t, err)
	k, err := locker.Lock(t.Context(), redistest.Name(t))
	require.NoError(t, err)
	token := k.Token()
	require.NoError(t, k.Unlock(t.Context()))
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a", Payload: []byte(canary), Header: map[string]string{"key": canary}})
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "b", Payload: []byte(strings.Repeat(canary, 1<<20))})
	require.ErrorIs(t, err, sluice.ErrInvalid)
	work(t, q, 1, func(_ context.Context, e sluice.Entry) error {
		require.Equal(t, canary, string(e.Payload))
		return sluice.Permanent(errors.New("no"))
	})
	s.Down()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = q.Enqueue(ctx, sluice.Task{ID: "c", Payload: []byte(canary)})
	require.Error(t, err)
	var text strings.Builder
	for _, s := range tracetest.SpanStubsFromReadOnlySpans(r.spans.Ended()) {
		fmt.Fprintf(&text, "%+v\n", s)
	}
	fmt.Fprint(&text, r.points(t))
	require.Contains(t, text.String(), "process "+q.Name())
	require.NotContains(t, text.String(), canary)
	require.NotContains(t, text.String(), token)
}

// TestTelemetry_AnErrorIsOneOfFew: the type of an error is no text that names a task or a server.
func TestTelemetry_AnErrorIsOneOfFew(t *testing.T) {
	r := newTelemetry(t)
	for _, err := range []error{
		fmt.Errorf("a: %w", sluice.ErrUnknown), fmt.Errorf("b: %w", sluice.ErrUnavailable), errors.New("c"), fmt.Errorf("d: %w", os.ErrNotExist), sluice.Permanent(errors.New("e")),
	} {
		r.QueueHooks().TasksSent(t.Context(), sluice.TasksSent{Queue: "q", Tasks: make([]sluice.Task, 2), Err: err})
	}
	got := r.points(t)
	for name, n := range map[string]float64{"unknown": 2, "unavailable": 2, "_OTHER": 6} {
		require.Equal(t, n, got["messaging.client.sent.messages{error.type="+name+",messaging.destination.name=q,messaging.operation.name=send,messaging.system=sluice}"], name)
	}
	// Of a task it is what its worker has decided, if it is not one that is known.
	for of, err := range map[sluice.Disposition]error{
		sluice.DispositionRetried: errors.New("a"), sluice.DispositionBuried: sluice.Permanent(errors.New("b")), sluice.DispositionLost: sluice.ErrLost,
	} {
		ctx := r.QueueHooks().TaskStarted(t.Context(), sluice.TaskStarted{Queue: "q"})
		r.QueueHooks().TaskFinished(ctx, sluice.TaskFinished{Queue: "q", Disposition: of, Err: err})
		spans := r.spans.Ended()
		require.Contains(t, spans[len(spans)-1].Attributes(), attribute.String("error.type", of.String()))
		require.Equal(t, 1.0, r.points(t)["messaging.process.duration{error.type="+of.String()+",messaging.destination.name=q,messaging.operation.name=process,messaging.system=sluice}"], of)
	}
	// An occurrence that was done before has an error, which says that, and nothing has failed.
	ctx := r.QueueHooks().TaskStarted(t.Context(), sluice.TaskStarted{Queue: "q"})
	r.QueueHooks().TaskFinished(ctx, sluice.TaskFinished{Queue: "q", Disposition: sluice.DispositionDone, Err: errors.New("the handler was not called")})
	spans := r.spans.Ended()
	require.Equal(t, codes.Unset, spans[len(spans)-1].Status().Code)
}
