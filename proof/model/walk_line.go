package model

// LineWalk is the protocol of processes that wait in line for the same lock. The server carries out a command in one step,
// at any time after it was sent; messages, replies and confirmations are read at any time after they were sent, in any order.
// LockWalk has the rest of the protocol (tokens, deadlines and hand-overs), which this walk takes for granted. A process wants the lock
// again and again: its first attempt is a bare SET, or, if its release has just woken another process, a polite join.
//
// Time passes in ticks, and a tick passes only if nothing is under way: commands and messages are quicker than a tick. So the walk
// counts for how many ticks a lock is free while a live process waits. Until a fault strikes that is none at all. Copies
// that are held up in the network, callers and faults come at any time, between ticks too.
type LineWalk struct {
	Calls      [lineProcesses]int  // how many calls each process makes; 0 for no such process
	Together   bool                // the calls of a process are made at once: all except the head wait in the process
	GiveUps    int                 // how many callers give up waiting
	Faults     int                 // how many faults strike
	Kinds      LineFault           // of faults
	TTL        int8                // of the lock in ticks; 0 for no ticks at all
	Extends    bool                // holders extend
	Forgets    bool                // a process without callers ends its subscription
	Subscribed bool                // processes are subscribed when they start, which saves states
	Polls      [lineProcesses]int8 // for each place in line, how many ticks pass until a waiter polls; place 0 also polls at the end of the TTL
	Bound      int8                // after a fault, for how many ticks a lock may be free while a live process waits
	// Ordered leaves out who takes the lock without having joined while another process waits in line. Then turns are in the order
	// of joining. With ticks or callers that give up, a process may overtake another once: by a poll, or woken by a leave.
	Ordered bool
	Mistake string
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
	AnyLineFault     LineFault = 1<<iota - 1
)

// Mistakes of the line, besides those of locks.
const (
	ReleaseDoesNotWake    = "a release that does not wake the first in line"
	ReleaseWakesTheLast   = "a release that wakes the last in line"
	LeaveDoesNotWake      = "a leave that does not wake the next although the lock is free"
	LeaveDoesNotTell      = "a leave of the first that does not tell the next that it is first"
	TakerDoesNotTell      = "who takes the lock does not tell the first that it is first, and only the first polls"
	LeaveNotSent          = "a caller that gives up does not leave the line"
	LeaveSentOnce         = "a leave is sent only once, while a join is in the network"
	DeniedRemovesEntry    = "a denied PUBLISH removes the entry"
	JoinWithoutSubscriber = "a process joins although it is not subscribed"
	LeaveWithoutNumber    = "a leave that does not name the wait removes a newer entry"
	WaitNumberNotSent     = "a wake-up that does not name the wait"
	PoliteForEver         = "a polite process never tries again by itself"
	NeverPolite           = "the releaser tries at once, although it has woken another process"
	PoliteFullInterval    = "a polite process that finds the lock free waits for its poll"
	PoliteTriesUnlisted   = "a polite process that cannot join tries at once"
	RejoinWithNewScore    = "a process that was passed joins again at the end"
	HeadDropsEntry        = "the head leaves, and takes the entry along in which others of its process wait"
	HeadKeepsWakeUp       = "the head leaves with a wake-up, and the next of its process does not look"
	HeadStartNotInherited = "the head leaves during the others' head start, and the next of its process looks at once"
	JanitorLeavesTooEarly = "the janitor removes the entry of a wait that goes on"
	EntryKept             = "an acquisition leaves its entry in line"
	WakeUpInFlightDropped = "a wake-up that is read while an acquisition is in flight is dropped"
	ToldInFlightDropped   = "a reply of before makes a process forget that it is first"
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
	for p := range s.processes {
		at := &s.processes[p]
		if at.phase == holding && at.left > 0 {
			believers++
		}
		over = over && at.pending == 0 && (at.phase == crashed || at.phase == idle && at.calls == 0)
		for _, times := range at.overtaken {
			if w.Ordered && (times > 1 || times > 0 && w.TTL == 0 && w.GiveUps == 0) {
				return "a process takes the lock before another that joined the line earlier"
			}
		}
	}
	switch {
	case believers > 1:
		return "two processes believe that they hold the lock"
	case s.impolite:
		return "a releaser takes the lock before the process that it woke"
	case s.dropped:
		return "an entry is removed, and its process neither woken nor dead"
	case w.Faults == 0 && !s.inOrder():
		return "the line is not in the order in which its processes have joined"
	case s.free > w.Bound:
		return "a lock is free for longer than the bound, and a live process waits"
	case s.token == 0 && !s.struck && s.waits() && !s.busy() && !s.pauses():
		return "a process waits for a free lock, and nothing is under way, although no fault has struck"
	case over && !s.busy() && !w.deserted(&s):
		return "callers are gone, and their entries or locks stay"
	}
	return ""
}

// deserted says whether only dead processes have entries, or the lock.
func (w LineWalk) deserted(s *lineState) bool {
	for _, e := range s.line {
		if e.wait != 0 && s.processes[e.process].phase != crashed {
			return false
		}
	}
	return s.token == 0 || s.processes[s.token>>3].phase == crashed
}

// next emits every step that is possible.
func (w LineWalk) next(s lineState, emit func(step, lineState)) {
	do := func(actor, action string, change func(s *lineState)) {
		to := s
		change(&to)
		w.normalizeLine(&to)
		emit(step{actor, action}, to)
	}
	for p := range s.processes {
		w.subscription(&s, int8(p), do)
		w.lineCaller(&s, int8(p), do)
		w.lineJanitor(&s, int8(p), do)
		if s.faults > 0 {
			w.processFaults(&s, int8(p), do)
		}
	}
	w.network(&s, do)
	if s.busy() {
		return
	}
	for p := range s.processes {
		if at := s.processes[p]; at.phase == waiting && at.pausing {
			do(lineActor(int8(p)), "has given the others a head start, and tries", func(s *lineState) {
				if w.ask(s, int8(p)); w.Ordered { // before another release is under way
					s.processes[p].command = w.serve(s, s.processes[p].command)
				}
			})
		}
	}
	if w.TTL > 0 && !s.pauses() {
		do("a tick", "passes", w.lineTick)
	}
}

// lineEmitter emits the step that change makes.
type lineEmitter func(actor, action string, change func(s *lineState))

func lineActor(p int8) string { return "process " + string('A'+rune(p)) }
