package model

import "slices"

// LineWalk is the protocol of processes that wait in line for the same lock. The server carries out
// a command in one step, at any time after it was sent; messages, replies and confirmations are
// read at any time after they were sent, in any order. LockWalk has the rest of the protocol
// (tokens, deadlines and hand-overs), which this walk takes for granted. A process wants the lock
// again and again: its first attempt is a bare SET, or the script, if its release has just passed
// the lock on.
//
// Time passes in ticks, and a tick passes only if nothing is under way: commands and messages are
// quicker than a tick, for which a reservation lasts. So the walk counts for how many ticks no
// process holds the lock while a live one waits. Until a fault strikes that is none at all. Copies
// that are held up in the network, callers and faults come at any time, between ticks too.
//
// No process overtakes one that has joined before it, or one that has joined if it has not joined
// itself. There are two exceptions. When a TTL or a reservation has ended, the lock is free for
// all. And a process that a fault has put out of the line, or whose reservation has ended, is
// overtaken until it has joined again: at its place.
type LineWalk struct {
	Calls      [lineProcesses]int  // how many calls each process makes; 0 for no such process
	Together   bool                // the calls of a process are made at once: all except the head wait in the process
	GiveUps    int                 // how many callers give up waiting
	Faults     int                 // how many faults strike
	Kinds      LineFault           // of faults
	TTL        int8                // of the lock in ticks; 0 for no ticks at all, except with WokenIsSlow
	Extends    bool                // holders extend
	Forgets    bool                // a process without callers ends its subscription
	Subscribed bool                // processes are subscribed when they start, which saves states
	Polls      [lineProcesses]int8 // for each place in line, how many ticks pass until a waiter polls; the first polls also when the lock is free by itself
	Bound      int8                // after a fault, for how many ticks no process may hold the lock while a live one waits
	Mistake    string
}

// LineFault is a set of kinds of faults.
type LineFault uint16

// The kinds of faults.
const (
	MessageLost      LineFault = 1 << iota
	HolderDeath                // the holder's process dies
	WaiterDeath                // another process dies, and the server notices that
	HalfOpenDeath              // another process dies, and the server counts its subscription as before
	ReplyLost                  // the command is sent again
	RequestHeldUp              // the command is sent again, and carried out late, too
	CallAbandoned              // its context ends while a command is in flight, which is carried out late
	LeaveHeldUp                // the janitor sends it again, and it is carried out late, too
	SubscriptionLost           // and made anew, after some time
	LineLost                   // evicted, or lost in a failover
	PublishDenied              // from now on
	SubscribeRefused           // from now on
	WokenIsSlow                // its reservation ends while it is on its way
	AnyLineFault     LineFault = 1<<iota - 1
)

// Mistakes of the line, besides those of locks.
const (
	ReleaseDoesNotWake       = "a release that does not wake the first in line"
	ReleaseFreesTheLock      = "a release that wakes the first in line, and frees the lock"
	ReleaseWakesTheLast      = "a release that wakes the last in line"
	SetIgnoresReservation    = "a SET that takes a lock that is reserved"
	TakesAnyReservation      = "an acquisition that takes another's reservation"
	ReleaserTakesReservation = "a releaser that takes the lock before the process that it has woken"
	TakesByProcess           = "an acquisition that takes the reservation of another wait of its process"
	ReservationWithoutEnd    = "a reservation without an end"
	ReservedStaysInLine      = "a release that leaves the woken process in line"
	NextNotTold              = "a release does not tell the next in line when the reservation ends"
	LateComerPolls           = "a woken process that comes too late waits for its poll"
	LateComerKeepsEntry      = "a woken process that comes too late takes another entry, and leaves the one in line with which it has polled"
	LateComerLeavesFirst     = "a woken process that comes too late leaves its entry before it joins with another one"
	LateComerJoinsLast       = "a woken process that comes too late joins at the end"
	LeaveKeepsReservation    = "a leave that does not pass the reservation on"
	LeaveEndsAnyReservation  = "a leave that ends another's reservation"
	LeaveByProcess           = "a leave that ends the reservation of another wait of its process"
	LeaveDoesNotTell         = "a leave of the first that does not tell the next that it is first"
	LeaveNotSent             = "a caller that gives up does not leave the line"
	LeaveSentOnce            = "a leave is sent only once, while a join is in the network"
	LeaveWithoutNumber       = "a leave that does not name the wait removes a newer entry"
	TakerDoesNotTell         = "a poll that takes the lock does not tell the next that it is first"
	GoneDroppedUntold        = "a join or a poll that drops the first, and does not tell the next"
	EntryKept                = "an acquisition leaves its entry in line"
	DeniedRemovesEntry       = "a denied PUBLISH removes the entry"
	JoinWithoutSubscriber    = "a process joins although it is not subscribed"
	RejoinWithNewScore       = "a process that has lost its entry joins again at the end"
	RetryKeepsNumber         = "a request that is sent again has the token and the entry that the janitor removes"
	HeadDropsEntry           = "the head leaves, and takes the entry along in which others of its process wait"
	HeadKeepsWakeUp          = "the head leaves with a wake-up, and the next of its process does not look"
	WakeUpInFlightDropped    = "a wake-up that is read while an acquisition is in flight is dropped"
	ToldInFlightDropped      = "a reply of before makes a process forget that it is first"
	ToldWithoutCallerDropped = "a process without a caller forgets that it is first, and the next caller goes on"
)

// Walk visits every state.
func (w LineWalk) Walk() Report { return walk[lineState, lineState](w) }

func (w LineWalk) start() (s lineState) {
	s.faults, s.giveUps = int8(w.Faults), int8(w.GiveUps)
	for p := range s.processes {
		s.processes[p].calls = int8(w.Calls[p])
		if w.Subscribed {
			s.processes[p].subscription = confirmed
		}
	}
	return s
}

func (LineWalk) key(s lineState) lineState { return s }

// violation checks the invariants.
func (w LineWalk) violation(s lineState) string {
	believers, over := 0, s.copies == [lineCopies]lineCommand{}
	for _, at := range s.processes {
		if at.phase == holding && at.left > 0 {
			believers++
		}
		over = over && at.pending == 0 && (at.phase == crashed || at.phase == idle && at.calls == 0)
	}
	quiet := !s.busy()
	switch {
	case believers > 1:
		return "two processes believe that they hold the lock"
	case s.overtaken:
		return "a process takes the lock before another that joined the line earlier"
	case s.dropped:
		return "an entry is removed, and its process neither woken nor dead"
	case !s.inOrder():
		return "the line is not in the order in which its processes have joined"
	case s.unheld > w.Bound:
		return "no process holds the lock for longer than the bound, and a live process waits"
	case quiet && !s.struck && !s.isHeld() && s.waits() && !s.deadIsNext():
		return "a process waits for a lock that no other one holds, and nothing is under way, although no fault has struck"
	case quiet && !s.struck && s.waitsOutOfLine():
		return "a process waits out of the line, and nothing is under way, although no fault has struck"
	case quiet && !s.struck && !s.firstKnows():
		return "the first in line does not know when the lock is free by itself, although no fault has struck"
	case quiet && over && !s.deserted():
		return "callers are gone, and their entries or locks stay"
	}
	return ""
}

// next emits every step that is possible.
func (w LineWalk) next(s lineState, emit func(step, lineState)) {
	do := func(actor, action string, change func(s *lineState)) {
		to := s
		change(&to)
		to.normalize()
		emit(step{actor, action}, to)
	}
	for p := range s.processes {
		w.subscription(&s, int8(p), do)
		w.lineCaller(&s, int8(p), do)
		w.lineJanitor(&s, int8(p), do)
		w.processFaults(&s, int8(p), do)
	}
	w.network(&s, do)
	if w.TTL > 0 && !s.busy() {
		do("a tick", "passes", w.lineTick)
	}
}

// lineEmitter emits the step that change makes.
type lineEmitter func(actor, action string, change func(s *lineState))

func lineActor(p int8) string { return "process " + string('A'+rune(p)) }

// isHeld says whether the lock is neither free nor reserved.
func (s *lineState) isHeld() bool { return s.key.wait != 0 && !s.key.reserved }

// waits says whether a live process waits for the lock.
func (s *lineState) waits() bool {
	return slices.ContainsFunc(s.processes[:], func(p lineProcess) bool { return p.phase == waiting && !p.lingers })
}

// deadIsNext says whether the lock is reserved for a dead process, or such a one is the first in
// line.
func (s *lineState) deadIsNext() bool {
	next := s.line[0]
	if s.key.reserved {
		next = lineEntry{process: s.key.process, wait: s.key.wait}
	}
	return next.wait != 0 && s.processes[next.process].phase == crashed
}

// waitsOutOfLine says whether a process waits that has no entry in line.
func (s *lineState) waitsOutOfLine() bool {
	for p, at := range s.processes {
		if at.phase == waiting && s.entry(int8(p), at.wait) < 0 {
			return true
		}
	}
	return false
}

// firstKnows says whether the first in line, if it waits, knows how long another process has the
// lock at most.
func (s *lineState) firstKnows() bool {
	at := s.processes[s.line[0].process]
	return at.wait != s.line[0].wait || at.phase != waiting || at.free >= 0 && at.free <= s.key.left
}

// inOrder says whether the line is in the order in which its processes have joined.
func (s *lineState) inOrder() bool {
	last := int8(0)
	for _, e := range s.line {
		if at := s.processes[e.process]; e.wait != 0 && at.wait == e.wait {
			if at.arrival < last {
				return false
			}
			last = at.arrival
		}
	}
	return true
}

// deserted says whether only dead processes have entries, or the lock.
func (s *lineState) deserted() bool {
	lives := func(e lineEntry) bool { return e.wait != 0 && s.processes[e.process].phase != crashed }
	return !slices.ContainsFunc(s.line[:], lives) && !lives(lineEntry{process: s.key.process, wait: s.key.wait})
}

// busy says whether something is under way.
func (s *lineState) busy() bool {
	return slices.ContainsFunc(s.processes[:], func(p lineProcess) bool {
		due := p.phase == waiting && (p.isDue() || p.lingers)
		subscribing := p.subscription == requested && !s.refuses || p.subscription == unconfirmed
		sent := p.command.kind != noLineCommand || p.wakeUp || p.told != 0 || p.pending&^p.tried != 0
		return p.phase != crashed && (due || subscribing || sent)
	})
}
