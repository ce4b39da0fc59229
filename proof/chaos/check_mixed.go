package main

import (
	"slices"
	"time"
)

// isShared says whether a lock may be held beside others: it is a permit.
func (r record) isShared() bool { return isGate(r.Name) || r.Permit }

// forcedOpen says whether a lock may have been forced open while its holder believed in it. The
// holder is not asked.
func (c *checker) forcedOpen(r record) bool {
	return slices.ContainsFunc(c.forces[r.Name], func(s span) bool { return s.meets(r.Call, r.Until) })
}

// findForces finds when names were, or may have been, forced open.
func (c *checker) findForces() {
	c.forces = map[string][]span{}
	for _, r := range c.records {
		if r.Op != opForce || !r.mayHaveRun() {
			continue
		}
		end := r.Return
		if r.Result != done {
			end = c.ended // a late request may still be carried out
		}
		c.counts["names forced open"]++
		c.forces[r.Name] = append(c.forces[r.Name], span{r.Call, end})
	}
}

// checkKinds checks what two kinds of locks of one name must not do: be held at the same time, by
// the log; and make the library say that its own data is not its own. After a ForceUnlock, a holder
// is told by its next command: see checkUnlocks.
func (c *checker) checkKinds() {
	plain, permits := map[string][]hold{}, map[string][]hold{}
	for _, h := range c.holds {
		if isMixed(h.name) && h.struck == "" {
			of := plain
			if h.permit {
				of = permits
			}
			of[h.name] = append(of[h.name], h)
		}
	}
	for name, holds := range plain {
		for _, h := range holds {
			c.counts["plain holds of mixed names"]++
			both := func(p hold) bool {
				return p.begun.before < min(h.ended.after, h.expires-clockError) && h.begun.before < min(p.ended.after, p.expires-clockError)
			}
			if i := slices.IndexFunc(permits[name], both); i >= 0 {
				c.report("%s was held plainly and with permits: %+v, %+v", name, h, permits[name][i])
			}
		}
		c.counts["permits of mixed names"] += len(permits[name])
	}
}

// checkCorrupt checks that no call found data that is not the library's: nothing else writes there.
func (c *checker) checkCorrupt(r record) {
	if r.Result == corrupt {
		c.report("%s on %s in %s (seq %d) at %v: ErrCorrupt", r.Op, r.Name, r.Process, r.Seq, r.Return.Round(time.Microsecond))
	}
}
