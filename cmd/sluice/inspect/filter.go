package inspect

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Filter says which tasks are meant, of those in a state: those that fit all that is set.
type Filter struct {
	Reason           string // which the reason or last error contains, in capital letters or not
	Prefix, Contains string // of the ID
	Kind, Group      string
	Worker           string // which the ID, the label or the host:pid of the task's Worker contains

	// After and Before are about Since; zero for any time.
	After, Before time.Time
}

// IsSet reports whether not all tasks are meant.
func (f Filter) IsSet() bool { return f != Filter{} }

// Fits reports whether a task is meant. who returns the Worker that has it, nil if that is not known.
func (f Filter) Fits(t sluice.TaskInfo, who func(id string) *sluice.WorkerInfo) bool {
	at := Since(t)
	return strings.HasPrefix(t.ID, f.Prefix) && strings.Contains(t.ID, f.Contains) && (f.Group == "" || t.Group == f.Group) && (f.Kind == "" || t.Kind == f.Kind) &&
		hasText(t.Reason, f.Reason) && (f.Worker == "" || t.Worker != "" && isCalled(t.Worker, who(t.Worker), f.Worker)) &&
		(f.After.IsZero() || !at.IsZero() && !at.Before(f.After)) && (f.Before.IsZero() || !at.IsZero() && !at.After(f.Before))
}

// hasText reports whether a text contains another one, in capital letters or not.
func hasText(text, wanted string) bool {
	return wanted == "" || strings.Contains(strings.ToLower(text), strings.ToLower(wanted))
}

// isCalled reports whether a Worker is meant.
func isCalled(id string, w *sluice.WorkerInfo, wanted string) bool {
	return hasText(id, wanted) || w != nil && (hasText(w.Label, wanted) || hasText(net.JoinHostPort(w.Host, strconv.Itoa(w.PID)), wanted))
}

// withKind is up to how many stored bytes a task is read for its kind, which is stored with its payload.
const withKind = 16 << 10

// Options are those with which List and All read what Fits asks for: no payloads, unless kinds are meant.
func (f Filter) Options(s sluice.State) []sluice.ReadOption {
	options := []sluice.ReadOption{sluice.WithoutPayloads()}
	if f.Kind != "" {
		options = []sluice.ReadOption{sluice.WithPayloadsUpTo(withKind)}
	}
	if f.Group != "" && s == sluice.StateWaiting {
		options = append(options, sluice.InGroup(f.Group))
	}
	return options
}

// AddKind reads the kind of a task, where a filter needs it and Options have left it out: the task is large. A
// task that is gone has none.
func (f Filter) AddKind(ctx context.Context, q *sluice.Queue, t *sluice.TaskInfo) error {
	if f.Kind == "" || t.Kind != "" || t.Omitted == 0 {
		return nil
	}
	whole, err := q.Get(ctx, t.ID)
	if errors.Is(err, sluice.ErrNotFound) {
		return nil
	}
	t.Kind = strings.Clone(whole.Kind)
	return err
}

// IsPast reports whether neither a task nor any behind it in its list fits, because they are too new, or
// too old in a list that begins with the newest. Leased, scheduled and waiting tasks are not listed in the
// order of Since.
func (f Filter) IsPast(t sluice.TaskInfo, newestFirst bool) bool {
	if !slices.Contains([]sluice.State{sluice.StateDue, sluice.StateDead, sluice.StateDone}, t.State) {
		return false
	}
	if newestFirst {
		return !f.After.IsZero() && Since(t).Before(f.After)
	}
	return !f.Before.IsZero() && Since(t).After(f.Before)
}

// Since returns since when a task is due, leased, dead or done, or when one that is due later has
// failed. Zero if it has not, or that is not known.
func Since(t sluice.TaskInfo) time.Time {
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

// ErrMoment is a text that is no time.
var ErrMoment = errors.New("that is how long ago, such as 90s, 5m, 24h, or a time such as 2026-01-31T12:00:00Z")

// Moment reads a time, or how long ago it was; zero for an empty text. now is called where it is needed.
func Moment(text string, now func() time.Time) (time.Time, error) {
	if text = strings.TrimSpace(text); text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, ErrMoment
	}
	return at, nil
}
