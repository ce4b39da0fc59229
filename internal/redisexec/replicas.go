package redisexec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrUnderReplicated says that a request was carried out by the primary, and that fewer replicas
// than were asked for have acknowledged it in time.
var ErrUnderReplicated = errors.New("too few replicas have it")

// WAIT has no key, and it counts the writes of its own connection. So it goes directly behind
// the requests, in their pipeline, to the server that carries them out. A client of a Cluster
// would send it to any server, and would let another server carry a request out, while WAIT
// stays behind; so there the pipeline goes to the client of the one server, and redirections
// are followed here.
//
// A server before Redis 7.2 counts what any connection has written until the last command of
// this one. A later one counts what this connection has written, so that a request which writes
// nothing, since an earlier attempt has, is acknowledged at once by replicas that have nothing.
// The scripts of locks write in that case too. Other requests have a Mark, which is sent behind
// them: in full, since a script that the server does not know would write nothing.

// clusterClient is a client of a Cluster.
type clusterClient interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
}

// waitWithin returns how long replicas can be waited for by a sender that has so much time for the
// reply: half of it, or all except 200ms, since a server ends a WAIT up to 100ms late.
func waitWithin(d time.Duration) time.Duration { return max(d/2, d-200*time.Millisecond) }

// AnsweredBy returns r with a ReplicaWait after which its caller, who leaves at that time, still
// gets the reply. It is halved until it is short enough, or below least, so that callers which
// leave at different times share pipelines.
func (r Request) AnsweredBy(at time.Time, least time.Duration) Request {
	if r.isReplicated() {
		for within := waitWithin(time.Until(at)); r.ReplicaWait > max(within, least); {
			r.ReplicaWait /= 2
		}
	}
	return r
}

// answeredInTime is AnsweredBy for the end of the caller's context, or its Until.
func (r Request) answeredInTime(ctx context.Context) Request {
	if at, ok := ctx.Deadline(); ok {
		r = r.AnsweredBy(at, time.Millisecond)
	}
	if !r.Until.IsZero() {
		r = r.AnsweredBy(r.Until, time.Millisecond)
	}
	return r
}

// plan finds out where a request is to be sent first.
func (b *batch) plan(i int) {
	c, ok := b.executor.rdb.(clusterClient)
	if !ok || !b.replicated {
		b.add(destination{}, i)
		return
	}
	key, _ := b.requests[i].Key().(string)
	node, err := masterFor(b.ctx, c, key)
	if err != nil {
		b.results[i] = b.executor.refreshTopology(Result{Outcome: NotSent, Err: fromServer(err)})
		return
	}
	b.add(destination{node: node}, i)
}

// waitFor returns the WAIT for these requests: for as many replicas as one of them asks for,
// and for as long as each of them can wait, less what has passed, in the server's ticks: one that
// did not know a script has waited once already.
func (b *batch) waitFor(which []int) *waitCommand {
	replicas, wait := 0, b.executor.longestWait
	for _, at := range which {
		if r := &b.requests[at]; r.Replicas > 0 {
			replicas, wait = max(replicas, r.Replicas), min(wait, r.ReplicaWait)
		}
	}
	wait = max(wait, time.Millisecond) // 0 would mean "for ever"
	left := max(wait-time.Since(b.sent).Truncate(100*time.Millisecond), time.Millisecond)
	w := &waitCommand{command{Cmd: redis.NewCmd(b.ctx, "wait", b.requests[which[0]].Key())}, []any{"wait", replicas, left.Milliseconds()}, wait}
	w.SetFirstKeyPos(1)
	return w
}

// redirection recognises the answer of a Cluster's server which says that another one has the
// slot, and returns that one; without a node, if it is not known. Where the client sends a
// pipeline, it follows redirections itself.
func (b *batch) redirection(err error, from destination) (to destination, redirected bool) {
	moved, rest := isRedirect(err)
	if rest == "" || !b.replicated {
		return to, false
	}
	if strings.HasPrefix(rest, ":") && from.node != nil { // on the host that was asked
		host, _, _ := strings.Cut(from.node.Options().Addr, ":")
		rest = host + rest
	}
	if node := nodeAt(b.ctx, b.executor.rdb, rest); node != nil {
		to = destination{node: node, asking: !moved, inFull: from.inFull}
	}
	return to, true
}

// isRedirect returns the address in "MOVED slot address" and "ASK slot address", or "".
func isRedirect(err error) (moved bool, addr string) {
	if err == nil { // before the variable, which errors.As has allocated
		return false, ""
	}
	var server redis.Error
	if !errors.As(err, &server) {
		return false, ""
	}
	words := strings.Fields(server.Error())
	if len(words) != 3 || words[0] != "MOVED" && words[0] != "ASK" {
		return false, ""
	}
	return words[0] == "MOVED", words[2]
}

// nodeAt returns the client of the primary at an address, after asking the Cluster which
// there are; nil if there is none.
func nodeAt(ctx context.Context, rdb redis.UniversalClient, addr string) (found *redis.Client) {
	c, ok := rdb.(interface {
		ForEachMaster(ctx context.Context, fn func(ctx context.Context, node *redis.Client) error) error
	})
	if !ok {
		return nil
	}
	var err error
	defer Contain(&err)
	var mu sync.Mutex // guards found: the function is called for all at once
	_ = c.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if node.Options().Addr == addr {
			found = node
		}
		return nil
	})
	return found
}

// waitCommand is a WAIT that a client of an unknown kind, which may lead to a Cluster, sends
// where it sends a key's commands.
type waitCommand struct {
	command // its arguments say where it goes
	args    []any
	wait    time.Duration
}

// Args are what is written to the connection.
func (w *waitCommand) Args() []any {
	w.sending.Store(written)
	return w.args
}

// shortfall returns why a Mark or a WAIT, if there is one, was not carried out, or nil.
func (c *command) shortfall(failed error) error {
	if c == nil {
		return nil
	}
	if err := c.outcome(failed); err != nil {
		return fmt.Errorf("%w: %w", ErrUnderReplicated, c.classify(err).Err)
	}
	return nil
}

// shortfall returns nil if that many replicas have acknowledged what went before it in its
// pipeline.
func (w *waitCommand) shortfall(replicas int, redirected bool, failed error) error {
	if replicas <= 0 {
		return nil
	}
	if err := w.command.shortfall(failed); err != nil {
		return err
	}
	n, err := Int(w.Val())
	switch {
	case err != nil:
		return fmt.Errorf("%w: WAIT: %w", ErrUnderReplicated, err)
	case redirected:
		return fmt.Errorf("%w: the slot was being moved", ErrUnderReplicated)
	case n < int64(replicas):
		return fmt.Errorf("%w: %d of %d within %v", ErrUnderReplicated, n, replicas, w.wait)
	}
	return nil
}
