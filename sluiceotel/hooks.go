package sluiceotel

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-go/sluice"
)

const (
	send    = "send"
	receive = "receive"
	process = "process"

	// maxError is the most bytes of an error that a span gets.
	maxError = 512
)

// LockHooks returns what reports locks to OpenTelemetry, for sluice.WithLockHooks. Metrics:
//
//	sluice.lock.wait.duration  of acquisitions, by sluice.lock.handed_over
//	sluice.lock.wait.failures  calls that have waited in vain, by error.type
//	sluice.lock.hold.duration  of locks that were released
//	sluice.lock.lost           locks that were lost
func (t *Telemetry) LockHooks() sluice.LockHooks {
	return sluice.LockHooks{
		LockAcquired: t.lockAcquired, LockWaitFailed: t.lockWaitFailed, LockReleased: t.lockReleased, LockLost: t.lockWasLost,
	}
}

// QueueHooks returns what reports tasks to OpenTelemetry, for sluice.WithQueueHooks.
//
// Spans: "send <queue>" of a producer, for each Enqueue or EnqueueBatch, a child of the span in its
// ctx; "process <queue>" of a consumer, for each call of a Worker's handler, the root of a trace of
// its own and linked to the producer's span, which the task's header names. The handler's ctx
// carries it. A task that has a header of the propagator already keeps it.
//
// Metrics, with the attributes that the conventions name and, where a handler is called, the task's
// sluice.task.kind if it has one:
//
//	messaging.client.sent.messages       tasks that were to be enqueued, by sluice.task.outcome or error.type
//	messaging.client.operation.duration  of Enqueue and EnqueueBatch
//	messaging.client.consumed.messages   tasks that were claimed
//	messaging.process.duration           of handlers
//	sluice.task.lateness                 how long after it was due a task was claimed
//	sluice.task.dispositions             by sluice.task.disposition: done, retried, buried, canceled,
//	                                     released, discarded, again, lost, expired
//	sluice.task.stuck                    handlers that got stuck: see sluice.Worker.Timeout
//	sluice.worker.running                handlers that are running
//
// The error.type, also of spans, is one of few words: of an error of sluice or of a context, such as
// unavailable or deadline_exceeded; of another one of a handler, the task's disposition; else _OTHER.
func (t *Telemetry) QueueHooks() sluice.QueueHooks {
	return sluice.QueueHooks{
		TasksSending: t.tasksSending, TasksSent: t.tasksSent, TasksClaimed: t.tasksClaimed,
		TaskStarted: t.taskStarted, TaskStuck: t.taskStuck, TaskFinished: t.taskFinished,
	}
}

func (t *Telemetry) lockAcquired(ctx context.Context, i sluice.LockAcquired) {
	t.lockWait.Record(ctx, i.Waited.Seconds(), t.ofLock(i.Name, keyHandedOver.Bool(i.HandedOver)))
}

func (t *Telemetry) lockWaitFailed(ctx context.Context, i sluice.LockWaitFailed) {
	t.lockFailed.Add(ctx, 1, t.ofLock(i.Name, errorType(i.Err, otherError)))
}

func (t *Telemetry) lockReleased(i sluice.LockReleased) {
	t.lockHold.Record(context.Background(), i.Held.Seconds(), t.ofLock(i.Name))
}

func (t *Telemetry) lockWasLost(i sluice.LockLost) {
	t.lockLost.Add(context.Background(), 1, t.ofLock(i.Name))
}

// ofLock returns the attributes of a lock.
func (t *Telemetry) ofLock(name string, others ...attribute.KeyValue) metric.MeasurementOption {
	if t.lockName != nil {
		others = append(others, keyLockName.String(valid(t.lockName(name))))
	}
	return metric.WithAttributeSet(attribute.NewSet(others...))
}

// spanKey is the key of the span that a hook has begun, in the ctx of the hook that ends it.
type spanKey struct{}

// end ends the span that a hook has begun.
func end(ctx context.Context, err error, otherwise string, attributes ...attribute.KeyValue) {
	span, ok := ctx.Value(spanKey{}).(trace.Span)
	if !ok {
		return
	}
	defer span.End() // also if the error's own Error panics
	span.SetAttributes(attributes...)
	if err != nil {
		fail(span, err, otherwise)
	}
}

func (t *Telemetry) tasksSending(ctx context.Context, i sluice.TasksSending) context.Context {
	attributes := append(ofQueue(i.Queue, send), semconv.MessagingOperationTypeSend)
	if len(i.Tasks) == 1 {
		attributes = append(attributes, semconv.MessagingMessageID(valid(i.Tasks[0].ID)))
		if kind := i.Tasks[0].Kind; kind != "" {
			attributes = append(attributes, keyKind.String(valid(kind)))
		}
	} else {
		attributes = append(attributes, semconv.MessagingBatchMessageCount(len(i.Tasks)))
	}
	ctx, span := t.tracer.Start(ctx, send+" "+valid(i.Queue), trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes...))
	if span.SpanContext().IsValid() {
		t.inject(ctx, i.Tasks)
	}
	return context.WithValue(ctx, spanKey{}, span)
}

// inject writes the context of the span in ctx to the headers of the tasks that have none.
func (t *Telemetry) inject(ctx context.Context, tasks []sluice.Task) {
	carrier := propagation.MapCarrier{}
	t.propagator.Inject(ctx, carrier)
	for i := range tasks {
		has := func(key string) bool { _, found := tasks[i].Header[key]; return found }
		if slices.ContainsFunc(t.propagator.Fields(), has) {
			continue
		}
		header := make(map[string]string, len(tasks[i].Header)+len(carrier)) // the caller's map stays as it is
		for key, value := range tasks[i].Header {
			header[key] = value
		}
		for key, value := range carrier {
			header[key] = value
		}
		tasks[i].Header = header
	}
}

func (t *Telemetry) tasksSent(ctx context.Context, i sluice.TasksSent) {
	attributes := append(ofQueue(i.Queue, send), semconv.MessagingOperationTypeSend)
	if i.Err != nil {
		attributes = append(attributes, errorType(i.Err, otherError))
	}
	t.operation.Inst().Record(ctx, i.Took.Seconds(), metric.WithAttributes(attributes...))
	t.countSent(ctx, i)
	end(ctx, i.Err, otherError)
}

// countSent counts tasks by what Enqueue has answered. After an error those without an outcome are
// counted by that.
func (t *Telemetry) countSent(ctx context.Context, i sluice.TasksSent) {
	counts := map[sluice.Outcome]int64{}
	for _, outcome := range i.Outcomes {
		counts[outcome]++
	}
	if rest := int64(len(i.Tasks) - len(i.Outcomes)); rest > 0 {
		counts[0] += rest
	}
	for outcome, n := range counts {
		attributes := ofQueue(i.Queue, send)
		switch {
		case outcome != 0:
			attributes = append(attributes, keyOutcome.String(outcome.String()))
		case i.Err != nil:
			attributes = append(attributes, errorType(i.Err, otherError))
		}
		t.sent.Inst().Add(ctx, n, metric.WithAttributes(attributes...))
	}
}

func (t *Telemetry) tasksClaimed(i sluice.TasksClaimed) {
	t.consumed.Inst().Add(context.Background(), int64(len(i.Entries)), metric.WithAttributes(ofQueue(i.Queue, receive)...))
}

func (t *Telemetry) taskStarted(ctx context.Context, i sluice.TaskStarted) context.Context {
	of := metric.WithAttributes(ofTask(i.Queue, i.Entry)...)
	t.running.Add(ctx, 1, of)
	t.lateness.Record(ctx, i.Lateness.Seconds(), of)
	options := []trace.SpanStartOption{
		trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(append(ofTask(i.Queue, i.Entry), semconv.MessagingOperationTypeProcess,
			semconv.MessagingMessageID(valid(i.Entry.ID)), keyAttempt.Int(i.Entry.Attempt), keyLateness.Float64(i.Lateness.Seconds()))...),
	}
	producer := t.propagator.Extract(context.Background(), propagation.MapCarrier(i.Entry.Header))
	if link := trace.LinkFromContext(producer); link.SpanContext.IsValid() {
		options = append(options, trace.WithLinks(link))
	}
	ctx, span := t.tracer.Start(ctx, process+" "+valid(i.Queue), options...)
	return context.WithValue(ctx, spanKey{}, span)
}

// taskStuck is told with the context of the task's span.
func (t *Telemetry) taskStuck(ctx context.Context, i sluice.TaskStuck) {
	t.stuck.Add(ctx, 1, metric.WithAttributes(ofTask(i.Queue, i.Entry)...))
	trace.SpanFromContext(ctx).AddEvent("stuck")
}

func (t *Telemetry) taskFinished(ctx context.Context, i sluice.TaskFinished) {
	attributes := ofTask(i.Queue, i.Entry)
	t.running.Add(ctx, -1, metric.WithAttributes(attributes...))
	disposition := keyDisposition.String(i.Disposition.String())
	t.dispositions.Add(ctx, 1, metric.WithAttributes(append(ofTask(i.Queue, i.Entry), disposition)...))
	switch i.Disposition {
	case sluice.DispositionDone, sluice.DispositionAgain, sluice.DispositionDiscarded: // nothing has failed
		i.Err = nil
	}
	if i.Err != nil {
		attributes = append(attributes, errorType(i.Err, i.Disposition.String()))
	}
	t.process.Inst().Record(ctx, i.Took.Seconds(), metric.WithAttributes(attributes...))
	end(ctx, i.Err, i.Disposition.String(), disposition)
}

// ofTask returns the attributes of work on a task, with room for more.
func ofTask(queue string, e sluice.Entry) []attribute.KeyValue {
	attributes := ofQueue(queue, process)
	if e.Kind != "" {
		attributes = append(attributes, keyKind.String(valid(e.Kind)))
	}
	return attributes
}

// ofQueue returns the attributes of an operation on a queue, with room for more.
func ofQueue(queue, operation string) []attribute.KeyValue {
	return append(make([]attribute.KeyValue, 0, 8), system, semconv.MessagingDestinationName(valid(queue)), semconv.MessagingOperationName(operation))
}

// known are errors of which a few stand for all: their texts name tasks and servers.
var known = []struct {
	err  error
	name string
}{
	{sluice.ErrUnknown, "unknown"}, {sluice.ErrUnavailable, "unavailable"}, {sluice.ErrUnderReplicated, "under_replicated"}, {sluice.ErrInvalid, "invalid"},
	{sluice.ErrLocked, "locked"}, {sluice.ErrClosed, "closed"},
	{context.DeadlineExceeded, "deadline_exceeded"}, {context.Canceled, "canceled"}, {sluice.ErrLost, "lost"}, {sluice.ErrCanceled, "task_canceled"},
}

// otherError stands for what is not known: most errors are *errors.errorString, which tells nothing.
var otherError = semconv.ErrorTypeOther.Value.AsString()

// errorType returns the attribute error.type: one of few words, otherwise for what is not known.
func errorType(err error, otherwise string) attribute.KeyValue {
	for _, k := range known {
		if errors.Is(err, k.err) {
			return semconv.ErrorTypeKey.String(k.name)
		}
	}
	return semconv.ErrorTypeKey.String(otherwise)
}

// fail gives a span an error.
func fail(span trace.Span, err error, otherwise string) {
	text := err.Error()
	if len(text) > maxError {
		text = text[:maxError]
	}
	span.SetAttributes(errorType(err, otherwise))
	span.SetStatus(codes.Error, strings.ToValidUTF8(text, ""))
}
