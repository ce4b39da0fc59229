package sluice

import (
	"context"
	"math"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// List lists up to n tasks in a state: Scheduled, Due, Leased or Dead. It changes nothing. Tasks come in the
// order of their Scores and, of those with the same, of their IDs. The zero Entry as after begins with
// the first one; another one goes on behind it, by its Score and ID, and may be gone. So after a page that is
// shorter than n there is nothing more, and a task that stays in the state, with its Score, is listed
// once, whatever comes or goes between two pages. One whose lease is extended meanwhile may be listed
// again.
//
// What the library has not written is left out, except of the dead letters, as is a version that waits
// behind a lease that has run out: the next Claim puts it where it belongs. Entries have their State
// and, if it is known, Due.
//
// More than 250, or a megabyte of payload, are read in several steps, and of the scheduled ones each
// thousand leased ones that are due between them are a step. If one fails, the tasks read before are
// returned beside the error. ErrInvalid: n is less than 1, or the state is none of these.
func (q *Queue) List(ctx context.Context, s State, after Entry, n int) ([]Entry, error) {
	const op = "list"
	if err := q.checkList(op, ctx, after, n); err != nil {
		return nil, err
	}
	var read func(ctx context.Context, after Entry, n int) ([]Entry, error)
	switch s {
	case Scheduled, Leased:
		read = func(ctx context.Context, after Entry, n int) ([]Entry, error) {
			return q.listStanding(ctx, s, after, n)
		}
	case Due:
		read = func(ctx context.Context, after Entry, n int) ([]Entry, error) {
			return q.listDue(ctx, after, n, inPlace)
		}
	case Dead:
		read = q.listDead
	default:
		return nil, invalid(op, "no state to list")
	}
	entries, err := read(ctx, after, n)
	for i := range entries {
		entries[i].State = s
	}
	return entries, wrap(op, q.name, err)
}

// Dead lists up to n dead letters behind one: it is List of that state.
func (q *Queue) Dead(ctx context.Context, after Entry, n int) ([]Entry, error) {
	if err := q.checkList("dead", ctx, after, n); err != nil {
		return nil, err
	}
	letters, err := q.listDead(ctx, after, n)
	return letters, wrap("dead", q.name, err)
}

// checkList checks the arguments of an operation that lists.
func (q *Queue) checkList(op string, ctx context.Context, after Entry, n int) error {
	if err := q.checkCount(op, ctx, n); err != nil {
		return err
	}
	if math.IsNaN(after.Score) {
		return invalid(op, "not an entry from the queue")
	}
	return nil
}

func (q *Queue) listDead(ctx context.Context, after Entry, n int) ([]Entry, error) {
	return collectPages(ctx, q, n, pager{
		after:  cursorOf(after),
		decode: func(value any) (cursor, []Entry, error) { return decodePage(value, decodeDead) },
		request: func(s *shard, n int, after cursor) redisexec.Request {
			return scriptDead.Request(s.keys, n, after.score, after.id)
		},
	})
}

// inPlace has listDue leave out versions that wait behind a lease that has run out: a page cannot begin behind one.
const inPlace = 1

// listDue lists due tasks: all of them, or those in place.
func (q *Queue) listDue(ctx context.Context, after Entry, n, which int) ([]Entry, error) {
	return collectPages(ctx, q, n, pager{
		after:  cursorOf(after),
		decode: func(value any) (cursor, []Entry, error) { return decodePage(value, decodeWaiting) },
		request: func(s *shard, n int, after cursor) redisexec.Request {
			return scriptPeek.Request(s.keys, n, after.score, after.id, which)
		},
	})
}

// listStanding lists what is not due: scheduled or leased tasks.
func (q *Queue) listStanding(ctx context.Context, state State, after Entry, n int) ([]Entry, error) {
	decode := decodeWaiting
	if state == Leased {
		decode = decodeEntryList
	}
	return collectPages(ctx, q, n, pager{
		after:  cursorOf(after),
		decode: func(value any) (cursor, []Entry, error) { return decodePage(value, decode) },
		request: func(s *shard, n int, after cursor) redisexec.Request {
			return scriptList.Request(s.keys, n, after.score, after.id, int(state))
		},
	})
}
