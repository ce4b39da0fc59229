package model

import "github.com/sluice-go/sluice"

// Cancel removes tasks, forgets their IDs, and returns the states in which they were. An ID that
// comes again is absent the second time.
func (q *Queue) Cancel(now float64, ids ...string) []sluice.State {
	return q.cancel(now, ids, func(int, sluice.State) bool { return true })
}

// CancelUnchanged is Cancel of the tasks that still have the scores with which they were read. The
// others are left alone, and count as absent.
func (q *Queue) CancelUnchanged(now float64, ts ...sluice.TaskInfo) []sluice.State {
	ids := make([]string, len(ts))
	for i, t := range ts {
		ids[i] = t.ID
	}
	return q.cancel(now, ids, func(i int, was sluice.State) bool {
		var is sluice.TaskInfo
		if was == sluice.StateDone {
			r, _ := q.shown(ids[i])
			is = r.info()
		} else {
			is, _ = q.Get(now, ids[i])
		}
		return was != sluice.StateAbsent && was != sluice.StateLeased && is.Score == ts[i].Score
	})
}

// stateOrDone returns the state of a task, also of one whose record is over the retention.
func (q *Queue) stateOrDone(now float64, id string) sluice.State {
	if _, found := q.record(id); found && q.Item(id).state(now) == sluice.StateAbsent {
		return sluice.StateDone
	}
	return q.Item(id).state(now)
}

// cancel removes the tasks that are wanted, by their places and states: what they all are is read
// before the first one goes.
func (q *Queue) cancel(now float64, ids []string, isWanted func(i int, was sluice.State) bool) []sluice.State {
	states, goes := make([]sluice.State, len(ids)), map[string]bool{}
	for i, id := range ids {
		if was := q.stateOrDone(now, id); !goes[id] && isWanted(i, was) {
			states[i], goes[id] = was, true
		}
	}
	var left []Item
	for _, id := range ids {
		if goes[id] {
			it := q.Item(id)
			q.forgetID(id)
			q.settle(it.Take, false)
			left = append(left, *it)
			*it = Item{ID: id}
		}
	}
	q.leaveGroups(true, left...)
	return states
}
