package main

import (
	"cmp"
	"slices"
	"time"
)

// clockError is by how much the server's clock, which it reads in whole milliseconds, may differ
// from what we take it for.
const clockError = 2 * time.Millisecond

// checkPermits checks that no more callers hold a name than it has permits: neither by the log, nor
// by their own Valid.
func (c *checker) checkPermits() {
	granted, believed := map[string][]span{}, map[string][]span{}
	for _, h := range c.holds {
		if h.permit && h.struck == "" {
			granted[h.name] = append(granted[h.name], span{h.begun.before, min(h.ended.after, h.expires-clockError)})
		}
	}
	for _, r := range c.beliefs() {
		if r.isShared() && !c.excused(r) && !c.forcedOpen(r) {
			believed[r.Name] = append(believed[r.Name], span{r.From, r.Until})
		}
	}
	for what, held := range map[string]map[string][]span{"by the log": granted, "by their own Valid": believed} {
		for name, spans := range held {
			c.counts["permits"] += len(spans)
			if most, at := mostAtOnce(spans); most > gatePermits {
				c.report("%d held %s at %v, %s: it has %d permits", most, name, at, what, gatePermits)
			}
		}
	}
}

// mostAtOnce returns how many of the spans lie over each other, at the most, and where.
func mostAtOnce(spans []span) (most int, at time.Duration) {
	type edge struct {
		at    time.Duration
		delta int
	}
	edges := make([]edge, 0, 2*len(spans))
	for _, s := range spans {
		if s.before > s.after {
			edges = append(edges, edge{s.after, 1}, edge{s.before, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta)) })
	now := 0
	for _, e := range edges {
		if now += e.delta; now > most {
			most, at = now, e.at
		}
	}
	return most, at
}
