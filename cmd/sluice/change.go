package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// selection says which tasks a command is for: those that are named, or all in some states that match.
type selection struct {
	all bool
	targets
	filter  filter
	limit   int
	dryRun  bool
	yes     bool
	confirm int64
	rate    string
}

// action is what a command does with tasks.
type action struct {
	name, done string         // "cancel", "cancelled"
	states     []sluice.State // in which tasks have to be; the first is the default, none if it must be said
	// one carries it out on a task, and returns what became of it. A task that was named has its ID
	// alone.
	one func(ctx context.Context, q *sluice.Queue, t sluice.TaskInfo) (outcome, error)
	// many carries it out on some hundred IDs, instead of one, and returns what became of how many. The rest
	// is missing. They were chosen in that state; StateAbsent if they were named.
	many func(ctx context.Context, q *sluice.Queue, of sluice.State, ids ...string) (map[outcome]int, error)
	// dry says what many would do, if that is not the same with each task that is there.
	dry func(ctx context.Context, q *sluice.Queue, ids ...string) (map[outcome]int, error)
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

// isDone reports whether the task was changed.
func (o outcome) isDone() bool { return o != outcomeMissing && !strings.HasPrefix(string(o), "kept") }

func (s *selection) addTo(f *pflag.FlagSet, states []sluice.State) {
	f.BoolVar(&s.all, "all", false, "all tasks that are in the state and match, instead of IDs; their number is asked back")
	if len(states) != 1 {
		usage := "with --all: due, scheduled, leased, dead, done or waiting; several of them, as dead,due; or any, which is all but done"
		if len(states) > 0 {
			usage = fmt.Sprintf("with --all: due, scheduled or leased, or several of them (%s if not given)", states[0])
		}
		f.StringVar(&s.state, "state", "", usage)
	}
	s.targets.addTo(f, "with --all: ")
	s.filter.addTo(f, "with --all: ")
	f.StringVar(&s.rate, "rate", "", "with --all: this many tasks a second at the most, 50 or 50/s (as fast as it goes if not given)")
	f.IntVar(&s.limit, "limit", 1_000_000, "with --all: only the first so many")
	f.BoolVar(&s.dryRun, "dry-run", false, "say what would be done, and do nothing")
	f.BoolVar(&s.yes, "yes", false, "with --all: ask nothing")
	f.Int64Var(&s.confirm, "confirm", -1, "with --all: the number of tasks that are expected, instead of the question; with more, nothing is done")
}

// changeCommand returns the command of an action.
func (a *app) changeCommand(c *cobra.Command, act action, s *selection) *cobra.Command {
	c.Use = act.name + " QUEUE [ID...|-]"
	s.addTo(c.Flags(), act.states)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return a.change(cmd.Context(), act, *s, args)
	}
	return c
}

func (a *app) change(ctx context.Context, act action, s selection, args []string) error {
	switch {
	case s.match == "" && len(args) == 0:
		return usagef("name a queue\nusage: sluice %s QUEUE [ID...|-]", act.name)
	case s.match != "" && len(args) > 0:
		return usagef("--match chooses the queues: name none beside it, and no ID")
	case s.all == (len(args) > 1):
		return usagef("name the IDs (- reads them from standard input, one a line), or use --all")
	case !s.all && (s.state != "" || s.match != "" || s.filter.isSet() || s.filter.newest):
		return usagef("--state, --match and the filters (--reason, --prefix, --since …) choose among --all")
	case s.all:
		return a.changeAll(ctx, act, s, args)
	}
	ids, err := a.readIDs(ctx, args[1:])
	if err != nil {
		return err
	}
	q, name, err := a.open(ctx, args[0])
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
			if a.interactive {
				_, _ = fmt.Fprintln(a.errOut, "The IDs, one a line, and Ctrl-D to end:")
			}
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
	Lots        []lotJSON        `json:"lots,omitempty"`    // of several queues or states
}

// lotJSON is how many tasks of a queue in a state match.
type lotJSON struct {
	Queue       string `json:"queue"`
	QueueBase64 string `json:"queue_base64,omitempty"`
	State       string `json:"state"`
	Matched     int    `json:"matched"`
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

// addAll adds what became of so many tasks. What is not told of is missing, unless there is an error.
func (t *tally) addAll(became map[outcome]int, of int, err error) {
	for o, n := range became {
		t.add(o, n)
		of -= n
	}
	if err == nil {
		t.add(outcomeMissing, of)
	}
}

func (t *tally) done() (n int) {
	for o, of := range t.by {
		if o.isDone() {
			n += of
		}
	}
	return n
}

// keptError says how many tasks were not changed, so that a script does not go on as if they were; nil
// for none.
func (t *tally) keptError() error {
	n := 0
	for o, of := range t.by {
		if o != outcomeMissing && !o.isDone() {
			n += of
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s stayed as they were", inspect.Plural(int64(n), "task"))
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
	return t.keptError()
}

// text says what became of one task.
func (o outcome) text(verb string, dryRun bool) string {
	switch o {
	case outcomeMissing:
		return "not found"
	case outcomeForgotten:
		verb = "forgotten"
	}
	if !o.isDone() {
		return string(o)
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
	if dryRun && act.dry != nil {
		return only(act.dry(ctx, q, id))
	}
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
	return only(act.many(ctx, q, sluice.StateAbsent, id))
}

// only returns what became of the one task that was asked for.
func only(became map[outcome]int, err error) (outcome, error) {
	for o, n := range became {
		if n > 0 {
			return o, err
		}
	}
	return outcomeMissing, err
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
	if failed != nil && r.Done > 0 {
		failed = partError{failed}
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
