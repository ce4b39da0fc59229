package sluice

import (
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/wire"
)

// Replies are decoded by package wire, which knows no Entry: here its tasks become entries. What a decoder does not
// know is ErrCorrupt. Decoders that are used once are beside their method.

// entryOf returns a task as it is handed out.
func entryOf(t wire.Task) Entry {
	return Entry{
		ID: t.ID, Payload: t.Payload, Header: t.Header, Omitted: t.Omitted,
		Score: t.Score, Attempt: t.Attempt, Due: t.Due, State: State(t.State), Reason: t.Reason,
	}
}

// entriesOf returns tasks as they are handed out.
func entriesOf(ts []wire.Task) []Entry {
	es := make([]Entry, len(ts))
	for i, t := range ts {
		es[i] = entryOf(t)
	}
	return es
}

// readEntries reads the entries that are left of a reply, each of so many parts.
func readEntries(r *wire.Reader, parts int, read func(r *wire.Reader) wire.Task) ([]Entry, error) {
	es := make([]Entry, 0, r.Left()/parts)
	for r.More() {
		es = append(es, entryOf(read(r)))
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return es, nil
}

// decodeGet decodes the time, and a task of that ID if there is one.
func decodeGet(id string, value any) (e Entry, now time.Time, err error) {
	r := wire.Read(value)
	now = wire.TimeOf(r.Score())
	switch left := r.Left(); {
	case left == 0 && r.Err() == nil:
		return e, now, ErrNotFound
	case left == 1:
		return e, now, ErrCorrupt
	}
	e = entryOf(r.Standing(id, int64(len(states))))
	if err := r.Err(); err != nil {
		return Entry{}, now, err
	}
	if e.State == Scheduled || e.State == Due {
		e.Due = e.Time()
	}
	return e, now, nil
}

// decodeState decodes the state of a task.
func decodeState(value any) (State, error) {
	state, err := redisexec.Int(value)
	if err == nil && (state < int64(Absent) || state > int64(Dead)) {
		err = redisexec.Unexpected(value)
	}
	if err != nil {
		return Absent, err
	}
	return State(state), nil
}

// exchangedFor decodes the reply to a call that was to finish so many tasks, or returns its part of a group's.
func exchangedFor(value any, finished int) (wire.Exchanged, error) {
	if x, ok := value.(wire.Exchanged); ok {
		return x, nil
	}
	return wire.Exchange(value, finished)
}
