package sluice

import (
	"context"
	"math"
	"strconv"

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
// Opts say which payloads are read. More than 250, or a megabyte of what is read, take several steps, and of the scheduled ones each
// thousand leased ones that are due between them are a step. If one fails, the tasks read before are
// returned beside the error. ErrInvalid: n is less than 1, or the state is none of these.
func (q *Queue) List(ctx context.Context, s State, after Entry, n int, opts ...ReadOption) ([]Entry, error) {
	const op = "list"
	payloads, err := q.checkList(op, after, n, opts)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	switch s {
	case Scheduled, Leased:
		entries, err = q.listStanding(ctx, s, after, n, payloads)
	case Due:
		entries, err = q.listDue(ctx, after, n, inPlace, payloads)
	case Dead:
		entries, err = q.listDead(ctx, after, n, payloads)
	default:
		return nil, invalid(op, "no state to list")
	}
	for i := range entries {
		entries[i].State = s
	}
	return entries, q.wrap(ctx, op, err)
}

// Dead lists up to n dead letters behind one: it is List of that state.
func (q *Queue) Dead(ctx context.Context, after Entry, n int, opts ...ReadOption) ([]Entry, error) {
	payloads, err := q.checkList("dead", after, n, opts)
	if err != nil {
		return nil, err
	}
	letters, err := q.listDead(ctx, after, n, payloads)
	return letters, q.wrap(ctx, "dead", err)
}

// checkList checks the arguments of an operation that lists. It returns what readPayloads does.
func (q *Queue) checkList(op string, after Entry, n int, opts []ReadOption) (payloads string, err error) {
	if err := q.checkCount(op, n); err != nil {
		return "", err
	}
	if math.IsNaN(after.Score) {
		return "", invalid(op, "not an entry from the queue")
	}
	return readPayloads(op, opts)
}

func (q *Queue) listDead(ctx context.Context, after Entry, n int, payloads string) ([]Entry, error) {
	return collectPages(ctx, q, n, pager{
		after:  cursorOf(after),
		decode: func(value any) (cursor, []Entry, error) { return decodePage(value, decodeDead) },
		request: func(s *shard, n int, after cursor) redisexec.Request {
			return scriptDead.Request(s.keys, n, after.score, after.id, payloads)
		},
	})
}

// ReadOption says what Get, List and Dead read of a task's payload and header. Defaults to all.
type ReadOption func(*readOptions)

type readOptions struct {
	most int // how many bytes of them, as they are stored; -1 for any number
}

// WithoutPayloads leaves Payload and Header nil. They stay on the server, which does not read them either: a list of tasks with large
// payloads is as cheap as one of tasks without.
func WithoutPayloads() ReadOption {
	return func(o *readOptions) { o.most = 0 }
}

// WithPayloadsUpTo leaves Payload and Header nil of a task whose payload and header are stored in more than n bytes. Entry.Omitted
// says in how many. The server reads them, but does not send them. At least 1.
func WithPayloadsUpTo(n int) ReadOption {
	return func(o *readOptions) {
		if o.most = n; n < 1 {
			o.most = math.MinInt // out of range: WithoutPayloads is for 0
		}
	}
}

// readPayloads returns the most bytes of a payload as scripts are given it: see payload.lua.
func readPayloads(op string, opts []ReadOption) (string, error) {
	o := readOptions{most: -1}
	for _, opt := range opts {
		if opt == nil {
			return "", invalid(op, "nil option")
		}
		opt(&o)
	}
	switch {
	case o.most < -1:
		return "", invalid(op, "payloads up to less than one byte")
	case o.most == -1:
		return "", nil
	}
	return strconv.Itoa(o.most), nil
}

// inPlace has listDue leave out versions that wait behind a lease that has run out: a page cannot begin behind one.
const inPlace = 1

// listDue lists due tasks: all of them, or those in place.
func (q *Queue) listDue(ctx context.Context, after Entry, n, which int, payloads string) ([]Entry, error) {
	return collectPages(ctx, q, n, pager{
		after:  cursorOf(after),
		decode: func(value any) (cursor, []Entry, error) { return decodePage(value, decodeWaiting) },
		request: func(s *shard, n int, after cursor) redisexec.Request {
			return scriptPeek.Request(s.keys, n, after.score, after.id, which, payloads)
		},
	})
}

// listStanding lists what is not due: scheduled or leased tasks.
func (q *Queue) listStanding(ctx context.Context, state State, after Entry, n int, payloads string) ([]Entry, error) {
	decode := decodeWaiting
	if state == Leased {
		decode = decodeEntryList
	}
	return collectPages(ctx, q, n, pager{
		after:  cursorOf(after),
		decode: func(value any) (cursor, []Entry, error) { return decodePage(value, decode) },
		request: func(s *shard, n int, after cursor) redisexec.Request {
			return scriptList.Request(s.keys, n, after.score, after.id, int(state), payloads)
		},
	})
}

// pages is a list of a shard that is read in pages.
type pages struct {
	shard  *shard
	read   []Entry
	after  cursor
	isOver bool
}

// pager reads pages of lists.
type pager struct {
	decode  decoder[cursor]
	request func(s *shard, n int, after cursor) redisexec.Request
	after   cursor // where to begin
	size    int    // of a page
}

// smallestPage is how many entries a page of several lists has at least.
const smallestPage = 16

// comesBefore compares two entries as lists are sorted.
func comesBefore(a, b Entry) bool { return a.Score < b.Score || a.Score == b.Score && a.ID < b.ID }

// fill reads pages until there is an entry, or no more.
func (p pager) fill(ctx context.Context, l *pages) error {
	for len(l.read) == 0 && !l.isOver {
		stopped, entries, err := step(ctx, l.shard, p.request(l.shard, p.size, l.after), p.decode)
		if err != nil {
			return err
		}
		l.read, l.after, l.isOver = entries, stopped, stopped == cursor{}
	}
	return nil
}

// merge reads n entries of the lists of all shards, in their order.
func (p pager) merge(ctx context.Context, q *Queue, n int) ([]Entry, error) {
	p.size = min(max(smallestPage, 2*n/len(q.shards)), n, maxGroup)
	lists := make([]pages, len(q.shards))
	err := q.forShards(func(i int, s *shard) error {
		lists[i].shard, lists[i].after = s, p.after
		return p.fill(ctx, &lists[i])
	})
	var merged []Entry
	for err == nil && len(merged) < n {
		var first *pages
		for i := range lists {
			if this := &lists[i]; len(this.read) > 0 && (first == nil || comesBefore(this.read[0], first.read[0])) {
				first = this
			}
		}
		if first == nil {
			break
		}
		merged = append(merged, first.read[0])
		first.read = first.read[1:]
		if len(merged) < n {
			err = p.fill(ctx, first)
		}
	}
	return merged, err
}
