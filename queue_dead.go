package sluice

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

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
	revived, err := q.eachLetter(ctx, ids, func(s *shard, args []any) redisexec.Request {
		return scriptRevive.Request(s.errorKeys, args...)
	})
	return revived, q.wrap(ctx, "revive", err)
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
	dropped, err := q.eachLetter(ctx, ids, func(s *shard, args []any) redisexec.Request {
		return scriptDrop.Request(s.keys, args...)
	})
	return dropped, q.wrap(ctx, "drop", err)
}

// eachLetter runs a script on dead letters, in their shards, and returns on how many.
func (q *Queue) eachLetter(ctx context.Context, ids []string, request func(s *shard, ids []any) redisexec.Request) (int, error) {
	var changed atomic.Int64
	err := inParts(ctx, q, ids, func(id string) string { return id }, func(p shardPart[string]) error {
		n, err := p.shard.eachLetter(ctx, p.tasks, request)
		changed.Add(int64(n))
		return err
	})
	return int(changed.Load()), err
}

// eachLetter runs a script on dead letters in steps. It returns on how many.
func (s *shard) eachLetter(ctx context.Context, ids []string, request func(s *shard, ids []any) redisexec.Request) (changed int, err error) {
	for part := range slices.Chunk(ids, maxGroup) {
		args := make([]any, 0, len(part))
		for _, id := range part {
			args = append(args, id)
		}
		reply, err := s.executor.Run(ctx, s.replicated(request(s, args)))
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
	// trimInterval is for how long Claim and Pop leave a shard's dead letters alone, unless there are more to be dropped.
	trimInterval = 5 * time.Second
	// trimSeldom is how often a worker looks by itself, at most; at least half as often. A fleet of idle workers asks for each shard.
	trimSeldom = time.Minute
	// trimPause is between two scripts with which a worker drops letters, so that the server has time for others.
	trimPause = 2 * time.Millisecond
	// trimPatience is how long a claim waits for what is dropped before it: not for a server that hangs.
	trimPatience = 100 * time.Millisecond
)

// trimmer says which of a shard's dead letters are to be dropped, and when they are to be looked at.
type trimmer struct {
	bounds []any // as the scripts read them: how many may stay in the shard, and for how many seconds; 0 for no bound
	next   atomic.Pointer[time.Time]
}

// trims reports whether there is a limit, or something to be forgotten.
func (o *queueOptions) trims() bool { return o.deadLimit > 0 || o.deadAge > 0 || o.retention > 0 }

// deadBounds returns the bounds of one of the shards.
func (o *queueOptions) deadBounds() []any {
	return []any{(o.deadLimit + o.shards - 1) / o.shards, wire.Duration(o.deadAge)}
}

func (s *shard) trimRequest() redisexec.Request {
	retention := ""
	if s.options.retention > 0 {
		retention = wire.Duration(s.options.retention)
	}
	return scriptTrim.Request(s.doneKeys, append(slices.Clip(s.trimmer.bounds), retention)...)
}

// trimIsDue reports whether the shard's dead letters are to be looked at, and that they are until the interval is
// over: then by the next caller.
func (s *shard) trimIsDue() bool {
	now, next := time.Now(), s.trimmer.next.Load()
	if next != nil && now.Before(*next) {
		return false
	}
	again := now.Add(trimInterval)
	return s.trimmer.next.CompareAndSwap(next, &again)
}

// trim drops dead letters of the shard. It returns whether there are more. An error is dropped: the next trim
// does what this one has left.
func (s *shard) trim(ctx context.Context) (more bool, d wire.Dropped) {
	reply, err := s.executor.Run(ctx, s.trimRequest())
	r := wire.Read(reply.Value)
	more, d = r.Int() == 1, r.Dropped()
	if err != nil || r.Err() != nil {
		return false, wire.Dropped{}
	}
	if more {
		s.trimmer.next.Store(nil)
	}
	return more, d
}

// trim drops dead letters of all shards.
func (q *Queue) trim(ctx context.Context) {
	if q.options.trims() {
		_ = q.forShards(func(_ int, s *shard) error {
			s.trim(ctx)
			return nil
		})
	}
}

// trimBeforeClaim drops dead letters of the shards where it is due.
func (q *Queue) trimBeforeClaim(ctx context.Context) {
	if !q.options.trims() {
		return
	}
	var due []*shard
	for _, s := range q.shards {
		if s.trimIsDue() {
			due = append(due, s)
		}
	}
	if len(due) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, trimPatience)
	defer cancel()
	_ = q.forEach(len(due), func(i int) *shard { return due[i] }, func(i int) error {
		due[i].trim(ctx)
		return nil
	})
}

// startTrimming has dead letters dropped as long as the worker runs. What it returns ends that, and waits for the end.
func (s *workerSource) startTrimming(ctx context.Context) (stop func()) {
	if !s.queue.options.trims() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { s.keepTrimming(ctx) })
	return func() {
		cancel()
		done.Wait()
	}
}

// keepTrimming drops dead letters until ctx ends.
func (s *workerSource) keepTrimming(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.queue.forShards(func(_ int, sh *shard) error {
			for s.trimOnce(ctx, sh) {
				backoff.Sleep(ctx, trimPause)
			}
			return nil
		})
		backoff.Sleep(ctx, backoff.Half(trimSeldom))
	}
}

// trimOnce drops dead letters of a shard, and reports whether there are more.
func (s *workerSource) trimOnce(ctx context.Context, sh *shard) bool {
	ctx, cancel := context.WithTimeout(ctx, trimInterval)
	defer cancel()
	more, d := sh.trim(ctx)
	s.logDropped(d)
	return more
}

// logDropped logs what a script has dropped.
func (s *workerSource) logDropped(d wire.Dropped) {
	if d.Count > 0 {
		s.log.Warn("sluice: dead letters dropped", slog.Int64("dropped", d.Count), slog.Any("tasks", d.IDs))
	}
}
