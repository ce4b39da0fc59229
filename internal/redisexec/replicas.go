package redisexec

import (
	"cmp"
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

// maxRedirects is how many answers "another server has this slot" a request follows, as many as
// go-redis does by default. After that it is tried again like any that is unavailable.
const maxRedirects = 3

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

// pipeliner is what makes pipelines: a client.
type pipeliner interface{ Pipeline() redis.Pipeliner }

// destination is where a pipeline that ends with WAIT goes.
type destination struct {
	client pipeliner
	asking bool // the server is importing the slot, and serves only those who say that they know
	inFull int  // how many of each script are sent in full, since the server does not know it
}

// replicated sends requests of which some are to be acknowledged by replicas.
type replicated struct {
	executor *Executor
	ctx      context.Context
	requests []Request
	results  []Result
	next     map[destination][]int // what is to be sent, by where
	sent     time.Time             // just before the first pipeline
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

// sendReplicated is SendAll for requests of which some are to be acknowledged by replicas. All
// that go to one server are in one pipeline, with one WAIT.
func (e *Executor) sendReplicated(ctx context.Context, requests []Request) []Result {
	s := &replicated{
		executor: e, ctx: ctx, requests: requests, results: make([]Result, len(requests)),
		next: map[destination][]int{}, sent: time.Now(),
	}
	for i := range requests {
		s.plan(i)
	}
	for try := 0; try <= maxRedirects && len(s.next) > 0; try++ {
		now := s.next
		s.next = map[destination][]int{}
		for to, which := range now {
			s.send(to, which)
		}
	}
	for i := range s.results {
		s.results[i].Sent = s.sent
	}
	return s.results
}

// plan finds out where a request is to be sent first.
func (s *replicated) plan(i int) {
	c, ok := s.executor.rdb.(clusterClient)
	if !ok {
		s.add(destination{client: s.executor.rdb}, i)
		return
	}
	key, _ := s.requests[i].Key().(string)
	node, err := masterFor(s.ctx, c, key)
	if err != nil {
		s.results[i] = s.executor.refreshTopology(Result{Outcome: NotSent, Err: fromServer(err)})
		return
	}
	s.add(destination{client: node}, i)
}

func (s *replicated) add(to destination, i int) { s.next[to] = append(s.next[to], i) }

// send sends requests and a WAIT in one pipeline, and plans anew those that went to the wrong
// server, or whose script the server does not know.
func (s *replicated) send(to destination, which []int) {
	commands, marks := make([]*command, len(which)), make([]*command, len(which))
	all := make([]redis.Cmder, 0, 4*len(which)+1)
	add := func(r Request, full bool) *command {
		if to.asking {
			all = append(all, &command{Cmd: redis.NewCmd(s.ctx, "asking")})
		}
		c := newCommand(s.ctx, r, full)
		all = append(all, c)
		return c
	}
	full := s.executor.inFull(s.requests, which, to.inFull)
	for i, at := range which {
		commands[i] = add(s.requests[at], full[at])
		if mark := s.requests[at].Mark; mark != nil {
			marks[i] = add(*mark, true)
		}
	}
	wait := s.waitFor(which)
	failed := execOn(s.ctx, to.client, append(all, wait))
	for i, at := range which {
		err := commands[i].outcome(failed)
		switch next, redirected := s.redirection(err, to); {
		case redirected:
			s.results[at] = Result{Outcome: Unavailable, Err: fromServer(err)} // unless it is sent elsewhere
			if next.client != nil {
				s.add(next, at)
			}
		case s.requests[at].isUnknown(err) && !full[at]:
			s.results[at] = commands[i].classify(err)
			s.add(destination{to.client, to.asking, max(moreInFull*to.inFull, 1)}, at)
		default:
			s.results[at] = s.answered(commands[i].classify(err))
			if s.results[at].Outcome == Done {
				s.results[at].Shortfall = cmp.Or(marks[i].shortfall(failed), wait.shortfall(s.requests[at].Replicas, commands[i].redirected, failed))
			}
		}
	}
}

// answered makes a Cluster's client ask again which server keeps which slots, if the result may
// come from a server that does not keep the slot any more. Elsewhere go-redis does it after
// such an answer.
func (s *replicated) answered(r Result) Result {
	if r.Outcome == Unavailable {
		s.executor.RefreshTopology()
		return r
	}
	return s.executor.refreshTopology(r)
}

// waitFor returns the WAIT for these requests: for as many replicas as one of them asks for,
// and for as long as each of them can wait, less what has passed, in the server's ticks: one that
// did not know a script has waited once already.
func (s *replicated) waitFor(which []int) *waitCommand {
	replicas, wait := 0, s.executor.longestWait
	for _, at := range which {
		if r := &s.requests[at]; r.Replicas > 0 {
			replicas, wait = max(replicas, r.Replicas), min(wait, r.ReplicaWait)
		}
	}
	return newWaitCommand(s.ctx, s.requests[which[0]].Key(), replicas, wait, time.Since(s.sent).Truncate(100*time.Millisecond))
}

// redirection recognises the answer of a Cluster's server which says that another one has the
// slot, and returns that one; without a client, if it is not known.
func (s *replicated) redirection(err error, from destination) (to destination, redirected bool) {
	moved, rest := isRedirect(err)
	if rest == "" {
		return to, false
	}
	if _, ok := s.executor.rdb.(clusterClient); !ok { // it has followed it
		return to, true
	}
	if strings.HasPrefix(rest, ":") { // on the host that was asked
		if node, ok := from.client.(*redis.Client); ok {
			host, _, _ := strings.Cut(node.Options().Addr, ":")
			rest = host + rest
		}
	}
	if node := nodeAt(s.ctx, s.executor.rdb, rest); node != nil {
		to = destination{client: node, asking: !moved, inFull: from.inFull}
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
	*redis.Cmd // its arguments say where it goes
	args       []any
	wait       time.Duration
}

// newWaitCommand returns a WAIT behind commands on a key. A timeout of 0 would mean "for ever".
func newWaitCommand(ctx context.Context, key any, replicas int, wait, passed time.Duration) *waitCommand {
	wait = max(wait, time.Millisecond)
	left := max(wait-passed, time.Millisecond)
	w := &waitCommand{redis.NewCmd(ctx, "wait", key), []any{"wait", replicas, left.Milliseconds()}, wait}
	w.SetFirstKeyPos(1)
	return w
}

// Args are what is written to the connection.
func (w *waitCommand) Args() []any { return w.args }

// NoRetry makes go-redis send it once, and with it the pipeline that it ends.
func (w *waitCommand) NoRetry() bool { return true }

// shortfall returns why a Mark, if this is one, was not written, or nil.
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
	err := w.Err()
	if err == nil && errors.Is(failed, ErrPanicked) {
		err = failed
	}
	if err != nil {
		if errors.As(err, new(redis.Error)) {
			err = fromServer(err)
		} else {
			err = withoutReply(err)
		}
		return fmt.Errorf("%w: WAIT: %w", ErrUnderReplicated, err)
	}
	n, ok := w.Val().(int64)
	switch {
	case !ok:
		return fmt.Errorf("%w: WAIT: %w", ErrUnderReplicated, Unexpected(w.Val()))
	case redirected:
		return fmt.Errorf("%w: the slot was being moved", ErrUnderReplicated)
	case n < int64(replicas):
		return fmt.Errorf("%w: %d of %d within %v", ErrUnderReplicated, n, replicas, w.wait)
	}
	return nil
}
