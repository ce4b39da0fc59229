package inspect

import (
	"time"

	"github.com/sluice-go/sluice"
)

// Sign is what an operator is told of a queue before its figures. A greater one is worse.
type Sign int

const (
	// SignPaused: nothing is handed out, because an operator said so.
	SignPaused Sign = iota + 1
	// SignAtLimit: as many tasks are leased as may be.
	SignAtLimit
	// SignLate: the first due task has waited for longer than lateAfter, and no other sign says why.
	SignLate
	// SignNoRoom: tasks are due and Workers run, but none of them has room for another task.
	SignNoRoom
	// SignNoWorker: tasks are due, no Worker runs, and none has for a day: perhaps none is to.
	SignNoWorker
	// SignWorkersGone: tasks are due, no Worker runs, and one has within a day.
	SignWorkersGone
	// SignStuck: handlers have gone on beyond their timeout.
	SignStuck
)

// lateAfter is how long a due task may wait before the queue is called late.
const lateAfter = time.Minute

var signNames = [...]string{"", "paused", "at its limit", "late", "no room", "no worker", "no worker", "stuck"}

// String returns the sign in words.
func (s Sign) String() string { return signNames[s] }

// Signs returns the signs of a queue, the worst first. stuck is how many handlers of its Workers
// are stuck, as far as that is known.
//
// A paused queue is not late, and neither it nor one at its limit has no room: that they hand
// nothing out is what was asked for. Workers that say that they have no room while no task is leased
// have let all leases end: they hang, or have died.
func Signs(s sluice.Stats, stuck int64) []Sign {
	var signs []Sign
	if stuck > 0 {
		signs = append(signs, SignStuck)
	}
	atLimit := AtLimit(s)
	switch {
	case s.Due > 0 && s.Workers == 0 && s.WorkerSeen.IsZero():
		signs = append(signs, SignNoWorker)
	case s.Due > 0 && s.Workers == 0:
		signs = append(signs, SignWorkersGone)
	case s.Due > 0 && s.Waiting == 0 && s.Leased > 0 && !s.Paused && !atLimit:
		signs = append(signs, SignNoRoom)
	case s.Due > 0 && s.Lateness > lateAfter && !s.Paused && !atLimit:
		signs = append(signs, SignLate)
	}
	if atLimit {
		signs = append(signs, SignAtLimit)
	}
	if s.Paused {
		signs = append(signs, SignPaused)
	}
	return signs
}

// Worst returns the first of some signs, 0 if there are none.
func Worst(signs []Sign) Sign {
	if len(signs) == 0 {
		return 0
	}
	return signs[0]
}
