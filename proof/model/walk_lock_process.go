package model

import "slices"

// This file has the steps of time, of the server and of processes.

func (w LockWalk) tick(s *lockState) {
	if s.token != 0 {
		key := s.key()
		key.Elapse(1)
		s.set(key)
		s.freed = false
	}
	for c := range s.callers {
		k := &s.callers[c]
		for _, left := range []*int8{&k.left, &k.keyLeft, &k.handOverLeft} {
			*left = max(*left-1, 0)
		}
		if k.command.kind != none {
			k.command.age = min(k.command.age+1, w.TTL)
		}
	}
}

// carryOut is the server: each case is one script.
func (w LockWalk) carryOut(s *lockState, m command) (reply int8) {
	token, key := int(m.token), s.key()
	switch m.kind {
	case setNX, acquire:
		s.misled = m.replaces != 0 && key.Token == int(m.replaces)
		if s.misled && w.Mistake != OwnTokenIgnored {
			key.Release(int(m.replaces)) // in the same script: it is not published
		}
		if key.Acquire(token, int64(w.TTL+handOverMargin)) > 0 {
			reply = 1
		}
		s.misled = s.misled && reply > 0
	case extend:
		if w.Mistake == ExtendThatShortens {
			key.Left = 0
		}
		if key.Extend(token, int64(m.ttl+handOverMargin)) {
			reply = 1
		}
	case release:
		if key.Release(token) || w.Mistake == ReleaseWithoutCompare && key.Force() {
			reply = 1
			w.publish(s)
		}
	}
	s.set(key)
	return reply
}

func (w LockWalk) publish(s *lockState) {
	s.freed = true
	for p := range s.processes {
		if s.processes[p].subscribed == 2 && w.Mistake != ReleaseNotPublished {
			s.processes[p].notified = true
		}
	}
}

// process emits the steps of a process: of its pub/sub connection, its janitor and its wait
// queue, and its crash.
func (w LockWalk) process(s *lockState, p int8, do emitter) {
	actor, at := "process "+string('1'+rune(p)), s.processes[p]
	switch {
	case at.subscribed == 1:
		do(actor, "is subscribed", func(s *lockState) {
			s.processes[p].subscribed = 2
			if w.Mistake != NoPollAfterSubscribing {
				w.wake(s, p)
			}
		})
	case at.notified:
		do(actor, "reads a notification", func(s *lockState) {
			s.processes[p].notified = false
			w.wake(s, p)
		})
	}
	if at.notified && s.faults > 0 {
		do(actor, "loses a notification", func(s *lockState) {
			s.faults--
			s.processes[p].notified, s.processes[p].missed = false, true
		})
	}
	for token := range int8(tokens * len(w.Callers)) {
		if of, bit := at.pendingRelease(token); *of&bit != 0 {
			do(actor, "releases a late lock", func(s *lockState) { w.releasePending(s, p, token) })
		}
	}
	if k := at.head - 1; at.held && at.waiters[0] > 0 && s.callers[k].left == 0 {
		do(actor, "notices that the holder has lost the lock", func(s *lockState) { w.promoteNext(s, p) })
	}
	if s.faults > 0 && (at.head > 0 || at.pending != [3]uint8{}) {
		do(actor, "crashes", func(s *lockState) { w.crash(s, p) })
	}
}

// wake signals the callers of a process that listen.
func (w LockWalk) wake(s *lockState, p int8) {
	for c, in := range w.Callers {
		if int8(in) == p && s.callers[c].listens {
			s.callers[c].signal = true
		}
	}
}

// releasePending releases a token. If it did not hold the lock, it will be released again as long
// as an acquisition with it is in the network.
func (w LockWalk) releasePending(s *lockState, p, token int8) {
	released := w.carryOut(s, command{kind: release, token: token}) == 1
	for _, m := range s.copies {
		if !released && (m.kind == setNX || m.kind == acquire) && m.token == token && w.Mistake != LateLockReleasedOnce {
			return
		}
	}
	of, bit := s.processes[p].pendingRelease(token)
	*of &^= bit
}

func (w LockWalk) crash(s *lockState, p int8) {
	s.faults--
	for c, in := range w.Callers {
		if int8(in) != p {
			continue
		}
		w.leaveInNetwork(s, s.callers[c].command)
		s.callers[c] = caller{phase: crashed}
	}
	s.processes[p] = process{}
}

// leaveInNetwork keeps a command that was sent and not yet carried out as a copy: the server
// may still carry it out, and no caller waits for the reply.
func (w LockWalk) leaveInNetwork(s *lockState, m command) {
	if m.kind == none || m.answered {
		return
	}
	m.age = 0
	for i := range s.copies {
		if s.copies[i].kind == none {
			s.copies[i] = m
			slices.SortFunc(s.copies[:], func(a, b command) int {
				return int(b.kind)<<8 + int(b.token) - int(a.kind)<<8 - int(a.token)
			})
			return
		}
	}
	panic("more copies than there is room for")
}
