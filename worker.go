package sluice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
)

const (
	defaultConcurrency = 16
	maxConcurrency     = 1_000_000 // goroutines of some kilobytes each
	defaultLease       = 30 * time.Second
	defaultGrace       = 10 * time.Second
	defaultTimeout     = 30 * time.Minute
)

// Worker hands the tasks of a queue to a function, as they become due. It is used as an
// http.Server is: fill in the fields, and Run. It must not be copied. A change of a field
// while it runs has no effect. A field that is 0 has its default; a negative Timeout is none, and
// any other negative field ErrInvalid.
//
// A task is handed out at least once: again after an error, and when its lease has ended
// without a result, because its process died for instance. So a handler must bear to be
// run twice for one task. It is never run early, by the server's clock. How often a task
// may be handed out is its queue's: see WithMaxAttempts.
//
// A worker does what its caller could do with Wait, Claim, Extend, Dequeue, Retry, Release and
// Bury, but in groups: while an exchange with Redis is under way, whatever happens is gathered for
// the next. So a busy worker sends a fraction of a command per task, and an idle one polls once per
// poll interval (see WithPollInterval). After a claim without an answer, which has leased tasks
// that no handler sees, it asks for one task, then for two, four and so on, up to half of a size
// that had no answer; once a minute it tries more. It uses up to five connections of the queue's
// client at once (two exchanges, extensions, a poll, and a heartbeat: see Queue.Workers), with
// hundreds of handlers up to three more for extensions, one for pub/sub and, when Redis does not
// answer, one for each exchange that it has given up, until the client's own timeout. It has a
// goroutine or two beside those of its handlers, and one more for Periodic tasks.
type Worker struct {
	// Queue is where the tasks come from. Required.
	Queue *Queue

	// Handler does a task's work. Required. What it returns decides what becomes of the task: nil,
	// an error, RetryIn, Permanent, Discard (to cancel it) or Again (to snooze it). See Handler.
	//
	// ctx has the values of Run's and does not end with it. It ends, by context.Cause, with ErrLost
	// before the lease can end on the server; with ErrCanceled when the task was cancelled; with
	// context.DeadlineExceeded after Timeout; with context.Canceled when the worker is to stop and
	// Grace is over, and when the handler has returned. docs/errors.md has the table, with what
	// becomes of the handler's result.
	//
	// Calls with this ctx then fail with context.Canceled, or with what their package makes
	// of that; only context.Cause(ctx) says why. After a long pause, LeaseValid(ctx) knows before
	// ctx does.
	//
	// e is the task as it was claimed, without a receipt: the worker extends its lease, and says
	// what becomes of it. So Dequeue(ctx, e) and the like are ErrInvalid. Enqueue with the same ID
	// is fine: the new version waits until the handler has returned; see OutcomeDeferred. With
	// DuplicatesKeep and DuplicatesOnce it is dropped.
	Handler Handler

	// Use is called around Handler, for each task: the first one is outermost, and each may do
	// something before and after the next. What the first one returns is what counts. A panic of
	// one, or of Handler, that none recovers is an error. It is called for a Periodic too. Defaults
	// to none.
	Use []Middleware

	// Concurrency is how many handlers may run at once. With 8 or more, tasks are
	// claimed in two halves. At most 1,000,000. Defaults to 16; in a Pool, to the Pool's.
	Concurrency int

	// Weight is the queue's share of the time of a Pool's handlers, beside the other queues that
	// have work. At most 1,000,000. Defaults to 1.
	Weight int

	// Lease is for how long a task is claimed. It is extended at a third of it while the
	// handler runs, so it bounds how long a crash delays a task, not how long the work
	// takes. Results are reported to Redis until it ends. At least 1ms. Defaults to 30s.
	Lease time.Duration

	// Timeout bounds the work on one task: its ctx ends then. At most 100 years; negative is no
	// limit, so that a handler which hangs keeps its task for ever. Defaults to 30 minutes.
	//
	// If the handler or Backoff is still running at Timeout+Grace, the task is stuck: it is logged,
	// the hook TaskStuck is called and WorkerStats.Stuck counts it. Its lease is no longer
	// extended, so the task is handed out again when the lease ends. LeaseValid(ctx) is false, and
	// the Disposition is DispositionLost, whatever the handler returns. Its place is given to
	// another handler, so up to twice Concurrency may run. As many stuck ones as Concurrency are
	// replaced, in a Pool that of the Worker and that of the Pool; more keep their places.
	Timeout time.Duration

	// Backoff is how long a task waits after its attempt-th attempt (1 for the first) has
	// failed with err. It is called by several goroutines at once. A negative result
	// counts as 0, one longer than 100 years as that; if Backoff panics, the default is
	// used. Defaults to DefaultBackoff.
	Backoff func(attempt int, err error) time.Duration

	// Grace is how long handlers may go on when Run's ctx has ended, before theirs does; and how
	// long when theirs has ended by Timeout, before they are stuck. Defaults to 10s.
	Grace time.Duration

	// Label names the worker for Queue.Workers: 1 to 64 bytes of printable UTF-8. Defaults to none.
	Label string

	// Limits are given to the queue if none have been set: before the first claim, and again about
	// once a minute, or at each heartbeat if that is less often, so that a Redis which has lost its
	// data is soon limited again. A queue that has limits, be they from an earlier Worker, keeps
	// them: to change them, call SetLimits. So does one whose limits SetLimits has taken away. The
	// log says when they differ from the Worker's. Defaults to none.
	Limits Limits

	// Periodic is what is due again and again: see Periodic. Handler is called for it, with the ID
	// that it has there. Defaults to none.
	Periodic []Periodic

	// Logger gets a warning when Redis fails and a message when it works again, once per
	// outage; a warning for each handler that is stuck, and for each task buried, lost, or failed
	// for good with a waiting version; a message for each other failed attempt, each task cancelled
	// or discarded and each Again; an error with the stack for each panic. They hold the queue's name, task IDs
	// and the first 512 bytes of errors, and no payloads. A panic of its handler is ignored. A
	// logger of slog.DiscardHandler is silent. Defaults to slog.Default().
	Logger *slog.Logger

	seat     atomic.Pointer[seat] // in what runs it; nil if nothing does
	counters taskloop.Counters
}

// WorkerStats is what a worker has done since it was made, and is doing.
type WorkerStats struct {
	// Running is how many handlers are running, with those that are stuck.
	Running int64
	// Stuck is how many handlers are stuck, see Worker.Timeout.
	Stuck int64
	// Done is how many tasks were finished.
	Done int64
	// Retried is how many attempts failed, after which the task is to be handed out again:
	// for another attempt, or because a version was waiting, which has taken its place. (That
	// is so for Permanent too: then nothing is buried.)
	Retried int64
	// Buried is how many tasks were put among the dead letters, not counting those that
	// were claimed too often before they came to this worker.
	Buried int64
	// Canceled is how many tasks were cancelled while they were worked on: by Cancel or
	// Purge.
	Canceled int64
	// Released is how many tasks were given back because the worker stopped, or because the
	// claim that brought them was answered too late.
	Released int64
	// Discarded is how many tasks were removed because the handler returned Discard.
	Discarded int64
	// Again is how many tasks were given back because the handler returned Again, or an error
	// that wraps it. (A version that was waiting may have taken a task's place.)
	Again int64
	// Expired is how many tasks were removed because they had expired: see Task.Expires.
	Expired int64
	// Lost is how many leases this Worker has lost before the handler's result was accepted, or
	// left to run out, because the handler was stuck or Run gave up waiting for it: the work may be
	// done twice. Stats.Lost is the server's count.
	Lost int64
}

// UnfinishedError is what Run returns when it gave up waiting. What it counts is due again
// when its lease ends.
type UnfinishedError struct {
	// Running is how many handlers had not returned, with those that were stuck.
	Running int
	// Unacknowledged is how many results Redis had not acknowledged.
	Unacknowledged int
	// Claims is how many claims, sent within the last Lease, had no reply. Tasks that they leased
	// have used an attempt.
	Claims int
}

// Error says how much of each was left.
func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("stopped with %d handlers still running, %d results not acknowledged and %d claims not answered",
		e.Running, e.Unacknowledged, e.Claims)
}

// LeaseValid reports whether the task that a handler works on is still its worker's: whether its
// lease lasts, by the local clock and without I/O, as Lock.Valid does for a lock.
//
// Ask it before the write that counts, above all after a long pause: a process that was stopped, or
// had no CPU, may go on before the handler's ctx has ended, while another worker has the task.
//
// ctx is the handler's, or one that descends from it; so is that of the function of KeepAlive. It
// is false in other contexts, when the lease is lost or the task is known to be cancelled, and when
// the handler has returned or is stuck. That ctx has ended, after Timeout or Grace, does not
// matter.
//
// A write may still come after the end of a lease that was valid a moment before; and the clock of
// a suspended machine may have stopped. So check at the resource, too, if that matters: see
// docs/database.md.
func LeaseValid(ctx context.Context) bool { return ctx != nil && lease.IsHeld(ctx) }

// Run works until ctx ends, and then stops: it claims nothing more; it gives back what was
// claimed and not begun, and the attempt does not count; handlers that run have Grace to
// return, then their contexts end, and they have a second more.
//
// It returns nil when all handlers have returned and Redis knows of it. Otherwise it
// returns an *UnfinishedError after Grace and that second. The leases of handlers that
// still run then are left to run out: their tasks will be handed out again, and what they
// return has no effect.
//
// Run does not end because Redis fails: claims and results are tried again with growing pauses of
// up to a second, results until their leases end. A field that is out of range, a nil Queue or
// Handler, or a worker that is running already is ErrInvalid at once. Run may be called again when
// it has returned and so have all handlers.
func (w *Worker) Run(ctx context.Context) error {
	c, err := w.alone("run")
	if err != nil {
		return err
	}
	if err := w.enter(c.seat(taskloop.AllQueues)); err != nil {
		return err
	}
	defer w.seat.Store(nil)
	if left := c.run(ctx); left != nil {
		return wrap("run", w.Queue.name, left)
	}
	return nil
}

// alone returns a crew of this worker alone.
func (w *Worker) alone(op string) (*crew, error) {
	c, err := newCrew(op, "Worker", func(int) string { return "Worker" }, []*Worker{w}, w.Concurrency, w.Grace, w.Logger)
	if err == nil {
		c.workers[0].Loop.Concurrency = maxConcurrency // there is no other bound than the crew's
	}
	return c, err
}

// enter gives the worker a seat in a crew.
func (w *Worker) enter(s *seat) error {
	if !w.seat.CompareAndSwap(nil, s) {
		return invalid("run", "the worker is running already")
	}
	if w.counters.Running.Load() > 0 {
		w.seat.Store(nil)
		return invalid("run", "handlers of an earlier Run have not returned")
	}
	return nil
}

// SetConcurrency changes how many handlers may run at once, while Run runs: soon. It never blocks.
// Those that are too many go on until they return. In a Pool, it is the Worker's own bound.
//
// ErrInvalid if n is not 1 to 1,000,000, or the worker does not run.
func (w *Worker) SetConcurrency(n int) error {
	return w.seat.Load().resize(n)
}

// Stats returns the worker's counters. They need not be of one moment.
func (w *Worker) Stats() WorkerStats {
	ended := func(how taskloop.Ending) int64 { return w.counters.Ended[how].Load() }
	return WorkerStats{
		Running: w.counters.Running.Load(), Stuck: w.counters.Stuck.Load(), Done: ended(taskloop.Done), Retried: ended(taskloop.Retried), Buried: ended(taskloop.Buried),
		Canceled: ended(taskloop.Canceled), Released: ended(taskloop.Released), Discarded: ended(taskloop.Discarded), Again: ended(taskloop.Again), Expired: ended(taskloop.Expired), Lost: ended(taskloop.Lost),
	}
}

// engine returns the worker as the engine has it, from the fields with their defaults filled in.
func (w *Worker) engine(log *slog.Logger) (*queues.Worker, error) {
	log = slog.New(containedLog{log.Handler()}).With(slog.String("queue", w.Queue.name))
	lease := orDefault(w.Lease, defaultLease)
	p := &workerHandler{
		backoff: w.Backoff, timeout: limitOr(w.Timeout, defaultTimeout), lease: lease, log: log,
		maxAttempts: w.Queue.options.MaxAttempts, remembers: w.Queue.remembers(),
	}
	if p.backoff == nil {
		p.backoff = DefaultBackoff
	}
	e := &queues.Worker{Queue: w.Queue.engine, Handler: p, Label: w.Label, Loop: taskloop.Queue{
		Observer:    w.Queue.newWorkObserver(lease),
		Weight:      orDefault(w.Weight, 1),
		Concurrency: orDefault(w.Concurrency, maxConcurrency),
		Lease:       lease,
		Timeout:     p.timeout,
		Log:         log,
		Counters:    &w.counters,
	}}
	switch {
	case e.Loop.Concurrency < 0 || e.Loop.Concurrency > maxConcurrency:
		return nil, fmt.Errorf("%w: Concurrency must be 0 to %d", ErrInvalid, maxConcurrency)
	case e.Loop.Weight < 0 || e.Loop.Weight > maxConcurrency:
		return nil, fmt.Errorf("%w: Weight must be 0 to %d", ErrInvalid, maxConcurrency)
	case w.Label != "" && !isLabel(w.Label):
		return nil, fmt.Errorf("%w: Label must be 1 to %d bytes of printable UTF-8", ErrInvalid, maxLabel)
	}
	err := cmp.Or(checkDelay("Timeout", p.timeout), checkDuration("Lease", lease))
	if err == nil {
		p.handler, err = around(w.Handler, w.Use)
	}
	if err == nil {
		e.Periodic, err = periodicsOf(w.Periodic)
	}
	if err == nil {
		var limits Limits
		limits, err = w.Limits.checked()
		e.Limits = store.Limits(limits)
	}
	return e, err
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// workerHandler is what a Worker makes of its tasks: a taskloop.Handler.
type workerHandler struct {
	handler     Handler
	backoff     func(attempt int, err error) time.Duration
	timeout     time.Duration // 0 for none
	lease       time.Duration
	maxAttempts int  // 0 for no limit
	remembers   bool // the queue has a retention
	log         *slog.Logger
	unknown     toldKinds
	expired     toldKinds
}

// errExpired is the error of a task that no handler gets, since it has expired.
var errExpired = errors.New("the task has expired")

// panicError is a handler's panic.
type panicError struct {
	value string
	stack []byte
}

func (e *panicError) Error() string { return "panic: " + e.value }

// Handle calls the handler, and makes a panic an error.
func (h *workerHandler) Handle(ctx context.Context, t store.Task) (err error) {
	if claimed := store.TimeOf(t.Score).Add(-h.lease); !t.Expires.IsZero() && !claimed.Before(t.Expires) {
		return errExpired
	}
	if h.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, h.timeout)
		defer stop()
	}
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: cutReason(fmt.Sprint(v)), stack: debug.Stack()}
		}
	}()
	return h.handler(ctx, withoutReceipt(t))
}

// Decide says what a handler's error means for its task. An error that panics when it is asked for
// its text, or unwrapped, means a retry.
func (h *workerHandler) Decide(ctx context.Context, t store.Task, err error) (d store.Disposition) {
	if err == nil {
		d = store.Disposition{Action: store.Finish}
		if h.remembers {
			d.Result = lease.Recorded(ctx)
		}
		return d
	}
	defer func() {
		if recover() != nil {
			d = h.Fallback(t)
		}
	}()
	reason := cutReason(fmt.Sprint(err))
	about := []any{slog.String("task", t.ID), slog.Int("attempt", t.Attempt), slog.String("error", reason)}
	panicked, isPanic := err.(*panicError) //nolint:errorlint // ours is never wrapped
	if isPanic && panicked.stack != nil {  // of a batch, once
		h.log.Error("sluice: handler panicked", append(about, slog.String("stack", string(panicked.stack)))...)
	}
	ended := context.Cause(ctx)
	interrupted := ended == context.Canceled && !isPanic //nolint:errorlint // compared, not tested
	delay, again := againIn(err)
	maxAttempts, backoff := h.rules(ctx)
	lastAttempt := maxAttempts > 0 && t.Attempt >= maxAttempts
	switch {
	case errors.Is(ended, ErrCanceled): // nothing comes of it; the log says that it was cancelled
		return store.Disposition{Action: store.Release}
	case errors.Is(ended, ErrLost): // nothing comes of it
		h.log.Info("sluice: attempt failed", about...)
		return store.Disposition{Action: store.Release}
	case err == errExpired: //nolint:errorlint // ours is never wrapped
		if h.expired.isNews(t.Kind) {
			h.log.Warn("sluice: a task has expired before a handler had it; this is logged once a minute for each kind",
				slog.String("task", t.ID), slog.String("kind", t.Kind), slog.Time("expired", t.Expires))
		}
		return store.Disposition{Action: store.Expire, Reason: reason}
	case again && h.isOfUnknownKind(err):
		return store.Disposition{Action: store.Again, Delay: delay}
	case again:
		level := slog.LevelInfo
		if _, isAll := err.(*againError); isAll { //nolint:errorlint // else the error says more
			about, level = about[:2], slog.LevelDebug // to wait is a task's usual life: a sale has a line for each order
		}
		h.log.Log(ctx, level, "sluice: task is due again", append(about, slog.Duration("due_in", delay))...)
		return store.Disposition{Action: store.Again, Delay: delay}
	case errors.As(err, new(*discardError)) && !IsPermanent(err): // logged when it is known what becomes of the task
		return store.Disposition{Action: store.Discard, Reason: reason}
	case IsPermanent(err), lastAttempt && !interrupted: // likewise
		return store.Disposition{Action: store.Bury, Reason: reason}
	case interrupted:
		return store.Disposition{Action: store.Release}
	}
	delay = delayAfter(t.Attempt, err, backoff)
	h.log.Info("sluice: attempt failed", append(about, slog.Duration("retry_in", delay))...)
	return store.Disposition{Action: store.Retry, Delay: delay, Reason: reason}
}

// Fallback is a retry after the default delay.
func (h *workerHandler) Fallback(t store.Task) store.Disposition {
	return store.Disposition{Action: store.Retry, Delay: DefaultBackoff(t.Attempt, nil)}
}

// rules returns how many attempts a task has, 0 for no limit, and its backoff: those of its kind,
// or the Worker's.
func (h *workerHandler) rules(ctx context.Context) (maxAttempts int, backoff func(int, error) time.Duration) {
	maxAttempts, backoff = h.maxAttempts, h.backoff
	if k, ok := lease.Noted(ctx).(*kindRule); ok {
		if k.maxAttempts > 0 && (maxAttempts == 0 || k.maxAttempts < maxAttempts) {
			maxAttempts = k.maxAttempts
		}
		if k.backoff != nil {
			backoff = k.backoff
		}
	}
	return maxAttempts, backoff
}

// isOfUnknownKind reports whether an error says that a task's kind is not known. The log does, once
// a minute for each kind.
func (h *workerHandler) isOfUnknownKind(err error) bool {
	var unknown *unknownKindError
	if !errors.As(err, &unknown) {
		return false
	}
	if h.unknown.isNews(unknown.kind) {
		h.log.Warn("sluice: no handler for the kind: task put off; mux.Handle it, or correct Task.Kind",
			slog.String("kind", unknown.kind), slog.Any("known", unknown.known()), slog.String("task", unknown.id))
	}
	return true
}

// containedLog is a Logger's handler whose panics have no effect: in the run loop they
// would end it, and in a runner change what becomes of a task.
type containedLog struct{ handler slog.Handler }

func (h containedLog) Enabled(ctx context.Context, level slog.Level) (enabled bool) {
	defer func() { _ = recover() }()
	return h.handler.Enabled(ctx, level)
}

func (h containedLog) Handle(ctx context.Context, r slog.Record) error {
	defer func() { _ = recover() }()
	return h.handler.Handle(ctx, r)
}

func (h containedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return containedLog{h.handler.WithAttrs(attrs)}
}

func (h containedLog) WithGroup(name string) slog.Handler {
	return containedLog{h.handler.WithGroup(name)}
}
