package model

import "slices"

// This file has the steps of the server: queue_idle.lua, wake.lua, queue_place.lua, and what calls
// them.

// serving emits the steps in which the server carries out a client's commands.
func (w IdleWalk) serving(s *idleState, c int8, do idleEmitter) {
	k := &s.clients[c]
	behind := int8(0)
	for _, message := range k.inbox {
		behind += min(message, 1)
	}
	if m := k.look; m.kind != noIdleCommand && !m.answered {
		do("server", "carries out "+idleActor(c)+"'s "+m.kind.String(), func(s *idleState) {
			m := m
			m.answered, m.off, m.behind, m.late = true, w.visible(s), behind, m.newer || behind > 0
			switch m.kind {
			case look:
				m.place = w.join(s, c, m.off)
			case lookTogether:
				m.place = w.renew(s, c)
			case leaveLine:
				if w.leave(s, c, 0); w.Mistake != LeaveTellsNobody {
					w.seeTo(s, m.off, 1)
				}
				m.off, m.place = 0, outOfLine
			}
			if s.clients[c].look = m; s.clients[c].life != alive {
				s.deadWatch = 0 // a new one
			}
		})
	}
	if m := k.claim; m.kind != noIdleCommand && !m.answered {
		do("server", "carries out "+idleActor(c)+"'s "+m.kind.String(), func(s *idleState) {
			m := m
			m.behind, m.late = behind, m.newer || behind > 0
			if s.clients[c].claim = w.serveClaim(s, c, m); s.clients[c].life != alive {
				s.deadWatch = 0
			}
		})
	}
}

// serveClaim is exchange.lua.
func (w IdleWalk) serveClaim(s *idleState, c int8, m idleCommand) idleCommand {
	m.answered, m.place = true, notAsked
	_, hasFreed := w.held(s)
	if hasFreed = hasFreed && s.clients[c].task > 0; s.clients[c].task > 0 {
		s.drop(int(s.clients[c].task - 1))
		if w.Mistake == FinishGivesTokensBack {
			s.limits.spent = 0
		}
	}
	if head := s.head(); head >= 0 && w.allows(s) && (s.tasks[head].due == 0 || w.Mistake == ClaimTakesWhatIsNotDue) {
		m.brought, m.task, s.overdue = true, int8(head+1), 0
		owned := s.disown(m.task)
		if s.tasks[head].due > 0 {
			s.twice, s.early = owned, !owned
		}
		s.tasks[head].due, s.tasks[head].leased = long, true
		if w.Lease > 0 {
			s.tasks[head].due = w.Lease
		}
		w.handOut(s)
	}
	m.off = w.visible(s)
	switch {
	case !m.brought || m.kind.keepsRoom():
		m.place = w.join(s, c, m.off)
	case m.kind == claimInLine && w.Mistake != BusyStaysInLine:
		w.leave(s, c, m.off)
		m.place = outOfLine
	case m.kind == claimInLine:
		m.place = outOfLine
	}
	hold, isFull := w.held(s)
	if (m.brought || hold > 0 || hasFreed && w.Mistake != FinishAndClaimWakes) && !isFull {
		w.lookOut(s, m)
	}
	return m
}

// lookOut has others see to the head after a claim, unless the claimant does.
func (w IdleWalk) lookOut(s *idleState, m idleCommand) {
	isIn := m.place == inLine || m.place == asWatchman
	switch {
	case m.off == noHead || m.place == asWatchman || isIn && (m.off == 0 || w.Mistake == RoomHidesTheNext):
	case m.off == 0 && w.Mistake != ClaimTellsNobody, m.off > 0 && !s.tasks[s.head()].leased && w.Mistake != ClaimHidesTheNext:
		w.seeTo(s, m.off, 2)
	}
}

// add adds n tasks. The head is told of, if it is one of these: what is due in the same tick was
// due before.
func (w IdleWalk) add(s *idleState, due int8, n int) {
	before := s.off()
	for range n {
		s.adds--
		s.put(due)
	}
	if before > due && (due > 0 || w.Mistake != NewHeadTellsNobody) {
		w.seeTo(s, due, n)
	}
}

// tell publishes a message, and returns how many clients it reaches, and whether that is allowed.
func (w IdleWalk) tell(s *idleState, c, off int8) (told int, allowed bool) {
	k := &s.clients[c]
	switch {
	case s.denied:
		return 0, false
	case k.life == gone:
		return 0, true
	case k.life == alive:
		at := slices.Index(k.inbox[:], 0)
		if at < 0 {
			s.cut = true
			return 0, false
		}
		k.inbox[at] = off + 1
	}
	return 1, true
}

// tellLast tells the last in line of the head.
func (w IdleWalk) tellLast(s *idleState, off int8) bool {
	for s.line[0].client != 0 {
		last := s.line[0].client - 1
		for _, e := range s.line {
			if e.client != 0 {
				last = e.client - 1
			}
		}
		told, allowed := w.tell(s, last, off)
		switch {
		case !allowed:
			if w.Mistake == DeniedTakesOut {
				s.remove(last)
				s.dropped = true
			}
			return false
		case told > 0 && off > 0:
			s.insert(last, w.toldWatch())
			if s.clients[last].life != alive {
				s.deadWatch = 0 // a new one
			}
		case told == 0 || w.Mistake != ToldStaysInLine:
			s.remove(last)
		}
		if told > 0 {
			return true
		}
	}
	return false
}

// toldWatch is how long the watch of a client takes that was told.
func (w IdleWalk) toldWatch() int8 {
	if w.Told > 0 {
		return w.Told
	}
	return 2 * w.Look
}

// watchman returns the watchman's entry, and whether there is one.
func (s *idleState) watchman() (idleEntry, bool) { return s.line[0], s.line[0].watch > 0 }

// seeTo has clients in line see to the head.
func (w IdleWalk) seeTo(s *idleState, off int8, tasks int) {
	if off == 0 {
		for range min(tasks, 4) {
			if !w.tellLast(s, 0) {
				return
			}
		}
		return
	}
	if off == noHead || w.Mistake == EarlierHeadTellsNobody {
		return
	}
	if e, ok := s.watchman(); ok {
		if e.watch > lapsed {
			if told, allowed := w.tell(s, e.client-1, off); told > 0 || !allowed {
				return
			}
		}
		w.lapse(s, e.client-1, e.watch > lapsed || w.Mistake == LapsedIsTakenOut)
	}
	w.tellLast(s, off)
}

// lapse ends a client's watch: it is one like the others, and the last to be told, unless it is
// taken out.
func (w IdleWalk) lapse(s *idleState, c int8, takesOut bool) {
	if takesOut {
		s.discard(c)
		return
	}
	s.remove(c)
	at := 0
	for s.line[at].watch > 0 {
		at++
	}
	s.insertAt(at, idleEntry{client: c + 1})
}

// join gives a client a place in line.
func (w IdleWalk) join(s *idleState, c, off int8) (place idlePlace) {
	at := s.entry(c)
	if at < 0 && w.Mistake == LookDoesNotJoin {
		return inLine
	}
	var e idleEntry
	if at >= 0 {
		e = s.line[at]
	}
	place = inLine
	wanted, watch := at < 0, int8(0)
	if off > 0 && off != noHead {
		other, ok := s.watchman()
		if own := other.client == c+1; !ok || own || other.watch <= lapsed || w.Mistake == EveryoneWatches {
			if ok && !own && w.Mistake != EveryoneWatches {
				w.lapse(s, other.client-1, w.Mistake == LookTakesOutTheLapsed)
			}
			place = asWatchman
			if e.watch == 0 || 10*(e.watch-lapsed) < 12*w.Look {
				wanted, watch = true, 2*w.Look
			}
		}
	} else if e.watch > 0 {
		wanted = true
	}
	if wanted {
		s.insert(c, watch)
	}
	return place
}

// renew is a look of heads.lua.
func (w IdleWalk) renew(s *idleState, c int8) idlePlace {
	at, off := s.entry(c), s.off()
	switch {
	case at < 0, off != noHead && w.isLimited(s):
		return outOfLine
	case s.line[at].watch > 0 && off > 0 && off != noHead:
		s.insert(c, 2*w.Look)
		return asWatchman
	case s.line[at].watch > 0:
		s.insert(c, 0)
	}
	return inLine
}

// leave takes a client out of the line. If it was the watchman, another one is.
func (w IdleWalk) leave(s *idleState, c, off int8) {
	if e := s.remove(c); e.watch > 0 && off > 0 && w.Mistake != BusyHandsNothingOn {
		w.seeTo(s, off, 1)
	}
}
