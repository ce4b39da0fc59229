package model

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sluice-go/sluice"
)

// Record is a finished task that is remembered. It is shown unless a task of its ID is in the
// queue, or dead.
type Record struct {
	ID      string
	At      float64 // when it was finished
	Attempt int
	Result  string
}

// record returns where the record of an ID is, or belongs.
func (q *Queue) record(id string) (i int, found bool) {
	return slices.BinarySearchFunc(q.Records, id, func(r Record, id string) int { return strings.Compare(r.ID, id) })
}

// remember remembers tasks for age seconds, and forgets others.
func (q *Queue) remember(now, age float64, finished []Record) {
	for _, r := range finished {
		if i, found := q.record(r.ID); found {
			q.Records[i] = r
		} else {
			q.Records = slices.Insert(q.Records, i, r)
		}
	}
	if len(finished) > 0 {
		q.Forget(now, age)
	}
}

// Forget forgets what was finished age seconds ago or before.
func (q *Queue) Forget(now, age float64) (forgotten int) {
	before := len(q.Records)
	q.Records = slices.DeleteFunc(q.Records, func(r Record) bool { return r.At <= now-age })
	return before - len(q.Records)
}

// shown returns the record of an ID, if it is shown.
func (q *Queue) shown(id string) (r Record, ok bool) {
	i, found := q.record(id)
	if it := q.Item(id); !found || it.Queued || it.Listed || it.Awaits() {
		return Record{}, false
	}
	return q.Records[i], true
}

// forgetID forgets an ID.
func (q *Queue) forgetID(id string) {
	if i, found := q.record(id); found {
		q.Records = slices.Delete(q.Records, i, i+1)
	}
}

// EnqueueOnce is Enqueue with DuplicatesOnce: what was finished less than within seconds ago keeps
// its ID.
func (q *Queue) EnqueueOnce(now, within float64, id string, due float64, payload string) sluice.Outcome {
	if r, ok := q.shown(id); ok && r.At > now-within {
		return sluice.OutcomeDone
	}
	return q.Enqueue(now, sluice.DuplicatesOnce, id, due, payload)
}

// retained reports whether a record is not over the retention.
func (q *Queue) retained(now float64, r Record) bool {
	return q.Retention == 0 || r.At > now-q.Retention
}

// ListDone returns up to n finished tasks behind the one that is named, in the order of their ends.
func (q *Queue) ListDone(now float64, after sluice.TaskInfo, n int) (seen []sluice.TaskInfo) {
	records := slices.Clone(q.Records)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	for _, r := range records {
		if _, ok := q.shown(r.ID); ok && q.retained(now, r) && len(seen) < n && follows(r.info(), after) {
			seen = append(seen, r.info())
		}
	}
	return seen
}

// Ending is what becomes of tasks that are finished.
type Ending struct {
	Age       float64        // for how many seconds they are remembered; 0 for none
	Results   map[int]string // of some tasks, by their places
	Discarded bool           // their units are put back, and not sold
	Unaware   bool           // who ends them does not know that tasks hold units
}

// Dequeue is Finish, of tasks that are not remembered.
func (q *Queue) Dequeue(now float64, es ...sluice.Entry) (stale []string) {
	return q.Finish(now, Ending{}, es...)
}

// Finish finishes tasks, and returns the IDs of those whose receipt is stale. One call finishes a
// task once. Receipts are those of when it begins: what it lets into play stays.
func (q *Queue) Finish(now float64, end Ending, es ...sluice.Entry) (stale []string) {
	done := map[string]bool{}
	var finished []Record
	var left []Item
	before := q.Clone()
	for i, e := range es {
		ok := !done[e.ID] && before.withReceipt(now, e, func(it *Item, task Item) {
			q.Finished++
			if end.Discarded {
				q.Discarded++
			}
			if task.Waiting {
				q.giveBack(q.Item(e.ID), task, 0, 0)
				return
			}
			if end.Unaware && task.Take.Units > 0 {
				q.Owed = append(q.Owed, task.Take)
			} else {
				q.settle(task.Take, !end.Discarded)
			}
			left = append(left, *it)
			finished = append(finished, Record{task.ID, now, task.Attempt, end.Results[i]})
		})
		if !ok {
			stale = append(stale, e.ID)
		}
		done[e.ID] = done[e.ID] || ok
	}
	for _, was := range left {
		*q.Item(was.ID) = Item{ID: was.ID}
	}
	q.leaveGroups(true, left...)
	if end.Age > 0 {
		q.remember(now, end.Age, finished)
	}
	return stale
}
