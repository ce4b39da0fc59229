// Benchmarks compares Sluice's locks with those of other Go libraries, and its queues with
// asynq's, on one redis-server and in one run. The ratios that it prints hold on machines of
// the same kind; the absolute figures are this machine's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if spec, ok := os.LookupEnv(childEnv); ok {
		os.Exit(childMain(spec))
	}
	os.Exit(parentMain(os.Args[1:], os.Stdout, os.Stderr))
}

// parentMain returns the exit status: 0 if every scenario ran, even if a peer failed in it; 1
// if a scenario could not be run, or Sluice failed in it; 2 for bad arguments. It prints
// tables to out, and everything else to log.
func parentMain(args []string, out, log io.Writer) int {
	c, err := parse(args, log)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(log, "benchmarks:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := compare
	if c.from != "" {
		run = again
	}
	if err := run(ctx, c, out, log); err != nil {
		fmt.Fprintln(log, "benchmarks:", err)
		return 1
	}
	return 0
}

// config is the command line.
type config struct {
	redis     string // address; empty to start a server
	quick     bool
	rounds    int
	length    time.Duration // of a contender's turn; 0 for the scenario's own
	json      string        // file to write; empty for none
	plot      string        // folder to write charts into; empty for none
	only      string        // contenders that take part; empty for all
	from      string        // report of an earlier run to show instead of measuring; empty for none
	scenarios []scenario

	postgres *postgres // started if a contender needs it
	etcd     *etcd     // likewise
	cluster  *cluster  // likewise
}

func parse(args []string, log io.Writer) (config, error) {
	var c config
	var seconds float64
	f := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	f.SetOutput(log)
	f.StringVar(&c.redis, "redis", "", "address of a Redis `server` to use; by default one is started")
	f.BoolVar(&c.quick, "quick", false, "one short round: shows that everything runs, measures nothing well")
	f.IntVar(&c.rounds, "rounds", 0, "`number` of rounds; in each, every contender has a turn (default 5; 1 with -quick)")
	f.Float64Var(&seconds, "seconds", 0, "length of a turn in scenarios of a fixed time (default 2 to 10; 0.3 with -quick)")
	f.StringVar(&c.json, "json", "", "`file` to write all results to, as JSON")
	f.StringVar(&c.plot, "plot", "", "`folder` to draw a chart per scenario into, as SVG, and one of its waits; it is made if missing")
	f.StringVar(&c.only, "contenders", "", "the `names` of those that take part, or how they begin, with commas; by default all")
	f.StringVar(&c.from, "from", "", "`file` that -json wrote: show its results again, and measure nothing")
	f.Usage = func() {
		fmt.Fprintf(log, "Usage: benchmarks [flags] [SCENARIO...]\n\nLocks and queues, side by side. Scenarios, by default all:\n")
		for _, s := range scenarios() {
			fmt.Fprintf(log, "  %-14s %s\n", s.name, s.about)
		}
		fmt.Fprintf(log, "\nFlags:\n")
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if c.rounds < 0 || seconds < 0 {
		return c, errors.New("-rounds and -seconds must not be negative")
	}
	c.length = time.Duration(seconds * float64(time.Second))
	if c.rounds == 0 {
		c.rounds = 5
		if c.quick {
			c.rounds = 1
		}
	}
	var err error
	if c.scenarios, err = choose(f.Args()); err == nil && c.only != "" {
		c.scenarios, err = only(c.scenarios, strings.Split(c.only, ","))
	}
	return c, err
}

// only returns the scenarios with those contenders alone whose names are these or begin so, and
// without the scenarios that have none.
func only(scenarios []scenario, names []string) (left []scenario, err error) {
	for _, s := range scenarios {
		s.entries = slices.DeleteFunc(s.entries, func(e entrant) bool {
			return !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(e.name, name) })
		})
		if len(s.entries) > 0 {
			left = append(left, s)
		}
	}
	if len(left) == 0 {
		err = fmt.Errorf("no scenario has any of the contenders %q", names)
	}
	return left, err
}

// choose returns the scenarios with these names or, without names, all. A name that no scenario
// has means all that begin with it and a hyphen.
func choose(names []string) ([]scenario, error) {
	all := scenarios()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []scenario
	for _, name := range names {
		before := len(chosen)
		for _, s := range all {
			if s.name == name { // and not those that begin with it
				chosen = append(chosen[:before], s)
				break
			}
			if strings.HasPrefix(s.name, name+"-") {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("no scenario %q", name)
		}
	}
	return chosen, nil
}
