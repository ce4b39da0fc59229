// Chaos runs client processes that use the library in every way against a real
// redis-server, while faults strike in random order, and holds what the clients were
// told against the server's append-only file.
//
//	go run -C proof ./chaos -for 2m
//
// Each round of about a minute has servers, proxies and clients of its own:
//
//	client.go, locks.go, tasks.go   what a client process does, and records (record.go)
//	faults.go, server.go, proxy.go, shim.go   what strikes
//	round.go, quiet.go, process.go   a round, from its start until all is quiet
//	witness.go, replay.go, keyspace.go, classify.go   the server's log: who held what, and
//	    what became of each task, between which two readings of the clock
//	check.go, check_locks.go, check_tasks.go, history.go   the two against each other
//
// What must hold: owners of a lock never overlap in the witness, nor do holders by
// their own Valid, who lie within their ownership; lock histories are linearizable
// (porcupine). Fences rise in real-time order, and what they protect never goes back.
// An acknowledged task is done, cancelled, dead or still there; a receipt is good once;
// nothing is handed out before it is due or its lease has ended, by the server's clock;
// attempts equal deliveries. Whatever changed was asked for, nil means done, and a
// definite error not done. Calls return when their context ends. When all is quiet,
// nothing is stuck, held or half there.
//
// What is excused, and counted: beliefs in a lock over which the server's clock was set
// ahead or whose key was lost, until the TTL that they knew of; a fence that the server
// has lost while its clock was behind it; tasks that a power cut took, which are exactly
// those in the part of the log that was cut off.
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

// config is what the command line says.
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

// roundTime is how long faults strike in a round. It takes some seconds more to
// start, come to rest and be checked.
const roundTime = 52 * time.Second

// silent drops what go-redis says of its connections.
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
	flag.Uint64Var(&c.seed, "seed", 0, "of what is random (default: random)")
	flag.IntVar(&c.clients, "clients", 4, "how many client processes; with 3 or more, one has a pool of one connection")
	flag.StringVar(&c.only, "only", "", "strike with these faults only, separated by commas")
	flag.BoolVar(&c.verbose, "v", false, "tell of each strike")
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

// run runs rounds until the time is over, and reports.
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
		wrong, counts, err := r.run(min(roundTime, c.length*5/6))
		if err != nil {
			return false, fmt.Errorf("round %d (seed %d), see %s: %w", n+1, c.seed, r.dir, err)
		}
		total.add(r, time.Since(began), wrong, counts)
		if len(wrong) > 0 {
			break // the evidence is kept
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
		dice:    rand.New(rand.NewPCG(c.seed, uint64(n))),
		strikes: tally{}, astray: tally{}, effects: tally{},
	}
}

// chosen are the faults with these names, or all.
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

// say tells of something if it is wanted.
func (c *config) say(format string, args ...any) {
	if c.verbose {
		fmt.Printf(format+"\n", args...)
	}
}
