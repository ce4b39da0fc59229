package web

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// deed is what can be done with tasks, in words.
type deed struct {
	Verb    string         // in front of what is changed
	Button  string         // which does it after the question
	Past    string         // behind what was changed
	Advice  string         // of the question
	Danger  bool           // it removes tasks for good
	Of      []sluice.State // of all tasks of which states it can be done
	removed sluice.State   // the list that is shown after one task was removed
}

// deeds by the value of their button. What removes a task for good, and what is done to more than
// one, is asked back. All scheduled or waiting tasks cannot be put off: they would come again,
// later in the same list.
var deeds = map[string]deed{
	"revive": {"Revive", "Revive", "revived: due now, with no attempts", "They are due now, with no attempts.", false, []sluice.State{sluice.StateDead}, sluice.StateAbsent},
	"run":    {"Run now", "Run now", "due now", "They are due now.", false, []sluice.State{sluice.StateScheduled}, sluice.StateAbsent},
	"delay":  {"Put off", "Put off", "put off", "They are due later, by the time that was chosen, from now.", false, []sluice.State{sluice.StateDue}, sluice.StateAbsent},
	"drop":   {"Drop", "Drop for good", "dropped for good", "They are removed for good, payload and all.", true, []sluice.State{sluice.StateDead}, sluice.StateDead},
	"cancel": {
		"Cancel", "Cancel for good", "cancelled", "They are removed for good. One that is being worked on may still be finished by its holder.", true,
		[]sluice.State{sluice.StateDue, sluice.StateScheduled, sluice.StateWaiting, sluice.StateLeased}, sluice.StateDue,
	},
	"forget": {
		"Forget", "Forget", "forgotten", "They are remembered no more, and their results are gone. Their IDs can be enqueued again, where they were kept from that (DuplicatesOnce).", true,
		[]sluice.State{sluice.StateDone}, sluice.StateDone,
	},
}

// nouns are what the tasks of a state are called.
var nouns = map[sluice.State]string{
	sluice.StateDead: "dead letter", sluice.StateDone: "done task", sluice.StateDue: "due task", sluice.StateScheduled: "scheduled task",
	sluice.StateWaiting: "waiting task", sluice.StateLeased: "leased task",
}

// confirmData is what the page shows that asks before many tasks are changed, or one for good.
type confirmData struct {
	Queue, Do string
	IDs       []string // those that were selected; none for all that match
	List      listing
	Back      string
	To        string // where the form goes
	Count     int64
	More      bool   // there are more than were counted while there was time
	For       string // how far tasks are put off
}

// Deed is what is asked.
func (d confirmData) Deed() deed { return deeds[d.Do] }

// What names what is changed.
func (d confirmData) What() string {
	noun := "task"
	if n := nouns[d.List.State]; n != "" && (len(d.IDs) == 0 || d.List.IsDead() || d.List.IsDone()) {
		noun = n
	}
	if len(d.IDs) > 0 {
		return inspect.Plural(int64(len(d.IDs)), noun)
	}
	if d.More {
		return "more than " + inspect.Plural(d.Count, noun)
	}
	return inspect.Plural(d.Count, noun)
}

// ask shows a question, whose answer is sent to the same URL.
func (v *visit) ask(d confirmData) error {
	if d.Do == "delay" {
		if _, err := v.delay("for"); err != nil {
			return err
		}
		d.For = v.r.PostForm.Get("for")
	}
	return v.render(http.StatusOK, "confirm", "Are you sure?", "queues", d)
}

// isSure reports whether the visitor was asked.
func (v *visit) isSure() bool { return v.r.PostForm.Get("sure") == "1" }

// bulk is a change of all tasks that match.
type bulk struct {
	*visit
	series  *series
	queue   *sluice.Queue
	do      string
	list    listing
	matches func(sluice.TaskInfo) bool
}

// changeMatching changes the tasks of a state that match, a page at a time, after the visitor was
// told how many they are. When there is no more time, or Redis fails, what was done stays done, and
// the next press goes on behind.
func (p *page) changeMatching(v *visit, s *series, q *sluice.Queue, do string) error {
	l := newListing(v.r.PostForm)
	if !slices.Contains(deeds[do].Of, l.State) {
		return errForm
	}
	b := &bulk{visit: v, series: s, queue: q, do: do, list: l}
	var err error
	if b.matches, err = l.matcher(v.ctx, s); err != nil {
		return err
	}
	url := p.queueURL(s.name)
	if !v.isSure() {
		n, more, err := b.count()
		if err != nil {
			return err
		}
		if n == 0 && !more {
			return v.done(url+l.Query(), notice{"There is nothing to be changed: no task matches.", true})
		}
		return v.ask(confirmData{Queue: s.name, Do: do, List: l, Back: url + l.Query(), To: url, Count: n, More: more})
	}
	n, more, err := b.change()
	if err != nil && n == 0 {
		return err
	}
	v.changed(s)
	v.audit(do, "queue", s.name, "tasks", n)
	result := notice{Text: inspect.Plural(int64(n), nouns[l.State]) + " " + deeds[do].Past + "."}
	url += b.list.Query()
	if more {
		result.Text += " There are more: go on by pressing the button again."
		url += "&goes-on="
	}
	if err != nil {
		_, f := explain(err)
		result = notice{result.Text + " It was ended by an error: " + f.What + ": " + f.Detail, true}
	}
	return v.done(url, result)
}

// count returns how many tasks match, or that there are more than were counted while there was
// time.
func (b *bulk) count() (n int64, more bool, err error) {
	if !b.list.IsSet() {
		b.series.stats.expire()
		stats, err := b.series.stats.get(b.ctx)
		return countOf(stats, b.list.State), false, err
	}
	last, _, err := search(b.ctx, b.queue, b.list, b.matches, b.busy, func(sluice.TaskInfo) bool {
		n++
		return true
	})
	return n, last != nil, err
}

// countOf returns how many tasks are in a state.
func countOf(s sluice.Stats, state sluice.State) int64 {
	return map[sluice.State]int64{
		sluice.StateDue: s.Due, sluice.StateScheduled: s.Scheduled, sluice.StateWaiting: s.GroupWaiting,
		sluice.StateLeased: s.Leased, sluice.StateDead: s.Dead, sluice.StateDone: s.Done,
	}[state]
}

// change changes the tasks of the listing that match, a page at a time for as long as there is
// time. It moves the listing on behind each page, and to the beginning at the end.
func (b *bulk) change() (n int, more bool, err error) {
	l := &b.list
	for until := time.Now().Add(b.busy); ; {
		part, err := l.part(b.ctx, b.queue, l.After, mostPerPage)
		if err != nil {
			return n, true, err
		}
		var ids []string
		for _, t := range part {
			if t.ID != "" && b.matches(t) {
				ids = append(ids, t.ID)
			}
		}
		changed, err := b.apply(b.visit, b.queue, b.do, ids, l.State)
		n += changed
		if err != nil {
			return n, true, err
		}
		if len(part) < mostPerPage {
			l.After = sluice.TaskInfo{}
			return n, false, nil
		}
		if l.After = part[len(part)-1]; time.Now().After(until) {
			return n, true, nil
		}
	}
}

// apply does something with tasks, and returns with how many. Those that are in another state by
// now are left alone: than the one that is given or, for StateAbsent, than can be changed so.
func (p *page) apply(v *visit, q *sluice.Queue, do string, ids []string, of sluice.State) (int, error) {
	switch do {
	case "revive":
		return q.Revive(v.ctx, ids...)
	case "drop":
		return q.Drop(v.ctx, ids...)
	}
	var delay time.Duration
	if do == "delay" {
		var err error
		if delay, err = v.delay("for"); err != nil {
			return 0, err
		}
	}
	removes := do == "cancel" || do == "forget"
	return each(v.ctx, ids, func(ctx context.Context, id string) (bool, error) {
		// Looked at just before: a task may have died since it was listed, or was finished, and is
		// to be remembered; or a worker has it, which would have it again afterwards.
		t, err := q.Get(ctx, id, sluice.WithoutPayloads())
		isMeant := t.State != sluice.StateDead && (t.State == sluice.StateDone) == (do == "forget") && (removes || t.State != sluice.StateLeased)
		switch {
		case isNotFound(err):
			return false, nil
		case err != nil || !isMeant || of != sluice.StateAbsent && t.State != of:
			return false, err
		case !removes:
			return q.Reschedule(ctx, id, delay)
		}
		was, err := q.Cancel(ctx, id)
		return was != sluice.StateAbsent, err
	})
}
