package model

import "slices"

// This file has the steps of time, of the server and of the network.

func (w LineWalk) lineTick(s *lineState) {
	if s.free++; s.token != 0 || !s.waits() {
		s.free = 0
	}
	if s.token != 0 {
		if s.left--; s.left == 0 {
			s.token = 0
		}
	}
	for i := range s.processes {
		p := &s.processes[i]
		p.timer, p.left = max(p.timer-1, 0), max(p.left-1, 0)
		p.polite, p.owes = p.polite && w.Mistake == PoliteForEver, 0
	}
}

// network emits the steps of copies that were held up, and the faults of the server.
func (w LineWalk) network(s *lineState, do lineEmitter) {
	for i, m := range s.copies {
		if m.kind != noLineCommand {
			do("server", "carries out a "+m.kind.String()+" of "+lineActor(m.process)+" that was held up", func(s *lineState) {
				s.copies[i] = lineCommand{}
				w.serveLate(s, m)
			})
		}
	}
	if s.faults > 0 && w.Kinds&LineLost != 0 && s.line[0].wait != 0 {
		do("server", "loses the line", func(s *lineState) {
			s.faults--
			s.struck, s.line = true, [6]lineEntry{}
		})
	}
	if s.faults > 0 && w.Kinds&PublishDenied != 0 && !s.denied {
		do("server", "denies PUBLISH from now on", func(s *lineState) {
			s.faults--
			s.struck, s.denied = true, true
		})
	}
	if s.faults > 0 && w.Kinds&SubscribeRefused != 0 && !s.refuses {
		do("server", "refuses SUBSCRIBE from now on", func(s *lineState) {
			s.faults--
			s.struck, s.refuses = true, true
		})
	}
}

// serveLate carries out a copy. An acquisition may leave an entry whose wake-up finds no waiter, or may take the entry of
// a wait that goes on along: either costs a poll.
func (w LineWalk) serveLate(s *lineState, m lineCommand) {
	at := s.processes[m.process]
	goesOn := at.wait == m.wait && (at.phase == waiting || at.phase == acquiring) && s.token != m.token()&^4
	had := s.entry(m.process, m.wait) >= 0
	m = w.serve(s, m)
	s.struck = s.struck || m.joined && !goesOn || m.result == taken && had && goesOn
}

// holdUp keeps a command in the network: the server may carry it out at any time, and no caller waits for the reply.
func (s *lineState) holdUp(m lineCommand) {
	if m.kind == noLineCommand || m.answered {
		return
	}
	for i := range s.copies {
		if s.copies[i].kind == noLineCommand {
			s.copies[i] = m
			return
		}
	}
	panic("more copies than there is room for")
}

// serve is the server: it carries out a command, and returns it with the reply.
func (w LineWalk) serve(s *lineState, m lineCommand) lineCommand {
	m.answered = true
	switch m.kind {
	case bareSet:
		m.result = heldBy
		if s.token == 0 {
			m.result = taken
			w.take(s, m, false)
		}
	case tryAndJoin, joinOnly:
		return w.serveAcquisition(s, m)
	case freeLock:
		m.woke = 0
		if s.token == m.token() {
			s.token = 0
			m.woke = w.wakeFirst(s)
		}
	case leave:
		w.serveLeave(s, m)
	}
	return m
}

// serveAcquisition is acquire.lua.
func (w LineWalk) serveAcquisition(s *lineState, m lineCommand) lineCommand {
	subscribed := s.hears(m.process) || w.Mistake == JoinWithoutSubscriber
	own := s.token == m.token() && !m.late || m.retry && s.token == m.token()|4 // acquired by an earlier attempt, which this one replaces
	tries := m.kind == tryAndJoin || w.Mistake == PoliteTriesUnlisted && !subscribed
	if own || s.token == 0 && tries {
		if w.take(s, m, own); w.Mistake != EntryKept {
			s.remove(m.process, m.wait)
		}
		if w.Mistake != TakerDoesNotTell {
			w.tellFirst(s)
		}
		m.result = taken
		return m
	}
	m.result, m.ms, m.place = heldBy, s.left, s.entry(m.process, m.wait)
	if s.token == 0 {
		m.result = stayFree
	}
	if m.joined = m.place < 0 && subscribed; m.joined {
		if m.score == 0 || w.Mistake == RejoinWithNewScore {
			m.score = s.newScore()
		}
		m.place = s.insert(lineEntry{m.process, m.wait, m.score})
		if at := &s.processes[m.process]; at.wait == m.wait && at.arrival == 0 {
			at.arrival = m.score
		}
	}
	if m.place < 0 {
		m.place = notInLine
	} else {
		m.score = s.line[m.place].score
	}
	m.place = min(m.place, notInLine)
	return m
}

// serveLeave is release.lua with a member.
func (w LineWalk) serveLeave(s *lineState, m lineCommand) {
	if s.token == m.token()|4 || s.token == m.token() && m.given || w.Mistake == ReleaseWithoutCompare {
		s.token = 0
	}
	place := int8(-1)
	if m.over || w.Mistake == JanitorLeavesTooEarly {
		if place = s.remove(m.process, m.wait); w.Mistake == LeaveWithoutNumber && place < 0 {
			for number := range int8(4) {
				place = max(place, s.remove(m.process, number))
			}
		}
	}
	switch {
	case s.token == 0 && w.Mistake != LeaveDoesNotWake:
		if woken := w.wakeFirst(s); woken != 0 {
			s.processes[woken-1].owes = 0 // whoever has freed the lock
		}
	case s.token != 0 && place == 0 && w.Mistake != LeaveDoesNotTell:
		w.tellFirst(s)
	}
}

// take gives the lock to the command's token, and notes which processes it overtakes.
func (w LineWalk) take(s *lineState, m lineCommand, again bool) {
	s.token, s.left, s.free = m.token(), max(w.TTL, 1), 0
	taker := &s.processes[m.process]
	owes := taker.owes
	for i := range s.processes {
		s.processes[i].owes = 0
	}
	if again || m.late || taker.wait != m.wait || taker.phase != acquiring { // a late copy, which the janitor releases
		return
	}
	s.impolite = owes != 0
	for i := range s.processes {
		p := &s.processes[i]
		if p.arrival != 0 && taker.arrival > p.arrival && (p.phase == waiting || p.phase == acquiring) {
			p.overtaken[m.process] = min(p.overtaken[m.process]+1, 2)
		}
	}
}

// owe notes that the releaser must not take the lock before the process that it has woken.
func (s *lineState) owe(m lineCommand) {
	if m.woke == 0 || m.woke == m.process+1 {
		return
	}
	woken := &s.processes[m.woke-1]
	if (woken.phase == waiting || woken.phase == acquiring) && woken.wakeUps&(1<<woken.wait) != 0 {
		s.processes[m.process].owes = m.woke
	}
}

// forgive ends what others owe to a process that does not come for the lock.
func (s *lineState) forgive(p int8) {
	for i := range s.processes {
		if at := &s.processes[i]; at.owes == p+1 {
			at.owes = 0
		}
	}
}

// wakeFirst takes the first out of the line that has a receiver, and publishes a wake-up to it.
func (w LineWalk) wakeFirst(s *lineState) (woken int8) {
	for s.line[0].wait != 0 && w.Mistake != ReleaseDoesNotWake {
		first := s.line[0]
		if w.Mistake == ReleaseWakesTheLast {
			for i := 0; s.line[i].wait != 0; i++ {
				first = s.line[i]
			}
		}
		p := &s.processes[first.process]
		if s.denied && w.Mistake != DeniedRemovesEntry {
			return 0
		}
		s.remove(first.process, first.wait)
		s.dropped = s.dropped || s.denied && p.phase != crashed
		if s.denied || !s.hears(first.process) {
			continue
		}
		if p.phase != crashed {
			p.wakeUps |= 1 << first.wait
		}
		return first.process + 1
	}
	return 0
}

// tellFirst publishes to the first in line that it is first.
func (w LineWalk) tellFirst(s *lineState) {
	if e := s.line[0]; e.wait != 0 && !s.denied && s.hears(e.process) && s.processes[e.process].phase != crashed {
		s.processes[e.process].told = s.left
	}
}

// hears says whether the server counts a subscription of the process.
func (s *lineState) hears(p int8) bool {
	return s.processes[p].subscription == unconfirmed || s.processes[p].subscription == confirmed
}

// entry returns the place in line of a wait, or -1.
func (s *lineState) entry(process, wait int8) int8 {
	return int8(slices.IndexFunc(s.line[:], func(e lineEntry) bool { return e.wait != 0 && e.process == process && e.wait == wait }))
}

// insert inserts an entry by its score, and returns its place.
func (s *lineState) insert(e lineEntry) (place int8) {
	for s.line[place].wait != 0 && s.line[place].score <= e.score {
		place++
	}
	copy(s.line[place+1:], s.line[place:])
	s.line[place] = e
	return place
}

// remove removes a wait's entry, and returns the place that it had, or -1.
func (s *lineState) remove(process, wait int8) int8 {
	place := s.entry(process, wait)
	if place >= 0 {
		copy(s.line[place:], s.line[place+1:])
		s.line[len(s.line)-1] = lineEntry{}
	}
	return place
}
