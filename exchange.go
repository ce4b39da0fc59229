package sluice

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// exchange is a pipeline of verdicts and a claim.
type exchange struct {
	sent      time.Time // just before
	giveUp    time.Time // it is not waited for any longer
	forgotten bool      // that has come about; only good news still counts, see settle
	calls     []call
	groups    [][]*ticket // of each call: the tasks that it is about; nil for the claim
	verdicts  int         // in all groups
	asked     int         // how many the claim may bring
	news      int         // what was known of the queue, see shift.news
	results   []result

	answered chan<- *exchange
	over     <-chan struct{} // nobody reads answered any more
}

// exchange sends what there is to be sent, if it may. It says whether that has changed
// what may be sent next.
func (s *shift) exchange(now time.Time) bool {
	if now.Before(s.retryAt) || !s.mayExchange() {
		return false
	}
	x := &exchange{sent: now, giveUp: now.Add(min(max(s.lease/3, leastPatience), mostPatience)), news: s.news,
		answered: s.exchanged, over: s.over}
	n, pending := s.claimable(), len(s.pending) // before its verdicts are taken off those that wait
	s.addVerdicts(x)
	if n > 0 && (s.hungry || len(x.calls) > 0) {
		x.asked = n
		x.add(nil, s.queue.claim(n, s.lease))
	}
	if len(x.calls) == 0 {
		return len(s.pending) < pending // some were dropped: their hands are free now
	}
	s.exchanges = append(s.exchanges, x)
	s.queue.door.start(x)
	return true
}

// mayExchange: one exchange goes out at any time. With many hands another one may
// be under way, if there is much to do: Redis deals with a half of them while the
// handlers have the other.
func (s *shift) mayExchange() bool {
	switch exchanges, _, _ := s.underWay(); {
	case exchanges == 0:
		return true
	case exchanges > 1 || s.concurrency < many || !s.outage.IsZero():
		return false
	}
	few := s.concurrency / 4
	return len(s.pending) >= few || s.plenty && s.claimable() >= few
}

// claimable is how many tasks the next claim is for: the free hands, but with many
// not more than half of them.
func (s *shift) claimable() int {
	if s.stopping {
		return 0
	}
	most := s.concurrency
	if most >= many {
		most = (most + 1) / 2
	}
	return min(s.free(), most, chunk)
}

// run sends the exchange.
func (x *exchange) run(d *door) {
	x.results = d.sendAll(context.Background(), x.calls)
	select {
	case x.answered <- x:
	case <-x.over:
	}
}

// forget gives up an exchange that had no answer in time. Its verdicts go out again.
func (s *shift) forget(x *exchange) {
	x.forgotten = true
	for _, group := range x.groups {
		s.repeat(group)
	}
	if x.asked > 0 {
		s.tell()
	} else {
		s.remove(x)
	}
	s.trouble(exchanging, context.DeadlineExceeded)
}

func (s *shift) remove(x *exchange) {
	s.exchanges = slices.DeleteFunc(s.exchanges, func(other *exchange) bool { return other == x })
}

// repeat has verdicts sent again of which nobody knows what became. That is safe:
// it is the same receipt.
func (s *shift) repeat(group []*ticket) {
	for _, t := range group {
		t.unsure = true
	}
	s.pending = append(s.pending, group...)
}

// tell notes that a claim may bring something. Those under way may have been too
// early to know.
func (s *shift) tell() {
	s.hungry = true
	s.news++
}

func (x *exchange) add(group []*ticket, c call) {
	x.groups = append(x.groups, group)
	x.calls = append(x.calls, c)
}

// addVerdicts makes groups of what is pending. A verdict that was sent before is
// dropped when its lease has ended: it could not tell its own success from another
// claim's any more.
func (s *shift) addVerdicts(x *exchange) {
	if len(s.pending) == 0 {
		return
	}
	var groups [3][]*ticket // by script
	left := s.pending[:0]
	for _, t := range s.pending {
		if t.settled { // by an answer that came late, while a copy was under way
			continue
		}
		if t.tries > 0 && !x.sent.Before(t.until) {
			s.lose(t)
			continue
		}
		at := scriptOf[t.verdict.kind]
		if len(groups[at]) == chunk {
			left = append(left, t)
			continue
		}
		t.tries++
		groups[at] = append(groups[at], t)
		x.verdicts++
	}
	clear(s.pending[len(left):])
	s.pending = left
	for at, group := range groups {
		if len(group) > 0 {
			x.add(group, s.verdictCall(at, group))
		}
	}
}

// verdictCall is the call of a script for a group.
func (s *shift) verdictCall(at int, group []*ticket) call {
	args := make([]any, 0, 4*len(group))
	for _, t := range group {
		args = append(args, t.entry.ID, t.receipt)
		switch t.verdict.kind {
		case retry:
			args = append(args, micros(ceilMicros(t.verdict.delay)), 0)
		case release:
			args = append(args, "0", 1)
		case bury:
			args = append(args, t.verdict.reason)
		}
	}
	return [...]func(*Queue, []any) call{(*Queue).dequeue, (*Queue).giveBack, (*Queue).bury}[at](s.queue, args)
}

// scriptOf numbers the scripts of the verdicts, as verdictCall does.
var scriptOf = [...]int{finish: 0, retry: 1, release: 1, bury: 2}

// settle deals with the replies to an exchange. Of one that was forgotten only good
// news counts: for the verdicts that were not accepted there are other copies, and what
// its claim has brought is nobody's otherwise.
func (s *shift) settle(x *exchange) {
	s.remove(x)
	var failed error
	for i, r := range x.results {
		var err error
		switch {
		case x.groups[i] == nil:
			err = s.settleClaim(x, r)
		case !x.forgotten:
			err = s.settleGroup(x.groups[i], r)
		case r.fate == done:
			s.settleLate(x.groups[i], r.reply)
		}
		if err != nil && failed == nil {
			failed = err
		}
	}
	switch {
	case x.forgotten:
	case failed != nil:
		s.trouble(exchanging, failed)
	default:
		s.fine(exchanging)
	}
}

func (s *shift) settleClaim(x *exchange, r result) error {
	if r.fate == done {
		return s.receive(x, r.reply)
	}
	s.tell()
	return r.err
}

// settleGroup deals with the reply to a group of verdicts.
func (s *shift) settleGroup(group []*ticket, r result) error {
	var codes []int64
	err := r.err
	if r.fate == done {
		codes, err = integers(r.reply, len(group))
	}
	switch {
	case err == nil:
		for i, t := range group {
			s.settleTicket(t, codes[i])
		}
	case r.fate == lost || r.fate == done:
		s.repeat(group)
	default: // it was not carried out
		s.pending = append(s.pending, group...)
	}
	return err
}

// settleLate takes the acceptances of verdicts that are to be sent again.
func (s *shift) settleLate(group []*ticket, reply any) {
	codes, err := integers(reply, len(group))
	if err != nil {
		return
	}
	for i, t := range group {
		if codes[i] == codeDone && !t.lost {
			s.settleTicket(t, codeDone)
		}
	}
	s.pending = slices.DeleteFunc(s.pending, func(t *ticket) bool { return t.settled })
}

func (s *shift) settleTicket(t *ticket, code int64) {
	switch {
	case t.settled:
	case code == codeDone:
		s.accepted(t)
	case code == codeCorrupt:
		// Nothing but setting it aside can be done with a task whose field is not
		// ours any more.
		t.verdict = verdict{kind: bury, reason: "malformed"}
		s.pending = append(s.pending, t)
		return
	case t.unsure && !t.blurred && time.Now().Before(t.until):
		// The receipt was used up while the lease was ours: by the copy of this
		// verdict whose reply was lost.
		s.accepted(t)
	default:
		s.lose(t)
	}
	t.entry.Payload = nil // tickets of one claim lie in one array
}

func (s *shift) accepted(t *ticket) {
	t.settled = true
	switch t.verdict.kind {
	case finish:
		s.counts.done.Add(1)
	case retry:
		s.counts.retried.Add(1)
	case release:
		s.counts.released.Add(1)
	case bury:
		s.counts.buried.Add(1)
	}
}

// receive takes what a claim has brought. A reply may come so late that the leases
// are over, or that the hands are taken.
func (s *shift) receive(x *exchange, reply any) error {
	looked, entries, err := decodeClaimed(reply)
	if err != nil {
		return fmt.Errorf("claim: %w", err) // what was leased is due again after the lease
	}
	s.plenty = looked > 0 || len(entries) == x.asked
	if s.plenty {
		s.tell()
	} else if s.news == x.news {
		s.hungry = false
	}
	if len(entries) == 0 {
		return nil
	}
	receipt := claimedUntil(reply)
	tickets := make([]ticket, len(entries))
	for i := range tickets {
		t := &tickets[i]
		t.entry = entries[i]
		s.renewed(t, receipt, x.sent)
		switch {
		case !time.Now().Before(t.until):
			s.lose(t)
		case s.stopping || len(s.running) == s.concurrency:
			s.giveBack(t)
		default:
			s.dispatch(t)
		}
	}
	s.dispatched = time.Now()
	s.attend(tickets[0].renewAt)
	s.attend(tickets[0].until)
	return nil
}

// renewed notes a lease that the server has given after sent.
func (s *shift) renewed(t *ticket, receipt string, sent time.Time) {
	t.receipt, t.until, t.blurred = receipt, deadline(sent, s.lease), false
	t.renewAt = sent.Add(s.lease / 3)
	t.renewFrom = t.renewAt.Add(-s.lease / attentive)
}

// extension is a pipeline of lease extensions.
type extension struct {
	sent    time.Time // just before
	tickets []*ticket
	results []result
}

// extend extends the leases of tickets. Half the time that the most pressing one has
// left must do, so that there is always another try.
func (s *shift) extend(now time.Time, tickets []*ticket) {
	x := &extension{sent: now, tickets: tickets}
	first := slices.MinFunc(tickets, func(a, b *ticket) int { return a.until.Compare(b.until) })
	budget := max(first.until.Sub(now)/2, leastExtension)
	calls := make([]call, len(tickets))
	for i, t := range tickets {
		t.renewing = true
		calls[i] = s.queue.heartbeat(s.lease, t.entry.ID, t.receipt)
	}
	s.extending = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), budget)
		defer cancel()
		x.results = s.queue.door.pipeline(ctx, calls)
		s.extended <- x
	}()
}

// prolong deals with the replies to an extension.
func (s *shift) prolong(x *extension) {
	s.extending = false
	var failed error
	for i, r := range x.results {
		t := x.tickets[i]
		t.renewing = false
		if err := s.prolongTicket(t, x.sent, r); err != nil && failed == nil {
			failed = err
		}
		if t.told {
			s.held--
			s.conclude(t)
		}
	}
	s.attend(time.Now()) // extensions that became due meanwhile
	if failed != nil {
		s.trouble(extending, failed)
	} else {
		s.fine(extending)
	}
}

// prolongTicket deals with the reply to one extension. When it was lost, the task's
// receipt may have been replaced by one that nobody knows; the next try, or the
// verdict, then finds it stale, and the lease is lost: to guess a receipt could
// take the task from somebody else.
func (s *shift) prolongTicket(t *ticket, sent time.Time, r result) error {
	if r.fate != done {
		t.blurred = t.blurred || r.fate == lost || r.fate == left
		t.renewAt = time.Now().Add(max(s.lease/retryExtension, time.Millisecond))
		t.renewFrom = t.renewAt
		return r.err
	}
	receipt, ok := r.reply.(string)
	if _, err := decodeHeartbeat(answer{reply: r.reply}); err != nil || !ok {
		s.lose(t)
		return nil
	}
	s.renewed(t, receipt, sent)
	return nil
}
