package model

import (
	"cmp"
	"slices"

	"github.com/sluice-go/sluice"
)

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
			*it = Item{ID: id, Payload: it.Payload, Queued: true, Score: now, Take: it.Take}
			revived++
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
