package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice"
)

// filter says which tasks are meant, of those in a state. ls and the commands with --all have the same.
type filter struct {
	reason           string // in lower case
	prefix, contains string // of the ID
	group            string
	since, until     string // as they were given

	after, before time.Time // when what since says was; zero for any time
}

// addTo adds the flags, whose usage begins with when they count.
func (f *filter) addTo(flags *pflag.FlagSet, when string) {
	flags.StringVar(&f.reason, "reason", "", when+"only tasks whose reason or last error contains this text, in capital letters or not")
	flags.StringVar(&f.prefix, "prefix", "", when+"only tasks whose ID begins with this text")
	flags.StringVar(&f.contains, "contains", "", when+"only tasks whose ID contains this text")
	flags.StringVar(&f.group, "group", "", when+"only tasks of this group")
	flags.StringVar(&f.since, "since", "", when+"only tasks that are due, leased, dead or done since then, or failed since: 1h (ago), or 2026-01-31T12:00:00Z")
	flags.StringVar(&f.until, "until", "", when+"only tasks that are due, leased, dead or done since before then, or failed before: 5m (ago), or a time")
}

// isSet reports whether not all tasks are meant.
func (f *filter) isSet() bool { return *f != filter{} }

// readTimes reads since and until. The server's time is asked for where it is needed.
func (f *filter) readTimes(now func() time.Time) (err error) {
	if f.after, err = momentOf("--since", f.since, now); err == nil {
		f.before, err = momentOf("--until", f.until, now)
	}
	if err == nil && !f.after.IsZero() && !f.before.IsZero() && f.before.Before(f.after) {
		err = usagef("--until is before --since")
	}
	f.reason = strings.ToLower(f.reason)
	return err
}

// momentOf reads a time, or how long ago it was; zero for none.
func momentOf(flag, text string, now func() time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil {
		if ago < 0 {
			return time.Time{}, usagef("%s is how long ago, such as 90s, 5m, 24h, or a time", flag)
		}
		return now().Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, usagef("%s is how long ago, such as 90s, 5m, 24h, or a time such as 2026-01-31T12:00:00Z", flag)
	}
	return at, nil
}

func (f *filter) matches(e sluice.TaskInfo) bool {
	at := since(e)
	return strings.HasPrefix(e.ID, f.prefix) && strings.Contains(e.ID, f.contains) && (f.group == "" || e.Group == f.group) &&
		(f.reason == "" || strings.Contains(strings.ToLower(e.Reason), f.reason)) &&
		(f.after.IsZero() || !at.IsZero() && !at.Before(f.after)) && (f.before.IsZero() || !at.IsZero() && !at.After(f.before))
}

// isPast reports whether neither a task nor any behind it in its list matches, because they are too
// new. Leased and scheduled tasks are not listed in the order of since.
func (f *filter) isPast(e sluice.TaskInfo) bool {
	return !f.before.IsZero() && slices.Contains([]sluice.State{sluice.StateDue, sluice.StateDead, sluice.StateDone}, e.State) && since(e).After(f.before)
}

// check reports what cannot be asked of tasks in a state.
func (f *filter) check(s sluice.State) error {
	if s == sluice.StateDone && f.reason != "" {
		return usagef("--reason is not for tasks that are done: why they failed before is not kept")
	}
	return nil
}

// since returns since when a task is due, leased, dead or done, or when one that is due later has
// failed. Zero if it has not, or that is not known.
func since(e sluice.TaskInfo) time.Time {
	switch e.State {
	case sluice.StateDue:
		return e.Due
	case sluice.StateLeased:
		return e.LeasedSince
	case sluice.StateDead:
		return e.DiedAt
	case sluice.StateDone:
		return e.DoneAt
	}
	return e.FailedAt
}

// ids are the IDs of many tasks, one behind the other: a million need some forty megabytes.
type ids struct {
	text []byte
	ends []int
}

func (s *ids) add(id string) {
	s.text = append(s.text, id...)
	s.ends = append(s.ends, len(s.text))
}

func (s *ids) len() int { return len(s.ends) }

// of returns the IDs of some places.
func (s *ids) of(from, to int) []string {
	some := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		begin := 0
		if i > 0 {
			begin = s.ends[i-1]
		}
		some = append(some, string(s.text[begin:s.ends[i]]))
	}
	return some
}
