package sluice

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/wire"
)

// List lists up to n tasks in a state: StateScheduled, StateDue, StateLeased or StateDead. It changes nothing. Tasks come in the
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
	l, ok := listings[s]
	if !ok {
		return nil, invalid(op, "no state to list")
	}
	entries, err := q.list(ctx, l, after, n, payloads)
	return entries, q.wrap(ctx, op, err)
}

// Dead lists up to n dead letters behind one: it is List of that state.
func (q *Queue) Dead(ctx context.Context, after Entry, n int, opts ...ReadOption) ([]Entry, error) {
	payloads, err := q.checkList("dead", after, n, opts)
	if err != nil {
		return nil, err
	}
	letters, err := q.list(ctx, listings[StateDead], after, n, payloads)
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

// ReadOption says what Get, List and Dead read of a task's payload and header. Defaults to all.
type ReadOption func(*readOptions)

type readOptions struct {
	most int // how many bytes of them, as they are stored; -1 for any number
}

// WithoutPayloads leaves Payload and Header nil. They stay on the server, which does not read them either: a list of tasks with large
// payloads is as cheap as one of tasks without.
func WithoutPayloads() ReadOption { return func(o *readOptions) { o.most = 0 } }

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

// listing says how tasks are listed.
type listing struct {
	script *redisexec.Script
	which  any   // the script's argument; what it means says the script
	state  State // of all that it lists, StateAbsent if that is not to be said
}

// listings are those of List. Of the due ones, peek.lua leaves out versions that wait behind a lease that has run out: a
// page cannot begin behind one.
var listings = map[State]listing{
	StateScheduled: {scriptList, int(StateScheduled), StateScheduled},
	StateDue:       {scriptPeek, "1", StateDue},
	StateLeased:    {scriptList, int(StateLeased), StateLeased},
	StateDead:      {scriptList, int(StateDead), StateDead},
}

// decode decodes where a page ends, and its entries.
func (l listing) decode(value any) (end cursor, es []Entry, err error) {
	r := wire.Read(value)
	end = cursor{r.Text(), r.Text()}
	switch l.state {
	case StateDead:
		es, err = readEntries(&r, wire.DeadParts, (*wire.Reader).Dead)
	case StateLeased:
		es, err = readEntries(&r, wire.LeasedParts, (*wire.Reader).Leased)
	default:
		es, err = readEntries(&r, wire.LeasedParts, (*wire.Reader).Waiting)
	}
	for i := range es {
		es[i].State = l.state
	}
	return end, es, err
}

// cursor is where a page of a list ends: the score, as text, and the ID of its last entry.
// The zero value is the beginning, and the end: there is nothing more.
type cursor struct{ score, id string }

// cursorOf returns where a list goes on behind e. The zero Entry is its beginning.
func cursorOf(e Entry) cursor {
	switch {
	case e.ID == "" && e.Score == 0:
		return cursor{}
	case math.IsInf(e.Score, 0): // a foreign client's
		return cursor{strings.TrimPrefix(strings.ToLower(receiptOf(e)), "+"), e.ID} // as servers print it
	}
	return cursor{receiptOf(e), e.ID}
}

// pages is a list of a shard that is read in pages.
type pages struct {
	shard  *shard
	read   []Entry
	after  cursor
	isOver bool
}

// fill reads pages of so many entries until there is an entry, or no more.
func (p *pages) fill(ctx context.Context, l listing, size int, payloads string) error {
	for len(p.read) == 0 && !p.isOver {
		reply, err := p.shard.executor.Run(ctx, l.script.Request(p.shard.keys, size, p.after.score, p.after.id, l.which, payloads))
		if err == nil {
			p.after, p.read, err = l.decode(reply.Value)
		}
		if err != nil {
			return err
		}
		p.isOver = p.after == cursor{}
	}
	return nil
}

// smallestPage is how many entries a page of several lists has at least.
const smallestPage = 16

// comesBefore compares two entries as lists are sorted.
func comesBefore(a, b Entry) bool { return a.Score < b.Score || a.Score == b.Score && a.ID < b.ID }

// list reads the first n entries behind one of the lists of all shards, in their order.
func (q *Queue) list(ctx context.Context, l listing, after Entry, n int, payloads string) (merged []Entry, err error) {
	size := min(max(smallestPage, 2*n/len(q.shards)), n, maxGroup)
	lists := make([]pages, len(q.shards))
	err = q.onShards(ctx, func(i int, s *shard) error {
		lists[i] = pages{shard: s, after: cursorOf(after)}
		return lists[i].fill(ctx, l, size, payloads)
	})
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
			err = first.fill(ctx, l, min(size, n-len(merged)), payloads)
		}
	}
	return merged, err
}

// entryOf returns a task as it is handed out.
func entryOf(t wire.Task) Entry {
	return Entry{ID: t.ID, Payload: t.Payload, Header: t.Header, Score: t.Score, Attempt: t.Attempt, Due: wire.TimeOf(t.Due)}
}

// viewOf returns a task as it is shown.
func viewOf(i wire.Info) Entry {
	e := entryOf(i.Task)
	e.Omitted, e.State, e.Reason = i.Omitted, State(i.State), i.Reason
	if !i.DueKnown {
		e.Due = time.Time{}
	}
	return e
}

// readEntries reads the entries that are left of a reply, each of so many parts.
func readEntries(r *wire.Reader, parts int, read func(r *wire.Reader) wire.Info) ([]Entry, error) {
	es := make([]Entry, 0, r.Left()/parts)
	for r.More() {
		es = append(es, viewOf(read(r)))
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return es, nil
}
