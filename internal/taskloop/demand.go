package taskloop

import (
	"time"

	"github.com/sluice-go/sluice/internal/store"
)

// probePause is how long a claim does not ask for more than the limit.
const probePause = time.Minute

// demand is what is known of the queue: whether a claim may bring something, and for how many
// tasks it may ask.
//
// A claim without an answer has leased tasks that no handler sees, which uses up attempts. If
// there is no answer because it would be too large for the network, another claim like it has
// none either. So the next asks for one task, and the size doubles with each that is answered.
// A size that fails, and has not been answered in full before, is too large: half of it is the
// limit then, and one claim a minute probes beyond.
type demand struct {
	claimWanted   bool // a claim may bring something
	dueEpoch      int  // how often it was learnt that one may
	backlogLikely bool // the last claim brought all that it asked for
	limited       bool // pause or limits have kept it from that: the end of a lease of this loop may let the next task go

	most    int       // that a claim may ask for; 0 for any number
	proven  int       // the most tasks that an answer has brought, since as many have failed
	limit   int       // that most does not pass; 0 for none
	probeAt time.Time // when a claim may ask for twice the limit
}

// size returns how many of n tasks a claim may ask for.
func (d *demand) size(n int, now time.Time) int {
	switch {
	case d.most == 0:
		return n
	case d.isAtLimit() && !now.Before(d.probeAt):
		return min(n, 2*d.limit)
	}
	return min(n, d.most)
}

func (d *demand) isAtLimit() bool { return d.limit > 0 && d.most == d.limit }

// worthAsking returns how many tasks a claim beside another one is to ask for at least: n, or
// what the limit allows.
func (d *demand) worthAsking(n int) int {
	if d.limit > 0 {
		return min(n, d.limit)
	}
	return n
}

// noteAsked notes that a claim has asked for n tasks. There is one probe at a time.
func (d *demand) noteAsked(n int, now time.Time) {
	if d.limit > 0 && n > d.limit {
		d.probeAt = now.Add(probePause)
	}
}

// noteUnanswered notes that a claim for n tasks had no answer in time. If as many have come
// before, that is no question of the size, unless it happens again.
func (d *demand) noteUnanswered(n int, now time.Time) {
	d.most = 1
	switch {
	case n <= d.proven:
		d.proven = n - 1
	case n > 1:
		d.limit, d.probeAt = n/2, now.Add(probePause)
	}
}

// noteAnswered notes that a claim was answered that had asked for n tasks, and what it brought.
// If it brought as many, the next may ask for twice as many.
func (d *demand) noteAnswered(n, brought int) {
	d.proven = max(d.proven, brought)
	if d.limit > 0 && brought > d.limit {
		d.limit, d.most = 0, brought
	}
	if d.most > 0 && n >= d.most && brought >= d.most {
		d.most *= 2
	}
	switch {
	case d.limit > 0:
		d.most = min(d.most, d.limit)
	case d.most >= store.MaxGroup:
		d.most = 0
	}
}

// noteDue notes that a claim may bring something. A claim that is under way may have been
// too early to know.
func (d *demand) noteDue() {
	d.claimWanted = true
	d.dueEpoch++
}

// noteClaimed notes what a claim brought that was sent in that epoch.
func (d *demand) noteClaimed(all bool, epoch int) {
	d.backlogLikely = all
	if all {
		d.noteDue()
	} else if d.dueEpoch == epoch {
		d.claimWanted = false
	}
}
