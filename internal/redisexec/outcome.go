package redisexec

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Outcome is what became of an attempt. (The Outcome of the root package is what Enqueue did with a
// task.)
type Outcome int

// The outcomes.
const (
	Done        Outcome = iota // carried out; there is a reply
	Rejected                   // the server refused it before it changed anything
	Unavailable                // likewise, and it may accept it in a moment
	NotSent                    // it never left this process
	Unknown                    // sent, no reply: carried out, or not, or not yet
	Abandoned                  // unknown, because the caller's context ended while it was under way
)

// Result is the outcome of an attempt, with the reply if it was carried out. The error
// is fit to be shown: it holds no arguments and no part of a reply.
type Result struct {
	Value   any
	Outcome Outcome
	Err     error
	Sent    time.Time // just before it was sent, if that is known
	// Shortfall, of a request that was carried out, is why not as many replicas have
	// acknowledged it as it asks for: an ErrUnderReplicated. It is nil if they have.
	Shortfall error
}

// isTransient reports that nothing was carried out, because no server could be reached or
// none could serve the request, and that it may be carried out later.
func (r Result) isTransient() bool {
	return r.Outcome == Unavailable || r.Outcome == NotSent && !isLasting(r.Err)
}

// isRefusal reports that a result which is transient does not come from the end of a context:
// a server has answered, or has refused the connection, or the pool had none.
func (r Result) isRefusal() bool {
	var server redis.Error
	switch {
	case r.Outcome == Unavailable, errors.As(r.Err, &server):
		return true
	case errors.Is(r.Err, context.DeadlineExceeded), errors.Is(r.Err, context.Canceled), errors.Is(r.Err, os.ErrDeadlineExceeded):
		return false
	}
	return isBeforeTheSend(r.Err)
}

// Final returns the error of a request that is not tried again after this result: with
// [ErrUnknown] or [ErrUnavailable], if it is one of them. It is nil if there is a reply.
func (r Result) Final() error {
	switch {
	case r.Outcome == Unknown, r.Outcome == Abandoned:
		return fmt.Errorf("%w: %w", ErrUnknown, r.Err)
	case r.isTransient(), r.isRefused():
		return fmt.Errorf("%w: %w", ErrUnavailable, r.Err)
	}
	return r.Err
}

// command is a redis.Cmd that go-redis does not repeat, and that knows whether it may
// have been written to a connection.
type command struct {
	*redis.Cmd
	sending    atomic.Int32
	redirected bool // a server of a Cluster has sent it on to another one
}

// The states of sending.
const (
	unsent    int32 = iota
	written         // perhaps
	withdrawn       // its caller has left before
)

// isUnsent reports whether it was certainly not written.
func (c *command) isUnsent() bool { return c.sending.Load() != written }

// withdraw keeps the command from being written, unless it may have been.
func (c *command) withdraw() bool { return c.sending.CompareAndSwap(unsent, withdrawn) }

// SetErr is where go-redis puts each answer that is an error, also those that it deals with itself.
func (c *command) SetErr(err error) {
	if _, addr := isRedirect(err); addr != "" {
		c.redirected = true
	}
	c.Cmd.SetErr(err)
}

// outcome returns the error of a command in a pipeline which ended with the error failed. Each
// command has its own error, except where a hook fails without telling them.
func (c *command) outcome(failed error) error {
	err := c.Err()
	if failed != nil && (errors.Is(failed, ErrPanicked) || err == nil && c.isUnsent()) {
		return failed
	}
	return err
}

// NoRetry makes go-redis send it once. MOVED and ASK are followed all the same: they
// say that nothing was carried out.
func (c *command) NoRetry() bool { return true }

// Args is where go-redis fetches what it writes. Another caller of Args makes the
// outcome "unknown" where it could be "not sent", and does no harm. What was withdrawn is a PING: the
// connection is to be used by others.
func (c *command) Args() []any {
	if c.sending.CompareAndSwap(unsent, written) || c.sending.Load() == written {
		return c.Cmd.Args()
	}
	return []any{"ping"}
}

// classify says what became of the command.
func (c *command) classify(err error) Result {
	if err == nil || errors.Is(err, redis.Nil) {
		return Result{Value: c.Val(), Outcome: Done}
	}
	var server redis.Error
	isAnswer := errors.As(err, &server) // perhaps from when the connection was set up
	switch {
	case isAnswer && isUnavailable(server):
		return Result{Outcome: Unavailable, Err: fromServer(err)}
	case c.isUnsent(), isBeforeTheSend(err):
		return Result{Outcome: NotSent, Err: fromServer(err)}
	case isAnswer:
		return Result{Outcome: Rejected, Err: fromServer(err)}
	}
	return Result{Outcome: Unknown, Err: withoutReply(err)}
}

// isBeforeTheSend recognises the errors of a client that had no connection to send on.
// "Written" is no proof on a Cluster and behind an autopipeline, which read the arguments
// beforehand: to find the node, and to know the size.
func isBeforeTheSend(err error) bool {
	for _, before := range []error{redis.ErrPoolTimeout, redis.ErrPoolExhausted, redis.ErrClosed} {
		if errors.Is(err, before) {
			return true
		}
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || strings.HasSuffix(err.Error(), queueFull)
}

// queueFull is the text of redis.ErrAutoPipelineQueueFull: an autopipeline with a MaxQueuedCommands
// takes no more. Go-redis has both from 9.23 on, and this library does without them, as it supports
// 9.22.
const queueFull = "redis: autopipeline: queue full (MaxQueuedCommands reached)"

// dialPanicked is how go-redis says that a dialer or a DialHook has panicked in a goroutine
// of its pool.
const dialPanicked = "panic in queuedNewConn"

// isLasting recognises the errors of requests that were not sent, and which will be the
// same at the next try: the client is closed, or its hook or dialer panics, or the server refuses
// it (a wrong password), or it refuses the server (a wrong certificate).
func isLasting(err error) bool {
	var server redis.Error
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.Is(err, redis.ErrClosed), errors.Is(err, ErrPanicked), errors.As(err, &certificate),
		strings.HasSuffix(err.Error(), dialPanicked):
		return true
	case errors.As(err, &server):
		return !isUnavailable(server)
	}
	return false
}

// refusals are the answers with which a server carries nothing out for reasons of its own, and may
// carry out the same command later: how each begins. Those that mostly pass within seconds are
// [Unavailable], and what was refused is sent again for a while; the others are [Rejected] at once.
// Both are ErrUnavailable in the end. Any other error is about the command, or its user.
//
// Within a script too, nothing was carried out: a server that refuses writes refuses the first one,
// and what a script has begun it may finish.
var refusals = map[string]Outcome{
	"LOADING ":                          Unavailable, // it reads its data, after a start
	"READONLY ":                         Unavailable, // it is a replica, after a failover
	"MASTERDOWN ":                       Unavailable, // likewise, without its primary
	"CLUSTERDOWN ":                      Unavailable, // no server has the slot, in a failover
	"TRYAGAIN ":                         Unavailable, // the slot is on its way to another server
	"NOREPLICAS ":                       Unavailable, // a replica starts anew, where min-replicas-to-write asks for one
	"MISCONF ":                          Unavailable, // it could not save its data; it tries again after five seconds
	"BUSY ":                             Unavailable, // it runs another program's script
	"ERR max number of clients reached": Unavailable,
	"OOM ":                              Rejected, // its memory is full
}

// refusalOf returns what becomes of a command that was answered so, and whether the answer is one
// of refusals. Redis 6 wraps those that a script meets: "ERR Error running script (...): ...:
// -READONLY You can't ...".
func refusalOf(err error) (o Outcome, isOne bool) {
	text := err.Error()
	wrapped := strings.HasPrefix(text, "ERR Error running script")
	for code, outcome := range refusals {
		if strings.HasPrefix(text, code) || wrapped && strings.Contains(text, ": -"+code) {
			return outcome, true
		}
	}
	return Rejected, false
}

// isUnavailable reports whether an error of a server's passes.
func isUnavailable(err error) bool {
	o, _ := refusalOf(err)
	return o == Unavailable
}

// isRefused reports whether a server carried nothing out for reasons of its own.
func (r Result) isRefused() bool {
	var server redis.Error
	if !errors.As(r.Err, &server) {
		return false
	}
	_, isOne := refusalOf(server)
	return isOne
}

// ErrCorrupt says that the key holds what this library did not write.
var ErrCorrupt = errors.New("foreign or damaged data at the key")

// ErrWrongType is the ErrCorrupt of a key of another type.
var ErrWrongType = fmt.Errorf("%w", ErrCorrupt)

// serverError is a Redis error from which the arguments were cut.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks it as a redis.Error, as the original was.
func (serverError) RedisError() {}

var _ redis.Error = serverError("")

// fromServer makes a server's error fit to be shown. It recognises foreign data by the
// text, because miniredis drops the code of an error in a script, and cuts off the
// arguments that "unknown command" repeats, tokens included.
func fromServer(err error) error {
	text := err.Error()
	if strings.Contains(text, "wrong kind of value") {
		return fmt.Errorf("%w: %w", ErrWrongType, err)
	}
	if cut := strings.Index(text, ", with args beginning with"); cut >= 0 {
		return serverError(text[:cut])
	}
	return err
}

// errUnreadable replaces what go-redis says of a reply that it cannot parse: that quotes
// the reply, which may hold a payload.
var errUnreadable = errors.New("unreadable reply")

// withoutReply makes the error of a command that was sent, and has no reply, fit to be
// shown.
func withoutReply(err error) error {
	text, number := err.Error(), new(strconv.NumError)
	if errors.As(err, &number) {
		return errUnreadable
	}
	for _, start := range []string{"redis: can't", "redis: invalid", "expected digit", "bigInt("} {
		if strings.HasPrefix(text, start) {
			return errUnreadable
		}
	}
	return err
}
