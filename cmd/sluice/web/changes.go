package web

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// mostDelay is how far a visitor may put a task off or pause a queue.
const mostDelay = 365 * 24 * time.Hour

// isTyped reports whether a visitor has typed a name, as it is or as it is shown.
func isTyped(typed, name string) bool { return typed == name || typed == shown(name) }

// delay reads a form's length of time.
func (v *visit) delay(field string) (time.Duration, error) {
	d, err := time.ParseDuration(v.r.PostForm.Get(field))
	if err != nil || d < 0 || d > mostDelay {
		return 0, fmt.Errorf("%w: write a time as 90s, 10m or 2h", sluice.ErrInvalid)
	}
	return d, nil
}

// limits reads a form's limits.
func (v *visit) limits() (sluice.Limits, error) {
	text := func(field string) string { return strings.TrimSpace(v.r.PostForm.Get(field)) }
	return inspect.ReadLimits(text("running"), text("rate"), text("burst"), text("per-group"))
}

// changeQueue pauses or resumes a queue, sets or takes away its limits, changes all tasks that match,
// or purges it.
func (p *page) changeQueue(v *visit) error {
	s := p.watch.of(v.queue())
	q, err := s.open()
	if err != nil {
		return err
	}
	url := p.queueURL(s.name)
	do := v.r.PostForm.Get("do")
	switch do {
	case "pause":
		d, err := v.delay("for")
		if err != nil {
			return err
		}
		err = q.Pause(v.ctx, d)
		return v.end(s, url, do, err, "The queue is paused: nothing is handed out. Tasks that are being worked on go on.")
	case "resume":
		return v.end(s, url, do, q.Resume(v.ctx), "The queue goes on.")
	case "limit":
		l, err := v.limits()
		if err != nil {
			return err
		}
		return v.end(s, url, do, q.SetLimits(v.ctx, l), "The queue has limits: "+inspect.LimitsText(l)+". Tasks that are being worked on go on.")
	case "unlimit":
		return v.end(s, url, do, q.SetLimits(v.ctx, sluice.Limits{}), "The queue has no limits.")
	case "purge":
		if !isTyped(v.r.PostForm.Get("name"), s.name) {
			return v.done(url, notice{"Nothing was purged: the name that was typed is not the queue's.", true})
		}
		return v.end(s, url, do, q.Purge(v.ctx), "The queue is purged: it has no task and no dead letter.")
	}
	if _, known := deeds[do]; known {
		return p.changeMatching(v, s, q, do)
	}
	return errForm
}

// end tells of a change to a queue, sends the visitor back, and has the figures read anew.
func (v *visit) end(s *series, url, what string, err error, success string) error {
	if err != nil {
		return err
	}
	v.changed(s)
	v.audit(what, "queue", s.name)
	return v.done(url, notice{Text: success})
}

// changed has what was changed of a queue read anew.
func (v *visit) changed(s *series) {
	s.stats.expire()
	v.lists.forget(s.name)
	v.tasks.forget(s.name)
	v.tables.forget("")
}

// changeTasks changes those tasks of a list that were selected.
func (p *page) changeTasks(v *visit) error {
	s := p.watch.of(v.queue())
	l := newListing(v.r.PostForm)
	back := p.queueURL(s.name) + l.Query()
	var ids []string
	for _, value := range v.r.PostForm["id"] {
		id, err := fromFormValue(value)
		if err != nil || len(ids) >= mostPerPage {
			return errForm
		}
		ids = append(ids, id)
	}
	do := v.r.PostForm.Get("do")
	known, isKnown := deeds[do]
	switch {
	case !isKnown:
		return errForm
	case len(ids) == 0:
		return v.done(back, notice{"Nothing was selected.", true})
	case (known.Danger || len(ids) > 1) && !v.isSure():
		return v.ask(confirmData{Queue: s.name, Do: do, IDs: ids, List: l, Back: back, To: p.tasksURL(s.name)})
	}
	q, err := s.open()
	if err != nil {
		return err
	}
	n, err := p.apply(v, q, do, ids, sluice.StateAbsent)
	if err != nil && n == 0 {
		return err
	}
	v.changed(s)
	v.audit(do, "queue", s.name, "tasks", n)
	return v.done(back, outcome(do, n, len(ids), err))
}

// changeTask changes one task.
func (p *page) changeTask(v *visit) error {
	s := p.watch.of(v.queue())
	do, id, url := v.r.PostForm.Get("do"), v.task(), p.taskURL(v.queue(), v.task())
	known, isKnown := deeds[do]
	switch {
	case !isKnown:
		return errForm
	case known.Danger && !v.isSure():
		return v.ask(confirmData{Queue: s.name, Do: do, IDs: []string{id}, List: listing{State: known.removed, N: perPage}, Back: url, To: url})
	}
	q, err := s.open()
	if err != nil {
		return err
	}
	n, err := p.apply(v, q, do, []string{id}, sluice.StateAbsent)
	if err != nil {
		return err
	}
	v.changed(s)
	v.audit(do, "queue", s.name, "tasks", n)
	if known.Danger {
		l := listing{State: known.removed, N: perPage}
		url = p.queueURL(s.name) + l.Query()
	}
	return v.done(url, outcome(do, n, 1, nil))
}

// each calls f with each ID, some at a time, and returns how often it was true, and the errors.
func each(ctx context.Context, ids []string, f func(context.Context, string) (bool, error)) (int, error) {
	var n atomic.Int64
	var mu sync.Mutex
	var first error
	places := make(chan struct{}, lookers)
	var group sync.WaitGroup
	for _, id := range ids {
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			done, err := f(ctx, id)
			if done {
				n.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = err
			}
		})
	}
	group.Wait()
	return int(n.Load()), first
}

// outcome says with how many tasks something was done.
func outcome(do string, n, of int, err error) notice {
	verb := deeds[do].Past
	text := inspect.Plural(int64(n), "task") + " " + verb + "."
	if n < of {
		text += " " + inspect.Plural(int64(of-n), "other") + " had changed meanwhile, and were left alone."
	}
	if err != nil {
		_, f := explain(err)
		text += " " + f.What + ": " + f.Detail
		if errors.Is(err, sluice.ErrUnknown) {
			text += ". " + f.Advice
		}
	}
	return notice{text, err != nil || n == 0}
}

// changeLock forces a lock open.
func (p *page) changeLock(v *visit) error {
	url := p.lockURL(v.lock())
	if v.r.PostForm.Get("do") != "force" {
		return errForm
	}
	if !isTyped(v.r.PostForm.Get("name"), v.lock()) {
		return v.done(url, notice{"The lock was left alone: the name that was typed is not its name.", true})
	}
	held, err := p.locker.ForceUnlock(v.ctx, v.lock())
	if err != nil {
		return err
	}
	v.audit("force unlock", "lock", v.lock(), "held", held)
	if !held {
		return v.done(url, notice{"The lock was free already.", false})
	}
	return v.done(url, notice{"The lock was forced open. Its former holder is not stopped: it learns of this when it next asks Redis.", false})
}
