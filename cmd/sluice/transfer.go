package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// taskLine is a task as export writes it, on a line of its own, and import reads it. Texts that are not UTF-8
// stand in their fields for base64 alone.
type taskLine struct {
	Queue      string       `json:"queue"`
	QueueBytes []byte       `json:"queue_base64,omitempty"`
	ID         string       `json:"id"`
	IDBytes    []byte       `json:"id_base64,omitempty"`
	State      string       `json:"state"`
	At         time.Time    `json:"at"` // when it is due, or has died, or was leased
	Kind       string       `json:"kind,omitempty"`
	KindBytes  []byte       `json:"kind_base64,omitempty"`
	Attempt    int          `json:"attempt,omitempty"`
	Reason     string       `json:"reason,omitempty"`
	Failed     *time.Time   `json:"failed,omitempty"`
	Expires    *time.Time   `json:"expires,omitempty"`
	Group      string       `json:"group,omitempty"`
	GroupBytes []byte       `json:"group_base64,omitempty"`
	Item       string       `json:"item,omitempty"`
	ItemBytes  []byte       `json:"item_base64,omitempty"`
	Units      int          `json:"units,omitempty"`
	Header     []headerLine `json:"header,omitempty"`
	Payload    *string      `json:"payload,omitempty"`
	Bytes      []byte       `json:"payload_base64,omitempty"`
}

// headerLine is a pair of a header.
type headerLine struct {
	Key        string `json:"key"`
	KeyBytes   []byte `json:"key_base64,omitempty"`
	Value      string `json:"value"`
	ValueBytes []byte `json:"value_base64,omitempty"`
}

// exact returns a text for its two fields.
func exact(s string) (text string, raw []byte) {
	if text, encoded := report.Bytes(s); encoded == "" {
		return text, nil
	}
	return "", []byte(s)
}

// whole is the reverse of exact.
func whole(text string, raw []byte) string {
	if len(raw) > 0 {
		return string(raw)
	}
	return text
}

func optional(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	return &at
}

// lineOf returns a task that was read with its payload.
func lineOf(queue string, t sluice.TaskInfo) (l taskLine) {
	l = taskLine{State: t.State.String(), Attempt: t.Attempt, Reason: t.Reason, Failed: optional(t.FailedAt), Expires: optional(t.Expires), Units: t.Take.Units}
	l.Queue, l.QueueBytes = exact(queue)
	l.ID, l.IDBytes = exact(t.ID)
	l.Kind, l.KindBytes = exact(t.Kind)
	l.Group, l.GroupBytes = exact(t.Group)
	l.Item, l.ItemBytes = exact(t.Take.Item)
	switch l.At = inRange(t.Due).UTC(); t.State {
	case sluice.StateDead:
		l.At = inRange(t.DiedAt).UTC()
	case sluice.StateLeased:
		l.At = t.LeasedSince.UTC()
	}
	for key, value := range t.Header {
		var h headerLine
		h.Key, h.KeyBytes = exact(key)
		h.Value, h.ValueBytes = exact(value)
		l.Header = append(l.Header, h)
	}
	slices.SortFunc(l.Header, func(a, b headerLine) int { return strings.Compare(whole(a.Key, a.KeyBytes), whole(b.Key, b.KeyBytes)) })
	if payload, raw := exact(string(t.Payload)); raw != nil {
		l.Bytes = raw
	} else if payload != "" {
		l.Payload = &payload
	}
	return l
}

// inRange returns a time as Restore takes it: a program of another language may have written a due
// time before 1970, or one after 2200.
func inRange(t time.Time) time.Time {
	first, last := time.Unix(0, 0), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
	switch {
	case t.IsZero() || !t.Before(first) && !t.After(last):
		return t
	case t.Before(first):
		return first
	}
	return last
}

// task returns the task of a line, and its queue.
func (l *taskLine) task() (queue string, t sluice.TaskInfo, err error) {
	state, err := stateNamed(l.State)
	if err != nil {
		return "", t, err
	}
	t = sluice.TaskInfo{State: state, Reason: l.Reason, Entry: sluice.Entry{
		ID: whole(l.ID, l.IDBytes), Kind: whole(l.Kind, l.KindBytes), Attempt: l.Attempt, Group: whole(l.Group, l.GroupBytes),
		Take: sluice.Take{Item: whole(l.Item, l.ItemBytes), Units: l.Units}, Payload: l.Bytes,
	}}
	switch state {
	case sluice.StateDead:
		t.DiedAt = l.At
	case sluice.StateLeased:
		t.LeasedSince = l.At
	default:
		t.Due = l.At
	}
	if l.Failed != nil {
		t.FailedAt = *l.Failed
	}
	if l.Expires != nil {
		t.Expires = *l.Expires
	}
	if l.Payload != nil {
		t.Payload = []byte(*l.Payload)
	}
	for _, h := range l.Header {
		if t.Header == nil {
			t.Header = map[string]string{}
		}
		t.Header[whole(h.Key, h.KeyBytes)] = whole(h.Value, h.ValueBytes)
	}
	return whole(l.Queue, l.QueueBytes), t, nil
}

// exported are the states that export writes if none is said.
var exported = []sluice.State{sluice.StateLeased, sluice.StateDue, sluice.StateScheduled, sluice.StateDead, sluice.StateWaiting}

func (a *app) exportCommand() *cobra.Command {
	var o struct {
		targets
		filter filter
	}
	c := &cobra.Command{
		Use: "export [QUEUE]", Short: "Write tasks as JSON lines, with payloads, for import",
		Long: `Write the tasks of a queue, or of all that match, as JSON lines on standard output: states, due times, attempts, errors, payloads,
headers, groups, units. import puts them into a queue as they were. What is done is not written. A queue that is worked on
changes meanwhile: pause it first, and its leased tasks end. The lines hold payloads: keep the file as safe as the server.`,
		Example: `  sluice export orders --state dead --since 24h > dead.jsonl
  sluice export --match '*' > all.jsonl`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, states := cmd.Context(), exported
			var err error
			if o.state != "" {
				if states, err = o.states(nil); err != nil {
					return err
				}
			}
			for _, s := range states {
				if s == sluice.StateDone {
					return usagef("export is not for tasks that are done: their payloads are gone")
				}
				if err := o.filter.check(s); err != nil {
					return err
				}
			}
			if err := o.filter.readTimes(func() time.Time { return a.now(ctx) }); err != nil {
				return err
			}
			queues, err := a.queuesMeant(ctx, o.targets, args)
			if err != nil {
				return err
			}
			return a.export(ctx, queues, states, &o.filter)
		},
	}
	c.Flags().StringVar(&o.state, "state", "", "due, scheduled, leased, dead or waiting, or several of them (all if not given)")
	o.addTo(c.Flags(), "")
	o.filter.addTo(c.Flags(), "")
	return c
}

// exportOrder is inOrder, but what waits in a group comes behind what is in play: import puts them into
// a queue some thousands at a time, and would have the first one that waits be in play. So what comes
// out of a group meanwhile is to be looked for once more.
func exportOrder(states []sluice.State) []sluice.State {
	order := inOrder(states)
	i := slices.Index(order, sluice.StateWaiting)
	if i < 0 {
		return order
	}
	order = slices.Delete(order, i, i+1)
	out := slices.DeleteFunc(slices.Clone(order), func(s sluice.State) bool { return s != sluice.StateScheduled && s != sluice.StateDue })
	return append(append(order, sluice.StateWaiting), out...)
}

func (a *app) export(ctx context.Context, queues []*sluice.Queue, states []sluice.State, f *filter) error {
	p := a.newProgress("export", -1)
	defer p.end()
	out := bufio.NewWriterSize(a.out, 1<<16)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	n, order := 0, exportOrder(states)
	for _, q := range queues {
		m, err := f.on(ctx, q)
		if err != nil {
			return err
		}
		seen := newMet(states, a.now(ctx))
		for i, state := range order {
			for t, err := range q.All(ctx, state, m.options(state, sluice.WithPayloadsUpTo(-1))...) {
				if err == nil && m.IsPast(t, m.newest) {
					break
				}
				if err == nil && slices.Index(order, state) < i && t.Group == "" { // not one that has come out of its group since
					continue
				}
				var fits bool
				if err == nil {
					fits, err = m.matches(ctx, &t)
				}
				if err == nil && fits && seen.isNew(t) {
					err = encoder.Encode(lineOf(q.Name(), t))
					n++
				}
				if err != nil {
					return errors.Join(err, out.Flush())
				}
				p.add(1)
			}
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.errOut, "%s exported\n", inspect.Plural(int64(n), "task"))
	return err
}

// importOptions are the flags of import.
type importOptions struct {
	to     string
	dryRun bool
	asynq  asynqFlags
}

// importJSON is what import did, in JSON.
type importJSON struct {
	Action string `json:"action"`
	DryRun bool   `json:"dry_run"`
	Read   int    `json:"read"`
	Added  int    `json:"added"`
	Kept   int    `json:"kept"` // there is a task of that ID
	Error  string `json:"error,omitempty"`
}

func (a *app) importCommand() *cobra.Command {
	var o importOptions
	c := &cobra.Command{
		Use: "import [FILE|-]", Short: "Put tasks that export has written, or those of asynq, into queues, as they were",
		Long: `Put the tasks of JSON lines, as export writes them, into their queues, or into one: with their states, due times, attempts, errors and
payloads. What was leased is due at once. An ID of which there is a task, or that is done and
remembered, is kept as it is: to import a file again is safe then. Units are held whatever is left: set the stock afterwards. A wrong line ends it, with its number; what stands before it is in the queues.

--from-asynq takes the tasks of a queue of asynq instead, scheduled, retry, pending and archived ones, into the queue of that name or
--to. Both queues have to be paused. Each task is in the queue before it leaves asynq, so that none is lost: an import that was
interrupted is repeated. Keep both queues paused until one has ended with exit code 0: a task that ran before it has left asynq would
run again. What is active or aggregating is left there. What a task's properties have no counterpart for is counted. IDs in the
queue stay as they are, and so do asynq's tasks with those.`,
		Example: `  sluice import dead.jsonl
  sluice import dead.jsonl --to orders-again --dry-run
  sluice import --from-asynq default --to mails --dry-run
  sluice import --from-asynq default --to mails`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.asynq.queue != "" && len(args) > 0:
				return usagef("import reads a file, or a queue of asynq")
			case o.asynq.queue != "":
				return a.importAsynq(cmd.Context(), o)
			case len(args) == 0:
				return usagef("name a file (- is standard input), or a queue of asynq with --from-asynq\nusage: %s", cmd.UseLine())
			case o.asynq.isSet():
				return usagef("--from-url, --state, --yes and --confirm are for --from-asynq")
			}
			return a.importFile(cmd.Context(), args[0], o)
		},
	}
	c.Flags().StringVar(&o.to, "to", "", "this queue, instead of those that are named")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "read and check all lines or tasks, and put nothing into a queue")
	o.asynq.addTo(c)
	return c
}

// importer puts tasks into queues, some hundred of one queue at a time.
type importer struct {
	*app
	options importOptions
	result  importJSON
	queues  map[string]*sluice.Queue
	of      string
	pending []sluice.TaskInfo
	size    int
}

const (
	// importAtOnce is how many tasks, and mostImported how many bytes of their lines, are put into a queue at a time.
	importAtOnce = 2500
	mostImported = 4 << 20
	// longestLine is the most bytes of a line: a payload of 512 MB, which no Redis stores, would be longer.
	longestLine = 768 << 20
)

func (a *app) importFile(ctx context.Context, path string, o importOptions) error {
	in, end, err := a.openInput(path)
	if err != nil {
		return err
	}
	defer end()
	i := &importer{app: a, options: o, result: importJSON{Action: "import", DryRun: o.dryRun}, queues: map[string]*sluice.Queue{}}
	failed := i.read(ctx, in)
	if failed != nil && i.result.Added > 0 && !o.dryRun {
		failed = partError{failed}
	}
	if failed != nil {
		i.result.Error = report.Escape(failed.Error())
	}
	if a.json {
		if err := report.Print(a.out, i.result); err != nil {
			return err
		}
		return failed
	}
	verb := "imported"
	if o.dryRun {
		verb = "would be imported"
	}
	kept := ""
	if i.result.Kept > 0 {
		kept = fmt.Sprintf("; %s kept: there is a task of that ID, or was", inspect.Count(int64(i.result.Kept)))
	}
	_, _ = fmt.Fprintf(a.out, "%s %s%s\n", inspect.Plural(int64(i.result.Added), "task"), verb, kept)
	return failed
}

// read reads the lines. Those before a wrong one are put into their queues.
func (i *importer) read(ctx context.Context, in io.Reader) error {
	p := i.newProgress("import", -1)
	defer p.end()
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<16), longestLine)
	for n := 1; lines.Scan() && ctx.Err() == nil; n++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		if err := i.add(ctx, lines.Bytes()); err != nil {
			return errors.Join(fmt.Errorf("line %d: %w", n, err), i.flush(ctx))
		}
		p.add(1)
	}
	if err := lines.Err(); err != nil {
		return errors.Join(localError{fmt.Errorf("the lines cannot be read: %w", err)}, i.flush(ctx))
	}
	return errors.Join(ctx.Err(), i.flush(ctx))
}

// add notes the task of a line.
func (i *importer) add(ctx context.Context, line []byte) error {
	var l taskLine
	decoder := json.NewDecoder(strings.NewReader(string(line)))
	decoder.DisallowUnknownFields() // what it does not know would be lost
	if err := decoder.Decode(&l); err != nil {
		return usageError{fmt.Errorf("it is no task as export writes it: %w", withoutValue(err))}
	}
	queue, t, err := l.task()
	if err != nil {
		return err
	}
	if err := t.Check(); err != nil {
		return usageError{err}
	}
	if decoder.More() {
		return usagef("there is more than one task on the line")
	}
	if i.options.to != "" {
		queue = i.options.to
	}
	i.result.Read++
	if queue != i.of || len(i.pending) == importAtOnce || i.size > mostImported {
		if err := i.flush(ctx); err != nil {
			return err
		}
	}
	i.of, i.pending, i.size = queue, append(i.pending, t), i.size+len(line)
	return nil
}

// withoutValue takes out of an error of encoding/json what it quotes: it may be of a payload.
func withoutValue(err error) error {
	var kind *json.UnmarshalTypeError
	var encoding base64.CorruptInputError
	switch {
	case errors.As(err, &kind):
		return fmt.Errorf("the field %s is of another type", kind.Field)
	case errors.As(err, &encoding):
		return errors.New("base64 is expected")
	}
	return err
}

// flush puts the tasks that were noted into their queue.
func (i *importer) flush(ctx context.Context) error {
	pending := i.pending
	i.pending, i.size = i.pending[:0], 0
	if len(pending) == 0 {
		return nil
	}
	q := i.queues[i.of]
	if q == nil {
		rdb, err := i.connect(ctx)
		if err != nil {
			return err
		}
		if q, err = inspect.Open(rdb, i.of, i.app.options); err != nil {
			return err
		}
		i.queues[i.of] = q
	}
	if i.options.dryRun {
		there, err := getAll(ctx, q, idsOf(pending), sluice.WithoutPayloads())
		if err != nil {
			return err
		}
		i.result.Kept += len(there)
		i.result.Added += len(pending) - len(there)
		return nil
	}
	outcomes, err := q.Restore(ctx, pending...)
	for _, o := range outcomes {
		switch o {
		case sluice.OutcomeAdded:
			i.result.Added++
		case sluice.OutcomeKept, sluice.OutcomeDone:
			i.result.Kept++
		}
	}
	return err
}

// openInput opens a file, or standard input for "-".
func (a *app) openInput(path string) (in io.Reader, end func(), err error) {
	if path == "-" {
		return a.in, func() {}, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, usageError{err}
	}
	return file, func() { _ = file.Close() }, nil
}
