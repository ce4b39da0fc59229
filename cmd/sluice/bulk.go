package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// This file has the commands with --all.

// lot is tasks of one queue, in one state.
type lot struct {
	queue *sluice.Queue
	state sluice.State
	ids   ids
}

// bulk is what a command with --all is for. Only these tasks are touched, by their IDs, and what
// comes later is not.
type bulk struct {
	lots    []*lot
	total   int
	limited bool // there are more
}

// changeAll carries an action out on all tasks that are in some states and match.
func (a *app) changeAll(ctx context.Context, act action, s selection, args []string) error {
	states, err := s.states(act.states)
	switch {
	case err != nil:
		return fmt.Errorf("%w; with --all it has to be said", err)
	case s.limit < 1 || s.limit > 10_000_000:
		return usagef("--limit is 1 to 10 million")
	}
	rate, err := strconv.Atoi(strings.TrimSuffix(cmp.Or(s.rate, "0"), "/s"))
	if err != nil || rate < 0 {
		return usagef("--rate is a number of tasks a second, such as 50 or 50/s")
	}
	for _, state := range states {
		if len(act.states) > 0 && !slices.Contains(act.states, state) {
			return usagef("%s is not for tasks that are %s", act.name, state)
		}
		if err := s.filter.check(state); err != nil {
			return err
		}
	}
	if err := s.filter.readTimes(func() time.Time { return a.now(ctx) }); err != nil {
		return err
	}
	queues, err := a.queuesMeant(ctx, s.targets, args)
	if err != nil {
		return err
	}
	b, err := a.choose(ctx, queues, states, &s.filter, s.limit)
	if err != nil {
		return err
	}
	if len(states) == 1 && states[0] == sluice.StateDone {
		act.name, act.done = "forget", "forgotten"
	}
	of := s.match
	if of == "" {
		of = queues[0].Name()
	}
	result, t := resultJSON{Action: act.name, DryRun: s.dryRun, Matched: b.total, Limited: b.limited}, &tally{by: map[outcome]int{}}
	if len(queues)*len(states) > 1 {
		result.Lots = b.json()
	}
	what := b.text(act, of, states)
	if s.dryRun && act.dry != nil {
		if err := act.dryRun(ctx, b, t); err != nil {
			return a.finish(result, of, t, err)
		}
	}
	if b.total == 0 || s.dryRun {
		a.sayDry(act, what, b, t)
		return a.finish(result, of, t, nil)
	}
	if err := a.ask(ctx, act.name, what, b, s); err != nil {
		return err
	}
	failed := a.carryOut(ctx, act, b, rate, t)
	if !a.json {
		_, _ = fmt.Fprintf(a.out, "%s %s of %s%s\n", act.done, inspect.Count(int64(t.done())), inspect.Count(int64(b.total)), t.details())
	}
	if err := a.finish(result, of, t, failed); err != nil {
		return err
	}
	return t.keptError()
}

// text says what is meant: "12 dead letters of orders".
func (b *bulk) text(act action, of string, states []sluice.State) string {
	n, noun := int64(b.total), "task"
	if len(states) == 1 {
		noun = act.noun(states[0])
	}
	what := fmt.Sprintf("%s of %s", inspect.Plural(n, noun), show(of))
	if b.limited {
		what = "the first " + what
	}
	return what
}

func (b *bulk) json() (lots []lotJSON) {
	for _, l := range b.lots {
		j := lotJSON{State: l.state.String(), Matched: l.ids.len()}
		j.Queue, j.QueueBase64 = report.Bytes(l.queue.Name())
		lots = append(lots, j)
	}
	return lots
}

// noun names tasks in a state.
func (act action) noun(state sluice.State) string {
	if state == sluice.StateDead {
		return "dead letter"
	}
	return state.String() + " task"
}

// details lists what became of tasks, where there is more than one answer.
func (t *tally) details() string {
	var parts []string
	for _, o := range slices.Sorted(maps.Keys(t.by)) {
		if o != outcomeDone {
			parts = append(parts, fmt.Sprintf("%s: %s", o, inspect.Count(int64(t.by[o]))))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// choose reads which tasks are meant. It keeps what identifies them and no payload.
func (a *app) choose(ctx context.Context, queues []*sluice.Queue, states []sluice.State, f *filter, limit int) (*bulk, error) {
	p := a.newProgress("looking", -1)
	defer p.end()
	b := &bulk{}
	for _, q := range queues {
		m, err := f.on(ctx, q)
		if err != nil {
			return nil, err
		}
		seen := newMet(states, a.now(ctx))
		for _, state := range inOrder(states) {
			l := &lot{queue: q, state: state}
			if err := b.fill(ctx, l, m, limit, p, seen.isNew); err != nil {
				return nil, err
			}
			if l.ids.len() > 0 {
				b.lots = append(b.lots, l)
			}
			if b.limited {
				return b, nil
			}
		}
	}
	return b, nil
}

// fill reads the tasks of a lot, of those that are new.
func (b *bulk) fill(ctx context.Context, l *lot, m meant, limit int, p progress, isNew func(t sluice.TaskInfo) bool) error {
	for t, err := range l.queue.All(ctx, l.state, m.options(l.state)...) {
		if err != nil {
			return err
		}
		p.add(1)
		if m.IsPast(t, m.newest) {
			return nil
		}
		fits, err := m.matches(ctx, &t)
		switch {
		case err != nil:
			return err
		case !fits || !isNew(t):
		case b.total == limit:
			b.limited = true
			return nil
		default:
			l.ids.add(t.ID)
			b.total++
		}
	}
	return nil
}

// named returns a task of which no more is known than its ID and its state.
func named(s sluice.State, id string) sluice.TaskInfo {
	return sluice.TaskInfo{Entry: sluice.Entry{ID: id}, State: s}
}

// sayDry says what would be done.
func (a *app) sayDry(act action, what string, b *bulk, t *tally) {
	if a.json {
		return
	}
	if b.total == 0 {
		_, _ = fmt.Fprintf(a.out, "nothing to %s: %s match\n", act.name, what)
		return
	}
	_, _ = fmt.Fprintf(a.out, "would %s %s%s; the first:\n", act.name, what, t.details())
	b.say(func(line string) { _, _ = fmt.Fprintln(a.out, line) })
}

// say prints of each lot how many tasks it has, if there are several, and the first ten tasks.
func (b *bulk) say(line func(string)) {
	for _, l := range b.lots {
		if len(b.lots) > 1 {
			line(fmt.Sprintf("  %s: %s %s", show(l.queue.Name()), inspect.Count(int64(l.ids.len())), l.state))
			continue
		}
		for _, id := range l.ids.of(0, min(10, l.ids.len())) {
			line("  " + show(id))
		}
	}
}

// ask has the caller confirm how many tasks are touched.
func (a *app) ask(ctx context.Context, verb, what string, b *bulk, s selection) error {
	n := int64(b.total)
	switch {
	case s.confirm >= 0 && n > s.confirm:
		return fmt.Errorf("%w: that would %s %s, and --confirm says %d", errNotConfirmed, verb, what, s.confirm)
	case s.yes || s.confirm >= 0:
		return nil
	case !a.interactive:
		return fmt.Errorf("%w: that would %s %s; add --confirm %d, or --yes", errNotConfirmed, verb, what, n)
	}
	if len(b.lots) > 1 {
		b.say(func(line string) { _, _ = fmt.Fprintln(a.errOut, line) })
	}
	_, _ = fmt.Fprintf(a.errOut, "This will %s %s. Type the number to go on: ", verb, what)
	answer, err := a.answer(ctx)
	if err != nil {
		return err
	}
	if got, err := strconv.ParseInt(strings.ReplaceAll(strings.TrimSpace(answer), ",", ""), 10, 64); err != nil || got != n {
		return errNotConfirmed
	}
	return nil
}

// carryOut does it, some tasks at a time, and no more than rate a second, if that is not 0. The first
// error ends it; what was done before is in the tally.
func (a *app) carryOut(ctx context.Context, act action, b *bulk, rate int, t *tally) error {
	p := a.newProgress(act.name, b.total)
	defer p.end()
	next, step := time.Now(), bulkStep
	if rate > 0 {
		step = max(1, min(step, rate/10))
	}
	for _, l := range b.lots {
		for from := 0; from < l.ids.len(); from += step {
			part := l.ids.of(from, min(from+step, l.ids.len()))
			if rate > 0 {
				select {
				case <-time.After(time.Until(next)):
				case <-ctx.Done():
					return ctx.Err()
				}
				next = time.Now().Add(time.Duration(len(part)) * time.Second / time.Duration(rate)) // nothing is caught up on
			}
			if err := act.carryOut(ctx, l, part, t); err != nil {
				return err
			}
			p.add(len(part))
		}
	}
	return nil
}

const (
	// bulkStep is how many tasks are changed in a step.
	bulkStep = 5000
	// bulkAtOnce is how many of them at the same time, one by one: the library sends what is called at the
	// same time in one pipeline.
	bulkAtOnce = 500
)

// dryRun tallies what the action would do.
func (act action) dryRun(ctx context.Context, b *bulk, t *tally) error {
	for _, l := range b.lots {
		for from := 0; from < l.ids.len(); from += bulkStep {
			part := l.ids.of(from, min(from+bulkStep, l.ids.len()))
			became, err := act.dry(ctx, l.queue, part...)
			if t.addAll(became, len(part), err); err != nil {
				return err
			}
		}
	}
	return nil
}

// carryOut carries the action out on some tasks of a lot.
func (act action) carryOut(ctx context.Context, l *lot, part []string, t *tally) error {
	if act.many != nil {
		became, err := act.many(ctx, l.queue, l.state, part...)
		t.addAll(became, len(part), err)
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(bulkAtOnce)
	for _, id := range part {
		all.Go(func() error {
			o, err := act.one(ctx, l.queue, named(l.state, id))
			if err == nil {
				t.add(o, 1)
			}
			return err
		})
	}
	return all.Wait()
}
