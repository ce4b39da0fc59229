package model

import (
	"fmt"
	"slices"
	"strings"
)

// step leads from one state to the next.
type step struct {
	actor  string
	action string
}

func (s step) String() string { return s.actor + " " + s.action }

// protocol describes the states that a walk visits. States with the same key count as one.
type protocol[S any, K comparable] interface {
	start() S
	key(s S) K
	// next calls emit with every possible step and the state after it.
	next(s S, emit func(step, S))
	// violation returns the invariant that a state violates; "" for none.
	violation(s S) string
}

// Report is the result of a walk.
type Report struct {
	States, Transitions int
	// Violation is the invariant that a state violates; the walk ends there. It is empty
	// if there is no such state. Trace has the steps of the shortest way to that state.
	Violation string
	Trace     []string
}

func (r Report) String() string {
	counts := fmt.Sprintf("%d states, %d transitions", r.States, r.Transitions)
	if r.Violation == "" {
		return counts
	}
	return fmt.Sprintf("%s\n%s:\n  %s", counts, r.Violation, strings.Join(r.Trace, "\n  "))
}

// walk visits every state that can be reached, in the order of their distance from the
// start.
func walk[S any, K comparable](p protocol[S, K]) (r Report) {
	seen := map[K]bool{}
	var states []S
	var before []int // the state from which each state was reached
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
		if r.Violation = p.violation(states[at]); r.Violation != "" {
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

// trace returns the steps that lead to a state.
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
