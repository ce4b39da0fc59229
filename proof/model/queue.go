package model

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Queue is what the server holds of one queue. Times are Unix seconds, like scores, and now
// is always the server's time.
type Queue struct {
	Items []Item // sorted by ID
}

// Item is what the server holds under one ID.
type Item struct {
	ID      string
	Payload string
	Attempt int

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
	// Buried says that the ID's field is a dead letter's. It is Queued too if a foreign
	// producer, which knows nothing of dead letters, has put it back.
	Buried bool
	Reason string
}

// leased says whether a claim holds the task.
func (it Item) leased(now float64) bool {
	return it.Queued && !it.Buried && it.Score > now && it.Lease == it.Score
}

// unburied returns the task; a dead letter that is back in the queue starts again with no
// attempts.
func (it Item) unburied() Item {
	if it.Buried {
		return Item{ID: it.ID, Payload: it.Payload, Queued: it.Queued, Score: it.Score, Listed: it.Listed, Died: it.Died}
	}
	return it
}

// current returns the task as a reader sees it now: once the lease has ended, the waiting
// version has taken over.
func (it Item) current(now float64) Item {
	it = it.unburied()
	if it.Waiting && !it.leased(now) {
		return Item{ID: it.ID, Payload: it.Payload, Queued: true, Score: it.Due}
	}
	return it
}

// match returns the task if the receipt is valid for it.
func (it Item) match(now, receipt float64) (task Item, ok bool) {
	if it.Queued && (it.Score == receipt || !it.Buried && it.Lease != 0 && it.Lease == it.Score && it.Token == receipt) {
		return it.unburied(), true
	}
	task = it.current(now)
	return task, it.Queued && it.Waiting && task.Score == receipt
}

func (it Item) entry() sluice.Entry {
	e := sluice.Entry{ID: it.ID, Score: it.Score, Attempt: it.Attempt}
	if it.Payload != "" {
		e.Payload = []byte(it.Payload)
	}
	return e
}

// giveBack ends a claim: the waiting version takes over, or the task is due again at due.
func (it *Item) giveBack(task Item, attempt int, due float64) {
	if task.Waiting {
		attempt, due = 0, task.Due
	}
	*it = Item{ID: task.ID, Payload: task.Payload, Queued: true, Score: due, Attempt: attempt}
}

func (it *Item) bury(now float64, task Item, reason string) {
	*it = Item{ID: task.ID, Payload: task.Payload, Attempt: task.Attempt,
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

// Enqueue adds a task that is due at due.
func (q *Queue) Enqueue(now float64, policy sluice.Duplicates, id string, due float64, payload string) sluice.Outcome {
	it := q.Item(id)
	fresh := Item{ID: id, Payload: payload, Queued: true, Score: due}
	if !it.Queued {
		*it = fresh
		return sluice.Added
	}
	if it.Buried { // a task that is enqueued again is not dead
		it.Listed, it.Died = false, 0
	}
	task := it.current(now)
	switch {
	case !task.leased(now) && supersedes(policy, due, task.Score):
		*it = fresh
		return sluice.Updated
	case !task.leased(now), policy == sluice.Keep, task.Waiting && !supersedes(policy, due, task.Due):
		return sluice.Kept
	}
	it.Waiting, it.Due, it.Payload = true, due, payload
	return sluice.Deferred
}

func supersedes(policy sluice.Duplicates, due, other float64) bool {
	switch policy {
	case sluice.Replace:
		return true
	case sluice.Earliest:
		return due < other
	case sluice.Latest:
		return due > other
	}
	return false
}

// take calls accept with due tasks, earliest first, until accept has returned true n times.
// A waiting version whose lease has ended moves to its own due time instead.
func (q *Queue) take(now float64, n int, accept func(it *Item, task Item) bool) {
	for _, id := range q.due(now) {
		it := q.Item(id)
		task := it.current(now)
		if n == 0 {
			return
		}
		if task.Score > now {
			*it = task
		} else if accept(it, task) {
			n--
		}
	}
}

// Claim claims up to n due tasks. A task that was claimed maxAttempts times (0: no limit)
// becomes a dead letter.
func (q *Queue) Claim(now float64, n int, lease float64, maxAttempts int) (claimed []sluice.Entry) {
	q.take(now, n, func(it *Item, task Item) bool {
		if maxAttempts > 0 && task.Attempt >= maxAttempts {
			it.bury(now, task, "attempts used up")
			return false
		}
		*it = Item{ID: task.ID, Payload: task.Payload, Attempt: task.Attempt + 1,
			Queued: true, Score: now + lease, Lease: now + lease, Token: now + lease}
		claimed = append(claimed, it.entry())
		return true
	})
	return claimed
}

// Pop removes up to n due tasks and returns them.
func (q *Queue) Pop(now float64, n int) (popped []sluice.Entry) {
	q.take(now, n, func(it *Item, task Item) bool {
		popped = append(popped, task.entry())
		*it = Item{ID: task.ID}
		return true
	})
	return popped
}

// Peek returns up to n due tasks, earliest first.
func (q *Queue) Peek(now float64, n int) (seen []sluice.Entry) {
	for _, id := range q.due(now) {
		if task := q.Item(id).current(now); task.Score <= now && len(seen) < n {
			seen = append(seen, task.entry())
		}
	}
	return seen
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

// Dequeue finishes tasks, and returns the IDs of those whose receipt is stale. One call
// finishes a task once.
func (q *Queue) Dequeue(now float64, es ...sluice.Entry) (stale []string) {
	finished := map[string]bool{}
	for _, e := range es {
		ok := !finished[e.ID] && q.withReceipt(now, e, func(it *Item, task Item) {
			if task.Waiting {
				it.giveBack(task, 0, 0)
			} else {
				*it = Item{ID: task.ID}
			}
		})
		if !ok {
			stale = append(stale, e.ID)
		}
		finished[e.ID] = finished[e.ID] || ok
	}
	return stale
}

// Extend gives a task a new lease. The receipt stays.
func (q *Queue) Extend(now float64, e sluice.Entry, lease float64) bool {
	return q.withReceipt(now, e, func(it *Item, task Item) {
		task.Score, task.Lease, task.Token = now+lease, now+lease, e.Score
		task.Listed, task.Died = false, 0
		*it = task
	})
}

// Retry gives a task back, due after delay.
func (q *Queue) Retry(now float64, e sluice.Entry, delay float64) bool {
	return q.withReceipt(now, e, func(it *Item, task Item) { it.giveBack(task, task.Attempt, now+delay) })
}

// Release gives back tasks whose handler was not called, and returns the IDs of those whose
// receipt is stale.
func (q *Queue) Release(now float64, es ...sluice.Entry) (stale []string) {
	for _, e := range es {
		if !q.withReceipt(now, e, func(it *Item, task Item) { it.giveBack(task, max(task.Attempt-1, 0), now) }) {
			stale = append(stale, e.ID)
		}
	}
	return stale
}

// Bury makes a task a dead letter, unless a waiting version takes over.
func (q *Queue) Bury(now float64, e sluice.Entry, reason string) bool {
	return q.withReceipt(now, e, func(it *Item, task Item) {
		if task.Waiting {
			it.giveBack(task, 0, 0)
		} else {
			it.bury(now, task, reason)
		}
	})
}

// Dead returns up to n dead letters, in the order of their deaths.
func (q *Queue) Dead(n int) (letters []sluice.DeadEntry) {
	for _, id := range q.ids(func(it Item) (float64, bool) { return it.Died, it.Listed && !it.Queued }) {
		if it := *q.Item(id); len(letters) < n {
			letters = append(letters, sluice.DeadEntry{ID: id, Payload: it.entry().Payload, Reason: it.Reason,
				Attempt: it.Attempt, Time: sluice.Entry{Score: it.Died}.Time()})
		}
	}
	return letters
}

// Revive moves dead letters back into the queue. One that a foreign producer has put back
// only leaves the list.
func (q *Queue) Revive(now float64, ids ...string) (revived int) {
	for _, id := range ids {
		it := q.Item(id)
		switch {
		case it.Listed && !it.Queued:
			*it = Item{ID: id, Payload: it.Payload, Queued: true, Score: now}
			revived++
		case it.Listed:
			it.Listed, it.Died = false, 0
		}
	}
	return revived
}

// Cancel removes a task in whatever state it is.
func (q *Queue) Cancel(id string) bool {
	it := q.Item(id)
	found := it.Queued || it.Listed
	*it = Item{ID: id}
	return found
}

// Reschedule gives a task a new due time; it applies to a leased task once its holder has
// finished.
func (q *Queue) Reschedule(now float64, id string, delay float64) bool {
	it := q.Item(id)
	switch {
	case !it.Queued:
		return false
	case it.leased(now):
		it.Waiting, it.Due = true, now+delay
	case it.Waiting:
		it.giveBack(Item{ID: id, Payload: it.Payload}, 0, now+delay)
	default:
		it.Score = now + delay
	}
	return true
}

// Get returns a task or dead letter.
func (q *Queue) Get(now float64, id string) (e sluice.Entry, ok bool) {
	it := *q.Item(id)
	if it.Queued {
		return it.current(now).entry(), true
	}
	e = it.entry()
	e.Score = it.Died
	return e, it.Listed
}

// Stats counts tasks and dead letters.
func (q *Queue) Stats(now float64) (s sluice.Stats) {
	oldest, next := now, math.Inf(1)
	for _, it := range q.Items {
		if it.Listed {
			s.Dead++
		}
		switch {
		case it.Queued && it.Score <= now:
			s.Due++
			oldest = min(oldest, it.Score)
		case it.Queued:
			s.Scheduled++
			next = min(next, it.Score)
		}
	}
	s.OldestDue = time.Duration((now-oldest)*1e6) * time.Microsecond
	if s.Scheduled > 0 {
		s.NextDue = sluice.Entry{Score: next}.Time()
	}
	return s
}

// Purge removes everything.
func (q *Queue) Purge() { q.Items = nil }

// ForeignAdd adds a task as a foreign producer does, which writes only the sorted set.
func (q *Queue) ForeignAdd(id string, score float64) {
	it := q.Item(id)
	it.Queued, it.Score = true, score
}

// ForeignRemove removes a task as a foreign consumer does, which writes only the sorted set.
func (q *Queue) ForeignRemove(id string) {
	it := q.Item(id)
	it.Queued, it.Score = false, 0
}

// Clone returns a copy.
func (q *Queue) Clone() *Queue { return &Queue{slices.Clone(q.Items)} }

// Tidy removes the items that hold nothing.
func (q *Queue) Tidy() {
	q.Items = slices.DeleteFunc(q.Items, func(it Item) bool { return it == Item{ID: it.ID} })
}
