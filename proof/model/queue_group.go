package model

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/store"
)

// Place is the place of a task in its group: in play, or among those that wait.
type Place struct {
	Group string
	Due   float64 // in microseconds, of one that waits; 0 of one in play
	ID    string
}

func (p Place) compare(o Place) int {
	return cmp.Or(strings.Compare(p.Group, o.Group), cmp.Compare(p.Due, o.Due), strings.Compare(p.ID, o.ID))
}

// placed returns when a task is due by its place, which has whole microseconds.
func placed(due float64) float64 { return math.RoundToEven(due * 1e6) }

// add adds a place.
func add(places []Place, p Place) []Place {
	if i, found := slices.BinarySearchFunc(places, p, Place.compare); !found {
		return slices.Insert(places, i, p)
	}
	return places
}

// without removes a place, and says whether it was there.
func without(places []Place, p Place) ([]Place, bool) {
	if i, found := slices.BinarySearchFunc(places, p, Place.compare); found {
		return slices.Delete(places, i, i+1), true
	}
	return places, false
}

// placesOf returns the places of a group.
func placesOf(places []Place, group string) (of []Place) {
	for _, p := range places {
		if p.Group == group {
			of = append(of, p)
		}
	}
	return of
}

// Awaits says whether the state field is that of a task that waits in its group. Such a task is not
// in the queue, unless a foreign producer has put it there.
func (it Item) Awaits() bool {
	return it == it.awaiting(it.Group, it.Due) && it.Group != "" && it.Waiting
}

// awaiting returns the task as it waits in a group. What is no part of its state field stays.
func (it Item) awaiting(group string, due float64) Item {
	return Item{ID: it.ID, Payload: it.Payload, Queued: it.Queued, Score: it.Score, Listed: it.Listed, Died: it.Died,
		Holds: Holds{Group: group}, Waiting: true, Due: due}
}

// isUntouched says whether no worker has had the task that is in play.
func (it Item) isUntouched(group string) bool {
	in := Item{ID: it.ID, Payload: it.Payload, Queued: it.Queued, Score: it.Score, Listed: it.Listed, Died: it.Died, Holds: Holds{Group: group}}
	return it == in
}

// As has one do something who has met no task of a group, if isUnaware: then nobody gets the places
// of those that end. Such a caller does not know that tasks hold units, either.
func (q *Queue) As(isUnaware bool, do func()) {
	before := q.isUnaware
	q.isUnaware = isUnaware
	do()
	q.isUnaware = before
}

// perGroup is how many tasks of a group may be in play.
func (q *Queue) perGroup() int { return max(q.Limits.PerGroup, 1) }

// await has a task wait.
func (q *Queue) await(group string, due float64, id string) {
	q.Awaiting = add(q.Awaiting, Place{group, placed(due), id})
	it := q.Item(id)
	*it = it.awaiting(group, due)
}

// play puts a task into play.
func (q *Queue) play(group string, due float64, id string) {
	q.Playing = add(q.Playing, Place{Group: group, ID: id})
	it := q.Item(id)
	*it = Item{ID: id, Payload: it.Payload, Queued: true, Score: due, Holds: Holds{Group: group}, Listed: it.Listed, Died: it.Died}
}

// promote puts the first that waits into play, if one does. The places of tasks
// that wait there no more are removed: a foreign producer has put them into the queue.
func (q *Queue) promote(group string) {
	for _, p := range placesOf(q.Awaiting, group) {
		q.Awaiting, _ = without(q.Awaiting, p)
		if it := q.Item(p.ID); it.Awaits() && it.Group == group && placed(it.Due) == p.Due {
			q.play(group, p.Due/1e6, p.ID)
			return
		}
	}
}

// fill gives free places to those that wait, if any do, and the place of the latest task in play
// that no worker has had to one that is due before it. A task that a foreign consumer has removed
// is in play no more.
func (q *Queue) fill(group string) {
	if q.isUnaware || len(placesOf(q.Awaiting, group)) == 0 {
		return
	}
	var last Place // with when it is due
	for _, p := range placesOf(q.Playing, group) {
		it := *q.Item(p.ID)
		if !it.Queued || it.Group != group {
			q.Playing, _ = without(q.Playing, p)
		} else if at := math.Floor(it.Score*1e6 + 0.5); it.isUntouched(group) && (last.ID == "" || at >= last.Due) {
			last = Place{group, at, p.ID}
		}
	}
	for range q.perGroup() - len(placesOf(q.Playing, group)) {
		q.promote(group)
	}
	if first := placesOf(q.Awaiting, group); last.ID != "" && len(first) > 0 && first[0].Due < last.Due {
		it := q.Item(last.ID)
		at := it.Score
		it.Queued, it.Score = false, 0
		q.Playing, _ = without(q.Playing, Place{Group: group, ID: last.ID})
		q.await(group, at, last.ID)
		q.promote(group)
	}
}

// enter puts a task that is not there into its group. wasThere says that it was a dead letter.
func (q *Queue) enter(group string, due float64, id string, wasThere bool) {
	playing, first := len(placesOf(q.Playing, group)), placesOf(q.Awaiting, group)
	isFree, waits := playing < q.perGroup(), playing > 0 && len(first) > 0 // else none waits there
	if isFree && !waits {
		q.play(group, due, id)
		return
	}
	q.await(group, due, id)
	if isFree || !waits || due < first[0].Due/1e6 || wasThere && due == first[0].Due/1e6 {
		q.fill(group)
	}
}

// moveInGroup gives a task that waits another due time, which is no receipt of the version before.
func (q *Queue) moveInGroup(it Item, due float64) {
	q.Awaiting, _ = without(q.Awaiting, Place{it.Group, placed(it.Due), it.ID})
	q.await(it.Group, unlike(due, it.Due, it.Due), it.ID)
	q.fill(it.Group)
}

// leaveGroups takes tasks that have ended out of their groups, as they were before. knowsAll says
// whether who ends them knows of a task that waits, and was put into the queue by a foreign producer.
func (q *Queue) leaveGroups(knowsAll bool, were ...Item) {
	if q.isUnaware {
		return
	}
	var left []string
	removed := false
	for _, was := range were {
		if was.Group == "" {
			continue
		}
		found := false
		if knowsAll && was.Awaits() {
			q.Awaiting, found = without(q.Awaiting, Place{was.Group, placed(was.Due), was.ID})
		} else {
			q.Playing, found = without(q.Playing, Place{Group: was.Group, ID: was.ID})
		}
		left, removed = append(left, was.Group), removed || found
	}
	for i, group := range left {
		if removed && (i == 0 || left[i-1] != group) {
			q.fill(group)
		}
	}
}

// ClearGone forgets what is left of tasks that a foreign consumer has removed. A script does so with
// all tasks of groups, before it adds the first.
func (q *Queue) ClearGone(ids ...string) {
	for _, id := range ids {
		it := *q.Item(id)
		if it.Queued || it.Listed || it.Awaits() {
			continue
		}
		*q.Item(id) = Item{ID: id, Payload: it.Payload}
		q.leaveGroups(true, it)
	}
}

// EnqueueIn adds a task of a group. within is for how many seconds what is done keeps its ID, 0 if
// the policy is not DuplicatesOnce. The outcome is 0 if the ID's task is in another group, or in
// none.
func (q *Queue) EnqueueIn(now, within float64, policy sluice.Duplicates, group, id string, due float64, payload string) sluice.Outcome {
	q.ClearGone(id)
	it := *q.Item(id)
	switch {
	case it.Group != group && (it.Queued || it.Awaits()):
		return 0
	case it.Queued:
		outcome := q.enqueue(now, policy, id, due, payload)
		if outcome == sluice.OutcomeUpdated {
			q.fill(group)
		}
		return outcome
	case it.Awaits():
		if !supersedes(policy, due, it.Due) {
			return sluice.OutcomeKept
		}
		q.moveInGroup(it, dueBy(policy, due, it.Due))
		q.Item(id).Payload = payload
		return sluice.OutcomeUpdated
	}
	if r, ok := q.shown(id); ok && within > 0 && r.At > now-within {
		return sluice.OutcomeDone
	}
	*q.Item(id) = Item{ID: id}
	q.enter(group, due, id, it.Buried)
	q.Item(id).Payload = payload
	return sluice.OutcomeAdded
}

// SweepGroups fills the groups of which a foreign consumer has removed a task in play, and if more
// than one may be in play all groups.
func (q *Queue) SweepGroups() {
	before, isGone := slices.Clone(q.Playing), map[Place]bool{}
	for _, p := range before {
		it := q.Item(p.ID)
		isGone[p] = !it.Queued || it.Group != p.Group // or is elsewhere since
	}
	for i, p := range before {
		if isGone[p] {
			q.Playing, _ = without(q.Playing, p)
		}
		if isGone[p] || q.perGroup() > 1 && (i == 0 || before[i-1].Group != p.Group) {
			q.fill(p.Group)
		}
	}
}

// ListWaiting returns up to n tasks that wait in their groups behind the one that is named, those of
// one group, or of all if that is "".
func (q *Queue) ListWaiting(group string, after sluice.TaskInfo, n int) (seen []sluice.TaskInfo) {
	behind := Place{after.Group, placed(after.Score), after.ID}
	for _, p := range q.Awaiting {
		it := *q.Item(p.ID)
		if !it.Awaits() || group != "" && p.Group != group || after.ID != "" && p.compare(behind) <= 0 || len(seen) == n {
			continue
		}
		seen = append(seen, it.awaited())
	}
	return seen
}

// awaited returns a task that waits in its group as it is shown.
func (it Item) awaited() sluice.TaskInfo {
	it.Score = it.Due
	t := it.info(sluice.StateWaiting)
	t.Score, t.Due = it.Due, store.TimeOf(it.Due)
	return t
}
