package sluice

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// exchange is a pipeline of verdicts and a claim.
type exchange struct {
	sent    time.Time // just before
	calls   []call
	groups  [][]*ticket // of each call: the tasks that it is about; nil for the claim
	asked   int         // how many the claim may bring
	results []result
}

// exchange sends what there is to be sent, unless one is under way.
func (s *shift) exchange(now time.Time) {
	if s.exchanging || now.Before(s.retryAt) {
		return
	}
	x := &exchange{sent: now}
	s.addVerdicts(x)
	if n := min(s.free(), chunk); n > 0 && !s.stopping && (s.hungry || len(x.calls) > 0) {
		x.asked = n
		x.add(nil, s.queue.claim(n, s.lease))
	}
	if len(x.calls) == 0 {
		return
	}
	s.exchanging = true
	go func() {
		patience := min(max(s.lease/3, leastPatience), mostPatience)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		x.results = s.queue.door.pipeline(ctx, x.calls)
		s.exchanged <- x
	}()
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
		s.sending++
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

// settle deals with the replies to an exchange.
func (s *shift) settle(x *exchange) {
	s.exchanging, s.sending = false, 0
	var failed error
	for i, r := range x.results {
		err := r.err
		switch {
		case x.groups[i] != nil:
			err = s.settleGroup(x.groups[i], r)
		case r.fate == done:
			err = s.receive(x, r.reply)
		default:
			s.hungry = true
		}
		if err != nil && failed == nil {
			failed = err
		}
	}
	if failed != nil {
		s.trouble(failed)
	} else {
		s.fine()
	}
}

// settleGroup deals with the reply to a group of verdicts.
func (s *shift) settleGroup(group []*ticket, r result) error {
	var codes []int64
	err := r.err
	if r.fate == done {
		codes, err = integers(r.reply, len(group))
	}
	if err != nil {
		// Whatever became of them, to send them again is safe: same receipt.
		for _, t := range group {
			t.unsure = t.unsure || r.fate == lost || r.fate == left || r.fate == done
		}
		s.pending = append(s.pending, group...)
		return err
	}
	for i, t := range group {
		s.settleTicket(t, codes[i])
	}
	return nil
}

func (s *shift) settleTicket(t *ticket, code int64) {
	switch {
	case code == codeDone:
		s.counter(t.verdict.kind)
	case code == codeCorrupt:
		// Nothing but setting it aside can be done with a task whose field is not
		// ours any more.
		t.verdict = verdict{kind: bury, reason: "malformed"}
		s.pending = append(s.pending, t)
		return
	case t.unsure && time.Now().Before(t.until):
		// The receipt was used up while the lease was ours: by the copy of this
		// verdict whose reply was lost.
		s.counter(t.verdict.kind)
	default:
		s.lose(t)
	}
	t.entry.Payload = nil // tickets of one claim lie in one array
}

func (s *shift) counter(k kind) {
	switch k {
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

// receive takes what a claim has brought.
func (s *shift) receive(x *exchange, reply any) error {
	looked, entries, err := decodeClaimed(reply)
	if err != nil {
		return fmt.Errorf("claim: %w", err) // what was leased is due again after the lease
	}
	s.hungry = looked > 0 || len(entries) == x.asked
	if len(entries) == 0 {
		return nil
	}
	receipt := claimedUntil(reply)
	tickets := make([]ticket, len(entries))
	for i := range tickets {
		t := &tickets[i]
		t.entry = entries[i]
		s.renewed(t, receipt, x.sent)
		if s.stopping {
			s.giveBack(t)
		} else {
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
	t.receipt, t.until = receipt, deadline(sent, s.lease)
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
		s.trouble(failed)
	} else {
		s.fine()
	}
}

// prolongTicket deals with the reply to one extension. When it was lost, the task's
// receipt may have been replaced by one that nobody knows; the next try, or the
// verdict, then finds it stale, and the lease is lost: to guess a receipt could
// take the task from somebody else.
func (s *shift) prolongTicket(t *ticket, sent time.Time, r result) error {
	if r.fate != done {
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
