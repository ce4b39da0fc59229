package model

import (
	"cmp"
	"math"
	"slices"

	"github.com/sluice-go/sluice"
)

// Peek returns up to n due tasks, earliest first.
func (q *Queue) Peek(now float64, n int) (seen []sluice.Entry) {
	for _, t := range q.list(now, sluice.StateDue, sluice.TaskInfo{}, n, func(it, _ Item) bool { return it.state(now) == sluice.StateDue }) {
		seen = append(seen, t.Entry)
	}
	return seen
}

// List returns up to n tasks in a state behind the one that is named, in the order of their scores.
func (q *Queue) List(now float64, s sluice.State, after sluice.TaskInfo, n int) []sluice.TaskInfo {
	switch s {
	case sluice.StateDead:
		return q.Dead(after, n)
	case sluice.StateDone:
		return q.ListDone(now, after, n)
	case sluice.StateWaiting:
		return q.ListWaiting("", after, n)
	}
	return q.list(now, s, after, n, func(it, task Item) bool {
		// A version that waits behind a lease that has run out has no place of its own to go on
		// from, nor has a task that waits in its group and got a score from a foreign producer.
		return it.state(now) == s && (s == sluice.StateLeased || it.Score == task.Score)
	})
}

// All returns the tasks in a state as List does. Among the due ones stand also versions that wait
// behind a lease that has run out, whenever they are due: they count as due until the next claim.
func (q *Queue) All(now float64, s sluice.State) []sluice.TaskInfo {
	if s != sluice.StateDue {
		return q.List(now, s, sluice.TaskInfo{}, math.MaxInt)
	}
	return q.list(now, s, sluice.TaskInfo{}, math.MaxInt, func(it, _ Item) bool {
		return it.state(now) == sluice.StateDue || it.state(now) == sluice.StateScheduled
	})
}

func (q *Queue) list(now float64, s sluice.State, after sluice.TaskInfo, n int, wanted func(it, task Item) bool) (seen []sluice.TaskInfo) {
	// What is due stands before what is not: a waiting version whose lease has ended is nowhere.
	ids := q.ids(func(it Item) (float64, bool) {
		if s == sluice.StateLeased {
			return it.Lease, it.Queued
		}
		return it.Score, it.Queued && (it.Score <= now) == (s == sluice.StateDue)
	})
	for _, id := range ids {
		it := q.Item(id)
		task := it.current(now)
		t := task.info(s)
		if wanted(*it, task) && len(seen) < n && follows(t, after) {
			seen = append(seen, t)
		}
	}
	return seen
}

// Dead returns up to n dead letters behind the one that is named, in the order of their deaths.
func (q *Queue) Dead(after sluice.TaskInfo, n int) (letters []sluice.TaskInfo) {
	for _, id := range q.ids(func(it Item) (float64, bool) { return it.Died, it.Listed && !it.Queued }) {
		if t := q.Item(id).info(sluice.StateDead); len(letters) < n && follows(t, after) {
			letters = append(letters, t)
		}
	}
	return letters
}

// Trim drops dead letters that are more than limit, or older than age, the oldest first. 0: no
// such limit. One that a foreign producer has put back takes up room, and only leaves the list.
// unaware is who does not know that they hold units: these stay held.
func (q *Queue) Trim(now float64, limit int, age float64, unaware bool) {
	letters := q.ids(func(it Item) (float64, bool) { return it.Died, it.Listed })
	for i, id := range letters {
		it := q.Item(id)
		isOver, isOld := limit > 0 && len(letters)-i > limit, age > 0 && it.Died <= now-age
		switch {
		case !isOver && !isOld:
			return
		case it.Queued:
			it.Listed, it.Died = false, 0
		default:
			q.leave(it, unaware)
			q.Trimmed++
		}
	}
}

// follows says whether t stands behind another task in the list of their state.
func follows(t, after sluice.TaskInfo) bool {
	return after.ID == "" || cmp.Or(cmp.Compare(t.Score, after.Score), t.LeaseEnds.Compare(after.LeaseEnds), cmp.Compare(t.ID, after.ID)) > 0
}

// Revive moves dead letters back into the queue. One that a foreign producer has put back
// only leaves the list.
func (q *Queue) Revive(now float64, ids ...string) (revived int) {
	for _, id := range ids {
		it := q.Item(id)
		switch {
		case it.Listed && !it.Queued:
			revived++
			it.Listed, it.Died = false, 0
			if group := it.Group; group != "" {
				q.enter(group, now, id, true)
			} else {
				*it = Item{ID: id, Payload: it.Payload, Queued: true, Score: now, Holds: it.Holds}
			}
		case it.Listed:
			it.Listed, it.Died = false, 0
		}
	}
	return revived
}

// Drop removes dead letters. One that a foreign producer has put back only leaves the list.
func (q *Queue) Drop(ids ...string) (removed int) {
	for _, id := range ids {
		it := q.Item(id)
		switch {
		case it.Listed && !it.Queued:
			q.leave(it, false)
			removed++
		case it.Listed:
			it.Listed, it.Died = false, 0
		}
	}
	return removed
}

// LeaveOut leaves out those payloads and results of more than most bytes and, if most is 0,
// without a word of their sizes. A negative most leaves out none.
func LeaveOut(seen []sluice.TaskInfo, most int) []sluice.TaskInfo {
	seen = slices.Clone(seen)
	for i := range seen {
		if e := &seen[i]; most >= 0 && len(e.Payload) > most {
			if most > 0 {
				e.Omitted = len(e.Payload)
			}
			e.Payload = nil
		}
		if e := &seen[i]; most >= 0 && len(e.Result) > most {
			if most > 0 {
				e.Omitted = len(e.Result)
			}
			e.Result = nil
		}
	}
	return seen
}
