package sluice

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/backoff"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/wire"
)

// maxReason is the most bytes of a reason that are kept.
const maxReason = 512

// cutReason shortens s to maxReason bytes, and to the end of a character. What is no UTF-8 is replaced.
func cutReason(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxReason+utf8.UTFMax)], "\ufffd")
	if len(s) <= maxReason {
		return s
	}
	end := maxReason
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Revive puts dead letters back into the queue, due now and with no attempts, and returns how many of these IDs
// were dead letters; the others are left unchanged. It works on a full server.
//
// A dead letter with an empty ID, which only a foreign client can have written, is removed for good: no operation
// can name it.
//
// More than 250 are revived in several steps. If one fails, the number of those revived
// before is returned beside the error. After ErrUnknown it may be called again: what has
// been revived is no dead letter any more, unless it has died again.
func (q *Queue) Revive(ctx context.Context, ids ...string) (int, error) {
	if err := q.check("revive"); err != nil {
		return 0, err
	}
	if slices.Contains(ids, "") {
		return 0, invalid("revive", "empty task ID")
	}
	revived, err := q.eachLetter(ctx, ids, scripts.Revive, q.keys.errors)
	return revived, wrap("revive", q.name, err)
}

// Drop removes dead letters for good, and returns how many of these IDs were dead letters; the others are left
// unchanged. So a task that was revived, or enqueued anew, after its letter was read, is not lost; Cancel removes a
// task in any state.
//
// It works on a full server.
//
// More than 250 are removed in several steps. If one fails, the number of those removed
// before is returned beside the error. After ErrUnknown it may be called again: what was
// removed is not found, unless a task of that ID has died since.
func (q *Queue) Drop(ctx context.Context, ids ...string) (int, error) {
	if err := q.check("drop"); err != nil {
		return 0, err
	}
	if slices.Contains(ids, "") {
		return 0, invalid("drop", "empty task ID")
	}
	dropped, err := q.eachLetter(ctx, ids, scripts.Drop, q.keys.tasks)
	return dropped, wrap("drop", q.name, err)
}

// eachLetter runs a script on dead letters in steps. It returns on how many.
func (q *Queue) eachLetter(ctx context.Context, ids []string, script *redisexec.Script, keys []any) (changed int, err error) {
	for part := range slices.Chunk(ids, maxGroup) {
		args := make([]any, 0, len(part))
		for _, id := range part {
			args = append(args, id)
		}
		reply, err := q.executor.Run(ctx, q.replicated(script.Request(keys, args...)))
		r := wire.Read([]any{reply.Value})
		n := r.Between(0, int64(len(part)))
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return changed, err
		}
		if changed += int(n); reply.Shortfall != nil {
			return changed, reply.Shortfall
		}
	}
	return changed, nil
}

// What WithDeadLimit and WithDeadAge do. A script that buries drops the oldest dead letters, as many as it buries and up to fifty
// more: so the limit holds whatever is buried at a time. What no burial drops is left to trim.lua: letters that have grown
// too old, those beyond a limit that is new, and those that a client without a limit has buried. Stats sends it, Claim and
// Pop do now and then, and a worker as long as there are any. It drops fifty at a time: to free the payloads of so many takes
// the server 20 ms if each has a megabyte.

const (
	// trimInterval is for how long Claim and Pop leave a queue's dead letters alone, unless there are more to be dropped.
	trimInterval = 5 * time.Second
	// trimSeldom is how often a worker looks by itself, at most; at least half as often.
	trimSeldom = time.Minute
	// trimPause is between two scripts with which a worker drops letters, so that the server has time for others.
	trimPause = 2 * time.Millisecond
	// trimPatience is how long a claim waits for what is dropped before it: not for a server that hangs.
	trimPatience = 100 * time.Millisecond
)

// trimmer says which of a queue's dead letters are to be dropped, and when they are to be looked at.
type trimmer struct {
	bounds []any // as the scripts read them: how many may stay, and for how many seconds; 0 for no bound
	next   atomic.Pointer[time.Time]
}

// trims reports whether there is a limit, or something to be forgotten.
func (o *queueOptions) trims() bool { return o.deadLimit > 0 || o.deadAge > 0 || o.retention > 0 }

// deadBounds returns the bounds as scripts read them.
func (o *queueOptions) deadBounds() []any { return []any{o.deadLimit, wire.Duration(o.deadAge)} }

func (q *Queue) trimRequest() redisexec.Request {
	retention := ""
	if q.options.retention > 0 {
		retention = wire.Duration(q.options.retention)
	}
	return scripts.Trim.Request(q.keys.done, append(slices.Clip(q.trimmer.bounds), retention)...)
}

// trimIsDue reports whether the dead letters are to be looked at, and that they are until the interval is
// over: then by the next caller.
func (q *Queue) trimIsDue() bool {
	now, next := time.Now(), q.trimmer.next.Load()
	if next != nil && now.Before(*next) {
		return false
	}
	again := now.Add(trimInterval)
	return q.trimmer.next.CompareAndSwap(next, &again)
}

// trim drops dead letters. It returns whether there are more. An error is dropped: the next trim
// does what this one has left.
func (q *Queue) trim(ctx context.Context) (more bool, d wire.Dropped) {
	reply, err := q.executor.Run(ctx, q.trimRequest())
	r := wire.Read(reply.Value)
	more, d = r.Int() == 1, r.Dropped()
	if err != nil || r.Err() != nil {
		return false, wire.Dropped{}
	}
	if more {
		q.trimmer.next.Store(nil)
	}
	return more, d
}

// trimBeforeClaim drops dead letters if that is due.
func (q *Queue) trimBeforeClaim(ctx context.Context) {
	if !q.options.trims() || !q.trimIsDue() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, trimPatience)
	defer cancel()
	q.trim(ctx)
}

// startTrimming has dead letters dropped as long as the worker runs. What it returns ends that, and waits for the end.
func (s *workerSource) startTrimming(ctx context.Context) (stop func()) {
	if !s.queue.options.trims() {
		return func() {}
	}
	return background.Start(ctx, s.keepTrimming)
}

// keepTrimming drops dead letters until ctx ends.
func (s *workerSource) keepTrimming(ctx context.Context) {
	for ctx.Err() == nil {
		for s.trimOnce(ctx) {
			backoff.Sleep(ctx, trimPause)
		}
		backoff.Sleep(ctx, backoff.Half(trimSeldom))
	}
}

// trimOnce drops dead letters, and reports whether there are more.
func (s *workerSource) trimOnce(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, trimInterval)
	defer cancel()
	more, d := s.queue.trim(ctx)
	s.logDropped(d)
	return more
}

// logDropped logs what a script has dropped.
func (s *workerSource) logDropped(d wire.Dropped) {
	if d.Count > 0 {
		s.log.Warn("sluice: dead letters dropped", slog.Int64("dropped", d.Count), slog.Any("tasks", d.IDs))
	}
}
