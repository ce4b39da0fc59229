package model

import "slices"

// This file has the steps of processes: of their callers, subscriptions and janitors.

// lineCaller emits the steps of the head of a process.
func (w LineWalk) lineCaller(s *lineState, p int8, do lineEmitter) {
	at, actor := s.processes[p], lineActor(p)
	switch at.phase {
	case idle:
		if at.calls > 0 {
			do(actor, "wants the lock", func(s *lineState) {
				at := &s.processes[p]
				if at.calls--; w.Together {
					at.local, at.calls = at.calls, 0
				}
				w.begin(s, p)
			})
		}
	case waiting:
		if at.signal || at.again || at.timer == 0 && !at.pausing {
			do(actor, "tries", func(s *lineState) { w.ask(s, p) })
		}
		if s.giveUps > 0 {
			do(actor, "has a caller that gives up waiting", func(s *lineState) {
				s.giveUps--
				w.giveUp(s, p)
			})
		}
	case holding:
		do(actor, "unlocks", func(s *lineState) {
			at := &s.processes[p]
			at.phase, at.command = releasing, lineCommand{kind: freeLock, process: p, wait: at.wait}
		})
		if w.Extends && at.left > 0 && at.left < w.TTL {
			do(actor, "extends", func(s *lineState) { s.left, s.processes[p].left = w.TTL, w.TTL })
		}
	}
	switch m := at.command; {
	case m.answered:
		do(actor, "reads the reply to its "+m.kind.String(), func(s *lineState) { w.readReply(s, p) })
	case m.kind != noLineCommand && !w.leftOut(s, m):
		do("server", "carries out "+actor+"'s "+m.kind.String(), func(s *lineState) {
			m := w.serve(s, m)
			s.processes[p].command = m
			s.owe(m)
		})
	}
}

// leftOut says whether Ordered leaves out that a command is carried out: it takes the lock for a process that has not joined,
// although others have.
func (w LineWalk) leftOut(s *lineState, m lineCommand) bool {
	return w.Ordered && s.token == 0 && s.processes[m.process].arrival == 0 && (m.kind == bareSet || m.kind == tryAndJoin) &&
		slices.ContainsFunc(s.processes[:], func(p lineProcess) bool { return p.arrival != 0 })
}

// begin sends the first attempt of a caller that becomes the head.
func (w LineWalk) begin(s *lineState, p int8) {
	at := &s.processes[p]
	at.wait++
	kind := bareSet
	if at.polite {
		kind = joinOnly
	}
	at.phase, at.polite = acquiring, at.polite && w.Mistake == PoliteForEver
	at.command = lineCommand{kind: kind, process: p, wait: at.wait}
}

// ask sends the script.
func (w LineWalk) ask(s *lineState, p int8) {
	at := &s.processes[p]
	kind := tryAndJoin
	if at.polite && !at.signal {
		kind = joinOnly
	}
	at.signal, at.again, at.pausing = false, false, false
	at.phase, at.command = acquiring, lineCommand{kind: kind, process: p, wait: at.wait, score: at.score}
}

// finishCall makes the next caller of the process the head, if there is one.
func (w LineWalk) finishCall(s *lineState, p int8) {
	at := &s.processes[p]
	at.phase, at.command = idle, lineCommand{}
	if at.local > 0 {
		at.local--
		w.begin(s, p)
	}
}

// giveUp ends the head's waiting: the next caller of the process goes on with its entry, or the process leaves.
func (w LineWalk) giveUp(s *lineState, p int8) {
	at := &s.processes[p]
	if at.local > 0 && w.Mistake == HeadDropsEntry {
		w.leaveLater(s, p, at.wait)
	}
	switch {
	case at.local > 0 && at.pausing && w.Mistake != HeadStartNotInherited: // the next caller goes on with it
		at.local--
	case at.local > 0 && w.Mistake == HeadKeepsWakeUp && at.phase == waiting:
		at.local--
		at.signal = false
	case at.local > 0:
		at.local--
		w.ask(s, p)
	default:
		at.phase, at.command = idle, lineCommand{}
		s.forgive(p)
		if w.Mistake != LeaveNotSent {
			w.leaveLater(s, p, at.wait)
		}
	}
}

// leaveLater gives the wait to the janitor.
func (w LineWalk) leaveLater(s *lineState, p, wait int8) {
	at := &s.processes[p]
	at.pending |= 1 << wait
	at.tried &^= 1 << wait
}

// readReply is a process's next step after a reply.
func (w LineWalk) readReply(s *lineState, p int8) {
	at := &s.processes[p]
	m := at.command
	at.command = lineCommand{}
	switch {
	case m.kind == freeLock:
		at.polite = m.woke != 0 && m.woke != p+1 && w.Mistake != NeverPolite
		w.finishCall(s, p)
	case m.result == taken:
		at.phase, at.left, at.owes = holding, max(w.TTL, 1), 0
	case m.kind == bareSet:
		w.ask(s, p)
	default:
		w.wait(s, p, m)
	}
}

// wait makes the head wait after a reply that the lock is held, or free and left to others.
func (w LineWalk) wait(s *lineState, p int8, m lineCommand) {
	at := &s.processes[p]
	at.phase, at.place, at.score = waiting, m.place, m.score
	at.timer = w.poll(m.place, m.ms)
	if at.first != 0 && w.Mistake != ToldInFlightDropped {
		at.timer = min(at.timer, w.poll(0, at.first))
	}
	at.first = 0
	if m.result == stayFree && w.Mistake != PoliteFullInterval && w.Mistake != PoliteForEver {
		at.pausing, at.again = true, false
	}
	if w.Mistake == WakeUpInFlightDropped {
		at.signal = false
	}
	if at.subscription == unsubscribed {
		at.subscription = requested
	}
}

// poll returns after how many ticks a process at a place in line polls, if the holder has so many ticks left.
func (w LineWalk) poll(place, ms int8) int8 {
	switch {
	case place == notInLine:
		return w.Polls[0]
	case place == 0 && ms > 0:
		return min(w.Polls[0], ms)
	case place > 0 && w.Mistake == TakerDoesNotTell:
		return 100
	}
	return w.Polls[place]
}

// subscription emits the steps of a process's subscription.
func (w LineWalk) subscription(s *lineState, p int8, do lineEmitter) {
	at, actor := s.processes[p], lineActor(p)
	if at.phase == crashed {
		return
	}
	switch at.subscription {
	case requested:
		if s.refuses {
			break
		}
		do("server", "subscribes "+actor, func(s *lineState) { s.processes[p].subscription = unconfirmed })
	case unconfirmed:
		do(actor, "reads that it is subscribed", func(s *lineState) {
			at := &s.processes[p]
			at.subscription = confirmed
			if w.Mistake != NoPollAfterSubscribing && !at.pausing {
				at.again = true
			}
		})
	case broken:
		do(actor, "notices that its subscription is lost", func(s *lineState) { s.processes[p].subscription = requested })
	case confirmed:
		if w.Forgets && at.phase == idle {
			do(actor, "ends its subscription", func(s *lineState) {
				s.processes[p].subscription, s.processes[p].wakeUps, s.processes[p].told = unsubscribed, 0, 0
			})
		}
	}
	for wait := range int8(4) {
		if at.wakeUps&(1<<wait) != 0 {
			do(actor, "reads that it is woken", func(s *lineState) { w.woken(s, p, wait) })
		}
	}
	if at.told != 0 {
		do(actor, "reads that it is first", func(s *lineState) {
			at := &s.processes[p]
			switch at.phase {
			case waiting:
				at.timer = min(at.timer, w.poll(0, at.told))
			case acquiring:
				at.first = at.told
			}
			at.told = 0
		})
	}
}

// woken handles a wake-up that is meant for a wait.
func (w LineWalk) woken(s *lineState, p, wait int8) {
	at := &s.processes[p]
	at.wakeUps &^= 1 << wait
	waits := at.phase == waiting || at.phase == acquiring
	at.signal = at.signal || waits && (at.wait == wait || w.Mistake == WaitNumberNotSent)
}

// lineJanitor emits the steps of a process's janitor: it leaves the line for waits that are over, and releases what late
// acquisitions have taken. It repeats that as long as a copy is in the network.
func (w LineWalk) lineJanitor(s *lineState, p int8, do lineEmitter) {
	at := s.processes[p]
	for wait := range int8(4) {
		if at.pending&(1<<wait) == 0 {
			continue
		}
		m := lineCommand{kind: leave, process: p, wait: wait}
		m.over = w.Mistake == HeadDropsEntry || at.wait != wait || at.phase != waiting && at.phase != acquiring
		m.given = m.over && (at.wait != wait || at.phase == idle)
		done := w.Mistake == LeaveSentOnce || m.over && !s.copied(p, wait)
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
	for _, m := range s.copies {
		if m.kind != noLineCommand && m.kind != leave && m.process == p && m.wait == wait {
			return true
		}
	}
	return false
}
