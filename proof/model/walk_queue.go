package model

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/sluice-go/sluice"
)

// QueueWalk is a producer who enqueues one ID again and again, and workers who claim
// it, extend it and say what becomes of it. As with LockWalk, commands take their
// time and things go wrong.
//
// Each script is carried out at a time of its own. Leases are longer than all that
// happens in between; they end when the clock leaps.
type QueueWalk struct {
	Workers  int // up to 3
	Enqueues int // up to 4
	Claims   int // of each worker
	Leaps    int // of the clock, to the next score
	Faults   int
	Policy   sluice.Duplicates
	Mistake  string
}

// The mistakes that a walk has to find.
const (
	FinishWithoutReceipt         = "finish without receipt"
	ExtendWithoutReceipt         = "extension without receipt"
	DroppedVersion               = "dropped deferred version"
	DroppedByRetry               = "a retry drops the deferred version"
	DroppedByExtend              = "an extension drops the deferred version"
	ReplacesWhatIsLeased         = "an enqueue replaces a leased task"
	ClaimTwice                   = "a claim is repeated after a lost reply"
	LeaseFromTheReply            = "lease counted from the reply"
	CountsReleases               = "an attempt that was not begun counts"
	NewVersionKeepsCount         = "a new version inherits the attempts"
	EarlyVersion                 = "a deferred version is due before its holder has finished"
	ClaimIgnoresTheLease         = "a claim takes what is leased"
	lease                        = 1000
	theID                        = "id"
	never                float64 = 1e9
)

// Walk visits every state.
func (w QueueWalk) Walk() Report { return walk[queueState, queueKey](w) }

type queueKind int8

const (
	nothing queueKind = iota
	enqueueIt
	claimIt
	extendIt
	finishIt
	retryIt
	releaseIt
	buryIt
)

func (k queueKind) String() string {
	return [...]string{"nothing", "enqueue", "claim", "extension", "dequeue", "retry", "release", "burial"}[k]
}

// receipt is a task in a worker's hands.
type receipt struct {
	version int8 // 0 for none
	score   float64
	until   float64 // the worker believes that it has the task until then
}

type queueCommand struct {
	kind     queueKind
	with     receipt
	answered bool
	done     bool
	claimed  receipt // the reply of a claim or extension
	leased   bool    // an earlier attempt of this claim has leased something
}

// worker is a worker or the producer.
type worker struct {
	left     int8 // claims or enqueues still to come
	working  bool // on its task
	extended bool
	gone     bool
	task     receipt
	command  queueCommand
}

// version is what one enqueue has put in.
type version struct {
	claims, finished int8
	buried           bool
}

type queueState struct {
	item     Item
	now      float64
	workers  [4]worker // the last one is the producer
	copies   [3]queueCommand
	leaps    int8
	faults   int8
	versions [5]version // from 1
	latest   int8
	mistaken string
}

const producer = 3

func (w QueueWalk) start() (s queueState) {
	s.now, s.leaps, s.faults = 1, int8(w.Leaps), int8(w.Faults)
	for i := range w.Workers {
		s.workers[i].left = int8(w.Claims)
	}
	s.workers[producer].left = int8(w.Enqueues)
	s.item.ID = theID
	return s
}

// queueKey is a state without what makes no difference to what may follow.
type queueKey [104]int8

// key numbers the times in their order, since leases are longer than all that
// happens while they last. A receipt that is stale stays so: a score is never given
// twice.
func (QueueWalk) key(s queueState) (key queueKey) {
	var times [32]float64
	n := 0
	each := func(x float64) {
		if x > 0 {
			times[n] = x
			n++
		}
	}
	s.forget()
	s.eachTime(each)
	slices.Sort(times[:n])
	ranks := slices.Compact(times[:n])
	at := 0
	put := func(x int8) {
		key[at] = x
		at++
	}
	s.encode(put, func(x float64) {
		rank, _ := slices.BinarySearch(ranks, x)
		put(int8(rank))
	})
	return key
}

// stale is the score of a receipt that is good for nothing any more, past a time
// that has come.
const stale, past = 0.5, 0.25

func (s *queueState) forget() {
	receipt := func(r *receipt) {
		if r.version > 0 && r.score != s.item.Score && !(s.item.Waiting && r.score == s.item.Due) {
			r.score = stale
		}
		if r.version > 0 && r.until <= s.now {
			r.until = past
		}
	}
	if s.item.Lease != s.item.Score {
		s.item.Lease = 0
	}
	var about [len(s.versions)]bool
	about[s.latest], about[versionOf(s.item)] = true, true
	for i := range s.workers {
		k := &s.workers[i]
		receipt(&k.task)
		receipt(&k.command.with)
		receipt(&k.command.claimed)
		k.command.done = k.command.done && k.command.kind == extendIt
		about[k.task.version], about[k.command.with.version], about[k.command.claimed.version] = true, true, true
	}
	for i := range s.copies {
		receipt(&s.copies[i].with)
		about[s.copies[i].with.version] = true
	}
	slices.SortFunc(s.copies[:], func(a, b queueCommand) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.with.version, b.with.version), cmp.Compare(a.with.score, b.with.score))
	})
	for v := range s.versions {
		if !about[v] {
			s.versions[v] = version{}
		}
	}
}

func (s *queueState) eachTime(f func(x float64)) {
	s.encode(func(int8) {}, f)
}

// encode calls put with the state's numbers, and time with its times.
func (s *queueState) encode(put func(int8), time func(float64)) {
	flags := func(flags ...bool) {
		sum := int8(0)
		for i, flag := range flags {
			if flag {
				sum |= 1 << i
			}
		}
		put(sum)
	}
	time(s.now)
	put(versionOf(s.item))
	put(int8(s.item.Attempt))
	flags(s.item.Queued, s.item.Waiting, s.item.Listed, s.item.Buried, s.mistaken != "")
	time(s.item.Score)
	time(s.item.Lease)
	time(s.item.Due)
	for _, k := range s.workers {
		put(k.left)
		flags(k.working, k.extended, k.gone, k.command.answered, k.command.done, k.command.leased)
		put(k.task.version)
		time(k.task.score)
		time(k.task.until)
		put(int8(k.command.kind))
		for _, r := range []receipt{k.command.with, k.command.claimed} {
			put(r.version)
			time(r.score)
		}
	}
	for _, m := range s.copies {
		put(int8(m.kind))
		put(m.with.version)
		time(m.with.score)
	}
	for _, v := range s.versions {
		put(v.claims)
		put(v.finished)
		flags(v.buried)
	}
	put(s.latest)
	put(s.leaps)
	put(s.faults)
}

// wrong is the invariant.
func (w QueueWalk) wrong(s queueState) string {
	if s.mistaken != "" {
		return s.mistaken
	}
	busy := 0
	for _, k := range s.workers {
		if k.working && s.now < k.task.until {
			busy++
		}
	}
	if busy > 1 {
		return "an ID is worked on twice at once"
	}
	for v := int8(1); v <= s.latest; v++ {
		if s.versions[v].finished > 1 {
			return "a version was finished by two receipts"
		}
	}
	if last := s.versions[s.latest]; s.latest > 0 && last.finished == 0 && !last.buried && w.handedOut(s) != s.latest {
		return "an enqueue was lost"
	}
	return ""
}

// handedOut is the version that is handed out when all leases have ended.
func (w QueueWalk) handedOut(s queueState) int8 {
	q := Queue{[]Item{s.item}}
	for _, e := range q.Claim(never, 1, lease, 0) {
		return number(string(e.Payload))
	}
	return 0
}

// versionOf is the version that an item is, or will be when its holder has finished.
func versionOf(it Item) int8 { return number(it.Payload) }

func number(payload string) int8 {
	n, _ := strconv.Atoi(payload)
	return int8(n)
}

// next is what may happen.
func (w QueueWalk) next(s queueState, emit func(step, queueState)) {
	do := func(who, what string, change func(s *queueState)) {
		to := s
		change(&to)
		for i := range to.workers {
			if k := &to.workers[i]; !k.working && k.command.kind == nothing {
				k.task = receipt{}
			}
		}
		emit(step{who, what}, to)
	}
	if ahead := s.item.Score; s.leaps > 0 && s.item.Queued && ahead > s.now {
		do("the clock", "leaps to the next score", func(s *queueState) {
			s.leaps--
			s.now = ahead
		})
	}
	for i, m := range s.copies {
		if m.kind != nothing {
			do("server", "carries out a "+m.kind.String()+" that was held up", func(s *queueState) {
				s.copies[i] = queueCommand{}
				w.carryOut(s, &m)
			})
		}
	}
	for i := range s.workers {
		w.worker(s, i, do)
	}
}

// worker is what a worker or the producer may do.
func (w QueueWalk) worker(s queueState, i int, do func(who, what string, change func(s *queueState))) {
	k, who := s.workers[i], "worker "+string('A'+rune(i))
	if i == producer {
		who = "producer"
	}
	send := func(kind queueKind) {
		do(who, "sends a "+kind.String(), func(s *queueState) {
			k := &s.workers[i]
			k.command = queueCommand{kind: kind, with: k.task}
			switch kind {
			case enqueueIt, claimIt:
				k.left--
				k.extended = false
			case extendIt:
				k.extended = true
			default:
				k.working = false // it has done its work, or gives it up
			}
		})
	}
	switch {
	case k.gone:
		return
	case k.command.kind != nothing:
		w.underWay(s, i, who, do)
	case i == producer && k.left > 0:
		send(enqueueIt)
	case k.working:
		for kind := finishIt; kind <= buryIt; kind++ {
			send(kind)
		}
		if !k.extended {
			send(extendIt)
		}
	case i != producer && k.left > 0:
		send(claimIt)
	}
	if s.faults > 0 && i != producer && (k.working || k.command.kind != nothing) {
		do(who, "crashes", func(s *queueState) {
			s.faults--
			s.leaveBehind(k.command)
			s.workers[i] = worker{gone: true}
		})
	}
}

// leaveBehind makes a command one for whose reply nobody waits.
func (s *queueState) leaveBehind(m queueCommand) {
	if m.kind == nothing || m.answered {
		return
	}
	i := slices.IndexFunc(s.copies[:], func(m queueCommand) bool { return m.kind == nothing })
	s.copies[i] = m
}

// underWay is what may become of a command. Those that name a receipt are repeated
// when a reply is lost; a claim and an enqueue are not.
func (w QueueWalk) underWay(s queueState, i int, who string, do func(who, what string, change func(s *queueState))) {
	m := s.workers[i].command
	if m.answered {
		do(who, "reads the reply", func(s *queueState) { w.reply(s, i) })
	} else {
		do("server", "carries out "+who+"'s "+m.kind.String(), func(s *queueState) {
			w.carryOut(s, &s.workers[i].command)
			s.workers[i].command.answered = true
		})
	}
	if s.faults == 0 {
		return
	}
	lose := func(what string, copied, repeated bool) {
		do(who, what, func(s *queueState) {
			s.faults--
			k := &s.workers[i]
			if copied {
				s.leaveBehind(m)
			}
			k.command.answered, k.command.done, k.command.claimed = false, false, receipt{}
			if !repeated {
				k.command = queueCommand{}
				k.working = k.working && m.kind != extendIt // its receipt may be used up
			}
		})
	}
	repeated := m.kind != enqueueIt && (m.kind != claimIt || w.Mistake == ClaimTwice)
	if m.answered {
		lose("loses the reply", false, repeated)
	} else {
		lose("loses the request", false, repeated)
	}
	if i == producer { // a late copy of an enqueue may replace a newer version, and the docs say so
		return
	}
	if !m.answered {
		lose("loses touch with the request", true, repeated)
	}
	lose("leaves: its context has ended", true, false)
}

// carryOut is the server. Each case is a script.
func (w QueueWalk) carryOut(s *queueState, m *queueCommand) {
	s.now++
	q := Queue{[]Item{s.item}}
	e := sluice.Entry{ID: theID, Score: m.with.score}
	before := q.Items[0]
	v := &s.versions[m.with.version]
	switch m.kind {
	case enqueueIt:
		w.enqueue(s, &q)
	case claimIt:
		w.claim(s, &q, m)
	case extendIt:
		if w.Mistake == ExtendWithoutReceipt {
			e.Score = before.Score
		}
		var score float64
		if score, m.done = q.Extend(s.now, e, lease); m.done {
			m.claimed = receipt{m.with.version, score, score}
			if w.Mistake == DroppedByExtend {
				q.Items[0].Waiting = false
			}
		}
	case finishIt:
		if w.Mistake == FinishWithoutReceipt {
			e.Score = before.Score
		}
		if m.done = len(q.Dequeue(s.now, e)) == 0; m.done {
			v.finished++
			if w.Mistake == DroppedVersion {
				q.Items[0] = Item{ID: theID}
			}
		}
	case retryIt:
		if m.done = q.Retry(s.now, e, 0); m.done && w.Mistake == DroppedByRetry && before.Waiting {
			q.Items[0].Payload = strconv.Itoa(int(m.with.version))
		}
	case releaseIt:
		if m.done = len(q.Release(s.now, e)) == 0; m.done {
			v.claims--
			if w.Mistake == CountsReleases {
				q.Items[0].Attempt = before.Attempt
			}
		}
	case buryIt:
		m.done = q.Bury(s.now, e, "")
		v.buried = v.buried || m.done
	}
	s.item = q.Items[0]
}

func (w QueueWalk) enqueue(s *queueState, q *Queue) {
	before := q.Items[0]
	payload := strconv.Itoa(int(s.latest) + 1)
	if w.Mistake == ReplacesWhatIsLeased {
		q.Items[0].Lease = 0
	}
	switch q.Enqueue(s.now, w.Policy, theID, s.now, payload) {
	case sluice.Kept:
		return
	case sluice.Updated:
		if w.Mistake == NewVersionKeepsCount {
			q.Items[0].Attempt = before.Attempt
		}
	case sluice.Deferred:
		if w.Mistake == EarlyVersion {
			q.Items[0].Score = s.now
		}
	}
	s.latest++
}

func (w QueueWalk) claim(s *queueState, q *Queue, m *queueCommand) {
	if w.Mistake == ClaimIgnoresTheLease && q.Items[0].Lease > 0 {
		q.Items[0].Score = s.now
	}
	m.claimed = receipt{}
	for _, e := range q.Claim(s.now, 1, lease, 0) {
		v := number(string(e.Payload))
		m.claimed = receipt{v, e.Score, e.Score}
		if s.versions[v].claims++; e.Attempt != int(s.versions[v].claims) {
			s.mistaken = "the attempts are not the claims"
		}
	}
	if m.leased && !m.answered && m.claimed.version == 0 {
		s.mistaken = "a task was leased in a claim that says there was none"
	}
	m.leased = m.leased || m.claimed.version > 0
}

// reply is what a worker makes of a reply.
func (w QueueWalk) reply(s *queueState, i int) {
	k := &s.workers[i]
	m := k.command
	k.command = queueCommand{}
	switch m.kind {
	case claimIt:
		k.task, k.working = m.claimed, m.claimed.version > 0
	case extendIt:
		k.task, k.working = m.claimed, m.done // else it is stale: it stops
	}
	if k.working && w.Mistake == LeaseFromTheReply {
		k.task.until = s.now + lease
	}
}
