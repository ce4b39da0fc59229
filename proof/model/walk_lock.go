package model

import "slices"

// LockWalk is a number of callers in processes of their own or shared ones, who all
// want one lock. Each command is carried out in one step, some time after it was
// sent; before and after that, other callers take steps, time passes, and things go
// wrong. The pauses of the library (courtesy, backoff) are not here: any step may
// come late.
//
// Time comes in ticks, at any moment. The retry interval is endless unless a
// notification was lost, so that a waiter who relies on it is found out.
type LockWalk struct {
	Callers []int // the process of each caller
	Rounds  int   // how often each of them wants the lock
	Faults  int   // how many things go wrong
	Extend  bool  // holders extend
	TTL     int8  // in ticks, at least 2: for so long a caller may believe to hold the lock
	Mistake string
}

// The mistakes that a walk has to find.
const (
	ReleaseWithoutCompare  = "release without compare"
	HandOffPastTheDeadline = "hand-off past the deadline"
	HandOffUncovered       = "hand-off of a key that lives too short"
	NoLookAfterSubscribing = "no look after subscribing"
	ReleaseTellsNobody     = "nobody is told of a release"
	ExtendThatShortens     = "extend that shortens"
	ReleaseOnce            = "release without repeat"
	BlindToItsOwnToken     = "acquire that ignores its own token"
	DeadlineFromTheReply   = "deadline counted from the reply"
	LateLockIsKept         = "a lock that came after its caller had left is not released"
	CleanedOnce            = "cleaned up once, while a copy is on its way"
	LateReplyIsTaken       = "a reply that comes after the TTL is taken for good"
	NextIsNotTold          = "a caller who leaves the line keeps its turn"
	TokenIsUsedAgain       = "a token is used again"
	OldHandleStillReleases = "a handle that has handed its lock on releases it"
)

// slack is for how much longer the key lives, and for how long it may be passed on.
const slack int8 = 1

// Walk visits every state.
func (w LockWalk) Walk() Report { return walk[lockState, lockState](w) }

type lockPhase int8

const (
	idle      lockPhase = iota
	inLine              // waits for its turn in the process
	asking              // an acquisition is under way
	waiting             // was told that somebody else holds the lock
	holding             // has the lock, or believes so while left > 0
	releasing           // a release is under way
	crashed
)

type commandKind int8

const (
	none    commandKind = iota
	grab                // SET NX: the first try, not repeated
	acquire             // the script
	extend
	release
)

// command is on its way, or answered.
type command struct {
	kind     commandKind
	token    int8
	ttl      int8
	answered bool
	reply    int8 // acquisitions: 1 for held by somebody else; else 1 for done
	age      int8 // since it was sent
}

type caller struct {
	phase    lockPhase
	rounds   int8 // still to come
	tokens   int8 // used so far
	token    int8
	unsure   bool // an acquisition stayed without a reply
	extended bool
	listens  bool
	signal   bool // its listener has one
	command  command

	left, keyLeft, passLeft int8 // until the deadline; for which the key and the passing on are safe
}

type process struct {
	front      int8 // caller who holds the lock or asks for it, from 1; 0 for nobody
	held       bool
	line       [2]int8  // those who wait, from 1
	subscribed int8     // 1: asked  2: confirmed
	told       bool     // a notification is on its way
	untold     bool     // one was lost
	cleaning   [3]uint8 // tokens to be released in the background: a bit for each of a caller's
}

type lockState struct {
	token, left int8 // the key
	freed       bool // by a release: whoever waits has been told
	callers     [3]caller
	processes   [3]process
	copies      [4]command // held up on their way; nobody waits for the reply
	faults      int8
	blind       bool // somebody was told to wait for a lock that it holds itself
}

// key is what the server holds.
func (s *lockState) key() Key { return Key{int(s.token), int64(s.left)} }

func (s *lockState) set(k Key) { s.token, s.left = int8(k.Token), int8(k.Left) }

// cleaned is where a token is among those to be cleaned up.
func (p *process) cleaned(token int8) (of *uint8, bit uint8) {
	return &p.cleaning[token/tokens], 1 << (token % tokens)
}

// tokens is how many a caller has at once, and one.
const tokens = 8

func (w LockWalk) start() (s lockState) {
	s.faults = int8(w.Faults)
	for c := range w.Callers {
		s.callers[c].rounds = int8(w.Rounds)
	}
	return s
}

func (LockWalk) key(s lockState) lockState { return s }

// wrong is the invariant.
func (w LockWalk) wrong(s lockState) string {
	if s.blind {
		return "a caller is told to wait for a lock that it holds itself"
	}
	believers := 0
	for c := range w.Callers {
		k := &s.callers[c]
		p := &s.processes[w.Callers[c]]
		if k.phase == holding && k.left > 0 {
			believers++
		}
		if k.phase == waiting && s.token == 0 && s.freed && !k.signal && !p.told && !p.untold &&
			p.subscribed != 1 {
			return "a caller waits for a lock that was released, and nothing will wake it"
		}
		if k.phase == inLine && p.front == 0 {
			return "a caller waits in a line with nobody in front"
		}
	}
	if believers > 1 {
		return "two callers believe that they hold the lock"
	}
	if s.token != 0 && !w.owned(&s) {
		return "a key that nobody knows of, and nobody will release"
	}
	return ""
}

// owned says whether the key's token is in somebody's hands: a caller's, the
// cleaner's, or, until it expires, a crashed process's.
func (w LockWalk) owned(s *lockState) bool {
	token := s.token
	for c, p := range w.Callers {
		k := &s.callers[c]
		of, bit := s.processes[p].cleaned(token)
		if k.phase == crashed || k.phase != idle && k.phase != inLine && k.token == token || *of&bit != 0 {
			return true
		}
	}
	return slices.ContainsFunc(s.copies[:], func(m command) bool { return m.kind == release && m.token == token })
}

// next is what may happen.
func (w LockWalk) next(s lockState, emit func(step, lockState)) {
	do := func(who, what string, change func(s *lockState)) {
		to := s
		change(&to)
		w.forget(&to)
		emit(step{who, what}, to)
	}
	do("a tick", "passes", w.tick)
	for i, m := range s.copies {
		if m.kind != none {
			do("server", "carries out a copy that was held up", func(s *lockState) {
				s.copies[i] = command{}
				w.carryOut(s, m)
			})
		}
	}
	for p := range s.processes {
		w.process(&s, int8(p), do)
	}
	for c := range w.Callers {
		w.caller(&s, int8(c), do)
	}
}

// forget drops what makes no difference any more, so that fewer states differ.
func (w LockWalk) forget(s *lockState) {
	var callers, alive [3]int8 // of each process
	var listeners [3]bool
	for c, p := range w.Callers {
		k := &s.callers[c]
		callers[p]++
		if k.phase != crashed && (k.phase != idle || k.rounds > 0) {
			alive[p]++
		}
		if k.phase != holding {
			k.left, k.keyLeft, k.passLeft = 0, 0, 0
		}
		if k.command.kind == release {
			k.command.reply, k.command.age = 0, 0
		}
		if k.phase == asking && k.command.reply > 0 {
			k.command.age = 0
		}
		listeners[p] = listeners[p] || k.listens
	}
	for c, p := range w.Callers {
		if callers[p] == 1 { // to whom should it be passed on?
			s.callers[c].keyLeft, s.callers[c].passLeft = 0, 0
		}
		s.processes[p].told = s.processes[p].told && listeners[p]
		if alive[p] == 0 {
			s.processes[p] = process{cleaning: s.processes[p].cleaning}
		}
	}
	s.freed = s.freed && s.token == 0
	w.renumber(s)
}

// renumber gives each caller's tokens that are still about the lowest numbers.
func (w LockWalk) renumber(s *lockState) {
	var number [3 * tokens]int8
	s.eachToken(func(token int8) int8 { number[token] = 1; return token })
	number[0] = 0
	for c := range w.Callers {
		k := &s.callers[c]
		k.tokens = 0
		for token := int8(c*tokens) + 1; token < int8(c*tokens)+tokens; token++ {
			if number[token] != 0 {
				k.tokens++
				number[token] = int8(c*tokens) + k.tokens
			}
		}
	}
	s.eachToken(func(token int8) int8 { return number[token] })
}

// eachToken changes every token in a state.
func (s *lockState) eachToken(change func(token int8) int8) {
	s.token = change(s.token)
	for c := range s.callers {
		k, p := &s.callers[c], &s.processes[c]
		k.token, k.command.token = change(k.token), change(k.command.token)
		before := *p
		p.cleaning = [3]uint8{}
		for token := range int8(3 * tokens) {
			if of, bit := before.cleaned(token); *of&bit != 0 {
				of, bit = p.cleaned(change(token))
				*of |= bit
			}
		}
	}
	for i := range s.copies {
		s.copies[i].token = change(s.copies[i].token)
	}
}

type doer func(who, what string, change func(s *lockState))

func (w LockWalk) tick(s *lockState) {
	if s.token != 0 {
		key := s.key()
		key.Elapse(1)
		s.set(key)
		s.freed = false
	}
	for c := range s.callers {
		k := &s.callers[c]
		for _, left := range []*int8{&k.left, &k.keyLeft, &k.passLeft} {
			*left = max(*left-1, 0)
		}
		if k.command.kind != none {
			k.command.age = min(k.command.age+1, w.TTL)
		}
	}
}

// carryOut is the server. Each case is a script.
func (w LockWalk) carryOut(s *lockState, m command) (reply int8) {
	token, key := int(m.token), s.key()
	switch m.kind {
	case grab, acquire:
		if w.Mistake == BlindToItsOwnToken && key.Token == token {
			token = -1
		}
		s.blind = key.Token == int(m.token)
		if key.Acquire(token, int64(w.TTL+slack)) > 0 {
			reply = 1
		}
		s.blind = s.blind && reply > 0
	case extend:
		if w.Mistake == ExtendThatShortens {
			key.Left = 0
		}
		if key.Extend(token, int64(m.ttl+slack)) {
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
		if s.processes[p].subscribed == 2 && w.Mistake != ReleaseTellsNobody {
			s.processes[p].told = true
		}
	}
}

// process is what happens to a process: its pub/sub connection, its cleaner, its
// line's alarm, its end.
func (w LockWalk) process(s *lockState, p int8, do doer) {
	who, at := "process "+string('1'+rune(p)), s.processes[p]
	switch {
	case at.subscribed == 1:
		do(who, "is subscribed", func(s *lockState) {
			s.processes[p].subscribed = 2
			if w.Mistake != NoLookAfterSubscribing {
				w.wake(s, p)
			}
		})
	case at.told:
		do(who, "reads a notification", func(s *lockState) {
			s.processes[p].told = false
			w.wake(s, p)
		})
	}
	if at.told && s.faults > 0 {
		do(who, "loses a notification", func(s *lockState) {
			s.faults--
			s.processes[p].told, s.processes[p].untold = false, true
		})
	}
	for token := range int8(tokens * len(w.Callers)) {
		if of, bit := at.cleaned(token); *of&bit != 0 {
			do(who, "cleans up", func(s *lockState) { w.clean(s, p, token) })
		}
	}
	if k := at.front - 1; at.held && at.line[0] > 0 && s.callers[k].left == 0 {
		do(who, "notices that the holder has lost the lock", func(s *lockState) { w.advance(s, p) })
	}
	if s.faults > 0 && (at.front > 0 || at.cleaning != [3]uint8{}) {
		do(who, "crashes", func(s *lockState) { w.crash(s, p) })
	}
}

// wake signals whoever listens in a process.
func (w LockWalk) wake(s *lockState, p int8) {
	for c, in := range w.Callers {
		if int8(in) == p && s.callers[c].listens {
			s.callers[c].signal = true
		}
	}
}

// clean releases a token, and again as long as an acquisition of it may come.
func (w LockWalk) clean(s *lockState, p, token int8) {
	w.carryOut(s, command{kind: release, token: token})
	for _, m := range s.copies {
		if (m.kind == grab || m.kind == acquire) && m.token == token && w.Mistake != CleanedOnce {
			return
		}
	}
	of, bit := s.processes[p].cleaned(token)
	*of &^= bit
}

func (w LockWalk) crash(s *lockState, p int8) {
	s.faults--
	for c, in := range w.Callers {
		if int8(in) != p {
			continue
		}
		w.leaveBehind(s, s.callers[c].command)
		s.callers[c] = caller{phase: crashed}
	}
	s.processes[p] = process{}
}

// leaveBehind makes a command that was sent and not yet carried out one for whose
// reply nobody waits.
func (w LockWalk) leaveBehind(s *lockState, m command) {
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

// caller is what a caller may do.
func (w LockWalk) caller(s *lockState, c int8, do doer) {
	k, p, who := s.callers[c], int8(w.Callers[c]), "caller "+string('A'+rune(c))
	switch k.phase {
	case idle:
		if k.rounds > 0 {
			do(who, "wants the lock", func(s *lockState) { w.enter(s, c) })
		}
	case inLine:
		if s.faults > 0 {
			do(who, "leaves the line: its context has ended", func(s *lockState) {
				s.faults--
				line := &s.processes[p].line
				if line[0] == c+1 {
					line[0] = line[1]
				}
				line[1] = 0
				w.end(s, c)
			})
		}
	case waiting:
		expired := s.token == 0 && !s.freed // the TTL that it was told of has run out
		if k.signal || expired || s.processes[p].untold {
			do(who, "looks again", func(s *lockState) {
				s.callers[c].signal = false
				w.send(s, c, command{kind: acquire, token: k.token})
			})
		}
		if s.faults > 0 {
			do(who, "gives up waiting: its context has ended", func(s *lockState) {
				s.faults--
				w.abandon(s, c)
			})
		}
	case holding:
		w.holder(s, c, who, do)
	}
	if k.command.kind != none {
		w.underWay(s, c, who, do)
	}
}

// enter is a call of Lock.
func (w LockWalk) enter(s *lockState, c int8) {
	p, k := &s.processes[w.Callers[c]], &s.callers[c]
	k.rounds--
	k.phase, k.extended, k.unsure = inLine, false, false
	if p.held && s.callers[p.front-1].left == 0 {
		w.advance(s, int8(w.Callers[c]))
	}
	switch {
	case p.front == 0:
		w.ask(s, c)
	case p.line[0] == 0:
		p.line[0] = c + 1
	default:
		p.line[1] = c + 1
	}
}

// ask makes c the one in front, who goes to the server.
func (w LockWalk) ask(s *lockState, c int8) {
	p := &s.processes[w.Callers[c]]
	p.front, p.held = c+1, false
	s.callers[c].token = w.fresh(s, c)
	w.send(s, c, command{kind: grab, token: s.callers[c].token})
}

// fresh is a token that was never used.
func (w LockWalk) fresh(s *lockState, c int8) int8 {
	k := &s.callers[c]
	if w.Mistake == TokenIsUsedAgain {
		k.tokens = 0
	}
	k.tokens++
	return c*tokens + k.tokens
}

func (w LockWalk) send(s *lockState, c int8, m command) {
	k := &s.callers[c]
	switch k.command = m; m.kind {
	case grab, acquire:
		k.phase = asking
	case release:
		k.phase = releasing
	}
}

// advance ends the turn of the one in front.
func (w LockWalk) advance(s *lockState, p int8) {
	at := &s.processes[p]
	next := at.line[0]
	at.front, at.held = 0, false
	at.line = [2]int8{at.line[1], 0}
	if next > 0 {
		w.ask(s, next-1)
	}
}

// end makes c a caller who wants nothing, and lets the next one have its turn.
func (w LockWalk) end(s *lockState, c int8) {
	k := &s.callers[c]
	*k = caller{rounds: k.rounds, tokens: k.tokens}
	if p := int8(w.Callers[c]); s.processes[p].front == c+1 && w.Mistake != NextIsNotTold {
		w.advance(s, p)
	} else if s.processes[p].front == c+1 {
		s.processes[p].front, s.processes[p].held = 0, false
	}
}

func (w LockWalk) cleanUp(s *lockState, c int8) {
	if w.Mistake != LateLockIsKept {
		of, bit := s.processes[w.Callers[c]].cleaned(s.callers[c].token)
		*of |= bit
	}
}

// abandon ends an acquisition that failed.
func (w LockWalk) abandon(s *lockState, c int8) {
	if s.callers[c].unsure {
		w.cleanUp(s, c)
	}
	w.end(s, c)
}

// holder is what a holder may do: extend, and unlock, also past its deadline.
func (w LockWalk) holder(s *lockState, c int8, who string, do doer) {
	k := s.callers[c]
	if w.Extend && !k.extended && k.left > 0 && k.command.kind == none {
		for _, ttl := range []int8{1, w.TTL} {
			do(who, "extends for "+string('0'+rune(ttl)), func(s *lockState) {
				s.callers[c].extended = true
				w.send(s, c, command{kind: extend, token: k.token, ttl: ttl})
			})
		}
	}
	do(who, "unlocks", func(s *lockState) {
		w.leaveBehind(s, k.command)
		s.callers[c].command = command{}
		if !w.pass(s, c) {
			s.processes[w.Callers[c]].held = false
			w.send(s, c, command{kind: release, token: k.token})
		}
	})
}

// pass hands the lock to the next in line, where that is safe.
func (w LockWalk) pass(s *lockState, c int8) bool {
	p, k := &s.processes[w.Callers[c]], s.callers[c]
	alive := k.left > 0 || w.Mistake == HandOffPastTheDeadline
	covered := k.passLeft > 0 && k.keyLeft >= w.TTL || w.Mistake == HandOffPastTheDeadline || w.Mistake == HandOffUncovered
	if p.front != c+1 || !p.held || p.line[0] == 0 || !alive || !covered {
		return false
	}
	next := p.line[0]
	p.front, p.line = next, [2]int8{p.line[1], 0}
	heir := &s.callers[next-1]
	heir.phase, heir.token, heir.unsure = holding, k.token, k.unsure
	heir.left, heir.keyLeft, heir.passLeft = w.TTL, k.keyLeft, k.passLeft
	if w.Mistake == OldHandleStillReleases {
		of, bit := p.cleaned(k.token)
		*of |= bit
	}
	w.end(s, c)
	return true
}

// underWay is what may become of a caller's command.
func (w LockWalk) underWay(s *lockState, c int8, who string, do doer) {
	m := s.callers[c].command
	if m.answered {
		do(who, "reads the reply", func(s *lockState) { w.reply(s, c) })
	} else {
		do("server", "carries out "+who+"'s "+m.kind.String(), func(s *lockState) {
			s.callers[c].command.answered = true
			s.callers[c].command.reply = w.carryOut(s, m)
		})
	}
	if s.faults == 0 {
		return
	}
	if m.answered {
		do(who, "loses the reply", func(s *lockState) { w.lost(s, c, false) })
	} else {
		do(who, "loses the request", func(s *lockState) { w.lost(s, c, false) })
		do(who, "loses touch with the request", func(s *lockState) { w.lost(s, c, true) })
	}
	do(who, "leaves: its context has ended", func(s *lockState) {
		s.faults--
		w.leaveBehind(s, m)
		switch m.kind {
		case extend: // it holds the lock as before
			s.callers[c].command = command{}
		default:
			if w.Mistake != ReleaseOnce || m.kind != release {
				w.cleanUp(s, c)
			}
			w.end(s, c)
		}
	})
}

// lost: the connection was reset, and the command is repeated. A copy may still be on
// its way.
func (w LockWalk) lost(s *lockState, c int8, copied bool) {
	s.faults--
	k := &s.callers[c]
	m := k.command
	if copied {
		w.leaveBehind(s, m)
	}
	m.answered, m.reply, m.age = false, 0, 0
	switch {
	case m.kind == release && w.Mistake == ReleaseOnce:
		w.end(s, c)
	case m.kind == grab: // it goes on as another one
		w.cleanUp(s, c)
		k.token = w.fresh(s, c)
		w.send(s, c, command{kind: acquire, token: k.token})
	default:
		k.unsure = k.unsure || m.kind == acquire
		k.command = m
	}
}

// reply is what a caller makes of a reply.
func (w LockWalk) reply(s *lockState, c int8) {
	k, p := &s.callers[c], &s.processes[w.Callers[c]]
	m := k.command
	k.command = command{}
	if w.Mistake == DeadlineFromTheReply {
		m.age = 0
	}
	switch {
	case m.kind == release:
		if k.unsure {
			w.cleanUp(s, c)
		}
		w.end(s, c)
	case m.kind == extend:
		w.extended(s, c, m)
	case m.reply > 0 && m.kind == grab: // which does not say for how long
		w.send(s, c, command{kind: acquire, token: k.token})
	case m.reply > 0:
		k.phase = waiting
		if !k.listens {
			k.listens, k.signal = true, p.subscribed == 2 && w.Mistake != NoLookAfterSubscribing
			p.subscribed = max(p.subscribed, 1)
		}
	default:
		k.left = max(w.TTL-m.age, 0)
		k.keyLeft, k.passLeft = max(w.TTL+slack-m.age, 0), max(slack-m.age, 0)
		if w.Mistake == LateReplyIsTaken {
			k.left = max(k.left, 1)
		}
		if k.left == 0 {
			w.cleanUp(s, c)
			w.end(s, c)
			return
		}
		k.phase, k.listens, k.signal = holding, false, false
		p.held = true
	}
}

// extended is the reply to an extension.
func (w LockWalk) extended(s *lockState, c int8, m command) {
	k := &s.callers[c]
	switch {
	case m.reply == 0: // not ours any more
		w.abandon(s, c)
	case k.left == 0:
		w.cleanUp(s, c)
	default:
		k.left = max(k.left, m.ttl-m.age)
		k.keyLeft = max(k.keyLeft, m.ttl+slack-m.age)
	}
}

func (k commandKind) String() string {
	return [...]string{"nothing", "SET", "acquisition", "extension", "release"}[k]
}
