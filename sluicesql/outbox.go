package sluicesql

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
)

// Outbox is a table into which transactions write tasks. It may be copied.
type Outbox struct {
	// Dialect is the database's. Defaults to Postgres.
	Dialect Dialect
	// Table is the table's name: letters, digits, '_' and '.'. Defaults to "sluice_outbox".
	Table string
}

func (o Outbox) table() string { return cmp.Or(o.Table, defaultTable) }

const (
	// mostTasks and mostBytes bound a row: a call with more writes several.
	mostTasks = 250
	mostBytes = 1 << 20
)

// Enqueue writes tasks for a queue into the table, by the transaction: they are enqueued once that
// is committed, by a Relay. All fields of Task count. A Delay begins when the relay sees the row.
//
// The tasks of one call keep their order, up to 250 of them or a megabyte; those of two calls need
// not. What the library would refuse is ErrInvalid here, and nothing is written, except for what
// only the server can know: see Relay. Other errors are the database's; the transaction is the
// caller's to roll back.
//
// After a crash of the relay, a task may be enqueued again, and was done by then, perhaps. So have the
// handler use Once, or give the queue WithDuplicates(DuplicatesOnce) and WithRetention: with the other
// policies such a task runs twice.
func (o Outbox) Enqueue(ctx context.Context, tx Execer, queue string, ts ...sluice.Task) error {
	err := o.Dialect.check(o.Table)
	if err == nil {
		err = inTransaction(tx)
	}
	if _, odd := keyspace.Key("", queue); err == nil && odd != nil {
		err = fmt.Errorf("%w: the queue's name: %w", sluice.ErrInvalid, odd)
	}
	if err != nil {
		return fmt.Errorf("sluicesql: enqueue %q: %w", queue, err)
	}
	texts, err := rowsOf(ts)
	if err != nil {
		return fmt.Errorf("sluicesql: enqueue %q: %w", queue, err)
	}
	statement := fmt.Sprintf("INSERT INTO %s (queue, tasks, written_at) VALUES (%s)", o.table(), o.Dialect.places(1, 3))
	for _, text := range texts {
		if _, err := tx.ExecContext(ctx, statement, keyOf(queue), text, time.Now().UnixMicro()); err != nil {
			return fmt.Errorf("sluicesql: enqueue %q: %w", queue, err)
		}
	}
	return nil
}

// rowsOf returns the texts of the rows that tasks are written as.
func rowsOf(ts []sluice.Task) (texts []string, err error) {
	var row []byte
	n := 0
	for i, t := range ts {
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("ts[%d]: %w", i, err)
		}
		text, err := json.Marshal(rowOf(t))
		if err != nil {
			return nil, fmt.Errorf("%w: ts[%d]: %w", sluice.ErrInvalid, i, err)
		}
		if text = ascii(text); n > 0 && (n == mostTasks || len(row)+len(text) > mostBytes) {
			texts, row, n = append(texts, string(row)+"]"), nil, 0
		}
		row = append(append(row, "[,"[min(n, 1)]), text...)
		n++
	}
	if n > 0 {
		texts = append(texts, string(row)+"]")
	}
	return texts, nil
}

// ascii escapes what is not ASCII in JSON: a column or a connection of another character set leaves it
// as it is.
func ascii(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch high, low := utf16.EncodeRune(r); {
		case r < utf8.RuneSelf:
			out = append(out, byte(r))
		case high != utf8.RuneError:
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// row is a task as it is written. Names are short, and a field that is not there is zero: what a
// later version adds is ignored.
type row struct {
	ID         name              `json:"id"`
	Kind       name              `json:"kind,omitempty"`
	Payload    []byte            `json:"payload,omitempty"`
	Header     map[string]string `json:"header,omitempty"`
	Odd        []name            `json:"header_bytes,omitempty"` // instead of Header, where that is no UTF-8: keys and values
	Delay      time.Duration     `json:"delay,omitempty"`
	At         *time.Time        `json:"at,omitempty"`
	Duplicates sluice.Duplicates `json:"duplicates,omitempty"`
	Item       name              `json:"item,omitempty"`
	Units      int               `json:"units,omitempty"`
	Restore    bool              `json:"restore,omitempty"`
	Group      name              `json:"group,omitempty"`
	Expires    *time.Time        `json:"expires,omitempty"`
}

// name is a text that may be no UTF-8: then it is written in base64.
type name string

// MarshalJSON implements json.Marshaler.
func (n name) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	return json.Marshal(map[string][]byte{"bytes": []byte(n)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *name) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err == nil {
		*n = name(text)
		return nil
	}
	var odd map[string][]byte
	err := json.Unmarshal(data, &odd)
	*n = name(odd["bytes"])
	return err
}

// inUTC returns a time as it is written; nil for none. Other zones lose the seconds of their offsets.
func inUTC(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func rowOf(t sluice.Task) row {
	r := row{
		ID: name(t.ID), Kind: name(t.Kind), Payload: t.Payload, Header: t.Header, Delay: t.Delay, Duplicates: t.Duplicates,
		Item: name(t.Take.Item), Units: t.Take.Units, Restore: t.Take.Restore, Group: name(t.Group),
	}
	r.At, r.Expires = inUTC(t.At), inUTC(t.Expires)
	for key, value := range t.Header {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			r.Header = nil
		}
	}
	if r.Header == nil {
		for key, value := range t.Header {
			r.Odd = append(r.Odd, name(key), name(value))
		}
	}
	return r
}

func (r *row) task() sluice.Task {
	t := sluice.Task{
		ID: string(r.ID), Kind: string(r.Kind), Payload: r.Payload, Header: r.Header, Delay: r.Delay, Duplicates: r.Duplicates,
		Take: sluice.Take{Item: string(r.Item), Units: r.Units, Restore: r.Restore}, Group: string(r.Group),
	}
	if r.At != nil {
		t.At = *r.At
	}
	if r.Expires != nil {
		t.Expires = *r.Expires
	}
	for i := 0; i+1 < len(r.Odd); i += 2 {
		if t.Header == nil {
			t.Header = map[string]string{}
		}
		t.Header[string(r.Odd[i])] = string(r.Odd[i+1])
	}
	return t
}
