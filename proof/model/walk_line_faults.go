package model

// This file has the faults that strike a process.

// processFaults emits the faults that may strike a process.
func (w LineWalk) processFaults(s *lineState, p int8, do lineEmitter) {
	at := s.processes[p]
	strike := func(kind LineFault, action string, change func(s *lineState, at *lineProcess)) {
		if w.Kinds&kind != 0 {
			do(lineActor(p), action, func(s *lineState) {
				s.faults--
				change(s, &s.processes[p])
			})
		}
	}
	if at.phase == crashed {
		return
	}
	if at.wakeUps != 0 {
		strike(MessageLost, "loses a wake-up", func(s *lineState, at *lineProcess) {
			told := at.told
			w.loseMessages(s, p)
			at.told = told
		})
	}
	if at.told != 0 {
		strike(MessageLost, "loses the message that it is first", func(s *lineState, at *lineProcess) { s.struck, at.told = true, 0 })
	}
	if at.subscription == confirmed && at.phase != idle {
		strike(SubscriptionLost, "loses its subscription", func(s *lineState, at *lineProcess) {
			w.loseMessages(s, p)
			at.subscription = broken
		})
	}
	if at.phase == holding {
		strike(HolderDeath, "dies", func(s *lineState, _ *lineProcess) { w.die(s, p, unsubscribed) })
	} else if at.phase != idle || at.pending != 0 || at.wakeUps != 0 {
		strike(WaiterDeath, "dies", func(s *lineState, _ *lineProcess) { w.die(s, p, unsubscribed) })
		if s.hears(p) {
			strike(HalfOpenDeath, "dies, and the server does not notice", func(s *lineState, _ *lineProcess) { w.die(s, p, confirmed) })
		}
	}
	if at.command.kind != noLineCommand {
		w.commandFaults(s, p, strike)
	}
}

// commandFaults emits the faults that may strike a process's command.
func (w LineWalk) commandFaults(s *lineState, p int8, strike func(LineFault, string, func(*lineState, *lineProcess))) {
	m := s.processes[p].command
	again := lineCommand{kind: m.kind, process: p, wait: m.wait, score: m.score}
	if m.kind == bareSet {
		again.kind = tryAndJoin
	}
	if m.answered {
		again.score = s.processes[p].score
		strike(ReplyLost, "loses the reply, and sends again", func(_ *lineState, at *lineProcess) { at.command, at.owes = again, 0 })
	} else {
		strike(RequestHeldUp, "loses the connection, and sends again; the request is held up", func(s *lineState, at *lineProcess) {
			late := m
			if late.late = m.kind != freeLock; late.late {
				w.leaveLater(s, p, m.wait)
			}
			s.holdUp(late)
			again.retry = late.late
			at.command = again
		})
	}
	if m.kind == freeLock {
		return
	}
	strike(CallAbandoned, "has a caller that gives up while its acquisition is in flight", func(s *lineState, _ *lineProcess) {
		m.late = true
		s.holdUp(m)
		if s.token == m.token()&^4 && m.answered {
			s.token |= 4
		}
		w.leaveLater(s, p, m.wait)
		w.giveUp(s, p)
	})
}

// loseMessages loses what was published to a process.
func (w LineWalk) loseMessages(s *lineState, p int8) {
	s.struck = true
	s.processes[p].wakeUps, s.processes[p].told = 0, 0
	s.forgive(p)
}

func (w LineWalk) die(s *lineState, p int8, subscription subscriptionPhase) {
	w.loseMessages(s, p)
	s.holdUp(s.processes[p].command)
	s.processes[p] = lineProcess{phase: crashed, subscription: subscription}
}
