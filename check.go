package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// Check says what would keep locks from working, and changes nothing: call it when a program
// starts, and print its error. It is nil, or has a line for each thing that is wrong:
//
//   - the server cannot be reached (ErrUnavailable), does not accept the password or the certificate, is a replica, or
//     belongs to a Cluster and the client does not; or the client is closed, or the Locker (ErrClosed);
//   - the user may not run a command that docs/operations.md grants for these options, on a lock with the name "check":
//     a user whose patterns are for other names only is told so. Redis 6 cannot be asked;
//   - the server evicts locks when its memory is full, if the user may ask for that (CONFIG GET).
//
// It waits for 5s at most for each of its replies. No line has a password or a token.
func (l *Locker) Check(ctx context.Context) error {
	const op, name = "check", "check"
	if err := l.check(op); err != nil {
		return err
	}
	if l.engine.Closed() {
		return fmt.Errorf("sluice: %s: %w", op, ErrClosed)
	}
	o := &l.engine.Options
	check, err := scripts.CheckLocks(o.Prefix, map[store.Part]bool{
		store.All: true, store.Locks: true, store.Fences: o.Fenced, store.Permits: o.Permits > 0, store.Replicas: o.Replicas > 0,
	})
	if err == nil {
		err = checkServer(ctx, l.engine.Executor, check, "volatile", "allkeys")
	}
	if err != nil {
		return fmt.Errorf("sluice: %s: %w", op, err)
	}
	return nil
}

// Check says what would keep the queue from working, and changes nothing, as Locker.Check does. It
// asks for all that producers, workers and operators need, except for Pause, Resume, SetLimits and
// Purge, for Worker.Limits, and for claims from a queue with Limits.Rate. It asks for the queue's
// own name.
//
// A server that is older than 6.2 is an error, and keys that the library did not write are
// ErrCorrupt.
func (q *Queue) Check(ctx context.Context) error {
	const op = "check"
	if err := q.check(op); err != nil {
		return err
	}
	err := checkServer(ctx, q.engine.Executor, q.engine.Store.Check(), "allkeys")
	if err == nil {
		nothing := q.engine.Store.Exchange(nil, store.Claim{}) // reads each key
		nothing.Until = time.Now().Add(redisexec.MaxQuiet)
		err = q.engine.Executor.Once(ctx, nothing).Final()
	}
	return wrap(op, q.name, err)
}

// Check says what would keep the worker from working, and changes nothing: what Queue.Check says of
// its Queue, and ErrInvalid for a field that is out of range, or a nil Handler.
func (w *Worker) Check(ctx context.Context) error {
	const op = "check"
	if err := w.Queue.check(op); err != nil {
		return err
	}
	_, err := w.alone(op)
	return errors.Join(err, w.Queue.Check(ctx))
}

// Check says what would keep the pool from working, and changes nothing: what Queue.Check says of
// each queue, and ErrInvalid for what Run refuses.
func (p *Pool) Check(ctx context.Context) error {
	if _, err := p.newCrew("check"); err != nil {
		return err
	}
	var errs []error
	for _, w := range p.Workers {
		errs = append(errs, w.Queue.Check(ctx))
	}
	return errors.Join(errs...)
}

// checkServer asks the server what keeps its user from commands, and whether it evicts keys by such
// a policy.
func checkServer(ctx context.Context, e *redisexec.Executor, check store.Check, evicting ...string) error {
	check.Until = time.Now().Add(redisexec.MaxQuiet)
	answer := e.Once(ctx, check.Request)
	if answer.Outcome == redisexec.Unknown {
		// A server closes the connection of a user without a password for a command of many words;
		// to a short one it says why.
		ping := redisexec.Plain("ping")
		ping.Until = check.Until
		short := e.Once(ctx, ping)
		if redis.HasErrorPrefix(short.Err, "NOAUTH") {
			answer = short
		}
	}
	if answer.Outcome != redisexec.Done {
		return inWords(answer.Final())
	}
	wrong, mayAsk, err := check.Decode(answer.Value)
	if err != nil || !mayAsk {
		return errors.Join(append(wrong, err)...)
	}
	eviction := store.Eviction()
	eviction.Until = time.Now().Add(redisexec.MaxQuiet)
	policy := store.DecodeEviction(e.Once(ctx, eviction).Value)
	if kind, _, _ := strings.Cut(policy, "-"); slices.Contains(evicting, kind) {
		wrong = append(wrong, fmt.Errorf("maxmemory-policy is %s: the server evicts what is locked or queued; set noeviction", policy))
	}
	return errors.Join(wrong...)
}

// inWords says what an error means for the operator. A request of Check has changed nothing, so
// that its outcome is not unknown.
func inWords(err error) error {
	says := func(what string) error { return fmt.Errorf("%s: %w", what, err) }
	switch {
	case errors.Is(err, redis.ErrClosed):
		return says("the client is closed")
	case redis.HasErrorPrefix(err, "WRONGPASS"), redis.HasErrorPrefix(err, "NOAUTH"), strings.Contains(err.Error(), "unauthenticated"):
		return says("the server does not accept the user's name or password")
	case redis.HasErrorPrefix(err, "MOVED"):
		return says("the server belongs to a Cluster, and the client is not a ClusterClient")
	case redis.HasErrorPrefix(err, "READONLY"):
		return says("the server is a replica")
	case errors.Is(err, ErrUnknown):
		return fmt.Errorf("%w: the server does not answer: %v", ErrUnavailable, err) //nolint:errorlint // it is not unknown
	}
	return err
}
