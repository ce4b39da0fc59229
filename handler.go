package sluice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/batch"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// Handler does the work of a task: see Worker.Handler for its ctx and its Entry. What it returns
// decides what becomes of the task:
//
//   - nil: it is done.
//   - an error, also by a panic or Goexit: it is due again after Backoff. After the last attempt
//     that the queue allows, it is a dead letter with the error's text as the reason.
//   - RetryIn(d, err): it has failed likewise, and is due again in d.
//   - Permanent(err): it is a dead letter at once.
//   - Discard(err): it is removed (cancelled), and not done.
//   - Again(d): it has not failed, and is due again in d (snoozed). No attempt is used up.
type Handler func(ctx context.Context, e Entry) error

// Middleware wraps a Handler: it returns one that does something before or after it calls next. See
// Worker.Use. What becomes of a task is told by the hook TaskFinished; an error may also put it
// off, as Again does.
type Middleware func(next Handler) Handler

// around returns a handler with middleware around it, of which the first is outermost.
func around(handler Handler, use []Middleware) (Handler, error) {
	if handler == nil {
		return nil, fmt.Errorf("%w: Handler is nil", ErrInvalid)
	}
	for i, middleware := range slices.Backward(use) {
		if middleware == nil {
			return nil, fmt.Errorf("%w: Use[%d]: a nil Middleware", ErrInvalid, i)
		}
		if handler = middleware(handler); handler == nil {
			return nil, fmt.Errorf("%w: Use[%d]: a Middleware that returns no Handler", ErrInvalid, i)
		}
	}
	return handler, nil
}

// maxResult is the most bytes of a result.
const maxResult = 64 << 10

// RecordResult sets the result of the task that a handler works on. If the task is finished and the
// queue has WithRetention, TaskInfo.Result shows it. Of several calls the last counts.
//
// It sends nothing by itself, never blocks, and keeps a copy of data.
//
// ctx is the handler's, or one that descends from it, but not that of a KeepAlive in it.
// ErrStale: the task was cancelled, or its lease is lost, and nothing was recorded. ErrInvalid: ctx
// is another one, or the handler has returned, or data has more than 64 KiB.
//
// A Worker sends a result within a third of the lease, or sends it again: over a slow link, keep
// results small and leases long.
func RecordResult(ctx context.Context, data []byte) error {
	const op = "record result"
	if len(data) > maxResult {
		return invalid(op, fmt.Sprintf("data of %d bytes, %d are allowed", len(data), maxResult))
	}
	works, noted := false, false
	if ctx != nil {
		works, noted = lease.Record(ctx, string(data))
	}
	switch {
	case !works:
		return invalid(op, "ctx is not that of a running handler")
	case !noted:
		return fmt.Errorf("sluice: %s: %w", op, ErrStale)
	}
	return nil
}

// Permanent marks an error as one that a further attempt will not mend. If a handler
// returns it, or an error that wraps it, its task is put among the dead letters at once.
// errors.Is and errors.As see through it. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// IsPermanent reports whether err was marked by Permanent, or wraps an error that was. A
// loop of one's own asks it before it gives a task back.
func IsPermanent(err error) bool {
	var permanent *permanentError
	return errors.As(err, &permanent)
}

// Discard marks an error as one that ends its task for good: the work is not needed any more, as when
// the order was cancelled, or the user is gone. If a handler returns it, or an error that wraps it,
// the task is removed at once, also on its last attempt, and leaves no dead letter.
//
// The task is not done: WithRetention and RecordResult remember nothing of it, and DuplicatesOnce
// takes its ID again. The log has the error. A version that was deferred meanwhile takes the task's
// place, and so does the next occurrence of a Periodic. Joined with Permanent or Again, these win.
// errors.Is and errors.As see through it. Discard(nil) is nil, by which the task is done.
//
// A loop of one's own calls Dequeue instead; WithRetention remembers that as done.
func Discard(err error) error {
	if err == nil {
		return nil
	}
	return &discardError{err}
}

type discardError struct{ err error }

func (e *discardError) Error() string { return e.err.Error() }
func (e *discardError) Unwrap() error { return e.err }

// Again returns what a handler returns for a task that has not failed and is not done either: it is
// due again in d, by the server's clock, with its header and payload, and no attempt is used up.
//
// So a task may be put off any number of times, also on the last attempt that the queue allows:
// until a limit of requests has passed (HTTP 429), a lock is free, or a result is there.
//
// An error that wraps it, or joins it with others, means the same, with its own text in the log;
// joined with a Permanent one, Permanent wins. A version that was deferred meanwhile takes the
// task's place instead, at its own time. A negative d counts as 0, one longer than 100 years as
// that. The server adds d to its time when the result arrives there.
func Again(d time.Duration) error {
	return &againError{min(max(d, 0), store.LongestDuration)}
}

// againError is what Again returns.
type againError struct{ delay time.Duration }

func (e *againError) Error() string { return fmt.Sprintf("due again in %v", e.delay) }

// againIn returns after how long a task is due again whose handler has returned err, and whether
// that says so.
func againIn(err error) (d time.Duration, ok bool) {
	var again *againError
	if !errors.As(err, &again) || IsPermanent(err) {
		return 0, false
	}
	return again.delay, true
}

// RetryIn returns what a handler returns for a task that has failed with err, and is to be tried
// again in d, whatever Backoff says: what the header Retry-After of HTTP asks for, say.
//
// A negative d counts as 0, one longer than 100 years as that. On the last attempt, and joined with
// Permanent, the task is put among the dead letters; joined with Again, that counts. errors.Is and
// errors.As see through it. RetryIn(d, nil) is nil.
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryInError{err, min(max(d, 0), store.LongestDuration)}
}

type retryInError struct {
	err   error
	delay time.Duration
}

func (e *retryInError) Error() string { return e.err.Error() }
func (e *retryInError) Unwrap() error { return e.err }

const (
	backoffFirst = time.Second
	backoffLast  = time.Hour
)

// DefaultBackoff is a Worker's Backoff by default: a random time up to 1s after the first attempt,
// 2s after the second and so on, doubling, up to 1h, whatever the error. It is random from 0 on, so
// that tasks which failed together do not come back together.
func DefaultBackoff(attempt int, err error) time.Duration { return BackoffUpTo(0)(attempt, err) }

// BackoffUpTo returns DefaultBackoff with another bound, for Worker.Backoff and KindBackoff: it
// doubles up to d instead of 1h. 0 is 1h; negative is no bound, but 12 days after 20 doublings.
func BackoffUpTo(d time.Duration) func(attempt int, err error) time.Duration {
	last := cmp.Or(limitOr(d, backoffLast), store.LongestDuration)
	return func(attempt int, _ error) time.Duration {
		return backoff.Full(backoff.Exponential(backoffFirst, last, max(attempt, 1)-1))
	}
}

// delayAfter returns what RetryIn says or, if it does not, asks a backoff, and uses the default if
// that panics.
func delayAfter(attempt int, err error, backoff func(int, error) time.Duration) (d time.Duration) {
	var retry *retryInError
	if errors.As(err, &retry) {
		return retry.delay
	}
	defer func() {
		if recover() != nil {
			d = DefaultBackoff(attempt, err)
		}
	}()
	return min(max(backoff(attempt, err), 0), store.LongestDuration)
}

// Mux hands each task to the handler of its Kind. Its Serve is the Handler of a Worker, or of
// several:
//
//	var mux sluice.Mux
//	mux.Handle("email", sendEmail, sluice.KindTimeout(10*time.Second))
//	mux.Handle("report", makeReport, sluice.KindMaxAttempts(3))
//	worker := &sluice.Worker{Queue: queue, Handler: mux.Serve}
//
// A task of a kind that it does not know is put off for 15 to 30 seconds, again and again, and no
// attempt is used up: a program that knows the kind is being deployed, perhaps. A Worker's log has
// a warning then, once a minute for each kind, with the kind and those that the Mux knows.
//
// The zero value is ready. It must not be copied. All handlers are registered before the first task
// is served.
type Mux struct {
	serves atomic.Pointer[Handler] // nil before the first task; from then on nothing changes

	mu    sync.Mutex // guards what follows, while handlers are registered
	kinds map[string]*kindRule
	use   []Middleware
}

// kindRule is what is registered for a kind of tasks.
type kindRule struct {
	handler     Handler
	timeout     time.Duration // none unless it is positive
	maxAttempts int           // no limit unless it is positive
	backoff     func(attempt int, err error) time.Duration
}

// KindOption is an option of Mux.Handle. 0 means that the option was not given, and so does a
// negative number or time.
type KindOption func(*kindRule)

// KindTimeout bounds the work on a task of the kind: its ctx ends then, or after the Worker's
// Timeout, whichever is sooner. It cannot be more: set Worker.Timeout to the largest that a kind
// needs. 0 and negative are no bound of its own. Defaults to none.
//
// A handler that has not returned the Worker's Grace after that is stuck, see Worker.Timeout; if
// this is sooner than a third of the Lease, that is when the Worker notices it.
func KindTimeout(d time.Duration) KindOption { return func(k *kindRule) { k.timeout = d } }

// KindMaxAttempts is how many attempts a task of the kind has before a Worker puts it among the
// dead letters, if WithMaxAttempts does not allow fewer. It cannot be more: set WithMaxAttempts to
// the largest that a kind needs. One that was claimed more often, since processes have died over
// it, is not handed out. An error of a function of Worker.Use that has not called the Mux is counted
// by the Worker's limit. 0 and negative are no limit of its own. Defaults to none.
func KindMaxAttempts(n int) KindOption { return func(k *kindRule) { k.maxAttempts = n } }

// KindBackoff replaces Worker.Backoff for tasks of the kind. nil means Worker.Backoff. Defaults to
// nil.
func KindBackoff(f func(attempt int, err error) time.Duration) KindOption {
	return func(k *kindRule) { k.backoff = f }
}

// Handle registers the handler of a kind; "" is that of tasks without one, such as a foreign
// producer's. What is to be around it alone is called here: Handle("order", inTransaction(sell)).
//
// It panics, since the program is wrong, if the kind has more than 256 bytes or is there already,
// if the Mux, the handler or an option is nil, and once the Mux serves.
func (m *Mux) Handle(kind string, h Handler, opts ...KindOption) {
	if m == nil {
		panic("sluice: Mux.Handle: nil Mux")
	}
	k := &kindRule{handler: h}
	for _, opt := range opts {
		if opt == nil {
			panic("sluice: Mux.Handle: nil option")
		}
		opt(k)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.serves.Load() != nil:
		panic("sluice: Mux.Handle: it serves already")
	case len(kind) > store.MaxHeaderKey:
		panic(fmt.Sprintf("sluice: Mux.Handle: a kind has %d bytes at most", store.MaxHeaderKey))
	case m.kinds[kind] != nil:
		panic(fmt.Sprintf("sluice: Mux.Handle: kind %q is there already", kind))
	case h == nil:
		panic(fmt.Sprintf("sluice: Mux.Handle: nil handler of kind %q", kind))
	case m.kinds == nil:
		m.kinds = map[string]*kindRule{}
	}
	m.kinds[kind] = k
}

// Use adds functions that are called around the handlers, for each task, also of an unknown kind:
// the first one is outermost. See Worker.Use, which goes around these. It panics for a nil Mux
// or Middleware, and when the Mux serves.
func (m *Mux) Use(mw ...Middleware) {
	if m == nil {
		panic("sluice: Mux.Use: nil Mux")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.serves.Load() != nil:
		panic("sluice: Mux.Use: it serves already")
	case slices.ContainsFunc(mw, func(f Middleware) bool { return f == nil }):
		panic("sluice: Mux.Use: nil Middleware")
	}
	m.use = append(m.use, mw...)
}

// Serve calls the handler of the task's kind: it is the Mux's Handler. It panics if a Middleware
// returns none.
func (m *Mux) Serve(ctx context.Context, e Entry) error {
	serve := m.serves.Load()
	if serve == nil {
		serve = m.build()
	}
	if k := m.kinds[e.Kind]; k != nil { // before any function of Use, which may return an error
		lease.Note(ctx, k)
	}
	return (*serve)(ctx, e)
}

// build puts the middleware around the handlers, before the first task.
func (m *Mux) build() *Handler {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.serves.Load() == nil {
		handler, err := around(m.dispatch, m.use)
		if err != nil {
			panic("sluice: Mux.Serve: " + err.Error())
		}
		m.serves.Store(&handler)
	}
	return m.serves.Load()
}

// dispatch calls the handler of a kind.
func (m *Mux) dispatch(ctx context.Context, e Entry) error {
	k := m.kinds[e.Kind]
	if k == nil {
		return &unknownKindError{kind: e.Kind, id: e.ID, mux: m, later: Again(backoff.Half(unknownKindPause))}
	}
	if k.maxAttempts > 0 && e.Attempt > k.maxAttempts {
		return Permanent(errors.New("attempts used up"))
	}
	if k.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = lease.WithTimeout(ctx, k.timeout)
		defer stop()
	}
	return k.handler(ctx, e)
}

// unknownKindPause is for how long a task stays away whose kind is not known, at most; half of it
// at least.
const unknownKindPause = 30 * time.Second

// unknownKindError is the result of a task whose kind is not known.
type unknownKindError struct {
	kind, id string
	mux      *Mux // which does not know it
	later    error
}

// known returns the kinds that the Mux knows, in order.
func (e *unknownKindError) known() []string {
	return slices.Sorted(maps.Keys(e.mux.kinds)) // which do not change any more
}

func (e *unknownKindError) Error() string { return fmt.Sprintf("no handler of kind %q", e.kind) }
func (e *unknownKindError) Unwrap() error { return e.later }

// toldKinds are the unknown kinds of which a log was told within the last minute.
type toldKinds struct {
	mu sync.Mutex // guards at
	at map[string]time.Time
}

// maxToldKinds bounds their number: a producer may make up a kind for each task.
const maxToldKinds = 100

// isNews reports whether the log is to be told of a kind.
func (t *toldKinds) isNews(kind string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(t.at, func(_ string, told time.Time) bool { return now.Sub(told) >= time.Minute })
	if _, isTold := t.at[kind]; isTold || len(t.at) >= maxToldKinds {
		return false
	}
	if t.at == nil {
		t.at = map[string]time.Time{}
	}
	t.at[kind] = now
	return true
}

// Batch returns a Handler that has f do the work of several tasks at once: one INSERT of 500 rows,
// one call of an API that takes many. f is called with up to size tasks, once as many handlers have
// come, or the first of them has waited for wait.
//
//	mux.Handle("view", sluice.Batch(500, 100*time.Millisecond, insertViews), sluice.KindTimeout(time.Minute))
//
// f returns an error for each task, at its place, which means what that of a Handler does: nil,
// Again, Permanent and so on. If there are not as many errors as tasks, or if f panics, all have
// failed.
//
// Each task keeps its own handler, lease, attempts and result. So Worker.Concurrency bounds a
// batch, whatever size is: the next batch fills up while f works if Concurrency is at least twice
// size. A Worker with 8 handlers or more claims in two halves. Of a Group, as many are in a batch
// as Limits.PerGroup says.
//
// The ctx of f ends when that of one of the tasks does, with its cause: its lease is lost, it was
// cancelled, its time is over. It has the values of the first task's. BatchContext returns that of
// each task, for RecordResult. LeaseValid(ctx) is whether all leases are valid. A task whose ctx
// ends before f is called is not in its batch.
//
// Batch panics if size is less than 1, wait is negative, or f is nil.
func Batch(size int, wait time.Duration, f func(ctx context.Context, es []Entry) []error) Handler {
	if f == nil {
		panic("sluice: Batch: nil function")
	}
	return batchOf(size, wait, f)
}

// batchOf returns a function that has f do the work of several calls at once.
func batchOf[T any](size int, wait time.Duration, f func(ctx context.Context, items []T) []error) func(ctx context.Context, item T) error {
	if size < 1 || wait < 0 {
		panic("sluice: Batch: size must be 1 or more, and wait not negative")
	}
	joiner := batch.New(size, wait, taskloop.ErrExited, func(ctx context.Context, items []T) (errs []error) {
		defer func() {
			if v := recover(); v != nil {
				errs = panicOfAll(v, len(items))
			}
		}()
		return f(ctx, items)
	})
	return func(ctx context.Context, item T) error { return joiner.Do(ctx, item, lease.HandlersIn(ctx)) }
}

// panicOfAll returns the errors of tasks whose batch has panicked with v. The log has the stack
// once.
func panicOfAll(v any, n int) []error {
	p := &panicError{value: cutReason(fmt.Sprint(v)), stack: debug.Stack()}
	errs := make([]error, n)
	for i := range errs {
		errs[i] = &panicError{value: p.value}
	}
	errs[0] = p
	return errs
}

// BatchContext returns the ctx of the i-th task of a Batch: for RecordResult, say. ctx is that of
// the Batch's function, or descends from it; for another one, and for an i that is out of range,
// BatchContext returns ctx itself.
func BatchContext(ctx context.Context, i int) context.Context {
	if one, ok := batch.ContextOf(ctx, i); ok {
		return one
	}
	return ctx
}
