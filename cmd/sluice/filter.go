package main

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// filter says which tasks are meant, of those in a state. ls and the commands with --all have the same.
type filter struct {
	inspect.Filter
	since, until string // as they were given
	newest       bool
}

// addTo adds the flags, whose usage begins with when they count.
func (f *filter) addTo(flags *pflag.FlagSet, when string) {
	flags.StringVar(&f.Reason, "reason", "", when+"only tasks whose reason or last error contains this text, in capital letters or not")
	flags.StringVar(&f.Prefix, "prefix", "", when+"only tasks whose ID begins with this text")
	flags.StringVar(&f.Contains, "contains", "", when+"only tasks whose ID contains this text")
	flags.StringVar(&f.Kind, "kind", "", when+"only tasks of this kind, which is read with their payloads")
	flags.StringVar(&f.Group, "group", "", when+"only tasks of this group")
	flags.StringVar(&f.Worker, "worker", "", when+"only tasks leased to Workers whose label, host:pid or ID contains this text, or due since such leases ended")
	flags.StringVar(&f.since, "since", "", when+"only tasks that are due, leased, dead or done since then, or failed since: 1h (ago), or 2026-01-31T12:00:00Z")
	flags.StringVar(&f.until, "until", "", when+"only tasks that are due, leased, dead or done since before then, or failed before: 5m (ago), or a time")
	flags.BoolVar(&f.newest, "newest", false, when+"from the end: what died, was done or is due last comes first; not for waiting tasks")
}

// readTimes reads since and until. The server's time is asked for where it is needed.
func (f *filter) readTimes(now func() time.Time) error {
	moment := func(flag, text string, to *time.Time) (err error) {
		if *to, err = inspect.Moment(text, now); err != nil {
			return usagef("%s: %w", flag, err)
		}
		return nil
	}
	err := cmp.Or(moment("--since", f.since, &f.After), moment("--until", f.until, &f.Before))
	if err == nil && !f.After.IsZero() && !f.Before.IsZero() && f.Before.Before(f.After) {
		err = usagef("--until is before --since")
	}
	return err
}

// isSet reports whether not all tasks are meant.
func (f *filter) isSet() bool { return f.IsSet() || f.since != "" || f.until != "" }

// check reports what cannot be asked of tasks in a state.
func (f *filter) check(s sluice.State) error {
	switch {
	case s == sluice.StateDone && f.Reason != "":
		return usagef("--reason is not for tasks that are done: why they failed before is not kept")
	case s == sluice.StateDone && f.Kind != "":
		return usagef("--kind is not for tasks that are done: it is not kept")
	case s == sluice.StateDone && f.Group != "":
		return usagef("--group is not for tasks that are done: it is not kept; their IDs are (--prefix, --contains)")
	case s != sluice.StateLeased && s != sluice.StateDue && f.Worker != "":
		return usagef("--worker is for tasks that are leased, or due: no other has one, or had one until its lease ended")
	case s == sluice.StateWaiting && f.newest:
		return usagef("--newest is not for tasks that wait in groups")
	}
	return nil
}

// options are those with which tasks are read, which need at least so much.
func (f *filter) options(s sluice.State, least ...sluice.ReadOption) []sluice.ReadOption {
	options := append(f.Options(s), least...)
	if f.newest {
		options = append(options, sluice.NewestFirst())
	}
	return options
}

// meant is a filter on one queue: it knows the Workers, where they are asked for.
type meant struct {
	*filter
	queue *sluice.Queue
	staff crew
}

func (f *filter) on(ctx context.Context, q *sluice.Queue) (meant, error) {
	m := meant{filter: f, queue: q, staff: crew{}}
	if f.Worker == "" {
		return m, nil
	}
	workers, err := q.Workers(ctx)
	for _, w := range workers {
		m.staff[w.ID] = w
	}
	return m, err
}

// matches reports whether a task is meant. It may have to read its kind.
func (m meant) matches(ctx context.Context, t *sluice.TaskInfo) (bool, error) {
	if err := m.AddKind(ctx, m.queue, t); err != nil {
		return false, err
	}
	return m.Fits(*t, m.staff.find), nil
}

// find returns a Worker; nil if it is not known.
func (c crew) find(id string) *sluice.WorkerInfo {
	if w, found := c[id]; found {
		return &w
	}
	return nil
}

// targets are the queues and the states that a command is for.
type targets struct {
	match string // a pattern of names, instead of one
	state string // one or several
}

func (t *targets) addTo(flags *pflag.FlagSet, when string) {
	flags.StringVar(&t.match, "match", "", when+"all queues whose names match, instead of one: * is any text, ? one character")
}

// states returns the states that are given; the first of those that are allowed, if none is. "any" is each but
// done.
func (t *targets) states(allowed []sluice.State) (states []sluice.State, err error) {
	if t.state == "" && len(allowed) > 0 {
		return allowed[:1], nil
	}
	names := strings.Split(t.state, ",")
	if t.state == "any" {
		names = []string{"due", "scheduled", "leased", "dead", "waiting"}
	}
	for _, name := range names {
		state, err := stateNamed(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		if !slices.Contains(states, state) {
			states = append(states, state)
		}
	}
	return states, nil
}

// inOrder sorts states so that a task which is on its way from one to the next is met at least
// once, if their lists are read one after the other: time makes due what is scheduled, also while a
// queue is paused.
func inOrder(states []sluice.State) []sluice.State {
	order := []sluice.State{sluice.StateLeased, sluice.StateWaiting, sluice.StateScheduled, sluice.StateDue, sluice.StateDead, sluice.StateDone}
	return slices.SortedFunc(slices.Values(states), func(a, b sluice.State) int {
		return cmp.Compare(slices.Index(order, a), slices.Index(order, b))
	})
}

// met knows the tasks of a queue that may be met again: in the list of a later state, or later in
// that of the leased ones, which change their places as leases are extended. It keeps 128 bits of each,
// and not the ID.
type met struct {
	known  map[uint64]uint64 // half of the bits by the other half
	seeds  [2]maphash.Seed
	states []sluice.State
	began  time.Time
}

// newMet returns what knows tasks of these states, whose lists are read from now on.
func newMet(states []sluice.State, now time.Time) *met {
	return &met{known: map[uint64]uint64{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, states: states, began: now}
}

// isNew reports whether a task was not met before, and notes it.
func (m *met) isNew(t sluice.TaskInfo) bool {
	if len(m.states) == 1 && t.State != sluice.StateLeased {
		return true
	}
	half, other := maphash.String(m.seeds[0], t.ID), maphash.String(m.seeds[1], t.ID)
	if known, ok := m.known[half]; ok && known == other {
		return false
	}
	if t.State == sluice.StateLeased || t.State == sluice.StateWaiting || t.Group != "" || t.State == sluice.StateScheduled && t.Due.Before(m.began.Add(mostRead)) {
		m.known[half] = other
	}
	return true
}

// mostRead is for how long the lists of a queue are read at the most: what is due only later is not met
// again.
const mostRead = 6 * time.Hour

// queues returns the queues that are meant, in the order of their names.
func (a *app) queuesMeant(ctx context.Context, t targets, args []string) (named []*sluice.Queue, err error) {
	if (t.match == "") != (len(args) == 1) {
		return nil, usagef("name a queue, or say --match for several")
	}
	if t.match == "" {
		q, _, err := a.open(ctx, args[0])
		return []*sluice.Queue{q}, err
	}
	if _, err := path.Match(t.match, ""); err != nil {
		return nil, usagef("--match: %s is no pattern", show(t.match))
	}
	rdb, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	names, err := inspect.Queues(ctx, rdb, a.options)
	if err != nil {
		return nil, err // also if it is incomplete: a change of all that match has to know them all
	}
	for _, name := range names {
		if matches, _ := path.Match(flat(t.match), flat(name)); !matches {
			continue
		}
		q, err := inspect.Open(rdb, name, a.options)
		if err != nil {
			return nil, err
		}
		named = append(named, q)
	}
	if len(named) == 0 {
		return nil, fmt.Errorf("%w: no queue matches %s", errNotFound, show(t.match))
	}
	return named, nil
}

// flat returns a name, or a pattern, in which a / is like any other character.
func flat(name string) string { return strings.ReplaceAll(name, "/", "\x01") }

// ids are the IDs of many tasks, a thousand in a piece of memory: a million need some thirty megabytes,
// and are never copied to make room.
type ids struct {
	blocks []*block
	n      int
}

// block is up to blockSize IDs, one behind the other.
type block struct {
	text []byte
	ends []int32
}

const blockSize = 1000

func (s *ids) add(id string) {
	if s.n%blockSize == 0 {
		s.blocks = append(s.blocks, &block{})
	}
	b := s.blocks[len(s.blocks)-1]
	b.text = append(b.text, id...)
	b.ends = append(b.ends, int32(len(b.text))) // an ID has 512 bytes at the most
	s.n++
}

func (s *ids) len() int { return s.n }

// of returns the IDs of some places.
func (s *ids) of(from, to int) []string {
	some := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		b, at, begin := s.blocks[i/blockSize], i%blockSize, int32(0)
		if at > 0 {
			begin = b.ends[at-1]
		}
		some = append(some, string(b.text[begin:b.ends[at]]))
	}
	return some
}
