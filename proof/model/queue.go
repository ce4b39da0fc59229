package model

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/store"
)

// Queue is what the server holds of one queue. Times are Unix seconds, like scores, and now
// is always the server's time.
type Queue struct {
	Items   []Item // sorted by ID
	Trimmed int64  // dead letters that a limit has removed

	Records   []Record // sorted by ID
	Retention float64  // in seconds, what the last worker that remembers tasks has said; 0 for none

	Finished, Discarded, Retried, Buried, Lost int64

	Paused bool
	Until  float64 // when a pause ends by itself, in microseconds, and 0 for never
	Limits sluice.Limits
	Spent  float64 // until when tokens of the rate are spent, in microseconds

	Stocks map[string]Stock
	Owed   []sluice.Take // units that are held until a sweep, and sold then

	Playing   []Place // sorted
	Awaiting  []Place // sorted
	isUnaware bool    // see As

	lapsed map[string]bool // the IDs of leases that have run out and are counted in Lost
}

// Item is what the server holds under one ID.
type Item struct {
	ID      string
	Payload string
	Attempt int
	Unseen  int // deliveries that were not counted as attempts
	// Claimant is for how many seconds the task is leased, and to whom; or what a later version
	// says instead.
	Claimant string
	// Error is the last error of a task that is to be tried again, since FailedAt.
	Error    string
	FailedAt float64

	Queued bool // the task is in the sorted set, with this score
	Score  float64
	Lease  float64 // until when the last claim leased the task; 0 for none
	Token  float64 // the score that the last claim set: its receipt; 0 for none
	// Waiting says that there is a waiting version: it is due at Due, once the holder has
	// finished. Payload is its payload, no longer the holder's.
	Waiting bool
	Due     float64

	Listed bool // the ID is in the list of dead letters, since Died
	Died   float64
	// Buried says that the ID's state field is a dead letter's. It is Queued too if a foreign
	// producer, which knows nothing of dead letters, has put it back.
	Buried bool
	Reason string

	Holds
	Had bool // a worker has had the task, and has given it back: it keeps its place in its group
}

// Holds is what a task has from its enqueue to its end. What a task of the ID had which is no more,
// a foreign consumer has left behind.
type Holds struct {
	Take  sluice.Take // units
	Group string
}

// leased says whether a claim holds the task. Only for what current has returned.
func (it Item) leased(now float64) bool {
	return it.Queued && !it.Buried && it.Score > now && it.Lease == it.Score
}

// unburied returns the task; a dead letter that is back in the queue starts again with no
// attempts.
func (it Item) unburied() Item {
	if it.Buried {
		return Item{ID: it.ID, Payload: it.Payload, Queued: it.Queued, Score: it.Score, Listed: it.Listed, Died: it.Died, Holds: it.Holds}
	}
	return it
}

// unlike returns a due time that is no receipt of the version before, nor of those before
// that one that had the same due time.
func unlike(due, score, token float64) float64 {
	for range 2 {
		for _, old := range []float64{score, token} {
			if due <= old && old-due < 0.0001 {
				due = old + 0.000001
			}
		}
	}
	return due
}

// orNone returns a lease or token, and for 0, which is none, what no due time is like. The score of
// a queued task is one also if it is 0, as a foreign producer's may be.
func orNone(t float64) float64 {
	if t == 0 {
		return math.NaN()
	}
	return t
}

// current returns the task as a reader sees it now. If a foreign producer has moved a task
// with a lease, that is a waiting version; once the lease has ended, it has taken over.
func (it Item) current(now float64) Item {
	it = it.unburied()
	if !it.Queued {
		return it
	}
	if it.Lease != 0 && it.Lease != it.Score {
		it.Waiting, it.Due, it.Score = true, it.Score, it.Lease
	}
	if !it.Waiting || it.Lease > now {
		return it
	}
	return Item{ID: it.ID, Payload: it.Payload, Queued: true, Score: unlike(it.Due, orNone(it.Lease), orNone(it.Token)), Holds: it.Holds}
}

// state returns the task's state.
func (it Item) state(now float64) sluice.State {
	switch task := it.current(now); {
	case !it.Queued && it.Listed:
		return sluice.StateDead
	case !it.Queued && it.Awaits():
		return sluice.StateWaiting
	case !it.Queued:
		return sluice.StateAbsent
	case task.leased(now):
		return sluice.StateLeased
	case task.Score <= now:
		return sluice.StateDue
	}
	return sluice.StateScheduled
}

// match returns the task if the receipt is valid for it.
func (it Item) match(now, receipt float64) (task Item, ok bool) {
	task = it.unburied()
	good := func() bool { return receipt == task.Score || task.Lease != 0 && receipt == task.Token }
	if task.Lease == 0 || task.Lease != task.Score || !good() {
		task = it.current(now)
	}
	return task, it.Queued && good()
}

// giveBack ends a claim: the waiting version takes over, or the task is due again at due.
func (it *Item) giveBack(task Item, attempt int, due float64) {
	if task.Waiting {
		attempt, due, task.Unseen = 0, task.Due, 0
	}
	*it = Item{ID: task.ID, Payload: task.Payload, Queued: true, Score: unlike(due, orNone(task.Lease), orNone(task.Token)),
		Attempt: attempt, Unseen: task.Unseen, Holds: task.Holds}
	if attempt > 0 {
		it.Error, it.FailedAt = task.Error, task.FailedAt
	}
}

// giveBack ends a claim of a task in the queue. A version that has taken over may be due later than
// a task that waits in the group.
func (q *Queue) giveBack(it *Item, task Item, attempt int, due float64) {
	it.giveBack(task, attempt, due)
	it.Had = task.Group != "" && attempt == 0 && task.Unseen == 0 && !task.Waiting
	if task.Group != "" && task.Waiting {
		q.fill(task.Group)
	}
}

func (it *Item) bury(now float64, task Item, reason string) {
	*it = Item{ID: task.ID, Payload: task.Payload, Attempt: task.Attempt, Holds: task.Holds,
		Listed: true, Died: now, Buried: true, Reason: reason}
}

// Item returns the item of an ID, for changes.
func (q *Queue) Item(id string) *Item {
	i, found := slices.BinarySearchFunc(q.Items, id, func(it Item, id string) int { return strings.Compare(it.ID, id) })
	if !found {
		q.Items = slices.Insert(q.Items, i, Item{ID: id})
	}
	return &q.Items[i]
}

// ids returns the IDs of the wanted items, sorted by the times that wanted returns.
func (q *Queue) ids(wanted func(Item) (float64, bool)) (ids []string) {
	times := map[string]float64{}
	for _, it := range q.Items {
		if at, ok := wanted(it); ok {
			ids, times[it.ID] = append(ids, it.ID), at
		}
	}
	slices.SortStableFunc(ids, func(a, b string) int { return cmp.Compare(times[a], times[b]) })
	return ids
}

func (q *Queue) due(now float64) []string {
	return q.ids(func(it Item) (float64, bool) { return it.Score, it.Queued && it.Score <= now })
}

// Enqueue adds a task that is due at due. One that holds units, or is in a group, is
// kept; a dead letter is kept if it holds units.
func (q *Queue) Enqueue(now float64, policy sluice.Duplicates, id string, due float64, payload string) sluice.Outcome {
	it := q.Item(id)
	if it.Holds != (Holds{}) && (it.Queued || it.Listed && it.Group == "" || it.Awaits()) {
		return sluice.OutcomeKept
	}
	if it.Buried && !it.Queued {
		it.Group = "" // a dead letter has none to go on with
	}
	return q.enqueue(now, policy, id, due, payload)
}

func (q *Queue) enqueue(now float64, policy sluice.Duplicates, id string, due float64, payload string) sluice.Outcome {
	it := q.Item(id)
	fresh := Item{ID: id, Payload: payload, Queued: true, Score: due, Holds: it.Holds}
	if !it.Queued {
		*it = fresh
		return sluice.OutcomeAdded
	}
	if it.Buried { // a task that is enqueued again is not dead
		it.Listed, it.Died = false, 0
	}
	task := it.current(now)
	mayWait := policy != sluice.DuplicatesKeep && policy != sluice.DuplicatesOnce // behind a lease
	switch {
	case !task.leased(now) && supersedes(policy, due, task.Score):
		fresh.Score = unlike(dueBy(policy, due, task.Score), task.Score, orNone(it.unburied().Token))
		*it = fresh
		return sluice.OutcomeUpdated
	case !task.leased(now), !mayWait, task.Waiting && !supersedes(policy, due, task.Due):
		return sluice.OutcomeKept
	case task.Waiting:
		due = dueBy(policy, due, task.Due)
	}
	task.Waiting, task.Due, task.Payload = true, due, payload
	*it = task
	return sluice.OutcomeDeferred
}

func supersedes(policy sluice.Duplicates, due, other float64) bool {
	switch policy {
	case 0, sluice.DuplicatesReplace, sluice.DuplicatesKeepDue: // 0 is the default of a queue
		return true
	case sluice.DuplicatesEarliest:
		return due < other
	case sluice.DuplicatesLatest:
		return due > other
	}
	return false
}

// dueBy returns when a version is due that takes the place of another one.
func dueBy(policy sluice.Duplicates, due, other float64) float64 {
	if policy == sluice.DuplicatesKeepDue {
		return min(due, other)
	}
	return due
}

// take calls accept with due tasks, earliest first, until accept has returned true n times.
// A waiting version whose lease has ended moves to its own due time instead, and a leased
// task that a foreign producer has moved back to the end of its lease: cleanUp does that.
func (q *Queue) take(now float64, n int, accept func(it *Item, task Item) bool) (cleanUp func()) {
	var moved []Item
	cleanUp = func() {
		for _, task := range moved {
			*q.Item(task.ID) = task
		}
		for _, task := range moved {
			if task.Group != "" {
				q.fill(task.Group) // what is due later now may stand before one that waits
			}
		}
	}
	for _, id := range q.due(now) {
		it := q.Item(id)
		task := it.current(now)
		if n == 0 {
			return cleanUp
		}
		if task.Score > now {
			moved = append(moved, task)
		} else if accept(it, task) {
			n--
		}
	}
	return cleanUp
}

// Lapse counts the leases that have run out since the last call.
func (q *Queue) Lapse(now float64) {
	for _, it := range q.Items {
		if !it.Buried && it.Lease != 0 && it.Lease <= now && !q.lapsed[it.ID] {
			q.Lost++
			q.note(it.ID, true)
		}
	}
}

// note notes whether the lease of a task is counted; that of a new one is not.
func (q *Queue) note(id string, lapsed bool) {
	if q.lapsed == nil {
		q.lapsed = map[string]bool{}
	}
	q.lapsed[id] = lapsed
}

// Claim claims up to n due tasks. A task that was claimed maxAttempts times (0: no limit)
// becomes a dead letter.
func (q *Queue) Claim(now float64, n int, lease float64, maxAttempts int) (claimed []sluice.Entry) {
	var buried []Item
	cleanUp := q.take(now, q.allowed(now, n, q.places(now)), func(it *Item, task Item) bool {
		counted, unseen := task.Attempt, task.Unseen
		if counted > 0 && unseen < 2 && task.Lease != 0 && task.Lease == task.Token {
			counted, unseen = counted-1, unseen+1 // no handler has shown that it saw the task
		}
		if maxAttempts > 0 && counted >= maxAttempts {
			it.bury(now, task, "attempts used up")
			q.Buried++
			buried = append(buried, task)
			return false
		}
		*it = Item{ID: task.ID, Payload: task.Payload, Attempt: counted + 1, Unseen: unseen, Error: task.Error, FailedAt: task.FailedAt,
			Claimant: strconv.FormatFloat(lease, 'f', -1, 64) + "/", Queued: true, Score: now + lease, Lease: now + lease, Token: now + lease, Holds: task.Holds}
		q.note(task.ID, false)
		e := it.entry()
		e.Due = store.TimeOf(task.Score)
		claimed = append(claimed, e)
		return true
	})
	cleanUp()
	q.leaveGroups(false, buried...)
	q.spend(now, len(claimed))
	return claimed
}

// Pop removes up to n due tasks and returns them.
func (q *Queue) Pop(now float64, n int) (popped []sluice.Entry) {
	places := q.places(now)
	if places > 0 { // what is popped takes none
		places = n
	}
	var left []Item
	cleanUp := q.take(now, q.allowed(now, n, places), func(it *Item, task Item) bool {
		popped, left = append(popped, task.waiting()), append(left, task)
		q.settle(task.Take, true)
		q.Finished++
		*it = Item{ID: task.ID}
		return true
	})
	q.leaveGroups(false, left...)
	cleanUp()
	q.spend(now, len(popped))
	return popped
}

// Index returns the leased tasks as the server lists them beside the queue: with the ends of their
// leases. One that a foreign consumer has removed stays there until then.
func (q *Queue) Index(now float64) map[string]float64 {
	index := map[string]float64{}
	for _, it := range q.Items {
		if !it.Buried && it.Lease > now {
			index[it.ID] = it.Lease
		}
	}
	return index
}

// withReceipt calls do with the task if the receipt is valid for it, and says whether it was.
func (q *Queue) withReceipt(now float64, e sluice.Entry, do func(it *Item, task Item)) bool {
	it := q.Item(e.ID)
	task, ok := it.match(now, e.Score)
	if ok {
		do(it, task)
	}
	return ok
}

// Extend gives a claimed task a new lease, no shorter than the one before. The receipt stays.
func (q *Queue) Extend(now float64, e sluice.Entry, lease float64) bool {
	claimed := false
	q.withReceipt(now, e, func(it *Item, task Item) {
		claimed = task.Lease > now || task.Lease != 0 && q.places(now) > 0 // a lease that has run out needs a place again
		if claimed {
			task.Lease = max(now+lease, task.Lease)
			task.Score = task.Lease
			*it = task
			q.note(task.ID, false)
		}
	})
	return claimed
}

// Retry gives a task back, due after delay.
func (q *Queue) Retry(now float64, e sluice.Entry, delay float64, reason string) bool {
	return q.withReceipt(now, e, func(it *Item, task Item) {
		q.Retried++
		q.giveBack(it, task, task.Attempt, now+delay)
		it = q.Item(e.ID)
		if !task.Waiting && task.Attempt > 0 && reason != "" {
			it.Error, it.FailedAt = reason, now
		}
	})
}

// Release gives back tasks whose handler was not called, and returns the IDs of those whose
// receipt is stale.
func (q *Queue) Release(now float64, es ...sluice.Entry) (stale []string) {
	for _, e := range es {
		if !q.withReceipt(now, e, func(it *Item, task Item) { q.giveBack(it, task, max(task.Attempt-1, 0), now) }) {
			stale = append(stale, e.ID)
		}
	}
	return stale
}

// Bury makes a task a dead letter, unless a waiting version takes over.
func (q *Queue) Bury(now float64, e sluice.Entry, reason string) bool {
	return q.withReceipt(now, e, func(it *Item, task Item) {
		if task.Waiting {
			q.Retried++
			q.giveBack(it, task, 0, 0)
		} else {
			q.Buried++
			it.bury(now, task, reason)
			q.leaveGroups(false, task)
		}
	})
}

// Reschedule gives a task a new due time; it applies to a leased task once its holder has
// finished.
func (q *Queue) Reschedule(now float64, id string, delay float64) bool {
	it := q.Item(id)
	task, token := it.current(now), it.unburied().Token
	due := unlike(now+delay, task.Score, orNone(token))
	switch {
	case !it.Queued && it.Awaits():
		q.moveInGroup(*it, now+delay)
		return true
	case !it.Queued:
		return false
	case task.leased(now):
		task.Waiting, task.Due = true, now+delay
		*it = task
		return true
	case it.Lease != 0 || it.Waiting:
		*it = Item{ID: id, Payload: it.Payload, Attempt: task.Attempt, Unseen: task.Unseen, Error: task.Error, FailedAt: task.FailedAt, Queued: true, Score: due, Holds: it.Holds}
	default:
		it.Score = due
	}
	if it.Group != "" {
		q.fill(it.Group)
	}
	return true
}
