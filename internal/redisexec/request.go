package redisexec

import "time"

// Request is what is sent, and how it is handled, in four parts.
type Request struct {
	Command
	Replication
	Bounds
	Recovery

	first     *Result // of an attempt that was made elsewhere, if not nil
	ambiguous bool    // an earlier attempt may have been carried out
}

// Plain returns a request for a plain command, which is not repeated if its reply is lost.
func Plain(args ...any) Request { return Request{Command: Command{Args: args}} }

// Command is what is sent.
type Command struct {
	// Script is the script that Args call by its digest; nil for a plain command.
	Script *Script
	// Args is the command as it is sent.
	Args []any
	// SecondIsSpare says that the script can do without its second key: where a slot of a Cluster
	// is on its way to another server, and each has some of the keys (TRYAGAIN), the request is
	// sent again without it. A third key then has its place, too.
	SecondIsSpare bool
	// Small says that the request may share a pipeline with others: it and its reply are short,
	// and it takes the server microseconds.
	Small bool
}

// Replication says who is to have what the command writes, before the reply counts.
type Replication struct {
	// Replicas, if positive, is how many replicas are to acknowledge what the request writes,
	// and ReplicaWait for how long that is waited for, and a tick of the server more (100ms by
	// default). It is shorter for a client that waits less for a reply, and is halved until it ends
	// before the caller leaves: see AnsweredBy. The outcome does not depend on it; Shortfall says
	// whether they have.
	Replicas    int
	ReplicaWait time.Duration
	// Mark is a script that writes and changes nothing, if the request may find nothing to do: it
	// is run behind the request, so that the replicas have what was done before. See replicas.go.
	Mark *Request
}

// isReplicated reports whether replicas are to acknowledge the request.
func (r Replication) isReplicated() bool { return r.Replicas > 0 }

// Bounds say for how long the caller waits, besides the end of its context.
type Bounds struct {
	// Detached has the request sent even if its context has ended.
	Detached bool
	// Until, if set, is when the caller leaves, whether its context has ended or not.
	Until time.Time
	// Stop, if set, ends the request when it is closed, as the end of the context does.
	// The error is ErrStopped.
	Stop <-chan struct{}
	// Bounded has each attempt that has had no reply for MaxQuiet count as Unknown, and one that
	// may be repeated sooner at first. It is for loops. There is no OnUnknown then: an attempt that
	// was left may end after another one was answered.
	Bounded bool
	// Outage, if set, makes the request persistent: when it could not be sent, it is tried
	// again as if the server had said that it is unavailable.
	Outage *Outage
	// Arrived is since when the caller of a persistent request has waited; see
	// [Outage.Arrival].
	Arrived time.Time
}

// Recovery says what follows if the reply is lost.
type Recovery struct {
	// Retry says what may be done then.
	Retry RetryPolicy
	// Repeat, if set, returns the arguments with which the request is sent again after its reply
	// was lost, whatever Retry says: others, so that what is carried out late is told from it.
	Repeat func() []any
	// OnUnknown, if set, is called when the request's effect may have come, or may
	// still come, after Run returned without a reply: at once, and again when the attempt that
	// the caller has left has ended.
	// It undoes what the request may have done without its caller knowing. over says that the
	// server has answered since, or was sent nothing: what is to come has come.
	OnUnknown func(over bool)
}

// RetryPolicy says what may be done when the reply to a request is lost.
type RetryPolicy int

// The retry policies.
const (
	Never      RetryPolicy = iota // a lost reply is ErrUnknown
	Idempotent                    // it is sent again; the script's header says why that is safe
	ReadOnly                      // it is sent again, and changes nothing in any case
)
