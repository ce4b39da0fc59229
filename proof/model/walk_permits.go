package model

// PermitWalk is the protocol of clients that want a permit of one name, each in a process of its
// own. As in LockWalk, the server carries out a command in one step, at any time after it was sent,
// and time passes in ticks, at any moment. A waiter polls when it is notified, or when the first
// permit ends of which it has learnt. A release notifies all of them, and each may take the permit:
// that it is reserved for the first in line only keeps the others from it, as [LineWalk] has it.
type PermitWalk struct {
	Clients, Permits int // at most 3, and 2
	Rounds           int // how often each client wants a permit
	Faults           int // how many faults strike
	TTL              int8
	Mistake          string
}

// FenceNotSaved is a mistake of permits, besides those of locks.
const FenceNotSaved = "a fence that the server does not remember"

// Walk visits every state.
func (w PermitWalk) Walk() Report { return walk[permitState, permitState](w) }

type permitClient struct {
	phase    lockPhase
	rounds   int8 // that it still wants a permit
	token    int8
	left     int8 // until the deadline; of a waiter until it polls
	listens  int8 // 1: requested  2: confirmed
	signal   bool // its subscription has a notification
	extended bool
	command  command
}

type permitState struct {
	held          [2]struct{ token, left int8 }
	last, highest int8 // fence that the server remembers, and that it has given, from any number on
	freed         bool // a permit was released since all were held
	clients       [3]permitClient
	late          command // of a client that has crashed
	faults        int8
	wrong         string // what the last step has violated
}

// permits returns what the server holds. By its clock it is always 0.
func (s *permitState) permits(number int) (p Permits) {
	p.Number = number
	for _, h := range s.held {
		if h.token != 0 {
			p.Held = append(p.Held, Permit{int(h.token), int64(h.left)})
		}
	}
	return p
}

func (s *permitState) set(p Permits) {
	clear(s.held[:])
	for i, h := range p.Held {
		s.held[i].token, s.held[i].left = int8(h.Token), int8(h.Ends)
	}
}

func (w PermitWalk) start() (s permitState) {
	s.faults = int8(w.Faults)
	for c := range w.Clients {
		s.clients[c].rounds = int8(w.Rounds)
	}
	return s
}

func (PermitWalk) key(s permitState) permitState { return s }

// violation checks the invariants.
func (w PermitWalk) violation(s permitState) string {
	believers := 0
	for _, k := range s.clients {
		if k.phase == holding && k.left > 0 {
			believers++
		}
		if k.phase == waiting && s.freed && k.listens == 2 && !k.signal {
			return "a client waits though a permit was released, and nothing will wake it"
		}
	}
	if believers > w.Permits {
		return "more clients believe that they have a permit than there are"
	}
	for _, h := range s.held {
		if k := s.clients[h.token/tokens]; h.token != 0 && k.phase != crashed && (k.phase == idle || k.token != h.token) {
			return "no client knows of a permit, so none will release it"
		}
	}
	return s.wrong
}

// next emits every step that is possible.
func (w PermitWalk) next(s permitState, emit func(step, permitState)) {
	do := func(actor, action string, change func(s *permitState)) {
		to := s
		change(&to)
		to.normalize()
		emit(step{actor, action}, to)
	}
	do("a tick", "passes", w.tick)
	if s.late.kind != none {
		do("server", "carries out what a crashed client has sent", func(s *permitState) { w.carryOut(s, s.late); s.late = command{} })
	}
	for c := range w.Clients {
		w.client(s.clients[c], c, s.faults > 0, func(action string, change func(s *permitState, k *permitClient)) {
			do("client "+string('A'+rune(c)), action, func(s *permitState) { change(s, &s.clients[c]) })
		})
	}
}

// client emits the steps of a client.
func (w PermitWalk) client(k permitClient, c int, faults bool, do func(string, func(s *permitState, k *permitClient))) {
	m := k.command
	switch {
	case m.answered:
		do("reads the reply", func(_ *permitState, k *permitClient) { w.handleReply(k) })
	case m.kind != none:
		do("is served: "+m.kind.String(), func(s *permitState, k *permitClient) { k.command.answered, k.command.reply = true, w.carryOut(s, m) })
	case k.phase == idle && k.rounds > 0:
		do("wants a permit", func(_ *permitState, k *permitClient) {
			*k = permitClient{rounds: k.rounds - 1, token: int8(c*tokens) + k.rounds}
			k.send(acquiring, acquire)
		})
	case k.phase == waiting && (k.signal || k.left == 0):
		do("polls", func(_ *permitState, k *permitClient) { k.signal = false; k.send(acquiring, acquire) })
	case k.phase == holding:
		do("unlocks", func(_ *permitState, k *permitClient) { k.send(releasing, release) })
		if !k.extended && k.left > 0 {
			do("extends", func(_ *permitState, k *permitClient) { k.extended = true; k.send(holding, extend) })
		}
	}
	if k.listens == 1 {
		do("is subscribed", func(_ *permitState, k *permitClient) { k.listens, k.signal = 2, w.Mistake != NoPollAfterSubscribing })
	}
	if faults && m.kind != none { // an acquisition is sent again with another token, which replaces this one: here they are one
		do("loses the request or the reply, and sends again", func(s *permitState, k *permitClient) { s.faults--; k.send(k.phase, m.kind) })
	}
	if faults && k.phase != idle && k.phase != crashed {
		do("crashes", func(s *permitState, k *permitClient) {
			s.faults--
			if *k = (permitClient{phase: crashed}); m.kind == acquire && !m.answered {
				s.late = m
			}
		})
	}
}

// normalize clears what makes no difference to any later step, so that fewer states differ.
func (s *permitState) normalize() {
	s.last, s.highest = 0, s.highest-s.last
	for c := range s.clients {
		k := &s.clients[c]
		if k.phase != holding && k.phase != waiting {
			k.left, k.extended = 0, false
		}
		if k.phase == releasing || k.command.kind == acquire && k.command.reply > 0 {
			k.command.age = 0
		}
	}
}

func (k *permitClient) send(phase lockPhase, kind commandKind) {
	k.phase, k.command = phase, command{kind: kind, token: k.token}
}

func (w PermitWalk) tick(s *permitState) {
	held := s.permits(w.Permits)
	for i := range held.Held {
		held.Held[i].Ends--
	}
	held.Elapse(0)
	s.set(held)
	for c := range s.clients {
		k := &s.clients[c]
		k.left = max(k.left-1, 0)
		if k.command.kind == acquire || k.command.kind == extend {
			k.command.age = min(k.command.age+1, w.TTL)
		}
	}
}

// carryOut is the server: each case is one script.
func (w PermitWalk) carryOut(s *permitState, m command) (reply int8) {
	token, held := int(m.token), s.permits(w.Permits)
	switch m.kind {
	case acquire:
		had := held.Ends(token) > 0
		if had && len(held.Held) == w.Permits && w.Mistake == OwnTokenIgnored {
			token = -1
		}
		reply = int8(held.Acquire(0, w.Permits, token, int64(w.TTL)))
		if s.freed = s.freed && len(held.Held) < w.Permits; reply > 0 {
			if had {
				s.wrong = "a client is made to wait for a permit that it has itself"
			}
			break
		}
		fence := s.last + 1
		if fence <= s.highest {
			s.wrong = "a fence is not higher than all before it"
		}
		if s.highest = fence; w.Mistake != FenceNotSaved {
			s.last = fence
		}
	case extend:
		if held.Extend(0, token, int64(w.TTL)) {
			reply = 1
		}
	case release:
		if held.Release(0, token) || w.Mistake == ReleaseWithoutCompare && len(held.Force(0)) > 0 {
			reply, s.freed = 1, true
			for c := range s.clients {
				s.clients[c].signal = s.clients[c].signal || s.clients[c].listens == 2 && w.Mistake != ReleaseNotPublished
			}
		}
	}
	s.set(held)
	return reply
}

// handleReply is a client's next step after a reply.
func (w PermitWalk) handleReply(k *permitClient) {
	m := k.command
	k.command = command{}
	if w.Mistake == DeadlineFromTheReply {
		m.age = 0
	}
	left := w.TTL - m.age
	switch {
	case m.kind == release, m.kind == extend && m.reply == 0:
		*k = permitClient{rounds: k.rounds}
	case m.kind == extend && k.left > 0:
		k.left = max(k.left, left)
	case m.kind == acquire && m.reply > 0:
		k.phase, k.left, k.listens = waiting, m.reply, max(k.listens, 1)
	case m.kind == acquire && left > 0, w.Mistake == LateReplyAccepted:
		*k = permitClient{phase: holding, rounds: k.rounds, token: k.token, left: max(left, 1)}
	case w.Mistake == LateLockNotReleased:
		*k = permitClient{rounds: k.rounds}
	default: // it came after the deadline
		k.send(releasing, release)
	}
}
