// Package taskloop is a worker's run loop, or that of several which share their handlers: it claims
// tasks, hands them out to runners, extends their leases, and reports what became of them. It knows
// a queue only as a [Source], and a handler only as a [Policy].
//
// One goroutine, the caller of [Run], owns all of the loop's state. It never waits for
// anything but its channels, and whatever happens while an exchange with Redis is under
// way is gathered for the next one. So a busy worker sends a fraction of a command per
// task.
package taskloop

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Source is a queue that a loop works on. Its methods may be called from several goroutines at
// once.
type Source interface {
	// Exchange sends reports, one for each settler at most and in their order, and, if claim is not
	// 0, a claim of at most that many tasks, all in one pipeline. It blocks until there is an answer
	// or the client gives up, and returns a result for each report.
	Exchange(reports []Report, claim int) ([]ReportResult, ClaimResult)
	// Extend extends the leases of up to store.MaxGroup tasks, those in a row with the same
	// receipt at the least cost. It returns when ctx ends.
	Extend(ctx context.Context, items []store.Item) ReportResult
	// Wait returns nil when a task may be due, or an error when it cannot tell or
	// ctx has ended.
	Wait(ctx context.Context) error
	// Start runs a job in a goroutine.
	Start(job redisexec.Job)
}

// Report says what is to become of tasks, all by the same script. The items are copies: the loop
// may change its own while the Source still sends.
type Report struct {
	Settler store.Settler
	Items   []store.Item
}

// ReportResult is the result of a report, or of the extension of leases. If Err is nil, Answers has
// one for each task.
type ReportResult struct {
	Outcome redisexec.Outcome
	Answers []store.Answer
	Err     error
}

// ClaimResult is the result of a claim.
type ClaimResult struct {
	Outcome redisexec.Outcome
	store.Exchanged
	Err error
}

// Policy is what a worker makes of a task, and of what has become of it.
type Policy interface {
	Handler
	// Accepted is told that the server has carried out what was decided. It must be short: the loop
	// waits for it.
	Accepted(t store.Task)
}

// Handler is what a worker makes of a task. Its methods are called by the runners, several
// at once.
type Handler interface {
	// Handle does the task's work. A panic is an error; it may call runtime.Goexit.
	Handle(ctx context.Context, t store.Task) error
	// Decide says what is to become of a task whose handler returned err, or ErrExited if it called
	// runtime.Goexit. ctx is the one that the loop has made for the handler. If it has ended, its
	// cause is context.Canceled if the worker is to stop; ErrLost of package lease or ErrCanceled
	// if the disposition will have no effect. Decide may block: the lease is extended, until it
	// counts as a stuck handler.
	Decide(ctx context.Context, t store.Task, err error) store.Disposition
	// Fallback decides if Decide called runtime.Goexit.
	Fallback(t store.Task) store.Disposition
}

// Observer is told what the loop does with tasks. Its methods must be short: they are called by the
// runners, Finished also by the loop, which waits for them, and Stuck by the loop.
type Observer interface {
	// Claimed is told of tasks that a claim has brought, by the goroutine that has sent it.
	Claimed(ts []store.Task)
	// Started is told that a handler is about to be called, and returns the context for it.
	Started(ctx context.Context, t store.Task) context.Context
	// Finished is told once for each Started, with the context that that has returned, when the
	// handler has returned and it is decided what becomes of the task.
	Finished(ctx context.Context, t store.Task, f Finished)
	// Stuck is told between the two that a handler is stuck, with the context of Finished, and
	// since when it runs.
	Stuck(ctx context.Context, t store.Task, running time.Duration)
}

// Finished is what an Observer is told of a handler that has returned.
type Finished struct {
	Took   time.Duration
	Err    error // ErrExited if the handler called runtime.Goexit
	Ending Ending
}

// Ending is what has become of a task. There is a counter for each.
type Ending int

// The endings, in the order of the root package's Disposition.
const (
	Done Ending = iota + 1
	Retried
	Buried
	Canceled
	Released
	Discarded
	Again
	Lost
	Expired
)

// ErrExited is the error of a handler that called runtime.Goexit.
var ErrExited = errors.New("the handler called runtime.Goexit")

// ErrCanceled is the cause with which a handler's context ends when its task was cancelled.
var ErrCanceled = errors.New("task canceled")

// Counters are what a worker has done, over all of its runs.
type Counters struct {
	Running atomic.Int64
	Most    atomic.Int64              // handlers at once, while a loop runs
	Stuck   atomic.Int64              // handlers that are, at present
	Ended   [Expired + 1]atomic.Int64 // by Ending
}

// Config is what a loop is made of. All fields except Canceled are required.
type Config struct {
	Queues      []Queue
	Concurrency int           // handlers at once, of all queues
	Grace       time.Duration // for which handlers may go on after the end, and after Timeout before they are stuck
	// Canceled brings the IDs of tasks that were cancelled while they were leased, by this
	// loop or another. It is a hint, and may be nil: an extension finds out what it has missed.
	Canceled <-chan string
	Sizes    *Sizes
}

// Queue is one of the queues of a loop. All fields except Timeout and Observer are required; Client
// too, if there are several.
type Queue struct {
	Client      any // by which it is reached: those of one client share its connections
	Source      Source
	Policy      Policy
	Weight      int           // its share of the handlers, beside other queues
	Concurrency int           // handlers at once, of this queue
	Lease       time.Duration // for which a task is claimed
	Timeout     time.Duration // within which a handler is to return; 0 for any time
	Log         *slog.Logger
	Counters    *Counters
	Observer    Observer // nil for none
}

// Unfinished is what is left when a loop gives up waiting.
type Unfinished struct {
	Running        int // handlers that had not returned
	Unacknowledged int // dispositions that Redis had not acknowledged
	Claims         int // claims that it had not answered
}

// Run works until ctx ends, and then stops: it claims nothing more, gives back what was
// not begun, and lets handlers go on for Grace, then ends their contexts and waits for
// lastWait. It returns nil once all handlers have returned and Redis knows of it, or what
// is left when that time is over.
func Run(ctx context.Context, c Config) *Unfinished {
	return newLoop(ctx, c).run()
}
