package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/fromasynq"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// asynqFlags are the flags of import that are for asynq.
type asynqFlags struct {
	queue, url, state string
	selection         // of which only yes and confirm have flags
}

func (f *asynqFlags) addTo(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.queue, "from-asynq", "", "instead of a file: the tasks of this queue of asynq, which leave it")
	flags.StringVar(&f.url, "from-url", "", "with --from-asynq: asynq's server, if it is not that of --url; its password is SLUICE_FROM_PASSWORD")
	flags.StringVar(&f.state, "state", "", "with --from-asynq: scheduled, retry, pending or archived, or several of them (all if not given)")
	flags.BoolVar(&f.yes, "yes", false, "with --from-asynq: ask nothing")
	flags.Int64Var(&f.confirm, "confirm", -1, "with --from-asynq: the number of tasks that are expected, instead of the question; with more, nothing is done")
	var names []string
	for _, s := range fromasynq.States {
		names = append(names, string(s))
	}
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp)) // it fails for an unknown flag
}

// isSet reports whether one of the flags was given that are for asynq alone.
func (f *asynqFlags) isSet() bool {
	return f.url != "" || f.state != "" || f.yes || f.confirm >= 0
}

// states returns the states that are meant, in the order of fromasynq.States.
func (f *asynqFlags) states() ([]fromasynq.State, error) {
	if f.state == "" {
		return fromasynq.States, nil
	}
	meant := map[fromasynq.State]bool{}
	for name := range strings.SplitSeq(f.state, ",") {
		if !slices.Contains(fromasynq.States, fromasynq.State(name)) {
			return nil, usagef("--state is scheduled, retry, pending or archived, or several of them, as scheduled,retry, with --from-asynq")
		}
		meant[fromasynq.State(name)] = true
	}
	return slices.DeleteFunc(slices.Clone(fromasynq.States), func(s fromasynq.State) bool { return !meant[s] }), nil
}

// The outcomes of a task of asynq that stays.
const (
	outcomeRefused outcome = "kept: Sluice does not take it"
	outcomeAlien   outcome = "kept: it is no task as asynq v0.26.0 writes it"
	outcomeWasDone outcome = "kept: the other queue remembers that ID as done"
	outcomeActive  outcome = "kept: a worker of asynq has it, or it has changed"
)

// asynqJSON is what an import from asynq did, in JSON.
type asynqJSON struct {
	Action   string           `json:"action"`
	From     string           `json:"from_asynq"`
	Queue    string           `json:"queue"`
	DryRun   bool             `json:"dry_run"`
	Matched  int              `json:"matched"`
	Done     int              `json:"done"`
	Outcomes map[string]int   `json:"outcomes"`          // how many of each
	Dropped  map[string]int   `json:"dropped"`           // of how many tasks a property has no counterpart
	Refused  []string         `json:"refused,omitempty"` // of the first that Sluice does not take: which, and why
	Left     map[string]int64 `json:"left"`              // what asynq's queue holds now, by state
	Error    string           `json:"error,omitempty"`
}

// asynqImport moves tasks of a queue of asynq into one of Sluice.
type asynqImport struct {
	*app
	from    *fromasynq.Queue
	to      *sluice.Queue
	chosen  ids
	byState map[fromasynq.State]int
	result  asynqJSON
	became  tally
}

func (a *app) importAsynq(ctx context.Context, o importOptions) error {
	states, err := o.asynq.states()
	if err != nil {
		return err
	}
	i, end, err := a.openAsynq(ctx, o)
	if err != nil {
		return err
	}
	defer end()
	if err := i.choose(ctx, states); err != nil {
		return err
	}
	failed := i.confirmAndMove(ctx, o.asynq.selection)
	if failed != nil && !o.dryRun && i.became.done() > 0 {
		failed = partError{failed}
	}
	if errors.Is(failed, errNotConfirmed) && i.became.done() == 0 {
		return failed
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), completeFor) // it is told after an interrupt, too
	defer cancel()
	left, err := i.from.Counts(last)
	if err != nil {
		return errors.Join(failed, err)
	}
	if err := i.print(left, failed); err != nil || o.dryRun {
		return err
	}
	return i.leftError(left, states)
}

// openAsynq opens both queues. The caller calls end.
func (a *app) openAsynq(ctx context.Context, o importOptions) (i *asynqImport, end func(), err error) {
	to, _, err := a.open(ctx, cmp.Or(o.to, o.asynq.queue))
	if err != nil {
		return nil, nil, err
	}
	rdb, end := a.rdb, func() {}
	if o.asynq.url != "" {
		if rdb, err = a.connectTo(ctx, o.asynq.url); err != nil {
			return nil, nil, err
		}
		end = func() { _ = rdb.Close() }
	}
	name, err := a.argument(o.asynq.queue)
	if err != nil {
		return nil, nil, err
	}
	from := fromasynq.Open(rdb, name)
	exists, err := from.Exists(ctx)
	if err == nil {
		_, err = from.Counts(ctx) // so that a right that the user lacks is known before the first task is moved
	}
	if err == nil && !exists {
		err = fmt.Errorf("%w: asynq has no queue %s there", errNotFound, show(name))
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	i = &asynqImport{app: a, from: from, to: to, became: tally{by: map[outcome]int{}}, byState: map[fromasynq.State]int{}}
	i.result = asynqJSON{Action: "import", From: report.Escape(name), Queue: report.Escape(to.Name()), DryRun: o.dryRun, Dropped: map[string]int{}}
	return i, end, nil
}

// connectTo returns a client of another server than that of --url. TLS is set up as there.
func (a *app) connectTo(ctx context.Context, url string) (redis.UniversalClient, error) {
	server := inspect.Server{}
	server.Password, _ = a.lookupEnv("SLUICE_FROM_PASSWORD")
	if strings.HasPrefix(url, "rediss:") {
		server.CAFile, server.CertFile, server.KeyFile, server.ServerName = a.server.CAFile, a.server.CertFile, a.server.KeyFile, a.server.ServerName
	}
	rdb, err := inspect.Connect(url, server)
	if err == nil && inspect.IsClusterNode(ctx, rdb, a.options) {
		_ = rdb.Close()
		server.Cluster = true
		rdb, err = inspect.Connect(url, server)
	}
	if err != nil {
		return nil, usageError{fmt.Errorf("--from-url: %w", err)}
	}
	return rdb, nil
}

// choose reads which tasks are meant: only these are moved.
func (i *asynqImport) choose(ctx context.Context, states []fromasynq.State) error {
	p := i.newProgress("looking", -1)
	defer p.end()
	seen := map[string]struct{}{}
	for _, s := range states {
		err := i.from.IDs(ctx, s, func(id string) {
			if _, again := seen[id]; again {
				return
			}
			seen[id] = struct{}{}
			i.chosen.add(id)
			i.byState[s]++
			p.add(1)
		})
		if err != nil {
			return err
		}
	}
	i.result.Matched = i.chosen.len()
	return nil
}

// confirmAndMove asks, and moves the tasks; with --dry-run it reads them.
func (i *asynqImport) confirmAndMove(ctx context.Context, s selection) error {
	n := i.chosen.len()
	if n == 0 {
		return nil
	}
	why, err := i.whyNotPaused(ctx)
	switch {
	case err != nil:
		return err
	case why != "" && i.result.DryRun:
		_, _ = fmt.Fprintf(i.errOut, "sluice: it would move nothing now: %s\n", why)
	case why != "":
		return fmt.Errorf("%w: %s", errNotConfirmed, why)
	}
	if !i.result.DryRun {
		what := fmt.Sprintf("%s of asynq (%s) into %s", inspect.Plural(int64(n), "task"), i.states(), show(i.to.Name()))
		if err := i.ask(ctx, "move", what, &bulk{total: n}, s); err != nil {
			return err
		}
	}
	p := i.newProgress("import", n)
	defer p.end()
	for from := 0; from < n; from += asynqAtOnce {
		part := i.chosen.of(from, min(from+asynqAtOnce, n))
		sizes, err := i.from.Sizes(ctx, part)
		if err != nil {
			return err
		}
		for len(part) > 0 {
			k, size := 1, sizes[0]
			for k < len(part) && size+sizes[k] <= mostImported {
				size += sizes[k]
				k++
			}
			if err := i.movePart(ctx, part[:k]); err != nil {
				return err
			}
			p.add(k)
			part, sizes = part[k:], sizes[k:]
		}
	}
	return nil
}

// asynqAtOnce is how many tasks are moved in a step, unless they have more than mostImported bytes.
const asynqAtOnce = 250

// states says how many tasks are meant in each state.
func (i *asynqImport) states() string {
	var parts []string
	for _, s := range fromasynq.States {
		if n := i.byState[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", s, inspect.Count(int64(n))))
		}
	}
	return strings.Join(parts, ", ")
}

// whyNotPaused says which queue hands tasks out, so that none can be moved; "" if neither does. A
// worker of asynq would run what is here, too. One of this queue could finish a task before it has
// left asynq, and an import that is repeated would add that task again.
func (i *asynqImport) whyNotPaused(ctx context.Context) (why string, err error) {
	paused, err := i.from.Paused(ctx)
	if err != nil {
		return "", err
	}
	if !paused {
		return "the queue of asynq hands tasks out: pause it (asynq queue pause, or Inspector.PauseQueue)", nil
	}
	s, err := i.to.Stats(ctx)
	if err == nil && (!s.Paused || !s.PausedUntil.IsZero()) {
		why = fmt.Sprintf("the queue %s hands tasks out: pause it (without --for) until an import has left nothing", show(i.to.Name()))
	}
	return why, err
}

// movePart moves some tasks: into the queue first, and then out of asynq.
func (i *asynqImport) movePart(ctx context.Context, part []string) error {
	tasks, err := i.from.Read(ctx, part)
	if err != nil {
		return err
	}
	i.became.add(outcomeMissing, len(part)-len(tasks))
	var read []fromasynq.Task
	var restored []sluice.TaskInfo
	for _, t := range tasks {
		info, o, err := asynqTask(t)
		if o != outcomeDone {
			i.became.add(o, 1)
			if err != nil && len(i.result.Refused) < 10 {
				i.result.Refused = append(i.result.Refused, report.Escape(fmt.Sprintf("%s: %v", show(t.ID), err)))
			}
			continue
		}
		read, restored = append(read, t), append(restored, info)
	}
	if !i.result.DryRun {
		return i.transfer(ctx, read, restored)
	}
	there, err := getAll(ctx, i.to, idsOf(restored), sluice.WithoutPayloads())
	if err != nil {
		return err
	}
	isThere := map[string]sluice.TaskInfo{}
	for _, t := range there {
		isThere[t.ID] = t
	}
	for n, t := range read {
		other, ok := isThere[restored[n].ID]
		switch {
		case ok && other.State == sluice.StateDone:
			i.became.add(outcomeWasDone, 1)
			continue
		case ok:
			isThere, err := i.isThere(ctx, restored[n]) // by an import that was interrupted
			if err != nil {
				return err
			}
			if !isThere {
				i.became.add(outcomeKept, 1)
				continue
			}
		}
		i.moved(t)
	}
	return nil
}

// moved counts a task that was moved, or would be, and its properties that have no counterpart.
func (i *asynqImport) moved(t fromasynq.Task) {
	i.became.add(outcomeDone, 1)
	const retries, timeout = 25, 30 * time.Minute // asynq's defaults, which are no wish of the caller's
	for name, is := range map[string]bool{
		"MaxRetry": t.Retry != retries, "Timeout": t.Timeout != 0 && t.Timeout != timeout, "Retention": t.Retention != 0,
		"Group": t.Group != "", "Unique": t.UniqueKey != "", "LastErr": t.LastError != "" && t.Retried == 0 && t.State != fromasynq.Archived,
	} {
		if is {
			i.result.Dropped[name]++
		}
	}
}

// transfer restores tasks, and takes those out of asynq that are in the queue by now.
func (i *asynqImport) transfer(ctx context.Context, read []fromasynq.Task, restored []sluice.TaskInfo) error {
	if len(read) == 0 {
		return nil
	}
	if why, err := i.whyNotPaused(ctx); err != nil || why != "" {
		return cmp.Or(err, errors.New(why))
	}
	outcomes, failed := i.to.Restore(ctx, restored...)
	var there []fromasynq.Task
	for n, o := range outcomes {
		switch o {
		case sluice.OutcomeKept:
			same, err := i.isThere(ctx, restored[n])
			if err != nil {
				return partly(outcomes, errors.Join(failed, err))
			}
			if !same {
				i.became.add(outcomeKept, 1)
				continue
			}
		case sluice.OutcomeDone:
			i.became.add(outcomeWasDone, 1)
			continue
		case sluice.OutcomeAdded:
		default:
			continue
		}
		there = append(there, read[n])
	}
	if failed != nil { // a repeat takes out of asynq what is there
		return partly(outcomes, failed)
	}
	return partly(outcomes, i.leave(ctx, there))
}

// leave takes tasks out of asynq that are in the queue by now, and out of the queue again what
// asynq keeps.
func (i *asynqImport) leave(ctx context.Context, there []fromasynq.Task) error {
	departures, err := i.from.Leave(ctx, there)
	var back []string
	resumed := false
	for n, d := range departures {
		switch d {
		case fromasynq.Left, fromasynq.Gone:
			i.moved(there[n])
		default:
			back = append(back, there[n].ID)
			resumed = resumed || d == fromasynq.NotPaused
			i.became.add(outcomeActive, 1)
		}
	}
	if err != nil || len(back) == 0 {
		return err
	}
	if _, err := i.to.CancelBatch(ctx, back...); err != nil || !resumed {
		return err
	}
	return errors.New("the queue of asynq was resumed meanwhile: pause it, and import again")
}

// isThere reports whether the queue has just that task: an import that was interrupted has put it
// there. Its time is not compared: asynq changes it when it makes a task pending.
func (i *asynqImport) isThere(ctx context.Context, t sluice.TaskInfo) (bool, error) {
	other, err := i.to.Get(ctx, t.ID)
	if errors.Is(err, sluice.ErrNotFound) {
		return false, nil
	}
	facts := func(t *sluice.TaskInfo) []any {
		return []any{t.ID, t.Kind, string(t.Payload), len(t.Header), t.State == sluice.StateDead, t.Attempt, t.Expires.Unix(), t.Group, t.Take}
	}
	return err == nil && reflect.DeepEqual(facts(&t), facts(&other)) && maps.Equal(t.Header, other.Header), err
}

// asynqTask returns a task as the queue takes it, and outcomeDone; or why it is not taken.
func asynqTask(t fromasynq.Task) (sluice.TaskInfo, outcome, error) {
	info := sluice.TaskInfo{Entry: sluice.Entry{ID: t.ID, Kind: t.Type, Payload: t.Payload, Header: t.Headers, Attempt: t.Retried, Expires: t.Deadline}}
	info.Reason, info.FailedAt = t.LastError, t.LastFailed
	switch {
	case t.State == fromasynq.Active:
		return info, outcomeActive, nil
	case t.Err != nil:
		return info, outcomeAlien, t.Err
	case t.State == fromasynq.Archived:
		info.State, info.DiedAt, info.Reason = sluice.StateDead, t.At, cmp.Or(t.LastError, "archived in asynq")
	case slices.Contains(fromasynq.States, t.State):
		info.State, info.Due = sluice.StateDue, t.At
		if t.At.IsZero() { // a server that has ended has put it back: it was the first
			info.Due = cmp.Or(t.LastFailed, time.Now())
		}
	default:
		return info, outcomeMissing, nil
	}
	if err := info.Check(); err != nil {
		return info, outcomeRefused, err
	}
	return info, outcomeDone, nil
}

// leftError says what is left in asynq that was meant, or is at work, so that a script does not go
// on as if nothing were.
func (i *asynqImport) leftError(left map[fromasynq.State]int64, meant []fromasynq.State) error {
	var parts []string
	for _, s := range append(slices.Clone(meant), fromasynq.Active, fromasynq.Aggregating) {
		if n := left[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", s, inspect.Count(n)))
		}
	}
	if len(parts) == 0 {
		return nil
	}
	text := "asynq still has tasks (" + strings.Join(parts, ", ") + ")"
	if left[fromasynq.Active] > 0 {
		text += "; what is active ends there, or is to be imported again when it has failed"
	}
	return errors.New(text)
}

// print prints what became of the tasks.
func (i *asynqImport) print(left map[fromasynq.State]int64, failed error) error {
	r := &i.result
	r.Done, r.Outcomes, r.Left = i.became.done(), map[string]int{}, map[string]int64{}
	for o, n := range i.became.by {
		r.Outcomes[string(o)] = n
	}
	for s, n := range left {
		r.Left[string(s)] = n
	}
	if r.DryRun {
		r.Done = 0
	}
	if failed != nil {
		r.Error = report.Escape(failed.Error())
	}
	if i.json {
		return errors.Join(report.Print(i.out, r), failed)
	}
	verb := "imported"
	if r.DryRun {
		verb = "would be imported"
	}
	_, _ = fmt.Fprintf(i.out, "%s %s of %s%s\n", inspect.Plural(int64(i.became.done()), "task"), verb, inspect.Count(int64(r.Matched)), i.became.details())
	for _, refused := range r.Refused {
		_, _ = fmt.Fprintf(i.out, "  %s\n", refused)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Dropped)) {
		_, _ = fmt.Fprintf(i.out, "not taken over: %s of %s\n", name, inspect.Plural(int64(r.Dropped[name]), "task"))
	}
	return failed
}
