// Chaos runs client processes that use the library in every way against a real
// redis-server, while faults strike in random order. Then it compares the results that the
// clients got with the server's append-only file, the log.
//
//	go run -C proof ./chaos -for 2m
//
// Each round of about a minute has servers, proxies and clients of its own:
//
//	client.go, locks.go, tasks.go   what a client process does, and records (record.go)
//	sets.go, adopt.go, pauses.go, limits.go, periodic.go, replicas.go   more of that
//	faults.go, server.go, proxy.go, shim.go   the faults
//	round.go, quiet.go, process.go   a round, from its start until everything is quiet
//	log.go, replay.go, keyspace.go, lines.go, queue_lines.go, classify.go   the server's log: which token held
//	    each lock, which processes stood in its line, which clients in that of a queue, and how each task changed, between which
//	    two readings of the clock
//	check*.go, history.go   the comparison of both
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
//   - A periodic task is due when its schedule says, is never removed, nor buried before its
//     attempts are used up, and goes on when everything is quiet.
//   - Whenever the server is killed, its replica has what was acknowledged with a replica.
//   - Calls return when their context ends. When everything is quiet, nothing is stuck, held
//     or half there.
//
// Excused, and counted, are: a lock that its holder believes to hold although the server's
// clock was set ahead or its key was lost, until the TTL that the holder knows; a fence that
// the server lost while its clock was behind that fence; tasks that a power cut took, which
// are exactly those in the part of the log that was cut off.
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
	length  time.Duration
	seed    uint64
	clients int
	only    string
	verbose bool
	dir     string
	shim    string
	faults  []fault
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
	flag.IntVar(&c.clients, "clients", 4, "how many client processes; with 3 or more, one has a pool of one connection")
	flag.StringVar(&c.only, "only", "", "strike with these faults only, separated by commas")
	flag.BoolVar(&c.verbose, "v", false, "print each strike")
	flag.Parse()
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
	if c.faults, err = chosen(c.only); err != nil {
		return false, err
	}
	if c.dir, err = os.MkdirTemp("", "sluice-proof-"); err != nil {
		return false, err
	}
	if c.shim, err = compileShim(c.dir, "clock"); err != nil {
		return false, err
	}
	fmt.Printf("chaos: seed %d, %v, %d clients\n", c.seed, c.length, c.clients)
	total := newReport(c)
	for n := range max(1, int((c.length+time.Minute/2)/time.Minute)) {
		r := c.newRound(n)
		began := time.Now()
		violations, counts, err := r.run(min(roundTime, c.length*5/6))
		if err != nil {
			return false, fmt.Errorf("round %d (seed %d), see %s: %w", n+1, c.seed, r.dir, err)
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

func (c *config) newRound(n int) *round {
	return &round{
		config: *c, dir: filepath.Join(c.dir, fmt.Sprintf("round-%d", n+1)),
		rng:     rand.New(rand.NewPCG(c.seed, uint64(n))),
		strikes: tally{}, misses: tally{}, effects: tally{},
	}
}

// chosen returns the faults with these names, or all.
func chosen(names string) ([]fault, error) {
	if names == "" {
		return faults, nil
	}
	var some []fault
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no fault is called %q", name)
		}
		some = append(some, faults[i])
	}
	return some, nil
}

// logf prints a line if the verbose flag is set.
func (c *config) logf(format string, args ...any) {
	if c.verbose {
		fmt.Printf(format+"\n", args...)
	}
}
