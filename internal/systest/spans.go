package systest

import "slices"

// Span is from when until when something lasted, by any clock or counter. Until is no part of it,
// so a span that begins where another one ends does not overlap with it.
type Span struct{ From, Until int64 }

// AtOnce returns how many of the spans overlap at the same time, at most.
func AtOnce(spans []Span) (most int) {
	type edge struct{ at, delta int64 }
	var edges []edge
	for _, s := range spans {
		edges = append(edges, edge{s.From, 1}, edge{s.Until, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return int(a.delta - b.delta) // what ends at a time, before what begins then
	})
	now := 0
	for _, e := range edges {
		now += int(e.delta)
		most = max(most, now)
	}
	return most
}
