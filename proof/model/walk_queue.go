package model

import (
	"slices"
	"strconv"

	"github.com/sluice-go/sluice"
)

// QueueWalk is the protocol of a producer that enqueues the same ID again and again, and of
// workers that claim, extend and settle it. As in LockWalk, the server carries out a command
// at any time after it was sent, and faults strike.
//
// With DuplicatesOnce, what is finished is remembered for good, and the producer sends an enqueue
// again that had no reply: the ID is finished once all the same.
//
// Each script runs at a time of its own. Leases are longer than everything that happens
// meanwhile; they end when the clock leaps.
type QueueWalk struct {
	Workers  int // up to 3
	Enqueues int // up to 4
	Claims   int // of each worker
	Leaps    int // of the clock, each to the next score
	Faults   int // how many faults strike
	Foreign  int // how often a foreign producer adds the ID, by a ZADD; only leases are checked then
	Policy   sluice.Duplicates
	Mistake  string
}

// Mistakes break the protocol in one place each. A walk must find every one of them.
const (
	FinishWithoutReceipt            = "finish without receipt"
	ExtendWithoutReceipt            = "extension without receipt"
	DroppedVersion                  = "a finish drops the deferred version"
	DroppedByRetry                  = "a retry drops the deferred version"
	DroppedByExtend                 = "an extension drops the deferred version"
	ReplacesWhatIsLeased            = "an enqueue replaces a leased task"
	ClaimTwice                      = "a claim is retried after a lost reply"
	LeaseFromTheReply               = "a lease that counts from the reply"
	CountsReleases                  = "a released attempt counts"
	NewVersionKeepsCount            = "a new version inherits the attempts"
	EarlyVersion                    = "a deferred version is due before its holder has finished"
	ClaimIgnoresTheLease            = "a claim claims a leased task"
	ForeignAddEndsTheLease          = "a foreign ZADD ends the lease"
	ForgetsWhatIsDone               = "what is finished is not remembered"
	OnceWaitsBehindTheLease         = "an enqueue of once waits behind a lease"
	lease                           = 1000
	theID                           = "id"
	never                   float64 = 1e9
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

// receipt is a task that a worker has claimed.
type receipt struct {
	version int8 // 0 for none
	score   float64
	until   float64 // the worker believes until then that it holds the task
}

type queueCommand struct {
	kind     queueKind
	with     receipt
	answered bool
	done     bool
	claimed  receipt // the reply of a claim or extension
	leased   bool    // an earlier attempt of this claim has leased the task
}

// worker is a worker or the producer.
type worker struct {
	left     int8 // claims or enqueues that it still makes
	working  bool // the handler runs
	extended bool
	crashed  bool
	task     receipt
	command  queueCommand
}

// version counts what happened to the task of one enqueue.
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
	foreign  int8
	versions [5]version // from index 1
	latest   int8
	ended    int8 // finishes in all, if they are remembered
	violated string
}

const producer = 3

func (w QueueWalk) start() (s queueState) {
	s.now, s.leaps, s.faults, s.foreign = 1, int8(w.Leaps), int8(w.Faults), int8(w.Foreign)
	for i := range w.Workers {
		s.workers[i].left = int8(w.Claims)
	}
	s.workers[producer].left = int8(w.Enqueues)
	s.item.ID = theID
	return s
}

// violation checks the invariants.
func (w QueueWalk) violation(s queueState) string {
	if s.violated != "" {
		return s.violated
	}
	if s.ended > 1 {
		return "an ID was finished twice"
	}
	busy := 0
	for _, k := range s.workers {
		if k.working && s.now < k.task.until {
			busy++
		}
	}
	if busy > 1 {
		return "two workers work on an ID at once"
	}
	if w.Foreign > 0 { // its versions cannot be told from the producer's
		return ""
	}
	for v := int8(1); v <= s.latest; v++ {
		if s.versions[v].finished > 1 {
			return "a version was finished by two receipts"
		}
	}
	if last := s.versions[s.latest]; s.latest > 0 && last.finished == 0 && !last.buried && w.nextClaim(s) != s.latest {
		return "an enqueue was lost"
	}
	return ""
}

// nextClaim returns the version that a claim gets once all leases have ended.
func (w QueueWalk) nextClaim(s queueState) int8 {
	q := Queue{Items: []Item{s.item}}
	for _, e := range q.Claim(never, 1, lease, 0) {
		return number(string(e.Payload))
	}
	return 0
}

// versionOf returns the version that an item is, or will be once its holder has finished.
func versionOf(it Item) int8 { return number(it.Payload) }

func number(payload string) int8 {
	n, _ := strconv.Atoi(payload)
	return int8(n)
}

// next emits every step that is possible.
func (w QueueWalk) next(s queueState, emit func(step, queueState)) {
	do := func(actor, action string, change func(s *queueState)) {
		to := s
		change(&to)
		for i := range to.workers {
			if k := &to.workers[i]; !k.working && k.command.kind == nothing {
				k.task = receipt{}
			}
		}
		emit(step{actor, action}, to)
	}
	if ahead := s.item.Score; s.leaps > 0 && s.item.Queued && ahead > s.now {
		do("the clock", "leaps to the next score", func(s *queueState) {
			s.leaps--
			s.now = ahead
		})
	}
	if s.foreign > 0 {
		do("a foreign producer", "adds the ID", func(s *queueState) {
			s.foreign--
			s.now++
			s.item.Queued, s.item.Score = true, s.now
			if w.Mistake == ForeignAddEndsTheLease {
				s.item.Lease, s.item.Token = 0, 0
			}
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

// queueEmitter emits the step that change makes.
type queueEmitter func(actor, action string, change func(s *queueState))

// worker emits the steps of a worker or of the producer.
func (w QueueWalk) worker(s queueState, i int, do queueEmitter) {
	k, actor := s.workers[i], "worker "+string('A'+rune(i))
	if i == producer {
		actor = "producer"
	}
	send := func(kind queueKind) {
		do(actor, "sends a "+kind.String(), func(s *queueState) {
			k := &s.workers[i]
			k.command = queueCommand{kind: kind, with: k.task}
			switch kind {
			case enqueueIt, claimIt:
				k.left--
				k.extended = false
			case extendIt:
				k.extended = true
			default:
				k.working = false // the handler has returned, or gives up
			}
		})
	}
	switch {
	case k.crashed:
		return
	case k.command.kind != nothing:
		w.command(s, i, actor, do)
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
		do(actor, "crashes", func(s *queueState) {
			s.faults--
			s.leaveInNetwork(k.command)
			s.workers[i] = worker{crashed: true}
		})
	}
}

// leaveInNetwork keeps a command that was sent and not yet carried out as a copy: the server
// may still carry it out, and no worker waits for the reply.
func (s *queueState) leaveInNetwork(m queueCommand) {
	if m.kind == nothing || m.answered {
		return
	}
	i := slices.IndexFunc(s.copies[:], func(m queueCommand) bool { return m.kind == nothing })
	s.copies[i] = m
}

// command emits what may happen to a command. If its reply is lost, a command with a receipt
// is retried; a claim and an enqueue are not, except with DuplicatesOnce.
func (w QueueWalk) command(s queueState, i int, actor string, do queueEmitter) {
	m := s.workers[i].command
	if m.answered {
		do(actor, "reads the reply", func(s *queueState) { w.handleReply(s, i) })
	} else {
		do("server", "carries out "+actor+"'s "+m.kind.String(), func(s *queueState) {
			w.carryOut(s, &s.workers[i].command)
			s.workers[i].command.answered = true
		})
	}
	if s.faults == 0 {
		return
	}
	lose := func(how string, copied, retried bool) {
		do(actor, how, func(s *queueState) {
			s.faults--
			k := &s.workers[i]
			if copied {
				s.leaveInNetwork(m)
			}
			k.command.answered, k.command.done, k.command.claimed = false, false, receipt{}
			if !retried {
				k.command = queueCommand{}
			}
		})
	}
	once := w.Policy == sluice.DuplicatesOnce
	retried := (m.kind != enqueueIt || once) && (m.kind != claimIt || w.Mistake == ClaimTwice)
	if m.answered {
		lose("loses the reply", false, retried)
	} else {
		lose("loses the request", false, retried)
	}
	if i == producer && !once { // a late copy of an enqueue may replace a newer version: that is documented
		return
	}
	if !m.answered {
		lose("loses the connection, and the request stays in the network", true, retried)
	}
	lose("leaves: its context has ended", true, false)
}

// carryOut is the server: each case is one script.
func (w QueueWalk) carryOut(s *queueState, m *queueCommand) {
	s.now++
	q := Queue{Items: []Item{s.item}}
	if s.ended > 0 && w.Mistake != ForgetsWhatIsDone {
		q.Records = []Record{{ID: theID}}
	}
	e := sluice.Entry{ID: theID, Score: m.with.score}
	before := q.Items[0]
	v := &s.versions[m.with.version]
	switch m.kind {
	case enqueueIt:
		w.enqueue(s, &q)
	case claimIt:
		w.claim(s, &q, m)
	case extendIt:
		w.extend(s, &q, m, e)
	case finishIt:
		if w.Mistake == FinishWithoutReceipt {
			e.Score = before.Score
		}
		if m.done = len(q.Dequeue(s.now, e)) == 0; m.done {
			v.finished++
			if w.Policy == sluice.DuplicatesOnce {
				s.ended++
			}
			if w.Mistake == DroppedVersion {
				q.Items[0] = Item{ID: theID}
			}
		}
	case retryIt:
		if m.done = q.Retry(s.now, e, 0, ""); m.done && w.Mistake == DroppedByRetry && before.Waiting {
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
	var outcome sluice.Outcome
	switch {
	case w.Mistake == OnceWaitsBehindTheLease && before.current(s.now).leased(s.now):
		outcome = q.Enqueue(s.now, sluice.DuplicatesReplace, theID, s.now, payload)
	case w.Policy == sluice.DuplicatesOnce:
		outcome = q.EnqueueOnce(s.now, never, theID, s.now, payload)
	default:
		outcome = q.Enqueue(s.now, w.Policy, theID, s.now, payload)
	}
	switch outcome {
	case sluice.OutcomeKept, sluice.OutcomeDone:
		return
	case sluice.OutcomeUpdated:
		if w.Mistake == NewVersionKeepsCount {
			q.Items[0].Attempt = before.Attempt
		}
	case sluice.OutcomeDeferred:
		if w.Mistake == EarlyVersion {
			q.Items[0] = Item{ID: theID, Payload: payload, Queued: true, Score: s.now}
		}
	}
	s.latest++
}

func (w QueueWalk) extend(s *queueState, q *Queue, m *queueCommand, e sluice.Entry) {
	if w.Mistake == ExtendWithoutReceipt {
		e.Score = q.Items[0].Score
	}
	if m.done = q.Extend(s.now, e, lease); m.done {
		m.claimed = receipt{m.with.version, e.Score, s.now + lease}
		if w.Mistake == DroppedByExtend {
			q.Items[0].Waiting = false
		}
	}
}

func (w QueueWalk) claim(s *queueState, q *Queue, m *queueCommand) {
	if w.Mistake == ClaimIgnoresTheLease && q.Items[0].Lease > 0 {
		q.Items[0].Lease, q.Items[0].Token, q.Items[0].Score = 0, 0, s.now
	}
	m.claimed = receipt{}
	for _, e := range q.Claim(s.now, 1, lease, 0) {
		v := number(string(e.Payload))
		m.claimed = receipt{v, e.Score, e.Score}
		if s.versions[v].claims++; w.Foreign == 0 && e.Attempt+q.Items[0].Unseen != int(s.versions[v].claims) {
			s.violated = "the attempts are not the claims"
		}
	}
	if m.leased && !m.answered && m.claimed.version == 0 {
		s.violated = "a claim leased a task and replied that there was none"
	}
	m.leased = m.leased || m.claimed.version > 0
}

// handleReply is a worker's next step after a reply.
func (w QueueWalk) handleReply(s *queueState, i int) {
	k := &s.workers[i]
	m := k.command
	k.command = queueCommand{}
	switch m.kind {
	case claimIt:
		k.task, k.working = m.claimed, m.claimed.version > 0
	case extendIt:
		k.task, k.working = m.claimed, m.done // if stale, the worker stops
	}
	if k.working && w.Mistake == LeaseFromTheReply {
		k.task.until = s.now + lease
	}
}
