package model

// This file has the limits and the pause of an IdleWalk: limits.lua, freed.lua and what changes
// them.

// IdleLimits are the limits of an IdleWalk.
type IdleLimits struct {
	Running int8 // how many tasks may be leased at a time; 0 for any number
	Every   int8 // in how many ticks a token of the rate comes, of which there is one; 0 for no rate
	Changes int  // how often limits change, each time to none, to these, or to those with one more running: they begin with these
	Pauses  int  // how often the queue is paused, and resumed
}

// Mistakes of limits.
const (
	FinishWakesNobody     = "a finish wakes none"
	FinishAndClaimWakes   = "a claim that finishes a task of a full queue and brings none tells none of the head"
	RateWithoutWatchman   = "who is refused by the rate learns of no time"
	FullWithoutWatchman   = "who is refused by a full queue learns of no time"
	OneMoreIsLeased       = "one more is leased than may be"
	FinishGivesTokensBack = "a finish gives a token back"
	LimitsLoseThePause    = "limits that change lose the pause"
	PauseLosesTheLimits   = "a pause loses the limits"
	LimitsTellNobody      = "limits that change tell none"
	ResumeTellsNobody     = "a resumed queue tells none"
)

// idleLimits is what the server holds of limits, and what was promised.
type idleLimits struct {
	level   int8 // of those that there are: the first ones, none, or one more running
	kept    bool // the server has them, as it should; else it has none
	spent   int8 // in so many ticks the next token comes
	rest    int8 // in so many ticks the next task may be handed out
	paused  bool
	heeded  bool // the server knows that it is paused
	changes int8
	pauses  int8
	broken  bool // the last step has violated a limit
	atPause bool // or a pause
}

func (w IdleWalk) running(l idleLimits) int8 {
	switch {
	case w.Limits.Running == 0 || l.level == 1:
		return 0
	case l.level == 2:
		return w.Limits.Running + 1
	}
	return w.Limits.Running
}

func (w IdleWalk) every(l idleLimits) int8 {
	if l.level == 1 {
		return 0
	}
	return w.Limits.Every
}

// isLimited says whether the server has a key for limits or a pause.
func (w IdleWalk) isLimited(s *idleState) bool {
	l := &s.limits
	return l.heeded || l.kept && (w.running(*l) > 0 || w.every(*l) > 0)
}

// held is in limits.lua.
func (w IdleWalk) held(s *idleState) (off int8, isFull bool) {
	l := &s.limits
	if l.kept && w.every(*l) > 0 {
		if off = l.spent; off > 0 && w.Mistake == RateWithoutWatchman {
			off = noHead
		}
	}
	if running := w.running(*l); l.kept && running > 0 {
		ends, leased := s.leaseEnds()
		over := leased - running
		if w.Mistake == OneMoreIsLeased {
			over--
		}
		if isFull = over >= 0; isFull && w.Mistake == FullWithoutWatchman {
			off = noHead
		} else if isFull {
			off = max(off, ends[over], 1)
		}
	}
	if l.heeded {
		off = noHead
	}
	return off, isFull
}

// leaseEnds returns in how many ticks leases end, the first one first, and how many there are.
func (s *idleState) leaseEnds() (ends [idleTasks]int8, n int8) {
	for _, t := range s.tasks {
		if t.queued && t.leased && t.due > 0 {
			at := n
			for ; at > 0 && ends[at-1] > t.due; at-- {
				ends[at] = ends[at-1]
			}
			ends[at] = t.due
			n++
		}
	}
	return ends, n
}

// allows says whether a task may be handed out, as far as the server knows.
func (w IdleWalk) allows(s *idleState) bool {
	l := &s.limits
	_, leased := s.leaseEnds()
	running := w.running(*l)
	if w.Mistake == OneMoreIsLeased && running > 0 {
		running++
	}
	return !l.heeded && (!l.kept || (running == 0 || leased < running) && (w.every(*l) == 0 || l.spent == 0))
}

// mayGo says whether a task is due that may be handed out by what was promised.
func (w IdleWalk) mayGo(s *idleState) bool {
	l := &s.limits
	_, leased := s.leaseEnds()
	running := w.running(*l)
	return s.off() == 0 && !l.paused && (running == 0 || leased < running) && (w.every(*l) == 0 || l.rest == 0)
}

// handOut notes that a task is handed out, and whether that was allowed.
func (w IdleWalk) handOut(s *idleState) {
	l := &s.limits
	_, leased := s.leaseEnds() // with this one
	running, every := w.running(*l), w.every(*l)
	l.broken = running > 0 && leased > running || every > 0 && l.rest > 0
	l.atPause = l.paused
	if every > 0 {
		l.spent, l.rest = every, every
	}
	for i := range s.tasks { // a claim that brings tasks takes those off the list whose leases are over
		s.tasks[i].leased = s.tasks[i].leased && s.tasks[i].due > 0
	}
}

// visible returns in how many ticks the head may be handed out.
func (w IdleWalk) visible(s *idleState) int8 {
	off := s.off()
	if off == noHead {
		return off
	}
	hold, _ := w.held(s)
	return min(max(off, hold), noHead)
}

// freed has idle clients see to the head if a lease has ended of a queue that was full.
func (w IdleWalk) freed(s *idleState) {
	l := &s.limits
	running := w.running(*l)
	if _, leased := s.leaseEnds(); w.Mistake != FinishWakesNobody && !l.heeded && l.kept && running > 0 && running-leased == 1 {
		w.seeTo(s, w.visible(s), 1)
	}
	if w.Mistake == FinishGivesTokensBack {
		l.spent = 0
	}
}

// limiting emits the steps that change limits, and a pause.
func (w IdleWalk) limiting(s *idleState, do idleEmitter) {
	if s.limits.changes > 0 {
		for level := range int8(3) {
			if level == s.limits.level {
				continue
			}
			do("operator", "sets limits "+[...]string{"as they began", "to none", "to one more"}[level], func(s *idleState) {
				l := &s.limits
				l.changes--
				if l.level, l.kept = level, true; w.every(*l) == 0 {
					l.spent, l.rest = 0, 0
				}
				if w.Mistake == LimitsLoseThePause {
					l.heeded = false
				}
				if w.Mistake != LimitsTellNobody {
					w.seeTo(s, s.off(), 4)
				}
			})
		}
	}
	switch l := &s.limits; {
	case l.paused:
		do("operator", "resumes the queue", func(s *idleState) {
			was := s.limits.heeded
			s.limits.paused, s.limits.heeded = false, false
			if was && w.Mistake != ResumeTellsNobody {
				w.seeTo(s, s.off(), 4)
			}
		})
	case l.pauses > 0:
		do("operator", "pauses the queue", func(s *idleState) {
			s.limits.pauses--
			s.limits.paused, s.limits.heeded = true, true
			if w.Mistake == PauseLosesTheLimits {
				s.limits.kept = false
			}
		})
	}
}

// pack packs limits.
func (l idleLimits) pack() uint64 {
	var p packer
	for _, n := range []int8{l.level, l.spent, l.rest, l.changes, l.pauses} {
		p.put(n, 8)
	}
	p.flags(l.kept, l.paused, l.heeded, l.broken, l.atPause)
	return uint64(p)
}
