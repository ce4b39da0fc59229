package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// taskJSON is a task in JSON. What is nil or empty does not apply to its state, or was not asked
// for.
type taskJSON struct {
	ID            string            `json:"id"`
	IDBase64      string            `json:"id_base64,omitempty"`
	Kind          string            `json:"kind,omitempty"` // as header
	KindBase64    string            `json:"kind_base64,omitempty"`
	State         string            `json:"state"`
	Attempt       int               `json:"attempt"`
	Item          string            `json:"item,omitempty"` // of which it holds units
	ItemBase64    string            `json:"item_base64,omitempty"`
	Group         string            `json:"group,omitempty"`
	GroupBase64   string            `json:"group_base64,omitempty"`
	Units         int               `json:"units,omitempty"`
	Due           *string           `json:"due"`
	LeaseEnds     *string           `json:"lease_ends,omitempty"`
	LeasedSince   *string           `json:"leased_since,omitempty"`
	LeasedBy      *holderJSON       `json:"leased_by,omitempty"`   // a Worker; without it a leased task is with a caller of Claim
	LastLeased    *string           `json:"last_leased,omitempty"` // of a due one whose last lease has ended, likewise
	LastLeasedBy  *holderJSON       `json:"last_leased_by,omitempty"`
	Died          *string           `json:"died,omitempty"`
	Done          *string           `json:"done,omitempty"`   // when it was finished
	Failed        *string           `json:"failed,omitempty"` // when it last did, of one that is to be tried again
	Reason        string            `json:"reason,omitempty"` // why it is dead, or the last error
	Header        map[string]string `json:"header,omitempty"`
	HeaderBase64  map[string]string `json:"header_base64,omitempty"` // all of it, keys and values, if one of them is no text
	PayloadBytes  *int              `json:"payload_bytes,omitempty"` // with the header, if they are large and --payload was not given
	Payload       *string           `json:"payload,omitempty"`
	PayloadBase64 *string           `json:"payload_base64,omitempty"`
	ResultBytes   *int              `json:"result_bytes,omitempty"` // of one that is done, which has no payload
	Result        *string           `json:"result,omitempty"`
	ResultBase64  *string           `json:"result_base64,omitempty"`
}

// toTaskJSON returns a task that was read in such detail.
func toTaskJSON(e sluice.TaskInfo, o detail, staff crew) taskJSON {
	j := taskJSON{State: e.State.String(), Attempt: e.Attempt, Due: report.Time(e.Due), Failed: report.Time(e.FailedAt), Reason: strings.ToValidUTF8(e.Reason, "\uFFFD"), Header: e.Header}
	for key, value := range e.Header {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			j.HeaderBase64 = encoded(e.Header)
		}
	}
	j.ID, j.IDBase64 = report.Bytes(e.ID)
	j.Kind, j.KindBase64 = report.Bytes(e.Kind)
	if j.Units = e.Take.Units; j.Units > 0 {
		j.Item, j.ItemBase64 = report.Bytes(e.Take.Item)
	}
	j.Group, j.GroupBase64 = report.Bytes(e.Group)
	switch e.State {
	case sluice.StateLeased:
		j.LeaseEnds, j.LeasedSince, j.LeasedBy = report.Time(e.LeaseEnds), report.Time(e.LeasedSince), staff.holderJSON(e)
	case sluice.StateDue:
		j.LastLeased, j.LastLeasedBy = report.Time(e.LeasedSince), staff.holderJSON(e)
	case sluice.StateDead:
		j.Died = report.Time(e.DiedAt)
	case sluice.StateDone:
		j.Done = report.Time(e.DoneAt)
		j.ResultBytes, j.Result, j.ResultBase64 = dataJSON(e.Result, e.Omitted, o)
		return j
	}
	j.PayloadBytes, j.Payload, j.PayloadBase64 = dataJSON(e.Payload, e.Omitted, o)
	return j
}

// encoded returns a header with its keys and values in base64.
func encoded(header map[string]string) map[string]string {
	all := make(map[string]string, len(header))
	for key, value := range header {
		all[base64.StdEncoding.EncodeToString([]byte(key))] = base64.StdEncoding.EncodeToString([]byte(value))
	}
	return all
}

// dataJSON returns a payload or a result that was read in such detail: its size, and it as text or
// in base64. Each is nil if it was not asked for.
func dataJSON(data []byte, omitted int, o detail) (size *int, text, encoded *string) {
	if o.isRead() {
		n := len(data) + omitted
		size = &n
	}
	plain := string(data)
	switch {
	case !o.payload:
		return size, nil, nil
	case utf8.ValidString(plain):
		return size, &plain, nil
	}
	plain = base64.StdEncoding.EncodeToString(data)
	return size, nil, &plain
}

// mostUnasked is in how many bytes the payload and the header are stored that are read for the
// header alone.
const mostUnasked = 16 << 10

// detail says what of a task is shown beside its state.
type detail struct{ payload, header bool }

// isRead reports whether payloads and headers are read, which are stored together.
func (d detail) isRead() bool { return d.payload || d.header }

// options says what has to be read, if that is more than a filter by kind needs.
func (d detail) options(kind string) []sluice.ReadOption {
	switch {
	case d.payload:
		return []sluice.ReadOption{sluice.WithPayloadsUpTo(-1)}
	case d.header:
		return []sluice.ReadOption{sluice.WithPayloadsUpTo(mostUnasked)}
	case kind != "":
		return nil
	}
	return []sluice.ReadOption{sluice.WithoutPayloads()}
}

// headerOf prints a task's header, or how large it is.
func headerOf(e sluice.TaskInfo) string {
	if e.Omitted > 0 {
		return inspect.Plural(int64(e.Omitted), "byte") + " with the payload, shown with --payload"
	}
	return headerText(e.Header)
}

// The states in which a task can be listed.
var listed = map[string]sluice.State{"due": sluice.StateDue, "scheduled": sluice.StateScheduled, "leased": sluice.StateLeased, "dead": sluice.StateDead, "done": sluice.StateDone, "waiting": sluice.StateWaiting}

// otherWords are what other queues, such as asynq, call these states.
var otherWords = map[string][]string{
	"due": {"pending", "ready"}, "scheduled": {"retry", "delayed"}, "leased": {"active", "running"}, "dead": {"archived", "failed", "buried"},
	"done": {"completed", "finished", "succeeded"},
}

func stateNamed(name string) (sluice.State, error) {
	state, ok := listed[name]
	if ok {
		return state, nil
	}
	states := &cobra.Command{} // as if they were commands: cobra finds what is like a word
	for state := range listed {
		states.AddCommand(&cobra.Command{Use: state, SuggestFor: otherWords[state], Run: func(*cobra.Command, []string) {}})
	}
	return state, usagef("--state is due, scheduled, leased, dead, done or waiting%s", didYouMean(states, name))
}

// pageSize is how many tasks are read at a time.
const pageSize = 250

// lsOptions are the flags of ls.
type lsOptions struct {
	targets
	filter         filter
	limit, maxLook int
	after          string
	payload, wide  bool
}

func (o lsOptions) detail() detail { return detail{payload: o.payload, header: o.wide} }

func (a *app) lsCommand() *cobra.Command {
	var o lsOptions
	c := &cobra.Command{
		Use: "ls [QUEUE]", Aliases: []string{"list", "tasks"}, SuggestFor: []string{"task"}, Short: "List the tasks of a queue that are in one state, or in several",
		Long: `List the tasks of a queue that are in one state: due, scheduled, leased, dead, done or waiting. They come in the order
in which they are due, their leases end, they have died or were finished; --newest turns it round. --after goes on where a list has ended.
Several states (--state dead,scheduled) and several queues (--match 'mail*') are a list each.

Scheduled are also those that have failed and are tried again: FAILED AGO is when they did, LAST ERROR why. A leased one is with a Worker (its
label, host and process), or with "a Claim" of a loop of one's own. "A worker that is gone" has not said for 45 seconds that it
lives: its tasks are handed out again when their leases end.

Done are those that were finished and are remembered, where the queue has a retention (WithRetention). What their handlers have recorded
as their results is shown with --payload alone.

Waiting are those that wait in their groups until others are done. They come by group; --group shows one.

--kind reads the payloads, since kinds are stored with them: see --max-look.

--until 5m lists only tasks that are due, leased, dead or done for longer than five minutes; of scheduled ones, those that failed longer ago than that.
--since 1h lists those of the last hour.`,
		Example: `  sluice ls orders --state dead --reason "connection refused"
  sluice ls orders --state leased --until 5m
  sluice ls orders --state scheduled --reason timeout --json
  sluice ls orders --state done --prefix order-17 --payload
  sluice ls orders --state dead --newest --limit 20
  sluice ls --match 'mail*' --state dead,scheduled --since 1h`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.ls(cmd.Context(), args, o) },
	}
	f := c.Flags()
	f.StringVar(&o.state, "state", "due", "due, scheduled, leased, dead, done or waiting; several of them, as dead,due; or any, which is all but done")
	o.addTo(f, "")
	o.filter.addTo(f, "")
	f.IntVar(&o.limit, "limit", 100, "how many tasks to show, 1 to 10000")
	f.IntVar(&o.maxLook, "max-look", 1_000_000, "how many tasks to look at for those that match, at the most")
	f.StringVar(&o.after, "after", "", "go on behind this place, which the list before has named")
	f.BoolVar(&o.payload, "payload", false, "show payloads and kinds, or results; in JSON, headers too")
	f.BoolVar(&o.wide, "wide", false, "cut nothing off, and show kinds and headers")
	return c
}

func (a *app) ls(ctx context.Context, args []string, o lsOptions) error {
	states, err := o.states(nil)
	if err != nil {
		return err
	}
	if o.limit < 1 || o.limit > 10_000 {
		return usagef("--limit is 1 to 10000; --after goes on behind")
	}
	for _, state := range states {
		if err := o.filter.check(state); err != nil {
			return err
		}
	}
	if o.after != "" && (o.match != "" || len(states) > 1) {
		return usagef("--after goes on with one list: name its queue and its state")
	}
	after, err := readPlace(states[0], o.after)
	if err != nil {
		return err
	}
	if err := o.filter.readTimes(func() time.Time { return a.now(ctx) }); err != nil {
		return err
	}
	queues, err := a.queuesMeant(ctx, o.targets, args)
	if err != nil {
		return err
	}
	lists := []tasksJSON{}
	for _, q := range queues {
		for _, state := range states {
			l, err := a.find(ctx, q, state, after, o)
			switch {
			case err != nil:
				return err
			case a.json:
				lists = append(lists, l.json(o))
			default:
				a.printTasks(l, o, len(queues)*len(states) > 1)
			}
		}
	}
	switch {
	case !a.json:
		return nil
	case len(lists) == 1:
		return report.Print(a.out, lists[0])
	}
	return report.Print(a.out, map[string]any{"lists": lists})
}

// foundTasks are the tasks of a queue in a state that match, at a time.
type foundTasks struct {
	queue string
	state sluice.State
	tasks []sluice.TaskInfo
	next  string // where to go on; "" at the end
	staff crew
	now   time.Time
}

// find finds the tasks of a queue in a state.
func (a *app) find(ctx context.Context, q *sluice.Queue, state sluice.State, after sluice.TaskInfo, o lsOptions) (l foundTasks, err error) {
	l = foundTasks{queue: q.Name(), state: state, now: a.now(ctx)}
	m, err := o.filter.on(ctx, q)
	if err == nil {
		l.tasks, l.next, err = find(ctx, m, state, after, o, a.newProgress("looking", -1))
	}
	if err == nil {
		l.staff, err = crewOf(ctx, q, l.tasks...)
	}
	return l, err
}

// find reads the tasks that match, o.limit at the most, and looks at o.maxLook or a page more. next
// is where to go on, "" at the end.
func find(ctx context.Context, m meant, state sluice.State, after sluice.TaskInfo, o lsOptions, p progress) (found []sluice.TaskInfo, next string, err error) {
	defer p.end()
	for looked := 0; ; {
		n := pageSize
		if !o.filter.isSet() {
			n = min(n, o.limit-len(found))
		}
		page, err := m.queue.List(ctx, state, after, n, m.options(state, o.detail().options(m.Kind)...)...)
		if err != nil {
			return found, "", err
		}
		looked += len(page)
		p.add(len(page))
		for _, e := range page {
			if m.IsPast(e, m.newest) {
				return found, "", nil
			}
			after = e
			fits, err := m.matches(ctx, &e)
			if err != nil {
				return found, "", err
			}
			if fits {
				if found = append(found, e); len(found) == o.limit {
					return found, place(e), nil
				}
			}
		}
		switch {
		case len(page) < n:
			return found, "", nil
		case looked >= o.maxLook:
			return found, place(after), nil
		}
	}
}

// place names a task in a list, for --after.
func place(e sluice.TaskInfo) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatFloat(inspect.Place(e), 'g', -1, 64) + ":" + inspect.Name(e)))
}

func readPlace(s sluice.State, text string) (t sluice.TaskInfo, err error) {
	if text == "" {
		return t, nil
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	text, name, found := strings.Cut(string(data), ":")
	var score float64
	if err == nil {
		score, err = strconv.ParseFloat(text, 64)
	}
	if err != nil || !found || name == "" {
		return t, usagef("--after is not what a list has named as its end")
	}
	return inspect.At(s, score, name), nil
}

type tasksJSON struct {
	Queue       string     `json:"queue"`
	QueueBase64 string     `json:"queue_base64,omitempty"`
	State       string     `json:"state"`
	Tasks       []taskJSON `json:"tasks"`
	After       string     `json:"after"` // where to go on; empty at the end
}

func (l foundTasks) json(o lsOptions) tasksJSON {
	j := tasksJSON{State: l.state.String(), Tasks: []taskJSON{}, After: l.next}
	j.Queue, j.QueueBase64 = report.Bytes(l.queue)
	for _, e := range l.tasks {
		j.Tasks = append(j.Tasks, toTaskJSON(e, o.detail(), l.staff))
	}
	return j
}

// printTasks prints a table of tasks in one state; one of several with a title, and not if it is empty.
func (a *app) printTasks(l foundTasks, o lsOptions, titled bool) {
	if titled && len(l.tasks) == 0 {
		return
	}
	if titled {
		_, _ = fmt.Fprintf(a.out, "%s, %s:\n", show(l.queue), l.state)
	}
	_, _ = fmt.Fprintln(a.out, tableWithin(a.width(), l.columns(o), l.tasks))
	if titled {
		_, _ = fmt.Fprintln(a.out)
	}
	if l.next != "" {
		_, _ = fmt.Fprintf(a.errOut, "There may be more: --after %s\n", l.next)
	}
}

// columns are what a table shows of the tasks.
func (l foundTasks) columns(o lsOptions) []column[sluice.TaskInfo] {
	state, staff, now := l.state, l.staff, l.now
	has := func(what func(e sluice.TaskInfo) bool) bool { return slices.ContainsFunc(l.tasks, what) }
	columns := []column[sluice.TaskInfo]{
		{"id", false, func(e sluice.TaskInfo) any { return show(e.ID) }},
		{"attempts", true, func(e sluice.TaskInfo) any { return e.Attempt }},
	}
	add := func(name string, cell func(e sluice.TaskInfo) any) {
		columns = append(columns, column[sluice.TaskInfo]{name, false, cell})
	}
	titles := map[sluice.State][2]string{
		sluice.StateDue: {"due", "for"}, sluice.StateScheduled: {"due", "in"}, sluice.StateLeased: {"lease ends", "in"}, sluice.StateDead: {"died", "ago"},
		sluice.StateDone: {"done", "ago"}, sluice.StateWaiting: {"due", "in"},
	}[state]
	add(titles[0], func(e sluice.TaskInfo) any { return moment(inspect.TimeOf(e)) })
	columns = append(columns, column[sluice.TaskInfo]{titles[1], true, func(e sluice.TaskInfo) any {
		return span(max(0, inspect.TimeOf(e).Sub(now), now.Sub(inspect.TimeOf(e))))
	}})
	if state == sluice.StateLeased {
		add("leased for", func(e sluice.TaskInfo) any { return spanSince(e.LeasedSince, now) })
		add("by", func(e sluice.TaskInfo) any { return cut(staff.holder(e), 60, o.wide) })
	}
	if state == sluice.StateDead {
		add("reason", func(e sluice.TaskInfo) any { return cut(show(e.Reason), 80, o.wide) })
	} else if has(func(e sluice.TaskInfo) bool { return !e.FailedAt.IsZero() }) {
		add("failed ago", func(e sluice.TaskInfo) any { return spanSince(e.FailedAt, now) })
		add("last error", func(e sluice.TaskInfo) any { return cut(lastError(e), 80, o.wide) })
	}
	if has(func(e sluice.TaskInfo) bool { return e.Group != "" }) {
		add("group", func(e sluice.TaskInfo) any { return show(e.Group) })
	}
	if has(func(e sluice.TaskInfo) bool { return e.Kind != "" }) {
		add("kind", func(e sluice.TaskInfo) any { return show(e.Kind) })
	}
	isDone := state == sluice.StateDone
	if o.wide && !isDone {
		add("header", func(e sluice.TaskInfo) any { return headerOf(e) })
	}
	switch {
	case isDone && o.payload:
		add("result", func(e sluice.TaskInfo) any { return cut(show(string(e.Result)), 120, o.wide) })
	case isDone && o.wide:
		add("result", func(e sluice.TaskInfo) any { return inspect.Plural(int64(len(e.Result)+e.Omitted), "byte") })
	case o.payload:
		add("payload", func(e sluice.TaskInfo) any { return cut(show(string(e.Payload)), 120, o.wide) })
	}
	return columns
}

// lastError is why a task failed, "-" if it has not.
func lastError(e sluice.TaskInfo) string {
	if e.FailedAt.IsZero() {
		return "-"
	}
	return show(e.Reason)
}

func cut(shown string, n int, wide bool) string {
	if wide {
		return shown
	}
	return short(shown, n)
}

// headerText prints a task's header.
func headerText(header map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(header)) {
		pairs = append(pairs, show(key)+"="+show(header[key]))
	}
	return strings.Join(pairs, " ")
}

// now returns the server's time, by which tasks are due; or this machine's, where the server does
// not say.
func (a *app) now(ctx context.Context) time.Time {
	rdb, err := a.connect(ctx)
	if err == nil {
		if now, err := rdb.Time(ctx).Result(); err == nil {
			return now
		}
	}
	return time.Now()
}
