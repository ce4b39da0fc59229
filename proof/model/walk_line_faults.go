package model

// This file has the faults that strike a process.

// processFaults emits the faults that may strike a process.
func (w LineWalk) processFaults(s *lineState, p int8, do lineEmitter) {
	at := s.processes[p]
	strike := func(kind LineFault, can bool, action string, change func(s *lineState, at *lineProcess)) {
		if can && s.faults > 0 && w.Kinds&kind != 0 {
			do(lineActor(p), action, func(s *lineState) {
				s.faults--
				change(s, &s.processes[p])
			})
		}
	}
	if at.phase == crashed {
		return
	}
	strike(MessageLost, at.wakeUp, "loses a wake-up", func(s *lineState, at *lineProcess) { s.struck, at.wakeUp = true, false })
	strike(MessageLost, at.told != 0, "loses the message that it is first", func(s *lineState, at *lineProcess) { s.struck, at.told = true, 0 })
	strike(SubscriptionLost, at.subscription == confirmed && at.phase != idle, "loses its subscription", func(s *lineState, at *lineProcess) {
		s.struck, at.wakeUp, at.told, at.subscription = true, false, 0, broken
	})
	die := func(subscription subscriptionPhase) func(*lineState, *lineProcess) {
		return func(s *lineState, at *lineProcess) { // what it has sent is on its way
			s.holdUp(at.command)
			*at = lineProcess{phase: crashed, subscription: subscription}
		}
	}
	waits := at.phase != holding && (at.phase != idle || at.pending != 0)
	strike(HolderDeath, at.phase == holding, "dies", die(unsubscribed))
	strike(WaiterDeath, waits, "dies", die(unsubscribed))
	strike(HalfOpenDeath, waits && s.hears(p), "dies, and the server does not notice", die(confirmed))
	strike(WokenIsSlow, s.key == lineKey{p, at.wait, 1, true}, "is on its way while a tick passes", func(s *lineState, _ *lineProcess) { w.lineTick(s) })
	m := at.command
	acquires := m.kind != noLineCommand && m.kind != freeLock
	strike(ReplyLost, m.answered, "loses the reply, and sends again", func(s *lineState, _ *lineProcess) { w.sendAgain(s, p) })
	strike(RequestHeldUp, m.kind != noLineCommand && !m.answered, "loses the connection, and sends again; the request is held up",
		func(s *lineState, _ *lineProcess) {
			s.holdUp(m)
			w.sendAgain(s, p)
		})
	strike(CallAbandoned, acquires, "has a caller that gives up while its acquisition is in flight", func(s *lineState, _ *lineProcess) { w.abandon(s, p) })
}

// abandon ends the call of a head that has had no reply. The next caller of the process goes on
// with another entry.
func (w LineWalk) abandon(s *lineState, p int8) {
	at := &s.processes[p]
	m := at.command
	s.holdUp(m)
	w.leaveFormer(s, p)
	if at.local == 0 {
		w.endWait(s, p)
		return
	}
	w.replace(s, p)
	if at.local--; m.kind == bareSet {
		w.begin(s, p)
	} else {
		w.ask(s, p)
	}
}

// sendAgain sends a command again that has had no reply: an acquisition with another token and
// entry.
func (w LineWalk) sendAgain(s *lineState, p int8) {
	at := &s.processes[p]
	m := at.command
	if m.kind == freeLock {
		at.command = lineCommand{kind: freeLock, process: p, wait: m.wait}
		return
	}
	w.replace(s, p)
	w.ask(s, p)
	if at.command.lost = m.lost | 1<<m.wait; m.kind == tryOnly {
		at.command.kind = tryOnly
	}
}

// replace gives the wait to the janitor, and the process another one, which is not in line until it
// joins.
func (w LineWalk) replace(s *lineState, p int8) {
	at := &s.processes[p]
	if w.leaveLater(s, p, at.wait); w.Mistake == RetryKeepsNumber {
		return
	}
	s.renumber(p)
	if at.out = true; at.score == 0 {
		at.arrival = 0
	}
}
