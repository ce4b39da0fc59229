package model

import "slices"

// This file has the steps of processes: of their callers, subscriptions and janitors.

// lineCaller emits the steps of the head of a process.
func (w LineWalk) lineCaller(s *lineState, p int8, do lineEmitter) {
	at, actor := s.processes[p], lineActor(p)
	switch {
	case (at.phase == idle || at.lingers) && at.calls > 0:
		do(actor, "wants the lock", func(s *lineState) {
			at := &s.processes[p]
			if at.calls--; w.Together {
				at.local, at.calls = at.calls, 0
			}
			if at.lingers = false; at.phase == idle {
				w.begin(s, p)
			}
		})
	case at.phase == waiting && !at.lingers:
		if at.isDue() {
			do(actor, "tries", func(s *lineState) { w.ask(s, p) })
		}
		if s.giveUps > 0 {
			do(actor, "has a caller that gives up waiting", func(s *lineState) {
				s.giveUps--
				w.giveUp(s, p)
			})
		}
	case at.phase == holding:
		do(actor, "unlocks", func(s *lineState) {
			at := &s.processes[p]
			at.phase, at.command = releasing, lineCommand{kind: freeLock, process: p, wait: at.wait}
		})
		if w.Extends && at.left > 0 && at.left < w.TTL {
			do(actor, "extends", func(s *lineState) { s.key.left, s.processes[p].left = w.TTL, w.TTL })
		}
	}
	if at.lingers {
		do(actor, "has no other caller", func(s *lineState) { w.endWait(s, p) })
	}
	switch m := at.command; {
	case m.answered:
		do(actor, "reads the reply to its "+m.kind.String(), func(s *lineState) { w.readReply(s, p) })
	case m.kind != noLineCommand:
		do("server", "carries out "+actor+"'s "+m.kind.String(), func(s *lineState) { s.processes[p].command = w.serve(s, m) })
	}
}

// begin sends the first attempt of a caller that becomes the head. A SET would be in vain if the
// process has just passed the lock on.
func (w LineWalk) begin(s *lineState, p int8) {
	at := &s.processes[p]
	at.wait = s.newWait(p)
	if at.passedOn {
		w.ask(s, p)
		at.passedOn = w.Mistake == ReleaserTakesReservation
		return
	}
	at.phase, at.command = acquiring, lineCommand{kind: bareSet, process: p, wait: at.wait}
}

// ask sends the script: if the process was woken, to try only.
func (w LineWalk) ask(s *lineState, p int8) {
	at := &s.processes[p]
	kind := tryAndJoin
	if at.signal {
		kind = tryOnly
	}
	at.signal, at.again, at.first = false, false, 0
	if at.subscription == unsubscribed {
		at.subscription = requested
	}
	at.resubscribed = at.resubscribed && at.subscription != confirmed
	at.phase, at.command = acquiring, lineCommand{kind: kind, process: p, wait: at.wait, score: at.score}
}

// giveUp ends the head's waiting. The next caller of the process goes on at its place. Without one
// the place lingers.
func (w LineWalk) giveUp(s *lineState, p int8) {
	at := &s.processes[p]
	if w.Mistake == HeadDropsEntry {
		w.leaveLater(s, p, at.wait)
	}
	if w.Mistake == HeadKeepsWakeUp {
		at.signal = false
	}
	switch inLine := at.place != notInLine; {
	case at.local == 0 && inLine && !at.signal:
		at.lingers = true
	case at.local == 0:
		w.endWait(s, p)
	default:
		if at.local--; !inLine {
			w.ask(s, p)
		}
	}
}

// endWait ends the wait of a process that has no caller.
func (w LineWalk) endWait(s *lineState, p int8) {
	at := &s.processes[p]
	if at.phase, at.command, at.lingers = idle, (lineCommand{}), false; w.Mistake != LeaveNotSent {
		w.leaveLater(s, p, at.wait)
	}
}

// leaveLater gives the wait to the janitor.
func (w LineWalk) leaveLater(s *lineState, p, wait int8) {
	at := &s.processes[p]
	at.pending |= 1 << wait
	at.tried &^= 1 << wait
}

// leaveFormer has a process that came too late leave the entry that it had before, now that it has
// joined with another one.
func (w LineWalk) leaveFormer(s *lineState, p int8) {
	at := &s.processes[p]
	if at.former != 0 && w.Mistake != LateComerKeepsEntry {
		w.leaveLater(s, p, at.former)
	}
	at.former = 0
}

// renumber gives the process's wait another number, with which it joins again at its place.
func (s *lineState) renumber(p int8) {
	at := &s.processes[p]
	at.wait, at.wakeUp, at.signal = s.newWait(p), false, false
}

// readReply is a process's next step after a reply.
func (w LineWalk) readReply(s *lineState, p int8) {
	at := &s.processes[p]
	m := at.command
	at.command = lineCommand{}
	w.leaveFormer(s, p)
	switch {
	case m.kind == freeLock:
		if at.phase, at.passedOn = idle, m.woke; at.local > 0 {
			at.local--
			w.begin(s, p)
		}
	case m.taken:
		at.phase, at.left = holding, max(w.TTL, 1)
		at.arrival, at.out, at.score = 0, false, 0
	case m.kind == tryOnly && w.Mistake != LateComerPolls: // a poll may have put its entry in line again
		if at.former = m.wait; w.Mistake == LateComerLeavesFirst {
			w.leaveFormer(s, p)
		}
		s.renumber(p)
		w.ask(s, p)
	case m.kind == bareSet:
		w.ask(s, p)
	default:
		w.wait(s, p, m)
	}
}

// wait makes the head wait after a reply that another process has the lock.
func (w LineWalk) wait(s *lineState, p int8, m lineCommand) {
	at := &s.processes[p]
	at.phase, at.place, at.score = waiting, m.place, m.score
	at.polls, at.free = w.Polls[min(max(m.place, 0), lineProcesses-1)], notFirst
	if m.place <= 0 {
		at.free = m.ms
	}
	if at.first != 0 && w.Mistake != ToldInFlightDropped {
		w.isFirst(s, p, at.first)
	}
	at.first = 0
	at.again = at.again && (m.place == notInLine || at.resubscribed)
	if w.Mistake == WakeUpInFlightDropped {
		at.signal = false
	}
}

// isFirst has a process poll as the first in line does, if the lock is free by itself after so many
// ticks.
func (w LineWalk) isFirst(s *lineState, p, ticks int8) {
	at := &s.processes[p]
	at.free, at.polls = ticks, min(at.polls, w.Polls[0])
}

// subscription emits the steps of a process's subscription.
func (w LineWalk) subscription(s *lineState, p int8, do lineEmitter) {
	at, actor := s.processes[p], lineActor(p)
	if at.phase == crashed {
		return
	}
	switch at.subscription {
	case requested:
		if !s.refuses {
			do("server", "subscribes "+actor, func(s *lineState) { s.processes[p].subscription = unconfirmed })
		}
	case unconfirmed:
		do(actor, "reads that it is subscribed", func(s *lineState) {
			at := &s.processes[p]
			at.subscription = confirmed
			asks := at.phase == acquiring || at.place == notInLine || at.resubscribed
			at.again = at.again || asks && w.Mistake != NoPollAfterSubscribing
		})
	case broken:
		do(actor, "notices that its subscription is lost", func(s *lineState) {
			s.processes[p].subscription, s.processes[p].resubscribed = requested, true
		})
	case confirmed:
		if w.Forgets && at.phase == idle {
			do(actor, "ends its subscription", func(s *lineState) { s.processes[p].subscription = unsubscribed })
		}
	}
	if at.wakeUp {
		do(actor, "reads that it is woken", func(s *lineState) { s.processes[p].wakeUp, s.processes[p].signal = false, true })
	}
	if at.told != 0 {
		do(actor, "reads that it is first", func(s *lineState) {
			at := &s.processes[p]
			switch told := at.told; {
			case at.lingers && w.Mistake == ToldWithoutCallerDropped:
			case at.phase == waiting:
				w.isFirst(s, p, told)
			default:
				at.first = told
			}
			at.told = 0
		})
	}
}

// lineJanitor emits the steps of a process's janitor: it leaves the line for waits that are over,
// and releases what late acquisitions have taken. It repeats that as long as a copy is in the
// network.
func (w LineWalk) lineJanitor(s *lineState, p int8, do lineEmitter) {
	at := s.processes[p]
	for wait := range int8(lineWaits) {
		if at.pending&(1<<wait) == 0 {
			continue
		}
		m := lineCommand{kind: leave, process: p, wait: wait}
		done := w.Mistake == LeaveSentOnce || !s.copied(p, wait)
		do(lineActor(p), "leaves the line", func(s *lineState) {
			at := &s.processes[p]
			w.serve(s, m)
			if at.tried |= 1 << wait; done {
				at.pending &^= 1 << wait
				at.tried &^= 1 << wait
			}
		})
		if s.faults > 0 && w.Kinds&LeaveHeldUp != 0 {
			do(lineActor(p), "sends a leave, which is held up", func(s *lineState) {
				s.faults--
				s.holdUp(m)
			})
		}
	}
}

// copied says whether an acquisition of a wait is in the network.
func (s *lineState) copied(p, wait int8) bool {
	return slices.ContainsFunc(s.copies[:], func(m lineCommand) bool {
		return m.kind != noLineCommand && m.kind != leave && m.process == p && m.wait == wait
	})
}
