package model

import "slices"

// LockWalk is the protocol of callers that want the same lock, in one process or in
// several. The server carries out a command in one step, at any time after it was sent.
// Before and after that step, other callers take steps, time passes, and faults strike.
// Backoff is left out: any step may come late. So is the line: a release notifies every
// process that is subscribed, and [LineWalk] has which one is woken, and when the others poll.
//
// Time passes in ticks, at any moment. The retry interval is endless unless a notification
// was lost; so the walk finds a waiter that needs to poll although no notification was lost.
type LockWalk struct {
	Callers []int // the process of each caller
	Rounds  int   // how often each caller wants the lock
	Faults  int   // how many faults strike
	Extend  bool  // holders extend
	TTL     int8  // in ticks, at least 2: how long a caller may believe that it holds the lock
	Mistake string
}

// Mistakes break the protocol in one place each. A walk must find every one of them.
const (
	ReleaseWithoutCompare   = "release without compare"
	HandOverPastTheDeadline = "hand-over past the deadline"
	HandOverOfAShortKey     = "hand-over of a key that expires too soon"
	NoPollAfterSubscribing  = "no poll after subscribing"
	ReleaseNotPublished     = "a release that is not published"
	ExtendThatShortens      = "an extension that shortens the TTL"
	ReleaseNotRetried       = "a release that is not retried"
	OwnTokenIgnored         = "an acquisition that does not replace the earlier ones of its call"
	TokenKeptAfterALoss     = "an acquisition is repeated with the same token, and its handle has that"
	DeadlineFromTheReply    = "a deadline that counts from the reply"
	LateLockNotReleased     = "a lock acquired after its caller has left is not released"
	LateLockReleasedOnce    = "a late lock is released only once, while a copy is in the network"
	LateReplyAccepted       = "a reply that arrives after the TTL is accepted"
	NextNotPromoted         = "the head leaves, and the next waiter is not promoted"
	TokenReused             = "a token is used for two acquisitions"
	OldHandleStillReleases  = "a handle releases a lock that it has handed over"
)

// handOverMargin is how much longer than the TTL the key lives, and how long after the
// acquisition the lock may be handed over.
const handOverMargin int8 = 1

// Walk visits every state.
func (w LockWalk) Walk() Report { return walk[lockState, lockState](w) }

type lockPhase int8

const (
	idle      lockPhase = iota
	queued              // in the process's wait queue, not the head
	acquiring           // an acquisition is in flight
	waiting             // has learned that another token holds the lock
	holding             // has the lock; believes so while left > 0
	releasing           // a release is in flight
	crashed
)

type commandKind int8

const (
	none    commandKind = iota
	setNX               // SET NX: the first attempt, not retried
	acquire             // the script
	extend
	release
)

// command is a command in the network, or replied to.
type command struct {
	kind     commandKind
	token    int8
	replaces int8 // of an acquisition: the token of the one before, which had no reply; 0 for none
	ttl      int8
	answered bool
	reply    int8 // of an acquisition: 1 if another token holds the lock; of others: 1 if done
	age      int8 // since it was sent
}

type caller struct {
	phase    lockPhase
	rounds   int8 // that it still wants the lock
	tokens   int8 // used so far
	token    int8
	extended bool
	listens  bool
	signal   bool // its subscription has a notification
	command  command

	left, keyLeft, handOverLeft int8 // until the deadline, the key's expiry and the end of the hand-over window
}

type process struct {
	head       int8 // the caller that holds the lock or acquires it, from 1; 0 for none
	held       bool
	waiters    [2]int8  // behind the head, from 1
	subscribed int8     // 1: requested  2: confirmed
	notified   bool     // a notification is in the network
	missed     bool     // a notification was lost
	pending    [3]uint8 // tokens that the janitor will release: a bit for each token of a caller
}

type lockState struct {
	token, left int8 // the key
	freed       bool // by a release, which was published
	callers     [3]caller
	processes   [3]process
	copies      [4]command // held up in the network; no caller waits for the reply
	faults      int8
	misled      bool // a reply made a caller wait for a lock that it holds itself
}

// key returns what the server holds.
func (s *lockState) key() Key { return Key{int(s.token), int64(s.left)} }

func (s *lockState) set(k Key) { s.token, s.left = int8(k.Token), int8(k.Left) }

// pendingRelease returns where a token's bit is in pending.
func (p *process) pendingRelease(token int8) (of *uint8, bit uint8) {
	return &p.pending[token/tokens], 1 << (token % tokens)
}

// tokens is one more than the most tokens that a caller has at once.
const tokens = 8

func (w LockWalk) start() (s lockState) {
	s.faults = int8(w.Faults)
	for c := range w.Callers {
		s.callers[c].rounds = int8(w.Rounds)
	}
	return s
}

func (LockWalk) key(s lockState) lockState { return s }

// violation checks the invariants.
func (w LockWalk) violation(s lockState) string {
	if s.misled {
		return "a caller is made to wait for a lock that it holds itself"
	}
	believers := 0
	for c := range w.Callers {
		k := &s.callers[c]
		p := &s.processes[w.Callers[c]]
		if k.phase == holding && k.left > 0 {
			believers++
		}
		if k.phase == waiting && s.token == 0 && s.freed && !k.signal && !p.notified && !p.missed &&
			p.subscribed != 1 {
			return "a caller waits for a lock that was released, and nothing will wake it"
		}
		if k.phase == queued && p.head == 0 {
			return "a caller waits in a wait queue without a head"
		}
	}
	if believers > 1 {
		return "two callers believe that they hold the lock"
	}
	if s.token != 0 && !w.known(&s) {
		return "no caller and no janitor knows of the key, so none will release it"
	}
	return ""
}

// known says whether the key's token is known to a caller or a janitor, is about to be
// released by a copy, or may belong to a crashed process, whose key expires.
func (w LockWalk) known(s *lockState) bool {
	token := s.token
	for c, p := range w.Callers {
		k := &s.callers[c]
		of, bit := s.processes[p].pendingRelease(token)
		if k.phase == crashed || k.phase != idle && k.phase != queued && k.token == token || *of&bit != 0 {
			return true
		}
	}
	return slices.ContainsFunc(s.copies[:], func(m command) bool { return m.kind == release && m.token == token })
}

// next emits every step that is possible.
func (w LockWalk) next(s lockState, emit func(step, lockState)) {
	do := func(actor, action string, change func(s *lockState)) {
		to := s
		change(&to)
		w.normalize(&to)
		emit(step{actor, action}, to)
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

// emitter emits the step that change makes.
type emitter func(actor, action string, change func(s *lockState))

func (k commandKind) String() string {
	return [...]string{"nothing", "SET", "acquisition", "extension", "release"}[k]
}
