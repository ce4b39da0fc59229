package sluiceotel

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/messagingconv"
)

// Attributes of what the conventions do not know.
const (
	keyLockName    = attribute.Key("sluice.lock.name")
	keyHandedOver  = attribute.Key("sluice.lock.handed_over")
	keyDisposition = attribute.Key("sluice.task.disposition")
	keyKind        = attribute.Key("sluice.task.kind")
	keyAttempt     = attribute.Key("sluice.task.attempt")
	keyLateness    = attribute.Key("sluice.task.lateness")
	keyOutcome     = attribute.Key("sluice.task.outcome")
	keyState       = attribute.Key("sluice.task.state")
	keyItem        = attribute.Key("sluice.stock.item")
	keyStockState  = attribute.Key("sluice.stock.state")
)

// system is the value of messaging.system.
var system = semconv.MessagingSystemKey.String("sluice")

// Bounds of histograms, in seconds: of waits, which a hand-over makes short, and of lateness, which
// an outage makes long.
var (
	shortBounds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	longBounds  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
)

// instruments are what is measured when it happens.
type instruments struct {
	lockWait, lockHold metric.Float64Histogram
	lockLost           metric.Int64Counter
	lockFailed         metric.Int64Counter
	sent               messagingconv.ClientSentMessages
	operation          messagingconv.ClientOperationDuration
	consumed           messagingconv.ClientConsumedMessages
	process            messagingconv.ProcessDuration
	lateness           metric.Float64Histogram
	dispositions       metric.Int64Counter
	stuck              metric.Int64Counter
	running            metric.Int64UpDownCounter
}

func newInstruments(m metric.Meter) (i instruments, err error) {
	var errs [12]error
	i.lockWait, errs[0] = m.Float64Histogram("sluice.lock.wait.duration", metric.WithUnit("s"),
		metric.WithDescription("How long callers have waited for locks that they got."), metric.WithExplicitBucketBoundaries(shortBounds...))
	i.lockHold, errs[1] = m.Float64Histogram("sluice.lock.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("How long locks were held."), metric.WithExplicitBucketBoundaries(shortBounds...))
	i.lockLost, errs[2] = m.Int64Counter("sluice.lock.lost", metric.WithUnit("{lock}"),
		metric.WithDescription("Locks that were lost before they were released."))
	i.lockFailed, errs[10] = m.Int64Counter("sluice.lock.wait.failures", metric.WithUnit("{call}"),
		metric.WithDescription("Calls that have waited for a lock in vain."))
	i.lateness, errs[3] = m.Float64Histogram("sluice.task.lateness", metric.WithUnit("s"),
		metric.WithDescription("How long after they were due tasks were begun."), metric.WithExplicitBucketBoundaries(longBounds...))
	i.dispositions, errs[4] = m.Int64Counter("sluice.task.dispositions", metric.WithUnit("{task}"),
		metric.WithDescription("What became of tasks that a handler was given."))
	i.stuck, errs[11] = m.Int64Counter("sluice.task.stuck", metric.WithUnit("{task}"),
		metric.WithDescription("Handlers that have not returned long after their timeout."))
	i.running, errs[5] = m.Int64UpDownCounter("sluice.worker.running", metric.WithUnit("{task}"),
		metric.WithDescription("Handlers that are running."))
	i.sent, errs[6] = messagingconv.NewClientSentMessages(m)
	i.operation, errs[7] = messagingconv.NewClientOperationDuration(m, metric.WithExplicitBucketBoundaries(shortBounds...))
	i.consumed, errs[8] = messagingconv.NewClientConsumedMessages(m)
	i.process, errs[9] = messagingconv.NewProcessDuration(m, metric.WithExplicitBucketBoundaries(longBounds...))
	return i, errors.Join(errs[:]...)
}
