package main

import (
	"strconv"
	"strings"

	"github.com/sluice-go/sluice"
)

// memory is what a queue remembers of an ID.
type memory struct {
	at     float64 // when it was finished; 0 if it was not
	text   string  // its attempt and its result
	isLong bool    // it has such a text
}

// known says whether the ID is remembered as done.
func (m memory) known() bool { return m.at != 0 }

// parts returns the attempt and the result.
func (m memory) parts() (attempt int, result string) {
	if !m.isLong {
		return 1, ""
	}
	count, result, _ := strings.Cut(m.text, " ")
	attempt, _ = strconv.Atoi(count)
	return attempt, result
}

// remember carries out a command on what a queue remembers. It calls touch for every ID before it
// changes the ID.
func (k keyspace) remember(queue, which, verb string, args []string, touch func(taskKey)) {
	edit := func(id string, f func(m *memory)) {
		key := taskKey{queue, id}
		touch(key)
		m := k.memories[key]
		if f(&m); m == (memory{}) {
			delete(k.memories, key)
		} else {
			k.memories[key] = m
		}
	}
	switch verb {
	case "ZADD":
		for at, id := range scored(args) {
			edit(id, func(m *memory) { m.at = at })
		}
	case "HSET":
		for i := 0; i+1 < len(args); i += 2 {
			edit(args[i], func(m *memory) { m.text, m.isLong = args[i+1], true })
		}
	case "ZREM", "HDEL":
		for _, id := range args {
			edit(id, func(m *memory) { m.forget(which) })
		}
	default: // DEL, UNLINK, and commands that are not expected here
		for key := range k.memories {
			if key.queue == queue {
				edit(key.id, func(m *memory) { m.forget(which) })
			}
		}
	}
}

func (m *memory) forget(which string) {
	if which == "done" {
		m.at = 0
	} else {
		m.text, m.isLong = "", false
	}
}

// finish is an entry of the log that has finished a task which is to be remembered, or has changed
// what is remembered.
type finish struct {
	move
	before, after memory
	lost          bool
}

// finished records how an entry has changed what is remembered of a task, and each removal and each
// new task of the queue whose tasks are enqueued once. was is the task before.
func (r *replayer) finished(key taskKey, before memory, was task, at *entry) {
	m := move{span: at.span, taskKey: key, kind: classify(was, r.tasks[key]), was: was, is: r.tasks[key]}
	after := r.memories[key]
	if before != after || key.queue == onceQueue && (m.kind == removed || m.kind == added) {
		r.finishes = append(r.finishes, finish{m, before, after, at.lost})
	}
}

// checkOnce checks the tasks that are enqueued once. In the log, as far as it was not cut off: what
// removes one remembers it, and nothing else does; no ID is added, or finished, that is remembered;
// nothing is forgotten. At the end everything is done that was enqueued, with the result of the
// handler whose attempt was accepted, and the library says so.
func (t *tasksCheck) checkOnce() {
	ends := map[taskKey]finish{}
	for _, f := range t.finishes {
		t.checkFinish(f)
		if f.kind != removed || f.lost {
			continue
		}
		if _, twice := ends[f.taskKey]; twice {
			t.report("%v was finished again at %v", f.taskKey, f.span)
		}
		ends[f.taskKey] = f
	}
	written, wanted := map[string]bool{}, map[string]bool{} // by ID
	for version, r := range t.enqueued {
		if kept, isWritten := t.versions[version]; isWritten && r.Name == onceQueue {
			written[r.ID] = true
			wanted[r.ID] = wanted[r.ID] || kept
		}
	}
	for _, r := range t.enqueued {
		t.checkAnswer(r, written)
	}
	for id, isKept := range wanted {
		if isKept {
			t.checkDone(id, ends)
		}
	}
	for id := range t.listedDone {
		if !t.end.memories[taskKey{onceQueue, id}].known() {
			t.report("%s is listed as done, and the log does not have it", id)
		}
	}
	t.countHandlers()
}

// checkFinish checks how an entry of the log has changed what is remembered.
func (t *tasksCheck) checkFinish(f finish) {
	_, result := f.after.parts()
	switch isNew := f.after.known() && !f.before.known(); {
	case f.queue != onceQueue:
		t.report("%v is remembered at %v, and its queue has no retention: %+v", f.taskKey, f.span, f.after)
	case f.before.known() && !f.after.known():
		t.report("%v was forgotten at %v: %+v", f.taskKey, f.span, f.before)
	case f.before.known():
		t.report("%v was done, and at %v it was %s: %+v became %+v", f.taskKey, f.span, f.kind, f.before, f.after)
	case isNew && f.kind != removed:
		t.report("%v is remembered at %v, and it was not finished: %+v became %+v", f.taskKey, f.span, f.was, f.is)
	case f.kind == removed && !isNew:
		t.report("%v was removed at %v, and is not remembered", f.taskKey, f.span)
	case isNew:
		earliest, latest := t.clock.at(f.span)
		if at := seconds(f.after.at); at < earliest-settle || at > latest+settle {
			t.report("%v was finished at %v by its record, between %v and %v", f.taskKey, at, earliest, latest)
		}
		t.counts["once: tasks finished"]++
		t.checkResult(f, result)
	}
}

// checkResult checks that the record of a task has the attempt and the result of the delivery that
// has ended. A full server keeps no result.
func (t *tasksCheck) checkResult(f finish, result string) {
	handler, want := t.handlers[receipt{f.taskKey, f.was.delivery}], ""
	if handler != nil {
		want = resultMark(*handler)
	}
	if attempt, _ := f.after.parts(); attempt != f.was.attempt {
		t.report("%v was finished at %v with attempt %d, and the record has %d", f.taskKey, f.span, f.was.attempt, attempt)
	}
	switch {
	case result == want && want != "":
		t.counts["once: results"]++
	case result == want:
	case result == "" && handler.Result != pending:
		t.counts["once: results that a full server refused"]++
	default:
		t.report("%v was finished at %v with the result %q instead of %q", f.taskKey, f.span, result, want)
	}
}

// checkAnswer checks what an enqueue was told: that its ID is in the queue, or done, is true only
// of one that someone has added before.
func (t *tasksCheck) checkAnswer(r *record, written map[string]bool) {
	if r.Name != onceQueue || r.Result != done {
		return
	}
	outcome := sluice.Outcome(r.Outcome)
	t.counts["once: enqueues "+outcome.String()]++
	switch outcome {
	case sluice.OutcomeAdded: // see checkEnqueues
	case sluice.OutcomeSoldOut: // see checkTake
	case sluice.OutcomeDone:
		isDone := func(f finish) bool {
			return f.taskKey == (taskKey{onceQueue, r.ID}) && f.after.known() && f.span.after <= r.Return
		}
		if !t.anyFinish(r.ID, isDone) && !t.inGap(0, r.Return) {
			t.report("%s was told at %v that %s is done, and nothing had finished it", r.Process, r.Return, r.ID)
		}
	case sluice.OutcomeKept:
		if !written[r.ID] && !t.inGap(0, r.Return) {
			t.report("%s was told at %v that %s is there, and nothing had added it", r.Process, r.Return, r.ID)
		}
	default:
		t.report("%s of %s at %v by %s: outcome %v of an enqueue that adds once", r.Op, r.ID, r.Return, r.Process, outcome)
	}
}

// anyFinish says whether what is wanted is among the finishes of an ID.
func (t *tasksCheck) anyFinish(id string, wanted func(finish) bool) bool {
	for _, i := range t.finishesOf[id] {
		if wanted(t.finishes[i]) {
			return true
		}
	}
	return false
}

// checkDone checks that an ID that was added, which was not cut off, is done at the end, in the log
// and by the library.
func (t *tasksCheck) checkDone(id string, ends map[taskKey]finish) {
	key := taskKey{onceQueue, id}
	last := t.end.memories[key]
	attempt, result := last.parts()
	listed, isListed := t.listedDone[id]
	_, isFinished := ends[key]
	switch {
	case !last.known():
		t.report("%s was added, and is not done when everything is quiet: %+v", id, t.end.tasks[key])
	case !isFinished:
		t.report("%s is done, and nothing has finished it: %+v", id, last)
	case t.listedDone != nil && (!isListed || listed != doneTask{attempt, result}):
		t.report("%s is done, with attempt %d and the result %q, and the library says %+v (%t)", id, attempt, result, listed, isListed)
	default:
		t.counts["once: IDs done at the end"]++
	}
}

// countHandlers counts how often handlers ran for an ID more than once: since a lease has ended, an
// attempt failed, or what was finished was cut off.
func (t *tasksCheck) countHandlers() {
	ran := map[string]int{}
	for _, r := range t.handlers {
		if r.Name == onceQueue {
			ran[r.ID]++
		}
	}
	for _, n := range ran {
		t.counts["once: handlers"] += n
		t.counts["once: handlers of an ID that had one"] += n - 1
	}
}

// keptFromBatch says whether a version has the due time of one before it in the same batch, which
// the log does not show. Calls are merged in any order, but the version that the log shows was the
// last of its batch.
func (t *tasksCheck) keptFromBatch(m *move, r *record, due float64) bool {
	earliest, latest := t.clock.at(m.span)
	for _, o := range t.ops[m.taskKey] {
		at := seconds(due) - o.Delay
		isOfBatch := o != r && o.Op == opEnqueue && o.Process == r.Process && o.Policy == r.Policy && o.Call <= m.before && (o.Return == 0 || o.Return >= r.Call)
		if isOfBatch && o.Delay < r.Delay && at >= earliest-settle && at <= latest+settle {
			return true
		}
	}
	return false
}
