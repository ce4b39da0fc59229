package model

// This file has the steps of callers.

// caller emits the steps of a caller.
func (w LockWalk) caller(s *lockState, c int8, do emitter) {
	k, p, actor := s.callers[c], int8(w.Callers[c]), "caller "+string('A'+rune(c))
	switch k.phase {
	case idle:
		if k.rounds > 0 {
			do(actor, "wants the lock", func(s *lockState) { w.callLock(s, c) })
		}
	case queued:
		if s.faults > 0 {
			do(actor, "leaves the wait queue: its context has ended", func(s *lockState) {
				s.faults--
				waiters := &s.processes[p].waiters
				if waiters[0] == c+1 {
					waiters[0] = waiters[1]
				}
				waiters[1] = 0
				w.finish(s, c)
			})
		}
	case waiting:
		expired := s.token == 0 && !s.freed // the TTL that it learned has run out
		if k.signal || expired || s.processes[p].missed {
			do(actor, "polls", func(s *lockState) {
				s.callers[c].signal = false
				w.send(s, c, command{kind: acquire, token: k.token})
			})
		}
		if s.faults > 0 {
			do(actor, "gives up waiting: its context has ended", func(s *lockState) {
				s.faults--
				w.finish(s, c)
			})
		}
	case holding:
		w.holder(s, c, actor, do)
	}
	if k.command.kind != none {
		w.command(s, c, actor, do)
	}
}

// callLock calls Lock.
func (w LockWalk) callLock(s *lockState, c int8) {
	p, k := &s.processes[w.Callers[c]], &s.callers[c]
	k.rounds--
	k.phase, k.extended = queued, false
	if p.held && s.callers[p.head-1].left == 0 {
		w.promoteNext(s, int8(w.Callers[c]))
	}
	switch {
	case p.head == 0:
		w.becomeHead(s, c)
	case p.waiters[0] == 0:
		p.waiters[0] = c + 1
	default:
		p.waiters[1] = c + 1
	}
}

// becomeHead makes c the head of the wait queue, which sends the first attempt.
func (w LockWalk) becomeHead(s *lockState, c int8) {
	p := &s.processes[w.Callers[c]]
	p.head, p.held = c+1, false
	s.callers[c].token = w.newToken(s, c)
	w.send(s, c, command{kind: setNX, token: s.callers[c].token})
}

// newToken returns a token that was never used.
func (w LockWalk) newToken(s *lockState, c int8) int8 {
	k := &s.callers[c]
	if w.Mistake == TokenReused {
		k.tokens = 0
	}
	k.tokens++
	return c*tokens + k.tokens
}

func (w LockWalk) send(s *lockState, c int8, m command) {
	k := &s.callers[c]
	switch k.command = m; m.kind {
	case setNX, acquire:
		k.phase = acquiring
	case release:
		k.phase = releasing
	}
}

// promoteNext removes the head, and makes the next waiter the head.
func (w LockWalk) promoteNext(s *lockState, p int8) {
	at := &s.processes[p]
	next := at.waiters[0]
	at.head, at.held = 0, false
	at.waiters = [2]int8{at.waiters[1], 0}
	if next > 0 {
		w.becomeHead(s, next-1)
	}
}

// finish ends a call, or a hold, of c, and promotes the next waiter.
func (w LockWalk) finish(s *lockState, c int8) {
	k := &s.callers[c]
	*k = caller{rounds: k.rounds, tokens: k.tokens}
	if p := int8(w.Callers[c]); s.processes[p].head == c+1 && w.Mistake != NextNotPromoted {
		w.promoteNext(s, p)
	} else if s.processes[p].head == c+1 {
		s.processes[p].head, s.processes[p].held = 0, false
	}
}

// releaseLater gives the caller's token to the janitor.
func (w LockWalk) releaseLater(s *lockState, c int8) {
	if w.Mistake != LateLockNotReleased {
		of, bit := s.processes[w.Callers[c]].pendingRelease(s.callers[c].token)
		*of |= bit
	}
}

// holder emits the steps of a holder: it extends and unlocks, also past its deadline.
func (w LockWalk) holder(s *lockState, c int8, actor string, do emitter) {
	k := s.callers[c]
	if w.Extend && !k.extended && k.left > 0 && k.command.kind == none {
		for _, ttl := range []int8{1, w.TTL} {
			do(actor, "extends for "+string('0'+rune(ttl)), func(s *lockState) {
				s.callers[c].extended = true
				w.send(s, c, command{kind: extend, token: k.token, ttl: ttl})
			})
		}
	}
	do(actor, "unlocks", func(s *lockState) {
		w.leaveInNetwork(s, k.command)
		s.callers[c].command = command{}
		if !w.handOver(s, c) {
			s.processes[w.Callers[c]].held = false
			w.send(s, c, command{kind: release, token: k.token})
		}
	})
}

// handOver hands the lock over to the next waiter, if that is safe.
func (w LockWalk) handOver(s *lockState, c int8) bool {
	p, k := &s.processes[w.Callers[c]], s.callers[c]
	alive := k.left > 0 || w.Mistake == HandOverPastTheDeadline
	covered := k.handOverLeft > 0 && k.keyLeft >= w.TTL || w.Mistake == HandOverPastTheDeadline || w.Mistake == HandOverOfAShortKey
	if p.head != c+1 || !p.held || p.waiters[0] == 0 || !alive || !covered {
		return false
	}
	next := p.waiters[0]
	p.head, p.waiters = next, [2]int8{p.waiters[1], 0}
	taker := &s.callers[next-1]
	taker.phase, taker.token = holding, k.token
	taker.left, taker.keyLeft, taker.handOverLeft = w.TTL, k.keyLeft, k.handOverLeft
	if w.Mistake == OldHandleStillReleases {
		of, bit := p.pendingRelease(k.token)
		*of |= bit
	}
	w.finish(s, c)
	return true
}

// command emits what may happen to a caller's command.
func (w LockWalk) command(s *lockState, c int8, actor string, do emitter) {
	m := s.callers[c].command
	if m.answered {
		do(actor, "reads the reply", func(s *lockState) { w.handleReply(s, c) })
	} else {
		do("server", "carries out "+actor+"'s "+m.kind.String(), func(s *lockState) {
			s.callers[c].command.answered = true
			s.callers[c].command.reply = w.carryOut(s, m)
		})
	}
	if s.faults == 0 {
		return
	}
	if m.answered {
		do(actor, "loses the reply", func(s *lockState) { w.retry(s, c, false) })
	} else {
		do(actor, "loses the request", func(s *lockState) { w.retry(s, c, false) })
		do(actor, "loses the connection, and the request stays in the network", func(s *lockState) { w.retry(s, c, true) })
	}
	do(actor, "leaves: its context has ended", func(s *lockState) {
		s.faults--
		w.leaveInNetwork(s, m)
		switch m.kind {
		case extend: // the caller holds the lock as before
			s.callers[c].command = command{}
		default:
			if w.Mistake != ReleaseNotRetried || m.kind != release {
				w.releaseLater(s, c)
			}
			w.finish(s, c)
		}
	})
}

// retry retries a command after the connection was reset. If copied, the request is still in
// the network.
func (w LockWalk) retry(s *lockState, c int8, copied bool) {
	s.faults--
	k := &s.callers[c]
	m := k.command
	if copied {
		w.leaveInNetwork(s, m)
	}
	m.answered, m.reply, m.age = false, 0, 0
	switch {
	case m.kind == release && w.Mistake == ReleaseNotRetried:
		w.finish(s, c)
	case m.kind == setNX || m.kind == acquire && w.Mistake != TokenKeptAfterALoss: // the retry is a script with a new token
		w.releaseLater(s, c)
		k.token = w.newToken(s, c)
		w.send(s, c, command{kind: acquire, token: k.token, replaces: m.token})
	default:
		k.command = m
	}
}

// handleReply is a caller's next step after a reply.
func (w LockWalk) handleReply(s *lockState, c int8) {
	k, p := &s.callers[c], &s.processes[w.Callers[c]]
	m := k.command
	k.command = command{}
	if w.Mistake == DeadlineFromTheReply {
		m.age = 0
	}
	switch {
	case m.kind == release:
		w.finish(s, c)
	case m.kind == extend:
		w.handleExtension(s, c, m)
	case m.reply > 0 && m.kind == setNX: // SET NX does not return the TTL
		w.send(s, c, command{kind: acquire, token: k.token})
	case m.reply > 0:
		k.phase = waiting
		if !k.listens {
			k.listens, k.signal = true, p.subscribed == 2 && w.Mistake != NoPollAfterSubscribing
			p.subscribed = max(p.subscribed, 1)
		}
	default:
		k.left = max(w.TTL-m.age, 0)
		k.keyLeft, k.handOverLeft = max(w.TTL+handOverMargin-m.age, 0), max(handOverMargin-m.age, 0)
		if w.Mistake == LateReplyAccepted {
			k.left = max(k.left, 1)
		}
		if k.left == 0 {
			w.releaseLater(s, c)
			w.finish(s, c)
			return
		}
		k.phase, k.listens, k.signal = holding, false, false
		p.held = true
	}
}

// handleExtension is handleReply for an extension.
func (w LockWalk) handleExtension(s *lockState, c int8, m command) {
	k := &s.callers[c]
	switch {
	case m.reply == 0: // the token does not hold the lock any more
		w.finish(s, c)
	case k.left == 0:
		w.releaseLater(s, c)
	default:
		k.left = max(k.left, m.ttl-m.age)
		k.keyLeft = max(k.keyLeft, m.ttl+handOverMargin-m.age)
	}
}
