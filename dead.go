package sluice

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// maxReason is the most bytes of a reason that are kept.
const maxReason = 512

// DeadEntry is a dead letter: a task that was set aside and is not handed out.
type DeadEntry struct {
	ID      string
	Payload []byte
	// Reason is the one that Bury was given; "attempts used up" for a task that was
	// claimed as often as WithMaxAttempts allows; "malformed" for what is not the
	// library's.
	Reason string
	// Attempt is how many times the task had been claimed.
	Attempt int
	// Time is when it died, by the server's clock.
	Time time.Time
}

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

// Dead lists up to n dead letters, the oldest first. It changes nothing. More than 250, or
// a megabyte of payload, are read in several steps. Each goes on behind the last letter of
// the one before: no letter that stays is missed or listed twice. If a step fails, those
// read before are returned beside the error.
func (q *Queue) Dead(ctx context.Context, n int) ([]DeadEntry, error) {
	if err := q.checkCount("dead", ctx, n); err != nil {
		return nil, err
	}
	letters, err := collectPages(ctx, q, n, pager[DeadEntry]{
		decode: func(value any) (cursor, []DeadEntry, error) { return decodePage(value, decodeDead) },
		request: func(s *shard, n int, after cursor) redisexec.Request {
			return scriptDead.Request(s.keys, n, after.score, after.id)
		},
		less: func(a, b DeadEntry) bool { return a.Time.Before(b.Time) },
	})
	return letters, wrap("dead", q.name, err)
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
	var revived atomic.Int64
	err := inParts(ctx, q, ids, func(id string) string { return id }, func(p part[string]) (int, error) {
		n, done, err := p.shard.revive(ctx, p.tasks)
		revived.Add(int64(n))
		return done, err
	})
	return int(revived.Load()), wrap("revive", q.name, err)
}

// revive puts dead letters back in steps. It returns how many, and how many it has looked for.
func (s *shard) revive(ctx context.Context, ids []string) (revived, done int, err error) {
	for part := range slices.Chunk(ids, maxGroup) {
		args := []any{s.announce}
		for _, id := range part {
			args = append(args, id)
		}
		reply, err := s.executor.Run(ctx, s.replicated(scriptRevive.Request(s.keys, args...)))
		var n int64
		if err == nil {
			n, err = decodeRevived(reply.Value, len(part))
		}
		if err != nil {
			return revived, done, err
		}
		done += len(part)
		if revived += int(n); reply.Shortfall != nil && n > 0 {
			return revived, done, reply.Shortfall
		}
	}
	return revived, done, nil
}

// decodeRevived decodes how many of n letters were put back.
func decodeRevived(value any, n int) (int64, error) {
	revived, err := redisexec.Int(value)
	if err == nil && (revived < 0 || revived > int64(n)) {
		err = redisexec.Unexpected(value)
	}
	return revived, err
}

// decodeDead decodes id, time of death, attempt, reason and payload of each letter.
func decodeDead(list []any) ([]DeadEntry, error) {
	if len(list)%5 != 0 {
		return nil, redisexec.Unexpected(list)
	}
	letters := make([]DeadEntry, 0, len(list)/5)
	for i := 0; i < len(list); i += 5 {
		e, err := decodeEntry(list[i], list[i+1], list[i+2], list[i+4])
		if err != nil {
			return nil, err
		}
		reason, ok := list[i+3].(string)
		if !ok {
			return nil, fmt.Errorf("%w of a reason", redisexec.Unexpected(list[i+3]))
		}
		letters = append(letters, DeadEntry{ID: e.ID, Payload: e.Payload, Reason: reason, Attempt: e.Attempt, Time: e.Time()})
	}
	return letters, nil
}
