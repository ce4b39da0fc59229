package model

import (
	"fmt"
	"slices"
)

// IdleWalk is the protocol of clients that stand in a queue's line while they are idle. The server
// carries out a command in one step, at any time after it was sent. A client's messages are read in
// order, replies at any time after they were sent. QueueWalk has receipts and versions, which this
// walk takes for granted. A client has one caller, which comes and goes, waits for tasks, claims
// one at a time, waited or not, and finishes it. If it has room for more, it may wait again as soon
// as it has a task: that stands for other callers of the client, too. A client has one look under
// way at most.
//
// Time passes in ticks, and a tick passes only if nothing is under way: commands, messages, a
// caller that was told and a watch without callers are quicker than a tick. So the walk counts for
// how many ticks a task is due while a live client waits. Until something has struck that is none
// at all: a fault, a race, a task of a foreign producer, or a head that is due and is cancelled,
// which tells no client of the next one.
type IdleWalk struct {
	Clients  int  // three at most
	Calls    int  // how often a caller begins to wait, or claims
	Adds     int  // how many tasks a producer adds, due at once, after one tick or after:
	Later    int8 // ticks
	Batch    bool // it adds two at once, too
	Foreign  int  // how many tasks a foreign producer adds, which tells no client
	Cancels  int  // how many heads are cancelled
	Look     int8 // in how many ticks an idle client looks once. A watch is twice as long, except that
	Told     int8 // of a client that is told of a later head takes so many; 0 for twice as long, too
	Together bool // clients look by heads.lua, which gives no places
	GiveUps  bool // callers leave that wait, or were told
	Directly bool // callers claim that have not waited
	Room     bool // callers claim that have room for more
	Lease    int8 // of a claimed task in ticks; 0 if it outlasts the walk. Where it ends is the task's score, so that it may be the head
	Faults   int  // how many faults strike
	Kinds    IdleFault
	Bound    int8 // after something has struck, for how many ticks a task may be due while a live client waits
	// Races is how often a client takes what was said to it in another order than the server has
	// said it. A client has its messages by one connection and its replies by others, so that it
	// cannot always tell. This counts as a fault.
	Races   int
	Limits  IdleLimits
	Mistake string
}

// NotDueYet is so many ticks that they do not end within the walk.
const NotDueYet int8 = 6

// IdleFault is a set of kinds of faults.
type IdleFault uint8

// The kinds of faults.
const (
	IdleMessageLost IdleFault = 1 << iota
	IdleDeath                 // a client dies, and the server notices that
	IdleHalfOpen              // a client dies or stops, and the server counts its subscription as before
	IdleLineLost              // evicted, or lost in a failover
	IdleDenied                // PUBLISH, from now on
	AnyIdleFault    IdleFault = 1<<iota - 1
)

// Mistakes of the line of idle clients.
const (
	NewHeadTellsNobody     = "a new head that is due tells no client"
	EarlierHeadTellsNobody = "a new head that is due later does not reach the watchman"
	ToldStaysInLine        = "a client that is told of a due head is not taken out"
	DeniedTakesOut         = "a client is taken out although its message is denied"
	ClaimTellsNobody       = "a claim that leaves due tasks tells no client"
	ClaimTakesWhatIsNotDue = "a claim takes the head, due or not"
	BusyStaysInLine        = "a claimant stays in line, and forgets it"
	BusyHandsNothingOn     = "a watchman that gets busy does not hand on"
	WatchNeverEnds         = "a watch never ends"
	ToldPassesNothingOn    = "a client that was told, and whose caller is gone, does not pass on"
	AlonePassesNothingOn   = "a client that is told while it has no caller does not pass on"
	AloneNeverPassesOn     = "a watch without a caller never leaves the line"
	LapsedIsTakenOut       = "a client whose watch is over is taken out when another one is told"
	LookTakesOutTheLapsed  = "a client whose watch is over is taken out when another one looks"
	ClaimHidesTheNext      = "a claim tells no client of a later head that was behind what it has brought"
	RoomHidesTheNext       = "a claimant that stays in line tells no watchman of a later head"
	RoomSeesToNothing      = "a claimant that stays in line does not ask for what is due"
	RoomSeesToNothingLater = "a claimant that becomes the watchman does not see to the head"
	NeverUnsure            = "a claimant does not note that it may be in line, if a message came before the reply"
	LeaveTellsNobody       = "a leave tells no client"
	LooksOnce              = "a client looks only when it begins to wait"
	EveryoneWatches        = "a look makes a client the watchman beside another one"
	LookDoesNotJoin        = "a look does not join"
	OldReplyOverwrites     = "a reply that is older than a message overwrites what that has said"
)

// Walk visits every state.
func (w IdleWalk) Walk() Report { return walk[idleState, idleKey](w) }

func (w IdleWalk) start() (s idleState) {
	s.adds, s.foreign, s.cancels, s.faults = int8(w.Adds), int8(w.Foreign), int8(w.Cancels), int8(w.Faults)
	s.calls, s.races = int8(w.Calls), int8(w.Races)
	s.limits = idleLimits{kept: true, changes: int8(w.Limits.Changes), pauses: int8(w.Limits.Pauses)}
	return s
}

// violation checks the invariants.
func (w IdleWalk) violation(s idleState) string {
	bound := w.Bound
	if !s.struck {
		bound = 0
	}
	switch {
	case s.twice:
		return "a task is handed out twice at the same time"
	case s.limits.broken:
		return "a task is handed out beyond a limit"
	case s.limits.atPause:
		return "a task is handed out in a pause"
	case s.early:
		return "a task is handed out before it is due"
	case s.overdue > bound:
		return "a task is due for longer than the bound, and a live client waits"
	case s.unaware > w.Look:
		return "a live client is in line for longer than an interval, and does not know it"
	case s.line[1].watch > lapsed:
		return "two watches run"
	case s.deadWatch > 2*w.Look:
		return "the watch of a dead client runs for longer than one takes"
	case s.dropped:
		return "an entry is removed, and its client neither told nor dead"
	}
	return ""
}

// next emits every step that is possible.
func (w IdleWalk) next(s idleState, emit func(step, idleState)) {
	do := func(actor, action string, change func(s *idleState)) {
		to := s
		if change(&to); to.cut {
			return
		}
		to.normalize(w)
		emit(step{actor, action}, to)
	}
	for c := range int8(w.Clients) {
		if s.clients[c].life == alive {
			w.caller(&s, c, do)
			w.watch(&s, c, do)
			w.replies(&s, c, do)
		}
		w.serving(&s, c, do)
		if s.faults > 0 && s.clients[c].life == alive {
			w.clientFaults(&s, c, do)
		}
	}
	w.producers(&s, do)
	w.limiting(&s, do)
	if s.faults > 0 {
		w.serverFaults(&s, do)
	}
	if !w.busy(&s) {
		do("a tick", "passes", w.tick)
	}
}

// producers emits the steps of those that add and cancel tasks.
func (w IdleWalk) producers(s *idleState, do idleEmitter) {
	for _, due := range slices.Compact([]int8{0, 1, w.Later}) {
		when := fmt.Sprintf(" that is due after %d ticks", due)
		if due == 0 {
			when = " that is due"
		}
		if s.adds > 0 {
			do("producer", "adds a task"+when, func(s *idleState) { w.add(s, due, 1) })
		}
		if s.foreign > 0 {
			do("foreign producer", "adds a task"+when, func(s *idleState) {
				s.foreign--
				s.struck = true
				s.put(due)
			})
		}
	}
	if w.Batch && s.adds > 1 {
		do("producer", "adds two tasks that are due", func(s *idleState) { w.add(s, 0, 2) })
	}
	if s.cancels > 0 && s.head() >= 0 {
		do("operator", "cancels the head", func(s *idleState) {
			s.cancels--
			s.struck = s.struck || s.off() == 0
			leased := s.tasks[s.head()].leased && s.off() > 0
			if s.drop(s.head()); leased {
				w.freed(s)
			}
		})
	}
}

// clientFaults emits the faults that may strike a client.
func (w IdleWalk) clientFaults(s *idleState, c int8, do idleEmitter) {
	strike := func(kind IdleFault, action string, change func(s *idleState, k *idleClient)) {
		if w.Kinds&kind != 0 {
			do(idleActor(c), action, func(s *idleState) {
				s.faults--
				s.struck, s.deadWatch = true, 0
				change(s, &s.clients[c])
			})
		}
	}
	if s.clients[c].inbox[0] != 0 {
		strike(IdleMessageLost, "loses a message", func(_ *idleState, k *idleClient) { k.takeMessage() })
	}
	if s.clients[c] == (idleClient{}) && s.entry(c) < 0 {
		return
	}
	strike(IdleDeath, "dies", func(_ *idleState, k *idleClient) { k.die(gone) })
	strike(IdleHalfOpen, "dies, and the server does not notice", func(_ *idleState, k *idleClient) { k.die(halfOpen) })
}

// serverFaults emits the faults that may strike the server.
func (w IdleWalk) serverFaults(s *idleState, do idleEmitter) {
	if w.Kinds&IdleLineLost != 0 && s.line[0].client != 0 {
		do("server", "loses the line", func(s *idleState) {
			s.faults--
			s.struck, s.line = true, [idleClients]idleEntry{}
		})
	}
	if w.Kinds&IdleDenied != 0 && !s.denied {
		do("server", "denies PUBLISH from now on", func(s *idleState) {
			s.faults--
			s.struck, s.denied = true, true
		})
	}
}

// tick lets time pass.
func (w IdleWalk) tick(s *idleState) {
	waits, unaware, dead := false, false, false
	for c := range s.clients {
		k := &s.clients[c]
		waits = waits || k.caller == inWait
		unaware = unaware || k.life == alive && s.entry(int8(c)) >= 0 && (k.caller != inWait || k.place == outOfLine)
		pass(&k.lookAt)
		pass(&k.askAt)
		pass(&k.due)
	}
	for i := range s.line {
		if e := &s.line[i]; e.watch > lapsed {
			k := &s.clients[e.client-1]
			dead = dead || k.life != alive && k.look.kind == noIdleCommand && k.claim.kind == noIdleCommand
			if w.Mistake != WatchNeverEnds {
				e.watch--
			}
		}
	}
	count(&s.overdue, waits && w.mayGo(s))
	count(&s.unaware, unaware && !s.struck)
	count(&s.deadWatch, dead)
	pass(&s.limits.spent)
	pass(&s.limits.rest)
	for i := range s.tasks {
		if s.tasks[i].queued {
			pass(&s.tasks[i].due)
		}
	}
}

// pass lets a tick pass until a time.
func pass(at *int8) {
	if *at > 0 && *at < long {
		*at--
	}
}

// count counts ticks in a row.
func count(n *int8, yes bool) {
	if *n++; !yes {
		*n = 0
	}
}

// idleEmitter emits the step that change makes.
type idleEmitter func(actor, action string, change func(s *idleState))

func idleActor(c int8) string { return "client " + string('A'+rune(c)) }
