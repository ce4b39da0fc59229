package sluice

import (
	"context"
	"slices"
	"sync/atomic"
	"unicode/utf8"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// maxReason is the most bytes of a reason that are kept.
const maxReason = 512

// cut shortens s to n bytes, and to the end of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	end := n
	for end > n-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	if !utf8.RuneStart(s[end]) {
		end = n // not text
	}
	return s[:end]
}

// Revive puts dead letters back into the queue, due now and with no attempts, and returns
// how many of these IDs were dead letters; the others are left unchanged. It works on a
// full server. A dead letter with an empty ID, which only a foreign client can have
// written, is removed for good: no operation can name it.
//
// More than 250 are revived in several steps. If one fails, the number of those revived
// before is returned beside the error. After ErrUnknown it may be called again: what has
// been revived is no dead letter any more, unless it has died again.
func (q *Queue) Revive(ctx context.Context, ids ...string) (int, error) {
	if err := q.check("revive", ctx); err != nil {
		return 0, err
	}
	if slices.Contains(ids, "") {
		return 0, invalid("revive", "empty task ID")
	}
	revived, err := q.eachLetter(ctx, ids, func(s *shard, args []any) redisexec.Request {
		return scriptRevive.Request(s.keys, append([]any{s.announce}, args...)...)
	})
	return revived, q.wrap(ctx, "revive", err)
}

// Drop removes dead letters for good, and returns how many of these IDs were dead letters; the
// others are left unchanged. So a task that was revived, or enqueued anew, after its letter was read, is
// not lost; Cancel removes a task in any state. It works on a full server.
//
// More than 250 are removed in several steps. If one fails, the number of those removed
// before is returned beside the error. After ErrUnknown it may be called again: what was
// removed is not found, unless a task of that ID has died since.
func (q *Queue) Drop(ctx context.Context, ids ...string) (int, error) {
	if err := q.check("drop", ctx); err != nil {
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
	err := inParts(ctx, q, ids, func(id string) string { return id }, func(p part[string]) error {
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
		var n int64
		if err == nil {
			n, err = decodeChanged(reply.Value, len(part))
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

// decodeChanged decodes how many of n letters were changed.
func decodeChanged(value any, n int) (int64, error) {
	changed, err := redisexec.Int(value)
	if err == nil && (changed < 0 || changed > int64(n)) {
		err = redisexec.Unexpected(value)
	}
	return changed, err
}
