package sluice

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"
)

// maxReason is the most bytes of a reason that are kept.
const maxReason = 512

// DeadEntry is a dead letter: a task that was set aside and is not handed out.
type DeadEntry struct {
	ID      string
	Payload []byte
	// Reason is what Bury was told; "attempts used up" for a task that was claimed
	// as often as WithMaxAttempts allows; "malformed" for what is not the library's.
	Reason string
	// Attempt is how many times the task had been claimed.
	Attempt int
	// Time is when it died, by the server's clock.
	Time time.Time
}

// Bury puts a task among the dead letters, where it stays until it is Revived,
// Cancelled or enqueued again: there is no expiry, and no limit to their number.
// Of the reason 512 bytes are kept; what is longer is cut at a character's end.
//
// Where Enqueue has Deferred a new version, that one takes the task's place at its
// own time, and the old one is gone: an ID is in a queue once. ErrStale and
// ErrUnknown as for Dequeue. It works on a full server.
func (q *Queue) Bury(ctx context.Context, e Entry, reason string) error {
	return q.finish(ctx, "bury", []Entry{e}, func(receipts []any) call {
		return q.bury(append(receipts, cut(reason, maxReason)))
	})
}

// bury takes three arguments per task: ID, score, reason.
func (q *Queue) bury(graves []any) call {
	return scriptBury.call(q.keys, append([]any{q.channel}, graves...)...)
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

// Dead lists up to n dead letters, those that died first at the front. It changes
// nothing. More than 250, or a megabyte of payload, are read in several steps, so
// that letters which come or go meanwhile may be missed or listed twice; should a
// step fail, those read before are returned beside the error.
func (q *Queue) Dead(ctx context.Context, n int) ([]DeadEntry, error) {
	return take(ctx, q, "dead", n, func(n, skip int) (call, decoder[DeadEntry]) {
		return scriptDead.call(q.keys, n, skip), decodeDead
	})
}

// Revive puts dead letters back into the queue, due now and with no attempts, and
// says how many there were of these IDs; the others are left as they are. It works
// on a full server.
//
// More than 250, or a megabyte of payload, are revived in several steps. Should
// one fail, the number of those revived before is returned beside the error. After
// ErrUnknown it may be called again: what has been revived is no dead letter any
// more, unless it has died again.
func (q *Queue) Revive(ctx context.Context, ids ...string) (int, error) {
	if err := q.check("revive", ctx); err != nil {
		return 0, err
	}
	if slices.Contains(ids, "") {
		return 0, invalid("revive", "empty task ID")
	}
	revived := 0
	for len(ids) > 0 {
		args := []any{q.channel}
		for _, id := range ids[:min(len(ids), chunk)] {
			args = append(args, id)
		}
		a, err := q.run(ctx, scriptRevive.call(q.keys, args...))
		var counts []int64
		if err == nil {
			counts, err = decodeRevived(a.reply, len(args)-1)
		}
		if err != nil {
			return revived, wrap("revive", q.name, err)
		}
		ids = ids[counts[0]:]
		revived += int(counts[1])
	}
	return revived, nil
}

// decodeRevived: how many of n IDs were dealt with, and how many put back.
func decodeRevived(reply any, n int) ([]int64, error) {
	counts, err := integers(reply, 2)
	if err == nil && (counts[0] < 1 || counts[0] > int64(n)) {
		err = errReply(reply)
	}
	return counts, err
}

// decodeDead: seen, then id, time of death, attempt, reason, payload of each.
func decodeDead(reply any) (int, []DeadEntry, error) {
	list, ok := reply.([]any)
	if !ok || len(list)%5 != 1 {
		return 0, nil, errReply(reply)
	}
	seen, _ := list[0].(int64)
	letters := make([]DeadEntry, 0, len(list)/5)
	for i := 1; i < len(list); i += 5 {
		e, err := decodeEntry(list[i], list[i+1], list[i+2], list[i+4])
		if err != nil {
			return 0, nil, err
		}
		reason, ok := list[i+3].(string)
		if !ok {
			return 0, nil, fmt.Errorf("%w of a reason", errReply(list[i+3]))
		}
		letters = append(letters, DeadEntry{ID: e.ID, Payload: e.Payload, Reason: reason, Attempt: e.Attempt, Time: e.Time()})
	}
	return int(seen), letters, nil
}
