package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// leastRate is how many operations a second the clients have to do, faults or not.
	leastRate = 200
	// leastStrikes is how often each fault has to strike in a run of two rounds or
	// more: once in a shorter one.
	leastStrikes = 2
)

// report is what came of all rounds.
type report struct {
	*config
	rounds  int
	struck  time.Duration // faults struck for so long
	took    time.Duration
	checked time.Duration
	strikes tally
	astray  tally
	effects tally
	counts  tally
	wrong   []string
	where   string
}

func newReport(c *config) *report {
	return &report{config: c, strikes: tally{}, astray: tally{}, effects: tally{}, counts: tally{}}
}

func (t *report) add(r *round, took time.Duration, wrong []string, counts tally) {
	t.rounds++
	t.took += took
	t.struck += r.struckFor
	t.checked += r.checkTook
	t.strikes.add(r.strikes)
	t.astray.add(r.astray)
	t.effects.add(r.effects)
	t.counts.add(counts)
	if len(wrong) > 0 {
		t.wrong, t.where = wrong, r.dir
	}
	fmt.Printf("round %d: %v, %d operations, %d strikes, %d log entries, checked in %v, %d violations\n", t.rounds,
		took.Round(time.Second), operations(counts), sum(r.strikes), counts["log entries"], r.checkTook.Round(time.Millisecond), len(wrong))
}

func sum(t tally) (n int) {
	for _, m := range t {
		n += m
	}
	return n
}

// operations is how many operations clients have done.
func operations(counts tally) (n int) {
	for name, m := range counts {
		if strings.HasPrefix(name, "ops ") {
			n += m
		}
	}
	return n
}

// print prints the report, and says whether the run has passed.
func (t *report) print() bool {
	t.require()
	fmt.Printf("\n%d rounds in %v, %v of it under fire; checked in %v, by porcupine in %v\n", t.rounds, t.took.Round(time.Second),
		t.struck.Round(time.Second), t.checked.Round(time.Millisecond), time.Duration(t.counts["porcupine ms"])*time.Millisecond)
	fmt.Printf("\n  %-18s %8s %8s\n", "fault", "strikes", "effect")
	for _, f := range append(slices.Clip(t.faults), fault{name: poolOfOne}) {
		fmt.Printf("  %-18s %8d %8d  %s\n", f.name, t.strikes[f.name], t.effects[f.name], t.seen(f))
	}
	fmt.Printf("\n  %-52s %9s\n", "done, and looked at", "number")
	for _, name := range slices.Sorted(maps.Keys(t.counts)) {
		fmt.Printf("  %-52s %9d\n", name, t.counts[name])
	}
	fmt.Printf("  %-52s %9d\n\n", "operations in all", operations(t.counts))
	for _, line := range t.wrong {
		fmt.Println("VIOLATION:", line)
	}
	if len(t.wrong) > 0 {
		fmt.Printf("FAILED with seed %d: %d violations\n", t.seed, max(t.counts["violations"], len(t.wrong)))
		if t.where != "" {
			fmt.Println("The evidence is in", t.where)
		}
		return false
	}
	fmt.Printf("PASSED with seed %d: no violation in %d operations under %d strikes\n", t.seed, operations(t.counts), sum(t.strikes))
	return true
}

func (t *report) seen(f fault) string {
	if f.effects == "" {
		return ""
	}
	return fmt.Sprintf("%s: %d", f.effects, t.counts[f.effects])
}

// worth is what has to have happened in a run of two rounds or more.
var worth = []string{"locks handed on", "locks extended", "fences", "fenced writes", "unlocks", "porcupine operations", "receipts used",
	"refusals: stale", "refusals: locked", "handlers", "tasks taken", "tasks deferred", "tasks taken over by what was deferred",
	"tasks extended", "tasks given back", "tasks buried", "tasks revived", "tasks rescheduled"}

// most is what part of something may be something else, in percent: far more than there
// is, so that what is excused stays the exception.
var most = []struct {
	part, of string
	percent  int
}{
	{"beliefs excused", "beliefs", 20},
	{"fences that went back, excused", "fences", 1},
	{"contexts ended, returned more than 50ms later", "contexts ended", 5},
	{"acknowledged tasks lost by everysec, excused", "enqueues ok", 10},
}

func (t *report) requireWorth() {
	for _, name := range worth {
		if t.counts[name] == 0 {
			t.wrong = append(t.wrong, "nothing to look at: no "+name)
		}
	}
	for _, m := range most {
		if 100*t.counts[m.part] > m.percent*t.counts[m.of] {
			t.wrong = append(t.wrong, fmt.Sprintf("%s: %d of %d, more than %d%%", m.part, t.counts[m.part], t.counts[m.of], m.percent))
		}
	}
}

// require adds to the violations what a run needs in order to be worth anything.
func (t *report) require() {
	least := min(leastStrikes, t.rounds)
	for _, f := range t.faults {
		if t.strikes[f.name] < least {
			t.wrong = append(t.wrong, fmt.Sprintf("%s struck %d times (and %d times in vain): at least %d", f.name, t.strikes[f.name], t.astray[f.name], least))
		}
		if f.effects != "" && t.counts[f.effects] == 0 && t.rounds > 1 { // a single kill may find nobody who holds anything
			t.wrong = append(t.wrong, fmt.Sprintf("%s had no effect: no %s", f.name, f.effects))
		}
	}
	if t.clients >= 3 && t.effects[poolOfOne] == 0 {
		t.wrong = append(t.wrong, "the client with a pool of one has done nothing")
	}
	if t.rounds > 1 {
		t.requireWorth()
	}
	if rate := float64(operations(t.counts)) / t.struck.Seconds(); rate < leastRate {
		t.wrong = append(t.wrong, fmt.Sprintf("%.0f operations a second: at least %d", rate, leastRate))
	}
}
