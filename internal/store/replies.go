package store

import (
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// State says where a task is.
type State int

// The states, as scripts count them.
const (
	StateAbsent State = iota
	StateScheduled
	StateDue
	StateLeased
	StateDead
	StateDone
	StateWaiting
)

// DecodePopped reads the answer to Pop: the tasks, whether there may be more, and whether a pause
// or limits keep those.
func DecodePopped(value any) (tasks []Task, more, isLimited bool, err error) {
	r := newReader(value)
	left := r.int()
	for r.more() {
		id, score := r.text(), r.score()
		t := r.task(id, r.part(), r.part()).Task
		t.Score, t.Due = score, TimeOf(score)
		tasks = append(tasks, t)
	}
	if r.err() != nil {
		return nil, false, false, r.err()
	}
	return tasks, left > 0, left < 0, nil
}

// DecodeListed reads the answer to List, and where the list goes on.
func DecodeListed(state State, value any) (end Cursor, tasks []Info, err error) {
	const parts = 8 // of each
	r := newReader(value)
	end = Cursor{r.text(), r.text()}
	tasks = make([]Info, 0, r.left()/parts)
	for r.more() {
		tasks = append(tasks, r.shown(state))
	}
	return end, tasks, r.err()
}

// DecodeGot reads the answer to Get about tasks with these IDs: the server's time, and what was
// found. Of a task that is not there that is StateAbsent; one that was not written by the library
// is left out.
func DecodeGot(value any, ids ...string) (now time.Time, found []Info, err error) {
	r, most := newReader(value), int64(len(ids))
	now = TimeOf(r.score()).UTC()
	for r.more() {
		n := r.between(1, most) // else there is an error
		found = append(found, r.got(ids[min(max(n, 1), most)-1]))
	}
	return now, found, r.err()
}

// DecodeStates reads the answer to Cancel: where each of n tasks was.
func DecodeStates(value any, n int) ([]State, error) {
	r, states := newReader(value), make([]State, n)
	for i := range states {
		states[i] = State(r.between(int64(StateAbsent), int64(StateWaiting)))
	}
	if r.err() != nil {
		return nil, r.err()
	}
	return states, nil
}

// DecodeRestored reads the answer to Restore: the outcome of each of n tasks.
func DecodeRestored[O ~int](value any, n int) ([]O, error) {
	r, outcomes := newReader(value), make([]O, n)
	for i := range outcomes {
		outcomes[i] = O(r.between(1, 5))
	}
	if r.err() != nil {
		return nil, r.err()
	}
	return outcomes, nil
}

// DecodeRescheduled reads the answer to Reschedule: whether there was such a task.
func DecodeRescheduled(value any) (bool, error) {
	r := newReader([]any{value})
	answer := r.answer()
	if answer == Malformed && r.err() == nil {
		return false, redisexec.ErrCorrupt
	}
	return answer == Accepted, r.err()
}

// DecodeChanged reads how many of n dead letters Revive or Drop has found.
func DecodeChanged(value any, n int) (int, error) {
	r := newReader([]any{value})
	changed := r.between(0, int64(n))
	return int(changed), r.err()
}

// Stats is the decoded reply of stats.lua, in its order; the root's Stats documents the fields.
type Stats struct {
	Due, Scheduled, Leased, Dead             int64
	Finished, Retried, Buried, Lost, Trimmed int64
	Discarded                                int64
	Done, GroupWaiting                       int64
	Workers, Waiting                         int
	WorkerSeen, NextDue, PausedUntil         time.Time // zero if there is none
	Lateness                                 time.Duration
	Paused                                   bool
	Limits                                   Limits
}

// notPaused stands for how long a pause lasts that there is not.
const notPaused = -2

// DecodeStats reads the answer to Stats.
func DecodeStats(value any) (s Stats, err error) {
	r := newReader(value)
	s.Due, s.Scheduled, s.Dead = r.int(), r.int(), r.int()
	oldest, hasDue := r.maybeScore()
	next, hasNext := r.maybeScore()
	now := r.score()
	s.Leased = r.int()
	pause := r.int()
	s.Finished, s.Retried, s.Buried, s.Lost, s.Trimmed = r.int(), r.int(), r.int(), r.int(), r.int()
	s.Workers = int(r.int())
	worked, hasWorked := r.maybeScore()
	s.Waiting, s.Done = int(r.int()), r.int()
	s.Limits = Limits{
		Running: int(r.int()), Rate: int(r.int()), Per: time.Duration(r.int()) * time.Microsecond, Burst: int(r.int()), PerGroup: int(r.int()),
	}
	s.GroupWaiting, s.Discarded = r.int(), r.int()
	if r.err() != nil {
		return Stats{}, r.err()
	}
	if s.Paused = pause != notPaused; pause >= 0 {
		s.PausedUntil = TimeOf(now).Add(timeToLive(pause))
	}
	if hasWorked {
		s.WorkerSeen = TimeOf(worked)
	}
	if hasDue {
		s.Lateness = time.Duration(min((now-oldest)*1e6, 9e15)) * time.Microsecond
	}
	if hasNext {
		s.NextDue = TimeOf(next)
	}
	return s, nil
}

// Saying is what a worker has said of itself, and until when that counts, in Unix seconds.
type Saying struct {
	Text  string
	Until float64
}

// DecodeWorkers reads the answer to Workers.
func DecodeWorkers(value any) (said []Saying, err error) {
	r := newReader(value)
	for r.more() {
		said = append(said, Saying{r.text(), r.score()})
	}
	return said, r.err()
}

// DecodeReport reads the answer to Settle and Report.
func DecodeReport(value any, items []Item) ([]Answer, error) {
	if settler := items[0].Disposition.Settler(); settler == ByExchange || settler == ByDiscard {
		x, err := DecodeExchange(value, len(items))
		return x.Answers, err
	}
	r := newReader(value)
	answers := r.answers(len(items))
	return answers, r.err()
}

// DecodeExtended reads the answer to Extend.
func DecodeExtended(value any, n int) ([]Answer, error) {
	r := newReader(value)
	answers := r.done(n)
	return answers, r.err()
}
