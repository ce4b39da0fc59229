package main

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// beliefs returns the records of locks that were held by their handles' Valid: the client
// believed from From to Until that it held the lock.
func (c *checker) beliefs() (held []record) {
	for _, r := range c.records {
		if r.Op == opHold && r.From != 0 {
			held = append(held, r)
		}
	}
	slices.SortFunc(held, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.From, b.From))
	})
	return held
}

// checkOwners checks that no key goes from one token to another during a hold in the log. A call
// may replace the token of its own last request, which had no reply: no handle ever had that.
func (c *checker) checkOwners() {
	c.counts["holds in the log"] = len(c.holds)
	had := map[uint64]bool{}
	for _, r := range c.records {
		had[r.Token] = had[r.Token] || r.Got != 0
	}
	for _, h := range c.overtaken {
		switch {
		case h.struck != "" || h.ended.before >= h.expires:
		case !had[h.token]:
			c.counts["lost acquisitions that the next request replaced"]++
		default:
			c.report("the key of %s was given to another token at %v, and was held until %v", h.name, h.ended, h.expires)
		}
	}
	for _, h := range c.holds {
		if h.struck != "" {
			c.counts[holdsStruck+h.struck]++
		}
	}
}

// excused says whether the server was unreliable while a lock was held.
func (c *checker) excused(r record) bool {
	if r.Token == 0 {
		return c.unreliable(r.Call, r.Until)
	}
	for _, h := range c.tokenHolds[r.Token] {
		if h.struck != "" {
			return true
		}
	}
	return c.inGap(r.Call, r.Until)
}

// checkBeliefs checks that every belief lies within a hold of the same token in the log, and
// that no two beliefs overlap.
func (c *checker) checkBeliefs() {
	var last record // the belief of the same name that ended last
	for _, r := range c.beliefs() {
		c.counts["beliefs"]++
		excused := c.excused(r)
		if excused {
			c.counts["beliefs excused"]++
		} else if c.forcedOpen(r) {
			c.counts["beliefs of names forced open"]++
			excused = true
		}
		if !c.forcedOpen(r) {
			c.checkOwnership(r, excused)
		}
		if r.Return != 0 && r.Until > r.Return {
			c.report("%s held %s again at %v (seq %d), when it had been over at %v", r.Process, r.Name, r.Until, r.Seq, r.Return)
		}
		if r.Name == last.Name && r.From < last.Until && (!r.isShared() || !last.isShared()) { // see checkPermits
			if excused || c.excused(last) || c.forcedOpen(last) {
				c.counts["overlaps excused"]++
			} else {
				c.report("two held %s: %s (seq %d) from %v to %v and %s (seq %d) from %v to %v", r.Name,
					last.Process, last.Seq, last.From, last.Until, r.Process, r.Seq, r.From, r.Until)
			}
		}
		switch {
		case r.Adopted:
			c.counts["locks adopted"]++
		case r.Token != 0 && r.Token == last.Token:
			c.counts["locks handed over"]++
		}
		if r.Set {
			c.counts["locks of sets"]++
		}
		if r.Name != last.Name || r.Until >= last.Until {
			last = r
		}
	}
}

// checkOwnership checks that a belief lies within one of its token's holds in the log.
func (c *checker) checkOwnership(r record, excused bool) {
	if r.Token == 0 { // of Do, whose token the client does not know
		return
	}
	for _, h := range c.tokenHolds[r.Token] {
		if h.name == r.Name && h.begun.after <= r.From && r.Until <= h.until {
			return
		}
	}
	if excused && c.endedInTime(r) {
		c.counts["beliefs beyond ownership, excused"]++
		return
	}
	c.report("%s held %s from %v to %v (seq %d), the log says: %+v", r.Process, r.Name, r.From, r.Until, r.Seq, c.tokenHolds[r.Token])
}

// endedInTime says whether a belief that had become false ended with the last TTL that the
// holder knew: after the last strike no extension can have succeeded, nor a repeat of the
// acquisition. A gap is a strike too: an extension in it may be missing from the log.
func (c *checker) endedInTime(r record) bool {
	struck, last := false, time.Duration(0)
	for _, h := range c.tokenHolds[r.Token] {
		if h.struck != "" {
			struck, last = true, max(last, h.at)
		}
	}
	for _, g := range c.gaps {
		if g.meets(last, r.Until) {
			last = max(last, g.before)
		}
	}
	return !struck || r.Until <= last+r.TTL+handOverTime(r.TTL)
}

// handOverTime is how long a lock with that TTL may be handed over from caller to caller
// without a command, on a server that is slow.
func handOverTime(ttl time.Duration) time.Duration {
	return max(20*time.Millisecond, min(ttl/10, 200*time.Millisecond)+2*time.Millisecond)
}

// checkFences checks that no two acquisitions of a name have the same fence, and that fences
// rise in the order of the acquisitions, unless the server has lost the last fence and its
// clock is behind that fence.
func (c *checker) checkFences() {
	grants := map[string][]record{}
	for _, r := range c.records {
		if r.Op == opHold && r.Fence != 0 {
			grants[r.Name] = append(grants[r.Name], r)
		}
	}
	for _, list := range grants {
		c.counts["fences"] += len(list)
		c.checkUnique(list)
		afterwards(list, func(r record) time.Duration { return r.Got }, func(r record, before []record) {
			if highest := before[0]; r.Fence <= highest.Fence {
				c.fenceWentBack(highest, r)
			}
		})
	}
	held := c.beliefs() // in order: a lock that was held earlier was acquired earlier
	for i := 1; i < len(held); i++ {
		a, b := held[i-1], held[i]
		if a.Name == b.Name && !isGate(a.Name) && a.Fence != 0 && b.Fence != 0 && b.Fence < a.Fence && !c.excused(a) && !c.excused(b) {
			c.fenceWentBack(a, b)
		}
	}
}

// afterwards calls each for every record, with the record of the highest fence among those
// that had ended (see end) before its call, if there is one.
func afterwards(list []record, end func(record) time.Duration, each func(r record, highest []record)) {
	byEnd, byCall := slices.Clone(list), slices.Clone(list)
	slices.SortFunc(byEnd, func(a, b record) int { return cmp.Compare(end(a), end(b)) })
	slices.SortFunc(byCall, func(a, b record) int { return cmp.Compare(a.Call, b.Call) })
	var highest []record
	i := 0
	for _, r := range byCall {
		for ; i < len(byEnd) && end(byEnd[i]) < r.Call; i++ {
			if highest == nil || byEnd[i].Fence > highest[0].Fence {
				highest = []record{byEnd[i]}
			}
		}
		if highest != nil {
			each(r, highest)
		}
	}
}

// checkUnique checks that the fences of a name differ.
func (c *checker) checkUnique(list []record) {
	seen := map[int64]record{}
	for _, r := range list {
		if other, known := seen[r.Fence]; known {
			if other.Got > r.Got {
				other, r = r, other
			}
			c.fenceWentBack(other, r)
		}
		seen[r.Fence] = r
	}
}

// fenceWentBack reports an acquisition whose fence is not higher than an earlier one's,
// unless that is excused. A fence that was lost counts once, however many come after it.
func (c *checker) fenceWentBack(a, b record) {
	if c.forgotten(a, b) || c.handedOverLate(a, b) {
		if lost := fmt.Sprint(a.Name, " ", a.Fence); !c.lostFences[lost] {
			c.lostFences[lost] = true
			c.counts["fences that went back, excused"]++
		}
		return
	}
	c.report("%s: fence %d for %s (seq %d) at %v, then %d for %s (seq %d) at %v", a.Name,
		a.Fence, a.Process, a.Seq, a.Got, b.Fence, b.Process, b.Seq, b.Got)
}

// handedOverLate says whether b was handed over from a hold that had begun before a was acquired,
// and that a clock set ahead, or a loss of data, had ended: its fence is of the block of that hold.
func (c *checker) handedOverLate(a, b record) bool {
	return slices.ContainsFunc(c.tokenHolds[b.Token], func(h hold) bool {
		return h.struck != "" && h.begun.after < a.Got && b.Got <= h.begun.before+b.TTL+handOverTime(b.TTL)
	})
}

// forgotten says whether the server had lost a's fence before b was acquired, and its clock
// was behind that fence then.
func (c *checker) forgotten(a, b record) bool {
	earliest, _ := c.clock.at(span{a.Got, b.Got})
	if earliest.Microseconds() > a.Fence {
		return false
	}
	return c.inGap(a.Call, b.Got) || slices.ContainsFunc(c.setBacks, func(s setBack) bool {
		return s.name == a.Name && s.meets(a.Call, b.Got)
	})
}

// checkRegister checks that the state which a fence protects accepts no write of an earlier
// holder after one of a later holder, and rejects no write of a current holder.
func (c *checker) checkRegister() {
	accepted, refusals := map[string][]record{}, []record(nil)
	for _, r := range c.records {
		if r.Op != opRegister || r.Return == 0 {
			continue
		}
		c.counts["fenced writes"]++
		if r.Result == done {
			accepted[r.Name] = append(accepted[r.Name], r)
		} else {
			refusals = append(refusals, r)
		}
	}
	for _, r := range refusals {
		c.checkRefusal(r, accepted[r.Name])
	}
	for name, list := range accepted {
		afterwards(list, func(r record) time.Duration { return r.Return }, func(r record, highest []record) {
			if r.Fence < highest[0].Fence {
				c.report("%s: a write with fence %d was accepted after one with %d", name, r.Fence, highest[0].Fence)
			}
		})
	}
}

// checkRefusal checks the refusal of a write, given the writes that were accepted.
func (c *checker) checkRefusal(r record, accepted []record) {
	higher := func(w record) bool {
		w.Got, w.Call, r.Got = w.Call, w.Call-longLife, r.Return // w's lock was acquired before
		return w.Fence > r.Fence && w.Got < r.Return && c.forgotten(w, r)
	}
	switch {
	case r.From == 0:
		c.counts["fenced writes refused: too late"]++
	case c.excused(r), slices.ContainsFunc(accepted, higher):
		c.counts["fenced writes refused: excused"]++
	default:
		c.report("%s: the holder's write with fence %d was refused", r.Name, r.Fence)
	}
}

// sentOnce is how long an Unlock takes whose release was sent once: a longer one may have had no
// reply, and have sent it again.
const sentOnce = 50 * time.Millisecond

// checkUnlocks checks that an Unlock which returned nil has released a lock that was still
// held: the lock was free then, unless it was handed over.
func (c *checker) checkUnlocks() {
	last := map[uint64]record{}   // the last handle with each token
	secret := map[string][]span{} // when one whose token is unknown may have been handed the lock: Do, or LockAll before it failed
	for _, r := range c.records {
		if r.Op == opHold && r.Token != 0 && r.Got > last[r.Token].Got {
			last[r.Token] = r
		}
		if (r.Op == opHold || r.Op == opTake || r.Op == opTakeSet) && r.Token == 0 {
			end := r.Return
			if end == 0 {
				end = c.ended
			}
			secret[r.Process+" "+r.Name] = append(secret[r.Process+" "+r.Name], span{r.Call, end})
		}
	}
	for token, r := range last {
		if r.Result != done || len(c.tokenHolds[token]) != 1 || c.excused(r) || c.inGap(r.Unlock, r.Return) {
			continue
		}
		c.counts["unlocks"]++
		h := c.tokenHolds[token][0]
		if c.clock.set(h.until-time.Second, r.Return) {
			continue // perhaps set back after the key had expired and before it was deleted
		}
		handedOver := slices.ContainsFunc(secret[r.Process+" "+r.Name], func(s span) bool { return s.meets(r.Unlock, r.Return) })
		if len(c.forces[r.Name]) > 0 && (handedOver || r.Return > r.Deadline || r.Return-r.Unlock > sentOnce) {
			// Forced open elsewhere, it may still be handed over without a server; after its time
			// "not held" may be due to that; and a release that was sent again may have been the
			// first one's.
			continue
		}
		if h.until < r.Unlock || !handedOver && !r.Section && h.ended.after > r.Return && h.until > r.Return {
			c.report("%s released %s at %v (seq %d), and Unlock returned nil at %v: %+v", r.Process, r.Name, r.Unlock, r.Seq, r.Return, h)
		}
	}
}

// checkLockExtensions checks that an Extend which returned nil has given the key its TTL.
func (c *checker) checkLockExtensions() {
	by := map[uint64][]expiry{}
	for _, x := range c.expiries {
		by[x.token] = append(by[x.token], x)
	}
	for _, r := range c.records {
		if r.Op != opExtendLock || r.Result != done || c.unreliable(r.Call, r.Return) {
			continue
		}
		c.counts["locks extended"]++
		earliest, _ := c.clock.at(span{r.Call, r.Return})
		ok := slices.ContainsFunc(by[r.Token], func(x expiry) bool {
			return x.after <= r.Return && x.until >= earliest+r.TTL
		})
		if !ok {
			c.report("%s extended %s at %v by %v (seq %d), which the log does not show", r.Process, r.Name, r.Call, r.TTL, r.Seq)
		}
	}
}

// pollAge is how old the information that a lock is held may be: two retry intervals.
const pollAge = 200 * time.Millisecond

// checkLocked checks ErrLocked: the lock was held or reserved at that time or a moment before; or a
// caller of the process was before this one, or had no reply to its release yet. The caller before
// may have been refused too: then the lock was held between its question and its reply, which may
// have taken long.
func (c *checker) checkLocked() {
	holds, waits, releases := map[string][]span{}, map[string][]span{}, map[string][]span{}
	others := map[string][]span{} // waits that were not refused
	for _, h := range c.holds {
		holds[h.name] = append(holds[h.name], span{h.begun.after, h.ended.before + pollAge})
	}
	for _, h := range c.reservations {
		holds[h.name] = append(holds[h.name], span{h.begun.after, h.until + pollAge})
	}
	for _, r := range c.records {
		if r.Op != opHold && r.Op != opTake && r.Op != opTakeSet {
			continue
		}
		at := r.Process + " " + r.Name
		wait := span{r.Call, cmp.Or(r.Got, r.From, r.Return, c.ended)}
		waits[at] = append(waits[at], wait)
		if r.Result != locked {
			others[at] = append(others[at], wait)
		}
		if r.Unlock != 0 {
			releases[at] = append(releases[at], span{r.Unlock, cmp.Or(r.Return, c.ended) + pollAge})
		}
	}
	for _, r := range c.records {
		if r.Op != opTake || r.Result != locked || c.unreliable(r.Call-time.Second, r.Return) {
			continue
		}
		c.counts["refusals: locked"]++
		at, from, until := r.Process+" "+r.Name, r.Call, r.Return
		for _, w := range waits[at] {
			if w.meets(r.Call-pollAge, r.Return) {
				from, until = min(from, w.after), max(until, w.before)
			}
		}
		meets := func(s span) bool { return s.meets(from, until) }
		before := func(s span) bool { return s.meets(r.Call, r.Return) }
		if !slices.ContainsFunc(holds[r.Name], meets) && !slices.ContainsFunc(releases[at], meets) && !slices.ContainsFunc(others[at], before) {
			c.report("%s got ErrLocked for %s between %v and %v (seq %d), and no token held it", r.Process, r.Name, r.Call, r.Return, r.Seq)
		}
	}
}

const (
	// maxFreeWait is how long a caller may wait for a free lock: the length of some faults.
	maxFreeWait = 8 * time.Second
	// someFreeWait is more than 20 processes in line wait for a free lock where no fault strikes.
	// Longer waits are counted.
	someFreeWait = time.Second
)

// silences returns when the server was silent for some time: it was down, and on a busy machine it
// may take long to come up.
func (c *checker) silences() (all []hold) {
	const some = 500 * time.Millisecond
	last := time.Duration(0)
	for i := range c.log {
		sent, ok := c.log[i].tick()
		if !ok {
			continue
		}
		if last != 0 && sent-last > some {
			all = append(all, hold{begun: span{last, last}, ended: span{sent, sent}})
		}
		last = sent
	}
	return all
}

// checkWaits checks that no caller waits long for a free lock, of a server that answers. A lock that
// is reserved is free, unless its server's clock was set back: like a holder's TTL, which a process
// that died leaves too, a reservation ends late then.
func (c *checker) checkWaits() {
	silences := c.silences()
	by := map[string][]hold{}
	for _, h := range c.holds {
		by[h.name] = append(by[h.name], h)
	}
	for _, h := range c.reservations {
		if h.until-h.begun.before > someFreeWait {
			by[h.name] = append(by[h.name], hold{begun: h.begun, ended: span{h.until, h.until}})
		}
	}
	taken := map[string][]hold{} // in order, for each name that was waited for
	for _, r := range c.records {
		if r.Op != opHold && r.Op != opTake || r.Set { // of a set, perhaps it waited for another
			continue
		}
		end := cmp.Or(r.Got, r.From, r.Return, c.deaths[r.Process], c.ended)
		if end-r.Call < someFreeWait {
			continue
		}
		if end-r.Call >= maxFreeWait {
			c.counts["waits of more than 8s"]++
		}
		if taken[r.Name] == nil {
			taken[r.Name] = slices.Concat(by[r.Name], silences)
			slices.SortFunc(taken[r.Name], func(a, b hold) int { return cmp.Compare(a.begun.after, b.begun.after) })
		}
		free := c.free(taken[r.Name], r.Call, end)
		switch took := free.before - free.after; {
		case took > maxFreeWait:
			c.report("%s waited for %s from %v to %v (seq %d), and no token held it in %v", r.Process, r.Name, r.Call, end, r.Seq, free)
		case took > someFreeWait:
			c.counts["waits of more than 1s for a free lock"]++
		}
	}
}

// free returns the longest time within a span in which no token held a lock.
func (c *checker) free(holds []hold, from, to time.Duration) (longest span) {
	since := from
	for _, h := range append(slices.Clip(holds), hold{begun: span{to, to}, ended: span{to, to}}) {
		if gap := (span{since, min(h.begun.after, to)}); gap.before-gap.after > longest.before-longest.after {
			longest = gap
		}
		since = max(since, h.ended.before)
	}
	return longest
}
