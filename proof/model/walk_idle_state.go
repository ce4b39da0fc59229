package model

import (
	"math/bits"
	"slices"
)

// This file has the state of an IdleWalk.

const (
	idleClients = 3 // at most
	idleTasks   = 5
	idleInbox   = 2

	long   int8 = NotDueYet
	noHead int8 = 7 // in so many ticks no head is due
)

// idlePlace is a client's place in line, as a script says it.
type idlePlace int8

const (
	outOfLine  idlePlace = iota
	inLine               // perhaps it was before
	asWatchman           // perhaps it was in line before
	notAsked
)

type idleCaller int8

const (
	noCaller idleCaller = iota
	inWait
	callerTold // and has not claimed yet
	inClaim
	atWork
)

type idleLife int8

const (
	alive idleLife = iota
	gone
	halfOpen // the server counts its subscription
)

type idleKind int8

const (
	noIdleCommand idleKind = iota
	look
	lookTogether // heads.lua
	leaveLine    // and others see to the head
	claim
	claimInLine // by a client that is in line, as far as it knows
	roomyClaim  // by a caller that has room for more: it stays in line, or joins
	roomyClaimInLine
)

func (k idleKind) keepsRoom() bool { return k >= roomyClaim }

func (k idleKind) String() string {
	return [...]string{"nothing", "look", "look at several queues", "leave", "claim", "claim in line", "claim with room", "claim with room in line"}[k]
}

// idleCommand is a command in the network, or replied to.
type idleCommand struct {
	kind     idleKind
	answered bool
	newer    bool // a message has come since it was sent
	old      bool // the watch has ended that has sent the look
	beside   bool // another command of the client was under way meanwhile
	late     bool // carried out after messages were sent that had not come when it was sent
	behind   int8 // so many messages that are not read yet were sent before it was carried out
	off      int8 // the reply: ticks until the head is due
	place    idlePlace
	brought  bool // a task was claimed:
	task     int8 // this one, from 1; 0 if it was cancelled since
}

type idleClient struct {
	caller   idleCaller
	life     idleLife
	watching bool // while callers wait, and a little longer
	task     int8 // at which it works, from 1; 0 if that was claimed again
	inbox    [idleInbox]int8
	unheard  int8 // a message that has come while there was no watch, as in inbox: in how many ticks the head was due, and 1

	// What it knows, as in outlook.go.
	known, told        bool
	unsure             bool // whether it has this place
	place              idlePlace
	due, askAt, lookAt int8

	look, claim idleCommand // under way
}

// idleTask is a task in the queue. Its score is when it is due, or when its lease ends.
type idleTask struct {
	queued bool
	leased bool
	due    int8
}

// lapsed is a watch that is over.
const lapsed int8 = 1

// idleEntry is a client in line, from 1, and how many ticks its watch has left, and 1; 0 for no
// watch.
type idleEntry struct{ client, watch int8 }

type idleState struct {
	tasks                         [idleTasks]idleTask
	line                          [idleClients]idleEntry // by scores
	clients                       [idleClients]idleClient
	adds, foreign, cancels, calls int8 // that may still be
	faults, races                 int8
	struck                        bool // see IdleWalk
	denied                        bool // PUBLISH
	limits                        idleLimits
	// For how many ticks a task was due, a client in line unawares, and the watch of a dead client
	// running.
	overdue, unaware, deadWatch int8
	cut                         bool // more messages to a client are under way than the walk visits
	twice, early, dropped       bool // invariants that the last step has violated
}

// head returns the queue's earliest task, or -1.
func (s *idleState) head() int {
	head := -1
	for i, t := range s.tasks {
		if t.queued && (head < 0 || t.due < s.tasks[head].due) {
			head = i
		}
	}
	return head
}

// off returns in how many ticks the head is due; noHead if there is none.
func (s *idleState) off() int8 {
	if head := s.head(); head >= 0 {
		return s.tasks[head].due
	}
	return noHead
}

func (s *idleState) put(due int8) {
	i := slices.IndexFunc(s.tasks[:], func(t idleTask) bool { return !t.queued })
	s.tasks[i] = idleTask{queued: true, due: due}
}

// drop removes a task, in whatever state it is.
func (s *idleState) drop(task int) {
	s.tasks[task] = idleTask{}
	s.disown(int8(task + 1))
}

// disown makes a task no client's.
func (s *idleState) disown(task int8) (had bool) {
	for c := range s.clients {
		for _, its := range []*int8{&s.clients[c].task, &s.clients[c].claim.task} {
			if *its == task {
				*its, had = 0, true
			}
		}
	}
	return had
}

// number tells tasks from others.
func (t idleTask) number() int8 {
	if t.leased && t.due > 0 {
		return t.due + 8 // 14 at most
	}
	return t.due + 1
}

// entry returns the place of a client's entry, or -1.
func (s *idleState) entry(c int8) int {
	return slices.IndexFunc(s.line[:], func(e idleEntry) bool { return e.client == c+1 })
}

// remove removes a client's entry, and returns it.
func (s *idleState) remove(c int8) (e idleEntry) {
	if at := s.entry(c); at >= 0 {
		e = s.line[at]
		copy(s.line[at:], s.line[at+1:])
		s.line[len(s.line)-1] = idleEntry{}
	}
	return e
}

// discard removes an entry whose client is not told.
func (s *idleState) discard(c int8) {
	s.remove(c)
	s.dropped = s.dropped || s.clients[c].life == alive && !s.struck
}

// insert puts a client into the line, with a watch of so many ticks; 0 for none.
func (s *idleState) insert(c, watch int8) {
	s.remove(c)
	at, e := 0, idleEntry{client: c + 1}
	if watch > 0 {
		e.watch = watch + lapsed
	}
	for s.line[at].client != 0 && (e.watch == 0 || s.line[at].watch != 0 && s.line[at].watch <= e.watch) {
		at++
	}
	s.insertAt(at, e)
}

func (s *idleState) insertAt(at int, e idleEntry) {
	copy(s.line[at+1:], s.line[at:])
	s.line[at] = e
}

// takeMessage takes the first message out of the network.
func (k *idleClient) takeMessage() (message int8) {
	message = k.inbox[0]
	copy(k.inbox[:], k.inbox[1:])
	k.inbox[len(k.inbox)-1] = 0
	return message
}

// die leaves what is in the network: the server may carry it out at any time.
func (k *idleClient) die(life idleLife) {
	before := *k
	*k = idleClient{life: life}
	if before.claim.kind != noIdleCommand && !before.claim.answered {
		k.task = before.task // which the claim finishes
	}
	if !before.look.answered {
		k.look = before.look
	}
	if !before.claim.answered {
		k.claim = before.claim
	}
}

// busy says whether something is under way.
func (w IdleWalk) busy(s *idleState) bool {
	for i := range s.clients {
		k := &s.clients[i]
		waits := k.caller == inWait
		asks := waits && k.known && k.askAt == 0
		looks := waits && (!k.known || k.lookAt == 0)
		ends := k.watching && !waits && w.Mistake != AloneNeverPassesOn
		if k.life == alive && (asks || looks || ends || k.caller == callerTold || k.inbox[0] != 0 ||
			k.look.kind != noIdleCommand || k.claim.kind != noIdleCommand) {
			return true
		}
	}
	return false
}

// normalize clears what makes no difference to any later step, so that fewer states differ.
func (s *idleState) normalize(w IdleWalk) {
	for i := range s.clients {
		k := &s.clients[i]
		alone := k.caller == noCaller || k.caller == atWork
		if alone && k.place == outOfLine && !k.told && k.inbox[0] == 0 && k.look.kind == noIdleCommand {
			k.watching = false // at once
			k.known = k.known && (k.askAt == 0 || w.Directly)
		}
		if !k.known {
			k.due, k.askAt, k.lookAt = 0, 0, 0
		}
		for _, m := range []*idleCommand{&k.look, &k.claim} {
			if m.kind == noIdleCommand || k.life != alive && m.answered {
				*m = idleCommand{}
			}
		}
	}
}

// idleKey is a state in which clients are sorted, as far as they are alike, and tasks.
type idleKey struct {
	clients [idleClients]uint64
	server  uint64
	limits  uint64
}

// key tells states from each other, except by which client is which.
func (w IdleWalk) key(s idleState) (key idleKey) {
	owned := [idleTasks]bool{}
	for c := range s.clients {
		k := s.clients[c]
		for _, task := range []int8{k.task, k.claim.task} {
			if task > 0 {
				owned[task-1] = true
			}
		}
		key.clients[c] = s.pack(int8(c))
	}
	slices.Sort(key.clients[:])
	var dues []int8
	for i, t := range s.tasks {
		if t.queued && !owned[i] {
			dues = append(dues, t.number())
		}
	}
	slices.Sort(dues)
	var p packer
	for i := range idleTasks {
		if i < len(dues) {
			p.put(dues[i], 15)
		} else {
			p.put(0, 15)
		}
	}
	for _, n := range []int8{s.adds, s.foreign, s.cancels, s.calls, s.faults, s.races} {
		p.put(n, 8)
	}
	for _, n := range []int8{s.overdue, s.unaware, s.deadWatch} {
		p.put(n, 16)
	}
	p.flags(s.struck, s.denied, s.twice, s.early, s.dropped)
	key.server, key.limits = uint64(p), s.limits.pack()
	return key
}

// packer packs small numbers into one.
type packer uint64

func (p *packer) put(n int8, values uint64) {
	over, product := bits.Mul64(uint64(*p), values)
	if uint64(n) >= values || over > 0 {
		panic("a number that is larger than expected")
	}
	*p = packer(product + uint64(n))
}

func (p *packer) flags(flags ...bool) {
	for _, flag := range flags {
		n := int8(0)
		if flag {
			n = 1
		}
		p.put(n, 2)
	}
}

// pack packs all that the state has of a client.
func (s *idleState) pack(c int8) uint64 {
	k, at := &s.clients[c], s.entry(c)
	var p packer
	p.put(int8(k.caller), 5)
	p.put(int8(k.life), 3)
	p.put(int8(k.place), 3)
	p.put(k.due, 8)
	p.put(k.lookAt, 7)
	p.put(k.unheard, 8)
	for _, m := range k.inbox {
		p.put(m, 8)
	}
	p.flags(k.watching, k.known, k.told, k.unsure, k.askAt != k.due) // else it is never
	p.put(int8(at+1), idleClients+1)
	watch := int8(0)
	if at >= 0 {
		watch = s.line[at].watch
	}
	p.put(watch, 10)
	p.put(int8(k.look.kind), 4)
	p.put(max(0, int8(k.claim.kind)-3), 5)
	p.flags(k.look.old, k.claim.brought)
	task := k.task
	for _, m := range []idleCommand{k.look, k.claim} {
		p.flags(m.answered, m.newer, m.beside, m.late)
		p.put(m.behind, idleInbox+1)
		p.put(m.off, 8)
		p.put(int8(m.place), 4)
		task = max(task, m.task)
	}
	due := int8(0)
	if task > 0 {
		due = s.tasks[task-1].number()
	}
	p.put(due, 15)
	return uint64(p)
}
