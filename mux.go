package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/store"
)

// Mux hands each task to the handler of its Kind. Its Serve is the Handler of a Worker, or of several:
//
//	var mux sluice.Mux
//	mux.Handle("email", sendEmail, sluice.KindTimeout(10*time.Second))
//	mux.Handle("report", makeReport, sluice.KindMaxAttempts(3))
//	worker := &sluice.Worker{Queue: queue, Handler: mux.Serve}
//
// A task of a kind that it does not know is put off for 15 to 30 seconds, again and again, and no attempt is used up:
// a program that knows the kind is being deployed, perhaps. A Worker's log has a warning then, once a minute.
//
// The zero value is ready. It must not be copied. All handlers are registered before the first task is served.
type Mux struct {
	serves atomic.Pointer[Handler] // nil before the first task; from then on nothing changes

	mu    sync.Mutex // guards what follows, while handlers are registered
	kinds map[string]*kindRule
	use   []Middleware
}

// kindRule is what is registered for a kind of tasks.
type kindRule struct {
	handler     Handler
	timeout     time.Duration // 0 for none
	maxAttempts int           // 0 for no limit
	backoff     func(attempt int, err error) time.Duration
}

// KindOption is an option of Mux.Handle.
type KindOption func(*kindRule)

// KindTimeout bounds the work on a task of the kind: its ctx ends then, or after the Worker's Timeout, whichever is
// sooner. 0 is none of its own.
//
// A handler that has not returned the Worker's Grace after that is stuck, see Worker.Timeout; if this is sooner
// than a third of the Lease, that is when the Worker notices it.
func KindTimeout(d time.Duration) KindOption { return func(k *kindRule) { k.timeout = d } }

// KindMaxAttempts is how many attempts a task of the kind has before a Worker puts it among the dead letters, if WithMaxAttempts does not
// allow fewer. One that was claimed more often, since processes have died over it, is not handed out. 0 is no limit.
func KindMaxAttempts(n int) KindOption { return func(k *kindRule) { k.maxAttempts = n } }

// KindBackoff is what a Worker uses for the kind instead of its Backoff; nil is that.
func KindBackoff(f func(attempt int, err error) time.Duration) KindOption {
	return func(k *kindRule) { k.backoff = f }
}

// Handle registers the handler of a kind; "" is that of tasks without one, such as a foreign producer's. What is to be
// around it alone is called here: Handle("order", inTransaction(sell)).
//
// It panics, since the program is wrong, if the kind has more than 256 bytes or is there already, if the handler is
// nil or an option nil or negative, and once the Mux serves.
func (m *Mux) Handle(name string, h Handler, opts ...KindOption) {
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
	case len(name) > store.MaxHeaderKey:
		panic(fmt.Sprintf("sluice: Mux.Handle: a kind has %d bytes at most", store.MaxHeaderKey))
	case m.kinds[name] != nil:
		panic(fmt.Sprintf("sluice: Mux.Handle: kind %q is there already", name))
	case h == nil:
		panic(fmt.Sprintf("sluice: Mux.Handle: nil handler of kind %q", name))
	case k.timeout < 0 || k.maxAttempts < 0:
		panic(fmt.Sprintf("sluice: Mux.Handle: a negative option of kind %q", name))
	case m.kinds == nil:
		m.kinds = map[string]*kindRule{}
	}
	m.kinds[name] = k
}

// Use adds functions that are called around the handlers, for each task, also of an unknown kind: the first one is outermost. See
// Worker.Use, which goes around these. It panics for a nil Middleware, and when the Mux serves.
func (m *Mux) Use(mw ...Middleware) {
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

// Serve calls the handler of the task's kind: it is the Mux's Handler. It panics if a Middleware returns none.
func (m *Mux) Serve(ctx context.Context, e Entry) error {
	serve := m.serves.Load()
	if serve == nil {
		serve = m.build()
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
		return &unknownKindError{kind: e.Kind, id: e.ID, later: Again(backoff.Half(unknownKindPause))}
	}
	lease.Note(ctx, k)
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

// unknownKindPause is for how long a task stays away whose kind is not known, at most; half of it at least.
const unknownKindPause = 30 * time.Second

// unknownKindError is the result of a task whose kind is not known.
type unknownKindError struct {
	kind, id string
	later    error
}

func (e *unknownKindError) Error() string { return fmt.Sprintf("no handler of kind %q", e.kind) }
func (e *unknownKindError) Unwrap() error { return e.later }
