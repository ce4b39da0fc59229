package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// selection says which tasks a command is for: those that are named, or all in a state that match.
type selection struct {
	all     bool
	state   string
	filter  filter
	limit   int
	dryRun  bool
	yes     bool
	confirm int64
	rate    int
}

// action is what a command does with tasks.
type action struct {
	name, done string         // "cancel", "cancelled"
	states     []sluice.State // in which tasks have to be; the first is the default, none if it must be said
	// one carries it out on a task, and returns what became of it. A task that was named has its ID
	// alone.
	one func(ctx context.Context, q *sluice.Queue, t sluice.TaskInfo) (outcome, error)
	// many carries it out on some hundred IDs, instead of one, and returns on how many.
	many func(ctx context.Context, q *sluice.Queue, ids ...string) (int, error)
}

// outcome is what became of a task, in a word.
type outcome string

const (
	outcomeDone outcome = "done"
	// outcomeMissing says that there is no such task, or that it is not in a state for the command.
	outcomeMissing outcome = "not found"
	// outcomeForgotten is that of a cancelled task that was finished, and remembered.
	outcomeForgotten outcome = "was done"
)

func (s *selection) addTo(f *pflag.FlagSet, states []sluice.State) {
	f.BoolVar(&s.all, "all", false, "all tasks that are in the state and match, instead of IDs; their number is asked back")
	if len(states) != 1 {
		usage := "with --all: due, scheduled, leased, dead, done or waiting"
		if len(states) > 0 {
			usage = fmt.Sprintf("with --all: due, scheduled or leased (%s if not given)", states[0])
		}
		f.StringVar(&s.state, "state", "", usage)
	}
	s.filter.addTo(f, "with --all: ")
	f.IntVar(&s.rate, "rate", 0, "with --all: this many tasks a second at the most (0: as fast as it goes)")
	f.IntVar(&s.limit, "limit", 1_000_000, "with --all: only the first so many")
	f.BoolVar(&s.dryRun, "dry-run", false, "say what would be done, and do nothing")
	f.BoolVar(&s.yes, "yes", false, "with --all: ask nothing")
	f.Int64Var(&s.confirm, "confirm", -1, "with --all: the number of tasks that are expected, instead of the question; with more, nothing is done")
}

// changeCommand returns the command of an action.
func (a *app) changeCommand(c *cobra.Command, act action, s *selection) *cobra.Command {
	c.Use = act.name + " QUEUE [ID...|-]"
	c.Args = usageArgs(cobra.MinimumNArgs(1))
	s.addTo(c.Flags(), act.states)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return a.change(cmd.Context(), act, *s, args[0], args[1:])
	}
	return c
}

func (a *app) change(ctx context.Context, act action, s selection, queue string, ids []string) error {
	if s.all == (len(ids) > 0) {
		return usagef("name the IDs (- reads them from standard input, one a line), or use --all")
	}
	if !s.all && (s.state != "" || s.filter.isSet()) {
		return usagef("--state and the filters (--reason, --prefix, --since …) choose among --all")
	}
	if s.all {
		return a.changeAll(ctx, act, s, queue)
	}
	ids, err := a.readIDs(ctx, ids)
	if err != nil {
		return err
	}
	q, name, err := a.open(ctx, queue)
	if err != nil {
		return err
	}
	return a.changeNamed(ctx, act, s, q, name, ids)
}

// readIDs returns the IDs that are named; those of standard input for "-".
func (a *app) readIDs(ctx context.Context, args []string) (ids []string, err error) {
	for _, arg := range args {
		lines := []string{arg}
		if arg == "-" {
			if lines, err = a.readLines(ctx, -1); err != nil {
				return nil, err
			}
		}
		for _, line := range lines {
			id, err := a.argument(line)
			if err != nil {
				return nil, err
			}
			if id != "" || arg != "-" {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// readLines reads so many lines of standard input, or all for -1. It ends with ctx, too, and the error
// is errNotConfirmed then.
func (a *app) readLines(ctx context.Context, n int) (lines []string, err error) {
	read, failed := make(chan []string, 1), make(chan error, 1)
	go func() { // it ends with the input; or with the program, where ctx has ended before
		var lines []string
		scanner := bufio.NewScanner(a.in)
		scanner.Buffer(nil, 1<<16)
		for len(lines) != n && scanner.Scan() {
			lines = append(lines, scanner.Text())
		}
		if err := scanner.Err(); err != nil {
			failed <- usageError{fmt.Errorf("standard input: %w", err)}
			return
		}
		read <- lines
	}()
	select {
	case lines = <-read:
		return lines, nil
	case err = <-failed:
		return nil, err
	case <-ctx.Done():
		return nil, errNotConfirmed
	}
}

// answer reads what is typed to a question.
func (a *app) answer(ctx context.Context) (string, error) {
	lines, err := a.readLines(ctx, 1)
	if err != nil || len(lines) == 0 {
		return "", err
	}
	return lines[0], nil
}

// resultJSON is what a command on tasks did, in JSON.
type resultJSON struct {
	Action      string           `json:"action"`
	Queue       string           `json:"queue"`
	QueueBase64 string           `json:"queue_base64,omitempty"`
	DryRun      bool             `json:"dry_run"`
	Matched     int              `json:"matched"`
	Done        int              `json:"done"`
	Outcomes    map[string]int   `json:"outcomes"`          // how many of each
	Tasks       []taskResultJSON `json:"tasks,omitempty"`   // of those that were named
	Error       string           `json:"error,omitempty"`   // what has ended it
	Limited     bool             `json:"limited,omitempty"` // --limit has left some out
}

type taskResultJSON struct {
	ID       string `json:"id"`
	IDBase64 string `json:"id_base64,omitempty"`
	Outcome  string `json:"outcome"`
}

// tally counts what became of tasks.
type tally struct {
	mu sync.Mutex // guards what follows
	by map[outcome]int
}

func (t *tally) add(o outcome, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > 0 {
		t.by[o] += n
	}
}

func (t *tally) done() (n int) {
	for o, of := range t.by {
		if o != outcomeMissing {
			n += of
		}
	}
	return n
}

// changeNamed carries an action out on the tasks that are named, in their order.
func (a *app) changeNamed(ctx context.Context, act action, s selection, q *sluice.Queue, queue string, ids []string) error {
	t := tally{by: map[outcome]int{}}
	result := resultJSON{Action: act.name, DryRun: s.dryRun, Matched: len(ids)}
	var failed error
	for _, id := range ids {
		o, err := a.changeOne(ctx, act, s.dryRun, q, id)
		if err != nil {
			failed = fmt.Errorf("%s of %s: %w", act.name, show(id), err)
			break
		}
		t.add(o, 1)
		r := taskResultJSON{Outcome: string(o)}
		r.ID, r.IDBase64 = report.Bytes(id)
		result.Tasks = append(result.Tasks, r)
		if !a.json {
			_, _ = fmt.Fprintf(a.out, "%s: %s\n", show(id), o.text(act.done, s.dryRun))
		}
	}
	if err := a.finish(result, queue, &t, failed); err != nil {
		return err
	}
	if missing := t.by[outcomeMissing]; missing > 0 {
		return fmt.Errorf("%w: %d of %d", errNotFound, missing, len(ids))
	}
	return nil
}

// text says what became of one task.
func (o outcome) text(verb string, dryRun bool) string {
	switch o {
	case outcomeMissing:
		return "not found"
	case outcomeForgotten:
		verb = "forgotten"
	}
	if dryRun {
		verb = "would be " + verb
	}
	if o == outcomeDone {
		return verb
	}
	return fmt.Sprintf("%s (%s)", verb, o)
}

// changeOne carries an action out on one task that is named.
func (a *app) changeOne(ctx context.Context, act action, dryRun bool, q *sluice.Queue, id string) (outcome, error) {
	if dryRun {
		e, err := q.Get(ctx, id, sluice.WithoutPayloads())
		if errors.Is(err, sluice.ErrNotFound) || err == nil && len(act.states) > 0 && !slices.Contains(act.states, e.State) {
			return outcomeMissing, nil
		}
		return outcome("was " + e.State.String()), err
	}
	if act.many == nil {
		return act.one(ctx, q, named(sluice.StateAbsent, id))
	}
	n, err := act.many(ctx, q, id)
	if n == 0 {
		return outcomeMissing, err
	}
	return outcomeDone, err
}

// finish prints what a command did, as JSON.
func (a *app) finish(r resultJSON, queue string, t *tally, failed error) error {
	r.Queue, r.QueueBase64 = report.Bytes(queue)
	r.Done, r.Outcomes = t.done(), map[string]int{}
	for o, n := range t.by {
		r.Outcomes[string(o)] = n
	}
	if r.DryRun {
		r.Done = 0
	}
	if failed != nil {
		r.Error = report.Escape(failed.Error())
	}
	if a.json {
		if err := report.Print(a.out, r); err != nil {
			return err
		}
	}
	return failed
}

// changeAll carries an action out on all tasks that are in a state and match.
func (a *app) changeAll(ctx context.Context, act action, s selection, queue string) error {
	if s.state == "" && len(act.states) > 0 {
		s.state = act.states[0].String()
	}
	state, err := stateNamed(s.state)
	if err != nil {
		return fmt.Errorf("%w; with --all it has to be said", err)
	}
	switch {
	case len(act.states) > 0 && !slices.Contains(act.states, state):
		return usagef("%s is not for tasks that are %s", act.name, state)
	case s.filter.check(state) != nil:
		return s.filter.check(state)
	case s.limit < 1 || s.limit > 10_000_000:
		return usagef("--limit is 1 to 10 million")
	case s.rate < 0:
		return usagef("--rate is a number of tasks a second")
	}
	if err := s.filter.readTimes(func() time.Time { return a.now(ctx) }); err != nil {
		return err
	}
	q, name, err := a.open(ctx, queue)
	if err != nil {
		return err
	}
	chosen, limited, err := a.choose(ctx, q, state, s)
	if err != nil {
		return err
	}
	result := resultJSON{Action: act.name, DryRun: s.dryRun, Matched: chosen.len(), Limited: limited}
	t := &tally{by: map[outcome]int{}}
	if state == sluice.StateDone {
		act.name, act.done = "forget", "forgotten"
	}
	what := fmt.Sprintf("%s of %s", inspect.Plural(int64(chosen.len()), act.noun(state)), show(name))
	if limited {
		what = "the first " + what
	}
	if chosen.len() == 0 || s.dryRun {
		a.sayDry(act, what, chosen)
		return a.finish(result, name, t, nil)
	}
	if err := a.ask(ctx, act.name, what, int64(chosen.len()), s); err != nil {
		return err
	}
	failed := a.carryOut(ctx, act, q, state, chosen, s.rate, t)
	if !a.json {
		_, _ = fmt.Fprintf(a.out, "%s %s of %s%s\n", act.done, inspect.Count(int64(t.done())), inspect.Count(int64(chosen.len())), t.details())
	}
	return a.finish(result, name, t, failed)
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

// choose reads which tasks are meant; only these are touched, and what comes later is not. It keeps
// what identifies them and no payload.
func (a *app) choose(ctx context.Context, q *sluice.Queue, state sluice.State, s selection) (chosen *ids, limited bool, err error) {
	p := a.newProgress("looking", -1)
	defer p.end()
	options := []sluice.ReadOption{sluice.WithoutPayloads()}
	if s.filter.group != "" && state == sluice.StateWaiting {
		options = append(options, sluice.InGroup(s.filter.group))
	}
	chosen = &ids{}
	for t, err := range q.All(ctx, state, options...) {
		if err != nil {
			return nil, false, err
		}
		p.add(1)
		switch {
		case s.filter.isPast(t):
			return chosen, false, nil
		case !s.filter.matches(t):
		case chosen.len() == s.limit:
			return chosen, true, nil
		default:
			chosen.add(t.ID)
		}
	}
	return chosen, false, nil
}

// named returns a task of which no more is known than its ID and its state.
func named(s sluice.State, id string) sluice.TaskInfo {
	return sluice.TaskInfo{Entry: sluice.Entry{ID: id}, State: s}
}

// sayDry says what would be done.
func (a *app) sayDry(act action, what string, chosen *ids) {
	if a.json {
		return
	}
	if chosen.len() == 0 {
		_, _ = fmt.Fprintf(a.out, "nothing to %s: %s match\n", act.name, what)
		return
	}
	_, _ = fmt.Fprintf(a.out, "would %s %s; the first:\n", act.name, what)
	for _, id := range chosen.of(0, min(10, chosen.len())) {
		_, _ = fmt.Fprintf(a.out, "  %s\n", show(id))
	}
}

// ask has the caller confirm how many tasks are touched.
func (a *app) ask(ctx context.Context, verb, what string, n int64, s selection) error {
	switch {
	case s.confirm >= 0 && n > s.confirm:
		return fmt.Errorf("%w: that would %s %s, and --confirm says %d", errNotConfirmed, verb, what, s.confirm)
	case s.yes || s.confirm >= 0:
		return nil
	case !a.interactive:
		return fmt.Errorf("%w: that would %s %s; add --confirm %d, or --yes", errNotConfirmed, verb, what, n)
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
func (a *app) carryOut(ctx context.Context, act action, q *sluice.Queue, state sluice.State, chosen *ids, rate int, t *tally) error {
	p := a.newProgress(act.name, chosen.len())
	defer p.end()
	next, step := time.Now(), pageSize
	if rate > 0 {
		step = max(1, min(step, rate/10))
	}
	for from := 0; from < chosen.len(); from += step {
		part := chosen.of(from, min(from+step, chosen.len()))
		if rate > 0 {
			select {
			case <-time.After(time.Until(next)):
			case <-ctx.Done():
				return ctx.Err()
			}
			next = time.Now().Add(time.Duration(len(part)) * time.Second / time.Duration(rate)) // nothing is caught up on
		}
		if err := a.carryOutPart(ctx, act, q, state, part, t); err != nil {
			return err
		}
		p.add(len(part))
	}
	return nil
}

func (a *app) carryOutPart(ctx context.Context, act action, q *sluice.Queue, state sluice.State, part []string, t *tally) error {
	if act.many != nil {
		n, err := act.many(ctx, q, part...)
		t.add(outcomeDone, n)
		if err == nil {
			t.add(outcomeMissing, len(part)-n)
		}
		return err
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(4 * atOnce)
	for _, id := range part {
		all.Go(func() error {
			o, err := act.one(ctx, q, named(state, id))
			if err == nil {
				t.add(o, 1)
			}
			return err
		})
	}
	return all.Wait()
}
