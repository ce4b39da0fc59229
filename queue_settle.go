package sluice

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/taskloop"
	"github.com/sluice-go/sluice/internal/wire"
)

// Dequeue finishes tasks: it removes each whose receipt is still good. Where Enqueue has
// Deferred a new version, that one takes the task's place.
//
// A *StaleError (ErrStale) names the tasks whose receipt is not good: their lease ran out
// and they were handed to another worker, or they were cancelled or moved. The others were
// finished. ErrUnknown: each may or may not have been; calling again is safe, and a task
// that had been finished is stale then. Up to 250 are finished atomically at a time; after
// an error those of earlier steps have been, except those that a *StaleError beside it
// names. With several shards that is so for each: one that fails keeps no other from its tasks.
//
// Calls of many goroutines on one Queue at the same time are sent together, by one script.
func (q *Queue) Dequeue(ctx context.Context, es ...Entry) error {
	return q.settle(ctx, "dequeue", es, (*shard).dequeue)
}

func (s *shard) dequeue(ctx context.Context, es []Entry) (stale []string, failed error) {
	return settle(ctx, es, decodeFinished, func(ctx context.Context, part []Entry) (redisexec.Reply, error) {
		claims, bytes := make([]taskloop.Item, len(part)), 0
		for i, e := range part {
			claims[i] = taskloop.Item{ID: e.ID, Receipt: receiptOf(e)}
			bytes += len(e.ID)
		}
		return runMerged(ctx, s, s.dequeues, claims, len(part), bytes, s.dequeueRequest)
	})
}

func (s *shard) dequeueRequest(claims []taskloop.Item) redisexec.Request {
	return s.replicated(s.exchangeRequest(claims, 0, 0))
}

// commitDequeues sends a group of Dequeue calls, those with the same receipt together.
func (s *shard) commitDequeues(calls []*mergedCall[[]taskloop.Item]) {
	slices.SortStableFunc(calls, func(a, b *mergedCall[[]taskloop.Item]) int {
		return strings.Compare(a.Arg[0].Receipt, b.Arg[0].Receipt)
	})
	claims := make([]taskloop.Item, 0, len(calls))
	for _, call := range calls {
		claims = append(claims, call.Arg...)
	}
	commit(s, calls, s.dequeueRequest(claims), func(result redisexec.Result, sent time.Time) {
		answers, err := decodeFinished(result.Value, len(claims))
		for _, call := range calls {
			m := merged{result, sent} // a reply of another form is for each to reject
			if n := len(call.Arg); err == nil {
				m.Value, answers = answers[:n:n], answers[n:]
			}
			call.Settle(m)
		}
	})
}

// Retry gives a task back, due again after delay; the attempt counts. Where a new version
// was Deferred, that one takes its place instead, at its own time. ErrStale and ErrUnknown
// as for Dequeue.
func (q *Queue) Retry(ctx context.Context, e Entry, delay time.Duration) error {
	if err := checkDelay(delay); err != nil {
		return fmt.Errorf("sluice: retry: %w", err)
	}
	return q.settle(ctx, "retry", []Entry{e}, func(s *shard, ctx context.Context, es []Entry) (stale []string, failed error) {
		return s.settleAlone(ctx, scriptGiveBack, es, func(args []any, e Entry) []any {
			return appendGiveBack(args, e.ID, receiptOf(e), delay, attemptCounts)
		})
	})
}

// Release gives tasks back that were not begun: they are due now, and the attempt does not
// count. Where a new version was Deferred, that one takes its place. ErrStale and
// ErrUnknown as for Dequeue.
func (q *Queue) Release(ctx context.Context, es ...Entry) error {
	return q.settle(ctx, "release", es, (*shard).release)
}

func (s *shard) release(ctx context.Context, es []Entry) (stale []string, failed error) {
	return s.settleAlone(ctx, scriptGiveBack, es, func(args []any, e Entry) []any {
		return appendGiveBack(args, e.ID, receiptOf(e), 0, attemptDoesNotCount)
	})
}

// Bury puts a task among the dead letters, where it stays until it is Revived, Cancelled
// or enqueued again: there is no expiry, and no limit to their number, except with WithDeadAge and
// WithDeadLimit. Of the reason 512 bytes are kept; what is longer is cut at a character's end.
//
// Where Enqueue has Deferred a new version, that one takes the task's place at its own
// time, and the old one is gone: an ID is in a queue once. ErrStale and ErrUnknown as for
// Dequeue. It works on a full server.
func (q *Queue) Bury(ctx context.Context, e Entry, reason string) error {
	return q.settle(ctx, "bury", []Entry{e}, func(s *shard, ctx context.Context, es []Entry) (stale []string, failed error) {
		return s.settleAlone(ctx, scriptBury, es, func(args []any, e Entry) []any {
			return appendBury(args, e.ID, receiptOf(e), cut(reason, maxReason))
		})
	})
}

// How many attempts a task that is given back has to its name: all of them, or one less.
const (
	attemptCounts       = 0
	attemptDoesNotCount = 1
)

// appendByReceipt appends what exchange.lua and heartbeat.lua are given of claimed tasks: of those in a row
// with the same receipt, that, their number and their IDs.
func appendByReceipt(args []any, items []taskloop.Item) []any {
	for len(items) > 0 {
		receipt, size := items[0].Receipt, 1
		for size < len(items) && items[size].Receipt == receipt {
			size++
		}
		args = append(args, receipt, size)
		for _, item := range items[:size] {
			args = append(args, item.ID)
		}
		items = items[size:]
	}
	return args
}

// exchangeRequest returns a request that finishes tasks, and then claims up to n. Only what claims nothing
// may be repeated.
func (s *shard) exchangeRequest(finish []taskloop.Item, n int, lease time.Duration) redisexec.Request {
	keys, args := s.allKeys, make([]any, 0, 8+2*len(finish))
	args = append(args, s.announce, n, wire.Duration(lease), s.options.maxAttempts)
	if n > 0 {
		keys, args = s.buryKeys(), append(args, s.trimmer.bounds...)
	}
	r := scriptExchange.Request(keys, appendByReceipt(args, finish)...)
	if n == 0 {
		r.Retry = redisexec.Idempotent
	}
	return r
}

// settleArgs returns the keys of giveback.lua or bury.lua, and the arguments before those for each of n tasks.
func (s *shard) settleArgs(script *redisexec.Script, n int) (keys, args []any) {
	args = append(make([]any, 0, 3+5*n), s.announce)
	if script != scriptBury {
		return s.keys, args
	}
	return s.buryKeys(), append(args, s.trimmer.bounds...)
}

// The arguments that giveback.lua and bury.lua take for each task.

func appendGiveBack(args []any, id, receipt string, delay time.Duration, takeOff int) []any {
	return append(args, id, receipt, wire.Duration(delay), takeOff, "")
}

func appendNext(args []any, id, receipt string, next *taskloop.Next) []any {
	return append(args, id, receipt, wire.DueAt(next.At).Seconds(), 0, next.Payload)
}

func appendBury(args []any, id, receipt, reason string) []any {
	return append(args, id, receipt, reason)
}

// settleAlone runs a script that ends leases.
func (s *shard) settleAlone(ctx context.Context, script *redisexec.Script, es []Entry,
	appendArgs func(args []any, e Entry) []any,
) (stale []string, failed error) {
	return settle(ctx, es, decodeAnswers, func(ctx context.Context, part []Entry) (redisexec.Reply, error) {
		keys, args := s.settleArgs(script, len(part))
		for _, e := range part {
			args = appendArgs(args, e)
		}
		return s.executor.Run(ctx, s.replicated(script.Request(keys, args...)))
	})
}

// settle ends leases. run does it for those of one shard, and returns which were stale.
func (q *Queue) settle(ctx context.Context, op string, es []Entry,
	run func(s *shard, ctx context.Context, es []Entry) (stale []string, failed error),
) error {
	if err := q.check(op); err != nil {
		return err
	}
	for _, e := range es {
		if err := checkReceipt(e); err != nil {
			return fmt.Errorf("sluice: %s: %w", op, err)
		}
	}
	var mu sync.Mutex // guards stale
	var stale []string
	failed := inParts(ctx, q, es, func(e Entry) string { return e.ID }, func(p shardPart[Entry]) error {
		some, err := run(p.shard, ctx, p.tasks)
		mu.Lock()
		defer mu.Unlock()
		stale = append(stale, some...)
		return err
	})
	return settleError(op, q.name, q.explain(ctx, failed), stale)
}

// settle ends leases in one shard, and sorts out the answers. run carries out what is a group
// at most.
func settle(ctx context.Context, es []Entry, decode func(value any, n int) ([]taskloop.Answer, error),
	run func(ctx context.Context, part []Entry) (redisexec.Reply, error),
) (stale []string, failed error) {
	for part := range slices.Chunk(es, maxGroup) {
		reply, err := run(ctx, part)
		var answers []taskloop.Answer
		if err == nil {
			answers, err = decode(reply.Value, len(part))
		}
		if err != nil {
			return stale, err
		}
		for i, answer := range answers {
			switch {
			case answer.IsAccepted():
			case answer == taskloop.Malformed:
				failed = ErrCorrupt
			case reply.Ambiguous:
				failed = errAmbiguousReceipt
			default:
				stale = append(stale, part[i].ID)
			}
		}
		if reply.Shortfall != nil {
			return stale, cmp.Or(failed, reply.Shortfall)
		}
	}
	return stale, failed
}

// settleError joins what failed with the tasks that were stale.
func settleError(op, name string, failed error, stale []string) error {
	switch {
	case stale == nil:
		return wrap(op, name, failed)
	case failed == nil:
		return wrap(op, name, &StaleError{IDs: stale})
	default:
		return wrap(op, name, fmt.Errorf("%w; %w", failed, &StaleError{IDs: stale}))
	}
}

// Extend gives a claimed task a new lease from now: it is the heartbeat of long work. The
// receipt stays as it is, so that e is good for the whole attempt, whatever becomes of an
// extension and of its reply.
//
// ErrStale: the task isn't the caller's any more, or it was never claimed; stop working on
// it. ErrUnknown: the lease may have been extended; calling again is safe.
func (q *Queue) Extend(ctx context.Context, e Entry, lease time.Duration) error {
	return q.extend(ctx, "extend", e, lease)
}

// extend is Extend, as a part of an operation.
func (q *Queue) extend(ctx context.Context, op string, e Entry, lease time.Duration) error {
	if err := q.check(op); err != nil {
		return err
	}
	err := checkReceipt(e)
	if err == nil {
		err = checkDuration("lease", lease)
	}
	if err != nil {
		return fmt.Errorf("sluice: %s: %w", op, err)
	}
	value, err := q.byID(ctx, op, e.ID, func(s *shard) redisexec.Request {
		return s.heartbeatRequest(lease, taskloop.Item{ID: e.ID, Receipt: receiptOf(e)})
	})
	if err != nil {
		return err
	}
	answers, err := decodeDone(value, 1)
	switch {
	case err != nil:
	case answers[0] == taskloop.Malformed:
		err = ErrCorrupt
	case answers[0] != taskloop.Accepted: // an extension does not use the receipt up: it was stale before
		err = ErrStale
	}
	return wrap(op, q.name, err)
}

// heartbeatRequest returns a request that extends the leases of up to maxGroup tasks.
func (s *shard) heartbeatRequest(lease time.Duration, items ...taskloop.Item) redisexec.Request {
	args := append(make([]any, 0, 3+2*len(items)), wire.Duration(lease))
	return scriptHeartbeat.Request(s.keys, appendByReceipt(args, items)...)
}

func checkReceipt(e Entry) error {
	if e.ID == "" || math.IsNaN(e.Score) || math.IsInf(e.Score, 0) {
		return fmt.Errorf("%w: not an entry from the queue", ErrInvalid)
	}
	return nil
}

// receiptOf is an entry's score, as scripts are given it: as most servers print it, since
// what is equal as text need not be compared as a number.
func receiptOf(e Entry) string { return receiptText(e.Score) }

func receiptText(score float64) string { return strconv.FormatFloat(score, 'g', 17, 64) }
