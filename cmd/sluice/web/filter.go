package web

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
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
// before nor its kind is kept, and only leased ones have a worker.
func (f filterField) fits(s sluice.State) bool {
	switch f.Name {
	case "reason", "kind":
		return s != sluice.StateDone
	case "worker":
		return s == sluice.StateLeased
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
	f.Group, _ = fromFormValue(f.Group)
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

// timed is a filter whose times were read.
type timed struct {
	filter
	after, before time.Time // zero for any time
}

// readTimes reads since and until.
func (f filter) readTimes(now time.Time) (t timed, err error) {
	t.filter = f
	if t.after, err = momentOf("since", f.Since, now); err == nil {
		t.before, err = momentOf("until", f.Until, now)
	}
	return t, err
}

// momentOf reads a time, or how long ago it was; zero for none.
func momentOf(field, text string, now time.Time) (time.Time, error) {
	if text = strings.TrimSpace(text); text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%w: write %s as how long ago, such as 90s, 5m or 24h, or as a time such as 2026-01-31T12:00:00Z", sluice.ErrInvalid, field)
	}
	return at, nil
}

// matches reports whether a task is meant.
func (f timed) matches(t sluice.TaskInfo, c crew) bool {
	at := since(t)
	return strings.HasPrefix(t.ID, f.Prefix) && strings.Contains(t.ID, f.Contains) && (f.Group == "" || t.Group == f.Group) && (f.Kind == "" || t.Kind == f.Kind) &&
		hasText(t.Reason, f.Reason) && (f.Worker == "" || c.isCalled(t.Worker, f.Worker)) &&
		(f.after.IsZero() || !at.IsZero() && !at.Before(f.after)) && (f.before.IsZero() || !at.IsZero() && !at.After(f.before))
}

// hasText reports whether a text contains another one, in capital letters or not.
func hasText(text, wanted string) bool {
	return wanted == "" || strings.Contains(strings.ToLower(text), strings.ToLower(wanted))
}

// isCalled reports whether the worker of a task, by its ID, label or process, is meant.
func (c crew) isCalled(id, wanted string) bool {
	w := c.find(id)
	return id != "" && (hasText(id, wanted) || w != nil && (hasText(w.Label, wanted) || hasText(processOf(*w), wanted)))
}

// since returns since when a task is due, leased, dead or done, or when one that is due later has
// failed. Zero if it has not, or that is not known.
func since(t sluice.TaskInfo) time.Time {
	switch t.State {
	case sluice.StateDue:
		return t.Due
	case sluice.StateLeased:
		return t.LeasedSince
	case sluice.StateDead:
		return t.DiedAt
	case sluice.StateDone:
		return t.DoneAt
	}
	return t.FailedAt
}
