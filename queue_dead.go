package sluice

import (
	"context"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
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
	revived, err := q.eachLetter(ctx, ids, q.store.Revive)
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
	dropped, err := q.eachLetter(ctx, ids, q.store.Drop)
	return dropped, wrap("drop", q.name, err)
}

// eachLetter changes dead letters in steps. It returns how many it has.
func (q *Queue) eachLetter(ctx context.Context, ids []string, request func(ids []string) redisexec.Request) (changed int, err error) {
	for part := range slices.Chunk(ids, maxGroup) {
		reply, err := q.executor.Run(ctx, request(part))
		n := 0
		if err == nil {
			n, err = store.DecodeChanged(reply.Value, len(part))
		}
		if err != nil {
			return changed, err
		}
		if changed += n; reply.Shortfall != nil {
			return changed, reply.Shortfall
		}
	}
	return changed, nil
}
