package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// leastRate is how many operations a second the clients must do in spite of the faults.
	leastRate = 200
	// tellingStrikes is how often a fault strikes before it must have had an effect: a kill or a
	// stop may hit a client that holds nothing.
	tellingStrikes = 20
	// leastStrikes is how often each fault must strike in a run of two rounds or more. In
	// a shorter run it must strike once.
	leastStrikes = 2
)

// report has the results of all rounds.
type report struct {
	*config
	rounds     int
	struck     time.Duration // how long faults struck
	took       time.Duration
	checked    time.Duration
	strikes    tally
	misses     tally
	effects    tally
	counts     tally
	waits      waits
	violations []string
	where      string
}

func newReport(c *config) *report {
	return &report{config: c, strikes: tally{}, misses: tally{}, effects: tally{}, counts: tally{}, waits: waits{}}
}

func (t *report) add(r *round, took time.Duration, violations []string, counts tally) {
	t.rounds++
	t.took += took
	t.struck += r.struckFor
	t.checked += r.checkTook
	t.strikes.add(r.strikes)
	t.misses.add(r.misses)
	t.effects.add(r.effects)
	t.counts.add(counts)
	t.waits.add(r.waits)
	if len(violations) > 0 {
		t.violations, t.where = violations, r.dir
	}
	fmt.Printf("round %d: %v, %d operations, %d strikes, %d log entries, checked in %v, %d violations\n", t.rounds,
		took.Round(time.Second), operations(counts), sum(r.strikes), counts["log entries"], r.checkTook.Round(time.Millisecond), len(violations))
}

func sum(t tally) (n int) {
	for _, m := range t {
		n += m
	}
	return n
}

// operations returns how many operations the clients have done.
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
	t.checkRun()
	fmt.Printf("\n%d rounds in %v, %v of it with faults; checked in %v, by porcupine in %v\n", t.rounds, t.took.Round(time.Second),
		t.struck.Round(time.Second), t.checked.Round(time.Millisecond), time.Duration(t.counts["porcupine ms"])*time.Millisecond)
	fmt.Printf("\n  %-18s %8s %8s\n", "fault", "strikes", "effect")
	for _, f := range append(slices.Clip(t.faults), fault{name: poolOfOne}) {
		fmt.Printf("  %-18s %8d %8d  %s\n", f.name, t.strikes[f.name], t.effects[f.name], t.seen(f))
	}
	fmt.Printf("\n  %-52s %9s\n", "done and checked", "number")
	for _, name := range slices.Sorted(maps.Keys(t.counts)) {
		fmt.Printf("  %-52s %9d\n", name, t.counts[name])
	}
	fmt.Printf("  %-52s %9d\n", "operations in all", operations(t.counts))
	if t.liveness {
		t.waits.print()
	}
	fmt.Println("\nThe same strikes:", t.command())
	for _, line := range t.violations {
		fmt.Println("VIOLATION:", line)
	}
	if len(t.violations) > 0 {
		fmt.Printf("FAILED with seed %d: %d violations\n", t.seed, max(t.counts["violations"], len(t.violations)))
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

// wantedCounts are the counts that must not be 0 in a run of two rounds or more.
var wantedCounts = []string{"locks handed over", "places in line", "places in lines of queues", "watches of queues", "locks adopted", "names forced open", "plain holds of mixed names", "permits of mixed names", "locks of sets", "permits", "locks extended", "fences", "fenced writes", "unlocks", "porcupine operations", "receipts used",
	"refusals: stale", "refusals: locked", "handlers", "tasks due again", "tasks claimed or popped", "tasks deferred", "tasks taken over by the waiting version",
	"tasks extended", "tasks given back", "tasks buried", "tasks revived", "tasks rescheduled", "periodic tasks replaced",
	"windows of a rate", "tasks claimed that were the last that may be leased",
	"tasks of many queues claimed", "tasks of many queues removed", "tasks looked for on a replica",
	"tasks that kept an earlier due time", "once: tasks finished", "once: results", "once: IDs done at the end", "once: enqueues added", "once: enqueues kept", "once: enqueues done",
	"once: handlers of an ID that had one", "units taken", "units sold", "units put back", "units whose end was put off",
	"takes added", "takes kept", "takes sold out", "takes done", "totals set", "stocks at the end"}

// maxParts limits some counts to a percentage of others, far above what is usual: what is
// excused must stay the exception.
var maxParts = []struct {
	part, of string
	percent  int
}{
	{"beliefs excused", "beliefs", 20},
	{"fences that went back, excused", "fences", 1},
	{"contexts ended, returned more than 50ms later", "contexts ended", 5},
	{passedFirst, wokeOne, 10}, // an acquisition without a reply is released, with its entry
	{"once: results that a full server refused", "once: results", 10},
	{"acknowledged tasks lost by everysec, excused", "enqueues ok", 10},
}

// checkCoverage checks the counts of a run of two rounds or more.
func (t *report) checkCoverage() {
	for _, name := range slices.Concat(wantedCounts, groupCounts) {
		if t.counts[name] == 0 {
			t.violations = append(t.violations, "not tested: no "+name)
		}
	}
	for _, m := range maxParts {
		if 100*t.counts[m.part] > m.percent*t.counts[m.of] {
			t.violations = append(t.violations, fmt.Sprintf("%s: %d of %d, more than %d%%", m.part, t.counts[m.part], t.counts[m.of], m.percent))
		}
	}
}

// checkRun reports what a run lacks to be meaningful.
func (t *report) checkRun() {
	least := min(leastStrikes, t.rounds)
	if t.liveness {
		least = min(least, t.rounds*(t.clients/2)/len(t.faults))
	}
	for _, f := range t.faults {
		if t.strikes[f.name] < least {
			t.violations = append(t.violations, fmt.Sprintf("%s struck %d times (and %d times without effect): at least %d", f.name, t.strikes[f.name], t.misses[f.name], least))
		}
		if f.effects != "" && t.counts[f.effects] == 0 && t.strikes[f.name] >= tellingStrikes {
			t.violations = append(t.violations, fmt.Sprintf("%s had no effect: no %s", f.name, f.effects))
		}
	}
	if t.clients >= 3 && !t.liveness && t.effects[poolOfOne] == 0 {
		t.violations = append(t.violations, "the client with a pool of one has done nothing")
	}
	if t.liveness { // few operations a second, and not all kinds
		return
	}
	if t.rounds > 1 {
		t.checkCoverage()
	}
	if rate := float64(operations(t.counts)) / t.struck.Seconds(); rate < leastRate {
		t.violations = append(t.violations, fmt.Sprintf("%.0f operations a second: at least %d", rate, leastRate))
	}
}
