package redisexec

import (
	"fmt"
	"runtime"
	"strings"
	"time"
)

// Job is what a sender runs: an attempt, a pipeline or a group of calls that its caller can leave,
// or a worker's exchange.
type Job interface{ Run() }

// senderIdle is how long a sender waits for another job before it ends.
const senderIdle = 200 * time.Millisecond

// Start has a job run in a goroutine. That is a sender which is idle, if there is one:
// the stack of a new goroutine has to grow each time to what go-redis needs, which costs
// a fifth of the throughput of 64 goroutines.
//
// A sender ends when it has been idle for senderIdle, or in Close, which waits for it. The senders
// of a Queue, which has no Close, end when they are idle.
func (e *Executor) Start(job Job) {
	select {
	case e.jobs <- job:
	default:
		e.senders.Add()
		go e.runSender(job)
	}
}

// StartFunc is Start for a function.
func (e *Executor) StartFunc(f func()) { e.Start(jobFunc(f)) }

type jobFunc func()

// Run calls the function.
func (f jobFunc) Run() { f() }

// runSender runs jobs, this one first, until there has been none for senderIdle, or the
// executor is closed.
func (e *Executor) runSender(job Job) {
	defer e.senders.Done()
	timer := time.NewTimer(senderIdle)
	defer timer.Stop()
	for {
		job.Run()
		timer.Reset(senderIdle)
		select {
		case job = <-e.jobs:
		case <-timer.C:
			return
		case <-e.closed:
			return
		}
	}
}

// Contain is deferred: it makes a panic of the client's an error, which wraps ErrPanicked. The
// client runs code of the user's (hooks, dialers, wrappers) and parses what the server
// sends; in a goroutine of ours its panic would end the process. So every call of the
// client is contained where it is made, and what was being done fails like any other
// command without a reply: its outcome is Unknown, if it may have been written.
//
// The error tells where the panic was, and not its value, unless that is the runtime's: it
// may hold arguments.
func Contain(err *error) {
	value := recover()
	if value == nil {
		return
	}
	what := fmt.Sprintf("%T", value)
	if runtimeError, ok := value.(runtime.Error); ok {
		what = runtimeError.Error()
	}
	*err = fmt.Errorf("%w: %s in %s", ErrPanicked, what, panickedIn())
}

// panickedIn returns the function that panicked.
func panickedIn() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)]) // without this, Contain and Callers
	for {
		frame, more := frames.Next()
		if !strings.HasPrefix(frame.Function, "runtime.") || !more {
			return fmt.Sprintf("%s (line %d)", frame.Function, frame.Line)
		}
	}
}
