package model

// This file has the steps of clients: watcher.go, outlook.go and watch.go.

// caller emits the steps of a client's caller.
func (w IdleWalk) caller(s *idleState, c int8, do idleEmitter) {
	k, actor := &s.clients[c], idleActor(c)
	if s.calls > 0 && (k.caller == noCaller || k.caller == atWork) {
		do(actor, "has a caller that waits", func(s *idleState) {
			s.calls--
			w.finish(s, c)
			w.enter(&s.clients[c])
		})
		if w.Directly {
			do(actor, "has a caller that claims", func(s *idleState) {
				s.calls--
				w.leaveTask(s, c)
				s.clients[c].send(claim)
			})
		}
		if w.Directly && w.Room {
			do(actor, "has a caller that claims and has room", func(s *idleState) {
				s.calls--
				w.leaveTask(s, c)
				s.clients[c].send(roomyClaim)
			})
		}
	}
	switch k.caller {
	case callerTold:
		do(actor, "claims", func(s *idleState) { s.clients[c].send(claim) })
		if w.Room {
			do(actor, "claims and has room", func(s *idleState) { s.clients[c].send(roomyClaim) })
		}
	case atWork:
		do(actor, "finishes", func(s *idleState) { w.finish(s, c) })
	}
	if w.GiveUps && (k.caller == inWait || k.caller == callerTold) {
		do(actor, "has a caller that gives up", func(s *idleState) { s.clients[c].caller = noCaller })
	}
}

// finish finishes a client's task, if it has one.
func (w IdleWalk) finish(s *idleState, c int8) {
	k := &s.clients[c]
	if k.caller == atWork && k.task > 0 {
		s.drop(int(k.task - 1))
		w.freed(s)
	}
	k.caller = noCaller
}

// leaveTask leaves a client's task to its next claim, which finishes it, if there are limits: else
// that is as good as before.
func (w IdleWalk) leaveTask(s *idleState, c int8) {
	if w.Limits == (IdleLimits{}) {
		w.finish(s, c)
	}
}

// send sends a claim.
func (k *idleClient) send(kind idleKind) {
	k.caller, k.told, k.claim = inClaim, false, idleCommand{kind: kind, beside: k.look.kind != noIdleCommand}
	if k.place != outOfLine {
		k.claim.kind++ // in line
	}
}

// enter adds a caller that waits, and starts a watch if there is none.
func (w IdleWalk) enter(k *idleClient) {
	k.caller = inWait
	k.makeSure()
	w.startWatch(k)
}

// makeSure has the queue looked at if the client is not in line, or may not be, and its caller is
// not told now.
func (k *idleClient) makeSure() {
	if (k.unsure || k.place == outOfLine) && k.askAt > 0 {
		k.known = false
	}
}

// start starts a watch, if there is none. It takes what was said meanwhile, unless it looks first.
func (w IdleWalk) startWatch(k *idleClient) {
	if k.watching {
		return
	}
	k.watching = true
	if message := k.unheard; message != 0 && k.known {
		w.hear(k, message-1)
	}
	k.unheard = 0
}

// hear takes a message: a client that is told of a due head has left the line, and else it is the
// watchman.
func (w IdleWalk) hear(k *idleClient, off int8) {
	k.place = asWatchman
	if off == 0 {
		k.place = outOfLine
		k.told = k.told || w.Mistake != AlonePassesNothingOn
	}
	k.known, k.due, k.askAt = true, off, off
}

// watch emits the steps of a client's watch, and of the messages to it.
func (w IdleWalk) watch(s *idleState, c int8, do idleEmitter) {
	k, actor := &s.clients[c], idleActor(c)
	if k.inbox[0] != 0 {
		what := "reads that the head is due"
		if k.inbox[0] > 1 {
			what = "reads that the head is due later"
		}
		do(actor, what, func(s *idleState) { w.read(s, &s.clients[c]) })
	}
	if !k.watching || k.look.kind == leaveLine {
		return
	}
	asks := k.known && k.askAt == 0
	switch {
	case k.caller == inWait && asks:
		do(actor, "tells its caller", func(s *idleState) {
			k := &s.clients[c]
			k.caller, k.told, k.known = callerTold, w.Mistake != ToldPassesNothingOn, false
		})
	case k.caller == inWait && k.look.kind == noIdleCommand && (!k.known || k.lookAt == 0):
		do(actor, "looks", func(s *idleState) {
			k := &s.clients[c]
			if k.look.kind = look; k.known && w.Together {
				k.look.kind = lookTogether
			}
		})
	case k.caller != inWait:
		w.alone(s, c, do)
	}
}

// alone emits the step of a watch for which no caller waits. It may end while a look is under way:
// then that gives a place that the client does not know of, perhaps.
func (w IdleWalk) alone(s *idleState, c int8, do idleEmitter) {
	if w.Mistake == AloneNeverPassesOn {
		return
	}
	if k := &s.clients[c]; k.place == outOfLine && !k.told {
		do(idleActor(c), "ends its watch", func(s *idleState) {
			k := &s.clients[c]
			k.watching, k.look.old = false, true
		})
	} else if k.look.kind == noIdleCommand {
		do(idleActor(c), "leaves the line", func(s *idleState) {
			k := &s.clients[c]
			k.told, k.place, k.known = false, outOfLine, false
			k.look.kind, k.look.beside, k.claim.beside = leaveLine, k.claim.kind != noIdleCommand, true
		})
	}
}

// read takes a message out of the network.
func (w IdleWalk) read(s *idleState, k *idleClient) {
	message := k.takeMessage()
	for _, m := range []*idleCommand{&k.look, &k.claim} {
		m.newer, m.behind = true, max(m.behind-1, 0)
	}
	if k.look.kind == leaveLine {
		s.race()
	}
	if !k.watching {
		k.unheard = message
		return
	}
	w.hear(k, message-1)
}

// race notes that a client takes what was said to it in another order than the server has said it,
// perhaps. This costs a look.
func (s *idleState) race() {
	s.struck = true
	s.races--
	s.cut = s.cut || s.races < 0
}

// replies emits the steps in which a client reads a reply.
func (w IdleWalk) replies(s *idleState, c int8, do idleEmitter) {
	k, actor := &s.clients[c], idleActor(c)
	if k.look.answered {
		do(actor, "reads the reply to its "+k.look.kind.String(), func(s *idleState) { w.looked(s, &s.clients[c]) })
	}
	if k.claim.answered {
		what := "reads the reply to its " + k.claim.kind.String()
		do(actor, what, func(s *idleState) { w.claimed(s, &s.clients[c]) })
		if k.claim.kind.keepsRoom() && k.claim.brought {
			do(actor, what+", and has a caller that waits", func(s *idleState) {
				w.claimed(s, &s.clients[c])
				s.clients[c].task = 0 // the caller that works at it does not claim
				w.enter(&s.clients[c])
			})
		}
	}
}

// looked takes what a look has found. What came after it was sent counts for more: it may be older.
func (w IdleWalk) looked(s *idleState, k *idleClient) {
	m := k.look
	k.look = idleCommand{}
	k.claim.beside = true
	if m.behind > 0 || m.beside || m.old || m.newer && m.late {
		s.race()
	}
	switch {
	case m.kind == leaveLine:
		if k.unsure = k.place != outOfLine; k.caller == inWait {
			k.makeSure()
		}
	case m.old:
	case m.newer && w.Mistake != OldReplyOverwrites:
		k.lookAt = w.interval()
	case m.kind == lookTogether && m.place == outOfLine:
		k.look.kind = look
	default:
		k.place, k.unsure = m.place, false
		w.expect(k, m.off)
	}
}

// claimed takes what a claim has brought, and what it says of the head.
func (w IdleWalk) claimed(s *idleState, k *idleClient) {
	m := k.claim
	k.claim, k.caller = idleCommand{}, noCaller
	k.look.beside = true
	if m.brought {
		k.caller, k.task = atWork, m.task
	}
	newer := m.newer && k.unheard == 0 && w.Mistake != OldReplyOverwrites
	if m.behind > 0 || m.beside || newer && m.late && (!m.brought || m.off > 0) {
		s.race()
	}
	switch {
	case m.place == notAsked:
	case !newer:
		k.place, k.unsure = m.place, false
	case m.place != outOfLine && w.Mistake != NeverUnsure: // before the message, or after
		k.place, k.unsure = inLine, true
	}
	knewBetter := k.known && k.due > 0 && k.due <= m.off // if it is the same head, a quicker reply has said that it is due earlier
	switch {
	case m.brought && m.off == 0:
		k.known, k.due, k.askAt, k.lookAt = true, 0, 0, w.interval()
		if w.Mistake == RoomSeesToNothing {
			k.askAt = noHead
		}
		k.cover(m)
	case newer:
	case knewBetter && (k.askAt != noHead || k.place != asWatchman):
		k.lookAt = w.interval()
	case m.off == 0:
		k.known = false
		k.cover(m)
	default:
		w.expect(k, m.off)
		if w.Mistake == RoomSeesToNothingLater && m.brought {
			k.askAt = noHead
		}
		k.cover(m)
	}
	if k.place != outOfLine && !newer {
		w.startWatch(k)
	}
	if !m.brought {
		w.enter(k) // and waits again
	}
}

// cover forgets what was said before a command was sent.
func (k *idleClient) cover(m idleCommand) {
	if !m.newer {
		k.unheard = 0
	}
}

// expect has the caller told when the head is due, if this client sees to that.
func (w IdleWalk) expect(k *idleClient, off int8) {
	k.known, k.due, k.askAt, k.lookAt = true, off, noHead, w.interval()
	if off == 0 || off != noHead && k.place != inLine {
		k.askAt = off
	}
}

// interval is in how many ticks a client looks again.
func (w IdleWalk) interval() int8 {
	if w.Mistake == LooksOnce {
		return long
	}
	return w.Look
}
