package web

import (
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// filter says which tasks of a state are meant, as a visitor has written it.
type filter struct {
	Reason           string // that a reason or last error contains
	Prefix, Contains string // of an ID
	Kind, Group      string
	Worker           string // that a label, host:pid or ID contains
	Since, Until     string
}

// fields are the parts of a filter, in the order of the form.
func (f *filter) fields() []filterField {
	return []filterField{
		{"reason", "Reason contains", "timeout", &f.Reason},
		{"prefix", "ID begins with", "order-", &f.Prefix},
		{"contains", "ID contains", "41004", &f.Contains},
		{"kind", "Kind is", "mail", &f.Kind},
		{"group", "Group is", "customer-7", &f.Group},
		{"worker", "Worker contains", "mailer-1", &f.Worker},
		{"since", "Since", "1h, or 2026-01-31T12:00:00Z", &f.Since},
		{"until", "Until", "5m, or 2026-01-31T12:00:00Z", &f.Until},
	}
}

// filterField is a part of a filter.
type filterField struct {
	Name, Label, Hint string
	value             *string
}

// Value returns what the visitor has written.
func (f filterField) Value() string { return *f.value }

// fits reports whether the field is of use for tasks in a state: neither why a done task failed
// before nor its kind is kept, and only leased ones have a worker, or due ones had one.
func (f filterField) fits(s sluice.State) bool {
	switch f.Name {
	case "reason", "kind":
		return s != sluice.StateDone
	case "worker":
		return s == sluice.StateLeased || s == sluice.StateDue
	}
	return true
}

// readFilter reads the fields that fit. Those of a group are percent-encoded, except for what was
// typed, which has another name.
func readFilter(query url.Values, s sluice.State) (f filter) {
	for _, field := range f.fields() {
		if field.fits(s) {
			*field.value = query.Get(field.Name)
		}
	}
	if group, err := fromFormValue(f.Group); err == nil { // else it is what was given: without it, all would match
		f.Group = group
	}
	if typed := query.Get("in-group"); typed != "" {
		f.Group = typed
	}
	return f
}

// IsSet reports whether not all tasks are meant.
func (f filter) IsSet() bool { return f != filter{} }

// IsMore reports whether more is set than what has a field of its own above the list.
func (f filter) IsMore(s sluice.State) bool {
	if s == sluice.StateDead {
		f.Reason = ""
	}
	if s == sluice.StateWaiting {
		f.Group = ""
	}
	return f.IsSet()
}

// Fields returns the fields of the form for a state.
func (f filter) Fields(s sluice.State) []filterField {
	return slices.DeleteFunc(f.fields(), func(field filterField) bool { return !field.fits(s) })
}

// Set returns the fields that are set.
func (f filter) Set() []filterField {
	return slices.DeleteFunc(f.fields(), func(field filterField) bool { return *field.value == "" })
}

// write adds the filter to a query.
func (f filter) write(query url.Values) {
	for _, field := range f.Set() {
		query.Set(field.Name, *field.value)
	}
	if f.Group != "" {
		query.Set("group", formValue(f.Group))
	}
}

// copied returns the filter as it is if its texts were copied from a page, escapes and all.
func (f filter) copied() filter {
	for _, field := range f.fields() {
		*field.value = fromShown(*field.value)
	}
	return f
}

// read returns what the visitor has written.
func (f filter) read(now time.Time) (r inspect.Filter, err error) {
	r = inspect.Filter{Reason: f.Reason, Prefix: f.Prefix, Contains: f.Contains, Kind: f.Kind, Group: f.Group, Worker: f.Worker}
	moment := func(field, text string) (at time.Time) {
		at, failed := inspect.Moment(text, func() time.Time { return now })
		if failed != nil {
			err = fmt.Errorf("%w: %s: %w", sluice.ErrInvalid, field, failed)
		}
		return at
	}
	r.After, r.Before = moment("since", f.Since), moment("until", f.Until)
	return r, err
}
