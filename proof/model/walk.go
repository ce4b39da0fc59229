package model

import (
	"fmt"
	"slices"
	"strings"
)

// step is what leads from one state to the next.
type step struct {
	who  string
	what string
}

func (s step) String() string { return s.who + " " + s.what }

// protocol is a set of states to be walked. Two states with the same key are one.
type protocol[S any, K comparable] interface {
	start() S
	key(s S) K
	// next calls emit with each step that is possible and what it leads to.
	next(s S, emit func(step, S))
	// wrong says what must not be so in a state, or nothing.
	wrong(s S) string
}

// Report is what a walk has found.
type Report struct {
	States, Transitions int
	// Wrong says what is the matter in a state that was reached, by the shortest
	// way, the Trace. The walk ends there. Empty if there is no such state.
	Wrong string
	Trace []string
}

func (r Report) String() string {
	counts := fmt.Sprintf("%d states, %d transitions", r.States, r.Transitions)
	if r.Wrong == "" {
		return counts
	}
	return fmt.Sprintf("%s\n%s:\n  %s", counts, r.Wrong, strings.Join(r.Trace, "\n  "))
}

// walk visits every state that can be reached, nearest first.
func walk[S any, K comparable](p protocol[S, K]) (r Report) {
	seen := map[K]bool{}
	var states []S
	var before []int // from which each was reached
	visit := func(s S, from int) {
		k := p.key(s)
		if seen[k] {
			return
		}
		seen[k] = true
		states, before = append(states, s), append(before, from)
	}
	for visit(p.start(), -1); r.States < len(states); r.States++ {
		at := r.States
		if r.Wrong = p.wrong(states[at]); r.Wrong != "" {
			r.Trace = trace(p, states, before, at)
			return r
		}
		p.next(states[at], func(_ step, to S) {
			r.Transitions++
			visit(to, at)
		})
	}
	return r
}

// trace finds the steps to a state again.
func trace[S any, K comparable](p protocol[S, K], states []S, before []int, at int) (steps []string) {
	for ; before[at] >= 0; at = before[at] {
		found := false
		p.next(states[before[at]], func(by step, to S) {
			if !found && p.key(to) == p.key(states[at]) {
				found = true
				steps = append(steps, by.String())
			}
		})
	}
	slices.Reverse(steps)
	return steps
}
