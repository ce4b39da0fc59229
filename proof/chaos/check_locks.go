package main

import (
	"cmp"
	"slices"
	"time"
)

// beliefs are the records of locks that were held, by their handles' Valid.
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

// checkOwners: in the witness, no key goes from one token to another while it is
// held.
func (c *checker) checkOwners() {
	c.counts["holds in the witness"] = len(c.holds)
	for _, h := range c.overtaken {
		if h.struck == "" && h.ended.before < h.expires {
			c.violation("the key of %s was given to another token at %v, and was held until %v", h.name, h.ended, h.expires)
		}
	}
	for _, h := range c.holds {
		if h.struck != "" {
			c.counts[holdsStruck+h.struck]++
		}
	}
}

// excused says whether the server's word was bad while a lock was held.
func (c *checker) excused(r record) bool {
	if r.Token == 0 {
		return c.strike(r.Call, r.Until)
	}
	for _, h := range c.stays[r.Token] {
		if h.struck != "" {
			return true
		}
	}
	return c.inGap(r.Call, r.Until)
}

// checkBeliefs: whoever believes to hold a lock is its owner in the witness, and no
// two believe so at a time.
func (c *checker) checkBeliefs() {
	var last record // of those of the same name, the one that was held longest
	for _, r := range c.beliefs() {
		c.counts["beliefs"]++
		excused := c.excused(r)
		if excused {
			c.counts["beliefs excused"]++
		}
		c.checkOwnership(r, excused)
		if r.Return != 0 && r.Until > r.Return {
			c.violation("%s held %s again at %v (seq %d), when it had been over at %v", r.Process, r.Name, r.Until, r.Seq, r.Return)
		}
		if r.Name == last.Name && r.From < last.Until {
			if excused || c.excused(last) {
				c.counts["overlaps excused"]++
			} else {
				c.violation("two held %s: %s (seq %d) from %v to %v and %s (seq %d) from %v to %v", r.Name,
					last.Process, last.Seq, last.From, last.Until, r.Process, r.Seq, r.From, r.Until)
			}
		}
		if r.Token != 0 && r.Token == last.Token {
			c.counts["locks handed on"]++
		}
		if r.Name != last.Name || r.Until >= last.Until {
			last = r
		}
	}
}

// checkOwnership: a belief lies within one of its token's stays.
func (c *checker) checkOwnership(r record, excused bool) {
	if r.Token == 0 { // of Do, which keeps it to itself
		return
	}
	for _, h := range c.stays[r.Token] {
		if h.name == r.Name && h.begun.after <= r.From && r.Until <= h.until {
			return
		}
	}
	if excused && c.soonNoticed(r) {
		c.counts["beliefs beyond ownership, excused"]++
		return
	}
	c.violation("%s held %s from %v to %v (seq %d), the witness says: %+v", r.Process, r.Name, r.From, r.Until, r.Seq, c.stays[r.Token])
}

// soonNoticed says whether a belief that was not true any more ended when the TTL did
// that was known to be good: no extension can have told its holder anything else.
func (c *checker) soonNoticed(r record) bool {
	for _, h := range c.stays[r.Token] {
		if h.struck != "" && r.Until > h.at+r.TTL+passed {
			return false
		}
	}
	return true
}

// passed is for how long a lock may have gone from hand to hand without a command.
const passed = 20 * time.Millisecond

// checkFences: no two grants of a name share a fence, and fences rise in the order
// in which locks were granted, whatever happens, unless the server has forgotten the
// last one and its clock is behind it.
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
	held := c.beliefs() // in order: what was held earlier was granted earlier
	for i := 1; i < len(held); i++ {
		a, b := held[i-1], held[i]
		if a.Name == b.Name && a.Fence != 0 && b.Fence != 0 && b.Fence < a.Fence && !c.excused(a) && !c.excused(b) {
			c.fenceWentBack(a, b)
		}
	}
}

// afterwards calls each for every record with the one of the highest fence among those
// that were over (see end) when it was called, if there are any.
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

// fenceWentBack judges a later grant whose fence is not higher.
func (c *checker) fenceWentBack(a, b record) {
	if c.forgotten(a, b) {
		c.counts["fences that went back, excused"]++
		return
	}
	c.violation("%s: fence %d for %s (seq %d) at %v, then %d for %s (seq %d) at %v", a.Name,
		a.Fence, a.Process, a.Seq, a.Got, b.Fence, b.Process, b.Seq, b.Got)
}

// forgotten says whether the server has lost a's fence before it granted b, and its
// clock was behind that then.
func (c *checker) forgotten(a, b record) bool {
	earliest, _ := c.clock.at(span{a.Got, b.Got})
	if earliest.Microseconds() > a.Fence {
		return false
	}
	return c.inGap(a.Call, b.Got) || slices.ContainsFunc(c.setBacks, func(s setBack) bool {
		return s.name == a.Name && s.meets(a.Call, b.Got)
	})
}

// checkRegister: what a fence protects takes no write from an earlier holder after a
// later one's, and refuses nobody who holds the lock.
func (c *checker) checkRegister() {
	taken, refusals := map[string][]record{}, []record(nil)
	for _, r := range c.records {
		if r.Op != opRegister || r.Return == 0 {
			continue
		}
		c.counts["fenced writes"]++
		if r.Result == done {
			taken[r.Name] = append(taken[r.Name], r)
		} else {
			refusals = append(refusals, r)
		}
	}
	for _, r := range refusals {
		c.judgeRefusal(r, taken[r.Name])
	}
	for name, list := range taken {
		afterwards(list, func(r record) time.Duration { return r.Return }, func(r record, highest []record) {
			if r.Fence < highest[0].Fence {
				c.violation("%s: a write with fence %d was taken after one with %d", name, r.Fence, highest[0].Fence)
			}
		})
	}
}

// judgeRefusal judges the refusal of a write, by the writes that were taken.
func (c *checker) judgeRefusal(r record, taken []record) {
	higher := func(w record) bool {
		w.Got, w.Call, r.Got = w.Call, w.Call-longLife, r.Return // it was granted before
		return w.Fence > r.Fence && w.Got < r.Return && c.forgotten(w, r)
	}
	switch {
	case r.From == 0:
		c.counts["fenced writes refused: too late"]++
	case c.excused(r), slices.ContainsFunc(taken, higher):
		c.counts["fenced writes refused: excused"]++
	default:
		c.violation("%s: the holder's write with fence %d was refused", r.Name, r.Fence)
	}
}

// checkUnlocks: an Unlock that returns nil has released what was still ours; it is
// free then, unless it was handed on.
func (c *checker) checkUnlocks() {
	last := map[uint64]record{}   // of the handles with a token
	secret := map[string][]span{} // when Do may have been handed one
	for _, r := range c.records {
		if r.Op == opHold && r.Token != 0 && r.Got > last[r.Token].Got {
			last[r.Token] = r
		}
		if (r.Op == opHold || r.Op == opTake) && r.Token == 0 {
			end := r.Return
			if end == 0 {
				end = c.ended
			}
			secret[r.Process+" "+r.Name] = append(secret[r.Process+" "+r.Name], span{r.Call, end})
		}
	}
	for token, r := range last {
		if r.Result != done || len(c.stays[token]) != 1 || c.excused(r) || c.inGap(r.Unlock, r.Return) {
			continue
		}
		c.counts["unlocks"]++
		h := c.stays[token][0]
		if c.clock.set(h.until-time.Second, r.Return) {
			continue // set back, perhaps, when it had expired, but not been deleted
		}
		handed := slices.ContainsFunc(secret[r.Process+" "+r.Name], func(s span) bool { return s.meets(r.Unlock, r.Return) })
		if h.until < r.Unlock || !handed && h.ended.after > r.Return && h.until > r.Return {
			c.violation("%s released %s at %v (seq %d) and was told so by %v: %+v", r.Process, r.Name, r.Unlock, r.Seq, r.Return, h)
		}
	}
}

// checkLockExtensions: an Extend that returns nil has given the key its TTL.
func (c *checker) checkLockExtensions() {
	by := map[uint64][]expiry{}
	for _, x := range c.expiries {
		by[x.token] = append(by[x.token], x)
	}
	for _, r := range c.records {
		if r.Op != opExtendLock || r.Result != done || c.strike(r.Call, r.Return) {
			continue
		}
		c.counts["locks extended"]++
		earliest, _ := c.clock.at(span{r.Call, r.Return})
		ok := slices.ContainsFunc(by[r.Token], func(x expiry) bool {
			return x.after <= r.Return && x.until >= earliest+r.TTL
		})
		if !ok {
			c.violation("%s extended %s at %v by %v (seq %d), and the witness knows nothing of it", r.Process, r.Name, r.Call, r.TTL, r.Seq)
		}
	}
}

// lookedBefore is how long ago it may have been seen that somebody holds a lock: two
// retry intervals.
const lookedBefore = 200 * time.Millisecond

// checkBusy: ErrLocked says that somebody has the lock, or had it a moment ago; or
// when the one in front of the process's line asked, whose answer may have been long on
// its way; or that the process has not had the answer to its release.
func (c *checker) checkBusy() {
	stays, waits, releases := map[string][]span{}, map[string][]span{}, map[string][]span{}
	for _, h := range c.holds {
		stays[h.name] = append(stays[h.name], span{h.begun.after, h.ended.before + lookedBefore})
	}
	for _, r := range c.records {
		if r.Op != opHold && r.Op != opTake {
			continue
		}
		at := r.Process + " " + r.Name
		waits[at] = append(waits[at], span{r.Call, cmp.Or(r.Got, r.From, r.Return, c.ended)})
		if r.Unlock != 0 {
			releases[at] = append(releases[at], span{r.Unlock, cmp.Or(r.Return, c.ended) + lookedBefore})
		}
	}
	for _, r := range c.records {
		if r.Op != opTake || r.Result != locked || c.strike(r.Call-time.Second, r.Return) {
			continue
		}
		c.counts["refusals: locked"]++
		at, from := r.Process+" "+r.Name, r.Call
		for _, w := range waits[at] {
			if w.meets(r.Call-lookedBefore, r.Return) {
				from = min(from, w.after)
			}
		}
		meets := func(s span) bool { return s.meets(from, r.Return) }
		if !slices.ContainsFunc(stays[r.Name], meets) && !slices.ContainsFunc(releases[at], meets) {
			c.violation("%s was told that %s is locked between %v and %v (seq %d), and nobody had it", r.Process, r.Name, r.Call, r.Return, r.Seq)
		}
	}
}

// inVain is how long somebody may wait for a lock that is free: some faults' length.
const inVain = 8 * time.Second

// checkWaits: nobody waits for long for what nobody has.
func (c *checker) checkWaits() {
	by := map[string][]hold{}
	for _, h := range c.holds {
		by[h.name] = append(by[h.name], h)
	}
	for _, r := range c.records {
		if r.Op != opHold && r.Op != opTake {
			continue
		}
		end := cmp.Or(r.Got, r.From, r.Return, c.deaths[r.Process], c.ended)
		if end-r.Call < inVain {
			continue
		}
		c.counts["waits of more than 8s"]++
		if free := c.free(by[r.Name], r.Call, end); free.before-free.after > inVain {
			c.violation("%s waited for %s from %v to %v (seq %d), and nobody had it in %v", r.Process, r.Name, r.Call, end, r.Seq, free)
		}
	}
}

// free is the longest time within a span for which nobody held a lock.
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
