// Chaos runs client processes that use the library in every way against a real
// redis-server, while faults strike in random order. Then it compares the results that the
// clients got with the server's append-only file, the log.
//
//	go run -C proof ./chaos -for 2m
//	go run -C proof ./chaos -liveness -for 2m
//
// Each round of about a minute has servers, proxies and clients of its own:
//
//	client.go, locks.go, tasks.go   what a client process does, and records (record.go)
//	sets.go, adopt.go, pauses.go, limits.go, stocks.go, groups.go, periodic.go, replicas.go   more of that
//	plan.go, faults.go, server.go, proxy.go, shim.go   the faults
//	round.go, quiet.go, process.go   a round, from its start until everything is quiet
//	log.go, replay.go, keyspace.go, lines.go, queue_lines.go, stock_log.go, group_log.go,
//	    classify.go   the server's log: which token held each lock, which processes stood in its line, which clients in that of a queue, and how each task changed, between which
//	    two readings of the clock
//	check*.go, history.go   the comparison of both
//	liveness.go, check_liveness.go   faults that never end, and how long the others then wait
//
// The checks:
//   - Holds of a lock never overlap: neither in the log, nor by the holders' own Valid, which
//     is true only during the hold in the log. Lock histories are linearizable (porcupine).
//   - No more callers hold a name than it has permits.
//   - Fences rise in real-time order, and the state that they protect never goes back.
//   - Processes join a lock's line at its end, or at the place that they had. A release takes out
//     those that are first. A line has a TTL, and at the end no entry of a process that lives.
//   - Clients stand in a queue's line, which has a TTL, and one of them is the watchman at most.
//   - An acknowledged task is finished, cancelled, dead or still there. A receipt is valid
//     once. No task is claimed before it is due, or before its lease has ended, by the
//     server's clock. A task's attempts are the number of its claims.
//   - Every change has a client's request as its cause. After nil the change was made, and
//     after a definite error it was not.
//   - In a queue with limits no more tasks are handed out in a time, by the server's clock, nor leased
//     after a claim, than they allow. The limits are those that a client has set.
//   - What is held of a stock is what the tasks hold, after each entry of the log. Units are taken by
//     an enqueue that asked for them. They are sold if their task is done, else put back, once. What
//     was told sold out was so, at most 100 ms before, or 200 while another caller asked.
//   - Of each group, after each entry of the log, no more tasks are in play than may be, none waits
//     while a place is free, the earliest due are in play, and each that waits is whole. Two callers
//     have tasks of a group at once only if several were in play. At the end nothing waits.
//   - A periodic task is due when its schedule says, is never removed, nor buried before its
//     attempts are used up, and goes on when everything is quiet.
//   - Whenever the server is killed, its replica has what was acknowledged with a replica.
//   - Calls return when their context ends. When everything is quiet, nothing is stuck, held
//     or half there.
//   - With -liveness, in which faults never end: what a client waits for that is not struck is
//     granted, or handed out, within what docs/guarantees.md promises. The time is taken off in
//     which the machine kept a process or the server from running.
//
// Excused, and counted, are: a lock that its holder believes to hold although the server's
// clock was set ahead or its key was lost, until the TTL that the holder knows; a fence that
// the server lost while its clock was behind that fence; tasks that a power cut took, which
// are exactly those in the part of the log that was cut off; a place in a group that is kept by a
// task which was finished by a Queue that knows of no groups.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// config is the command line.
type config struct {
	length    time.Duration
	seed      uint64
	clients   int
	only      string
	verbose   bool
	liveness  bool
	histories string
	dir       string
	shim      string
	faults    []fault
}

// roundTime is how long faults strike in a round. Its start, its end and its checks take
// some seconds more.
const roundTime = 52 * time.Second

// silent drops what go-redis logs.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(silent{})
	if env := os.Getenv(clientEnv); env != "" {
		runClient(env)
		return
	}
	var c config
	flag.DurationVar(&c.length, "for", 2*time.Minute, "how long to run; rounds of about a minute")
	flag.Uint64Var(&c.seed, "seed", 0, "the random `number` that decides what strikes when (default: a random one)")
	flag.IntVar(&c.clients, "clients", 0, "how many client processes (default: 4); with 3 or more, one has a pool of one connection")
	flag.StringVar(&c.only, "only", "", "strike with these faults only, separated by commas")
	flag.BoolVar(&c.verbose, "v", false, "print each strike")
	flag.BoolVar(&c.liveness, "liveness", false, "strike half of the clients with faults that never end, and check that the others go on in time;\n"+
		fmt.Sprintf("%d clients unless -clients says otherwise, rounds of about %v", livenessClients, livenessRound))
	flag.StringVar(&c.histories, "histories", "", "write the history of each lock into this `folder`")
	history := flag.String("check", "", "check the history of a lock in this `file`, and nothing else")
	flag.Usage = usage
	flag.Parse()
	if *history != "" {
		os.Exit(checkFile(*history))
	}
	if c.clients == 0 {
		if c.clients = 4; c.liveness {
			c.clients = livenessClients
		}
	}
	if c.seed == 0 {
		c.seed = rand.Uint64() >> 16
	}
	ok, err := c.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run runs rounds until the time is over, and prints a report.
func (c *config) run() (ok bool, err error) {
	all := faults
	if c.liveness {
		all = lastingFaults
	}
	if c.faults, err = chosen(all, c.only); err != nil {
		return false, err
	}
	if c.dir, err = os.MkdirTemp("", "sluice-proof-"); err != nil {
		return false, err
	}
	if c.shim, err = compileShim(c.dir, "clock"); err != nil {
		return false, err
	}
	fmt.Println("chaos:", c.command())
	total := newReport(c)
	each := time.Minute
	if c.liveness {
		each = livenessRound
	}
	for n := range max(1, int((c.length+each/2)/each)) {
		r := c.newRound(n)
		began := time.Now()
		violations, counts, err := r.run(min(roundTime, c.length*5/6))
		if err != nil {
			return false, fmt.Errorf("round %d, see %s: %w\nThe same strikes: %s", n+1, r.dir, err, c.command())
		}
		total.add(r, time.Since(began), violations, counts)
		if len(violations) > 0 {
			break // and keep the evidence
		}
		if err := os.RemoveAll(r.dir); err != nil {
			return false, err
		}
	}
	if ok = total.print(); ok {
		err = os.RemoveAll(c.dir)
	}
	return ok, err
}

// usage prints the help.
func usage() {
	fmt.Fprint(flag.CommandLine.Output(), `Chaos runs client processes under faults, and checks what they were told.

The same seed, clients, faults and mode lead to the same strikes, in the same order, with the same clients and lengths (see
-v), and to clients that draw the same random numbers. How long each step takes is not the same, so neither is what a strike hits.

`)
	flag.PrintDefaults()
}

// command returns the command that leads to the same strikes.
func (c *config) command() string {
	text := fmt.Sprintf("go run -C proof ./chaos -seed %d -for %v -clients %d", c.seed, c.length, c.clients)
	if c.only != "" {
		text += " -only " + c.only
	}
	if c.liveness {
		text += " -liveness"
	}
	return text
}

func (c *config) newRound(n int) *round {
	return &round{
		config: *c, number: n, dir: filepath.Join(c.dir, fmt.Sprintf("round-%d", n+1)),
		rng:     rand.New(rand.NewPCG(c.seed, ^uint64(n))),
		strikes: tally{}, misses: tally{}, effects: tally{},
	}
}

// chosen returns those of all faults that have these names, or all.
func chosen(all []fault, names string) ([]fault, error) {
	if names == "" {
		return all, nil
	}
	var some []fault
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no fault is called %q", name)
		}
		some = append(some, all[i])
	}
	return some, nil
}

// logf prints a line if the verbose flag is set.
func (c *config) logf(format string, args ...any) {
	if c.verbose {
		fmt.Printf(format+"\n", args...)
	}
}
