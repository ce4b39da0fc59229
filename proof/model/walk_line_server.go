package model

import "slices"

// This file has the steps of time, of the server and of the network.

// reservationTicks is how long a reservation lasts.
const reservationTicks int8 = 1

func (w LineWalk) lineTick(s *lineState) {
	if s.unheld++; s.isHeld() || !s.waits() {
		s.unheld = 0
	}
	if s.key.wait != 0 && (!s.key.reserved || w.Mistake != ReservationWithoutEnd) {
		if s.key.left--; s.key.left == 0 {
			if at := &s.processes[s.key.process]; s.key.reserved && at.wait == s.key.wait {
				at.out = true
			}
			s.key, s.ended = lineKey{}, true
		}
	}
	for i := range s.processes {
		p := &s.processes[i]
		p.polls, p.left = max(p.polls-1, 0), max(p.left-1, 0)
		if p.free > 0 {
			p.free--
		}
	}
}

// network emits the steps of copies that were held up, and the faults of the server.
func (w LineWalk) network(s *lineState, do lineEmitter) {
	for i, m := range s.copies {
		if m.kind != noLineCommand {
			do("server", "carries out a "+m.kind.String()+" of "+lineActor(m.process)+" that was held up", func(s *lineState) {
				s.copies[i] = lineCommand{}
				had := s.entry(m.process, m.wait) >= 0
				m := w.serve(s, m)
				joined := !had && s.entry(m.process, m.wait) >= 0
				s.struck = s.struck || m.taken || joined // until the janitor comes again
			})
		}
	}
	strike := func(kind LineFault, can bool, action string, change func(s *lineState)) {
		if can && s.faults > 0 && w.Kinds&kind != 0 {
			do("server", action, func(s *lineState) {
				s.faults--
				s.struck = true
				change(s)
			})
		}
	}
	strike(LineLost, s.line[0].wait != 0, "loses the line", func(s *lineState) {
		for s.line[0].wait != 0 {
			s.dropFirst()
		}
	})
	strike(PublishDenied, !s.denied, "denies PUBLISH from now on", func(s *lineState) { s.denied = true })
	strike(SubscribeRefused, !s.refuses, "refuses SUBSCRIBE from now on", func(s *lineState) { s.refuses = true })
}

// holdUp keeps a command in the network: the server may carry it out at any time, and no caller
// waits for the reply.
func (s *lineState) holdUp(m lineCommand) {
	if m.kind != noLineCommand && !m.answered {
		s.copies[slices.Index(s.copies[:], lineCommand{})] = m
	}
}

// serve is the server: it carries out a command, and returns it with the reply.
func (w LineWalk) serve(s *lineState, m lineCommand) lineCommand {
	m.answered = true
	switch m.kind {
	case bareSet:
		if m.taken = s.key.wait == 0 || s.key.reserved && w.Mistake == SetIgnoresReservation; m.taken {
			w.take(s, m, false)
		}
	case tryOnly, tryAndJoin:
		return w.serveAcquisition(s, m)
	case freeLock:
		if m.woke = false; s.key.is(m) && !s.key.reserved {
			m.woke = w.passOn(s)
		}
	case leave:
		w.serveLeave(s, m)
	}
	return m
}

// serveAcquisition is acquire.lua.
func (w LineWalk) serveAcquisition(s *lineState, m lineCommand) lineCommand {
	reserved := s.key.reserved && w.isReservedFor(s, m)
	replaced := !s.key.reserved && s.key.process == m.process && m.lost&(1<<s.key.wait) != 0
	if m.taken = s.key.wait == 0 || reserved || replaced; m.taken {
		w.take(s, m, replaced)
		if w.Mistake != EntryKept && !reserved && s.remove(m.process, m.wait) == 0 && w.Mistake != TakerDoesNotTell {
			s.tellFirst()
		}
		return m
	}
	m.ms = s.key.left
	if m.kind == tryAndJoin {
		w.dropGone(s)
		w.join(s, &m)
	}
	m.place = s.entry(m.process, m.wait)
	return m
}

// isReservedFor says whether a lock that is reserved goes to an acquisition.
func (w LineWalk) isReservedFor(s *lineState, m lineCommand) bool {
	return s.key.is(m) || w.Mistake == TakesByProcess && s.key.process == m.process ||
		w.Mistake == TakesAnyReservation || w.Mistake == ReleaserTakesReservation && s.processes[m.process].passedOn
}

// dropGone takes processes that are gone out of the head of the line.
func (w LineWalk) dropGone(s *lineState) {
	for s.line[0].wait != 0 && !s.hears(s.line[0].process) {
		if s.dropFirst(); w.Mistake != GoneDroppedUntold {
			s.tellFirst() // a message to one that is gone is lost
		}
	}
}

// dropFirst takes the first out of the line without waking it. Unless a fault has struck, its
// process does not wait.
func (s *lineState) dropFirst() {
	e := s.line[0]
	s.remove(e.process, e.wait)
	if at := &s.processes[e.process]; at.wait == e.wait {
		at.out = true
		s.dropped = s.dropped || !s.struck
	}
}

// join gives an entry its place in line.
func (w LineWalk) join(s *lineState, m *lineCommand) {
	at, place := &s.processes[m.process], s.entry(m.process, m.wait)
	if place < 0 && (s.hears(m.process) || w.Mistake == JoinWithoutSubscriber) {
		if m.score == 0 || w.Mistake == RejoinWithNewScore || w.Mistake == LateComerJoinsLast && at.out {
			m.score = newScore
		}
		place = s.insert(lineEntry{m.process, m.wait, m.score})
	}
	if place < 0 {
		return
	}
	if m.score = s.line[place].score; at.wait == m.wait {
		if at.out = false; at.arrival == 0 {
			at.arrival = m.score
		}
	}
}

// serveLeave is release.lua with a member.
func (w LineWalk) serveLeave(s *lineState, m lineCommand) {
	place := s.remove(m.process, m.wait)
	for number := int8(1); w.Mistake == LeaveWithoutNumber && number < lineWaits; number++ {
		place = max(place, s.remove(m.process, number))
	}
	its := s.key.is(m) || w.Mistake == ReleaseWithoutCompare ||
		s.key.reserved && (w.Mistake == LeaveEndsAnyReservation || w.Mistake == LeaveByProcess && s.key.process == m.process)
	switch {
	case s.key.reserved && w.Mistake == LeaveKeepsReservation:
	case s.key.wait == 0 || its:
		w.passOn(s)
	case place == 0 && w.Mistake != LeaveDoesNotTell:
		s.tellFirst()
	}
}

// take gives the lock to a command's token.
func (w LineWalk) take(s *lineState, m lineCommand, replaced bool) {
	reserved := s.key.reserved && s.key.is(m)
	s.overtaken = s.overtaken || !reserved && !replaced && !s.ended && s.overtakes(m.process, m.wait)
	s.key = lineKey{process: m.process, wait: m.wait, left: max(w.TTL, 1)}
	s.unheld = 0
}

// overtakes says whether another process waits in line that has joined before a wait, or that the
// wait has not joined.
func (s *lineState) overtakes(process, wait int8) bool {
	at := s.processes[process]
	return slices.ContainsFunc(s.processes[:], func(p lineProcess) bool {
		return p.arrival != 0 && !p.out && (at.wait != wait || at.arrival == 0 || at.arrival > p.arrival)
	})
}

// passOn reserves the lock for the first in line that has a receiver, and wakes it. Without one the
// lock is free.
func (w LineWalk) passOn(s *lineState) (woke bool) {
	s.key = lineKey{}
	for s.line[0].wait != 0 && w.Mistake != ReleaseDoesNotWake {
		first := s.line[0]
		for i := 1; w.Mistake == ReleaseWakesTheLast && s.line[i].wait != 0; i++ {
			first = s.line[i]
		}
		if s.denied && w.Mistake != DeniedRemovesEntry {
			s.ended = true // those in line poll
			return false
		}
		if s.denied || !s.hears(first.process) {
			s.dropped = s.dropped || s.denied && s.processes[first.process].phase != crashed
			s.dropFirst()
			continue
		}
		w.wake(s, first)
		return true
	}
	return false
}

// wake takes an entry out of the line, reserves the lock for it, and tells the next in line.
func (w LineWalk) wake(s *lineState, e lineEntry) {
	if w.Mistake != ReservedStaysInLine {
		s.remove(e.process, e.wait)
	}
	if at := &s.processes[e.process]; at.wait == e.wait {
		at.wakeUp = true
	}
	if w.Mistake != ReleaseFreesTheLock {
		s.overtaken = s.overtaken || s.processes[e.process].wait == e.wait && s.overtakes(e.process, e.wait)
		s.key = lineKey{process: e.process, wait: e.wait, left: reservationTicks, reserved: true}
	}
	if w.Mistake != NextNotTold {
		s.tellFirst()
	}
}

// tellFirst publishes to the first in line that it is first.
func (s *lineState) tellFirst() {
	if e := s.line[0]; e.wait != 0 && !s.denied && s.hears(e.process) && s.processes[e.process].phase != crashed {
		s.processes[e.process].told = s.key.left
	}
}
