package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/redistest"
)

// round is a minute or so of chaos on a server of its own. It is checked as a whole and its
// log deleted, so that a long run needs no more memory and disk than one round.
type round struct {
	config
	dir       string
	server    *server
	register  *redistest.Server // holds the state that fences protect; no fault strikes it
	proxies   []*proxy
	began     time.Duration
	struckFor time.Duration
	checkTook time.Duration
	cleared   time.Duration       // when the limits were taken away
	done      map[string]doneTask // when everything is quiet

	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	running []*process // by slot
	all     []*process
	strikes tally // by fault
	misses  tally // strikes without an effect, by fault
	effects tally
	highest time.Duration // the highest offset of the server's clock
}

// run runs a round and checks it.
func (r *round) run(strikeFor time.Duration) (violations []string, counts tally, err error) {
	defer r.stop()
	if err := r.start(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ticking sync.WaitGroup
	ticking.Go(func() { r.server.tick(ctx) })
	began := time.Now()
	err = r.strikeAll(strikeFor)
	r.struckFor = time.Since(began)
	if err == nil {
		violations, err = r.quiet()
	}
	ended := monotonic()
	cancel()
	ticking.Wait()
	if err != nil {
		return nil, nil, err
	}
	r.stop()
	began = time.Now()
	found, counts, err := r.check(ended)
	r.checkTook = time.Since(began)
	return append(violations, found...), counts, err
}

// start starts the servers, the proxies and the clients.
func (r *round) start() error {
	for _, folder := range []string{"server", "register"} {
		if err := os.MkdirAll(filepath.Join(r.dir, folder), 0o700); err != nil {
			return err
		}
	}
	var err error
	if r.server, err = startServer(filepath.Join(r.dir, "server"), r.shim); err != nil {
		return err
	}
	if r.server.replica, err = startReplica(filepath.Join(r.dir, "replica"), r.server, r.shim); err != nil {
		return err
	}
	if r.register, err = redistest.StartIn(filepath.Join(r.dir, "register"), nil); err != nil {
		return err
	}
	r.began = monotonic()
	r.running = make([]*process, r.clients)
	for slot := range r.clients {
		p, err := newProxy(r.server.Addr, slot%2 == 0)
		if err != nil {
			return err
		}
		r.proxies = append(r.proxies, p)
		if err := r.startClient(slot); err != nil {
			return err
		}
	}
	return nil
}

// startClient starts the client of a slot, for the first time or after it was killed. Each
// slot has settings of its own.
func (r *round) startClient(slot int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := settings{
		Process:  fmt.Sprintf("client%d.%d", slot, len(r.all)),
		Addr:     r.proxies[slot].Listen,
		Register: r.register.Addr,
		Began:    r.began,
		Seed:     r.rng.Uint64(),
		Timeout:  time.Second,
	}
	switch slot % 4 {
	case 1:
		s.Auto = true
	case 2:
		s.Pool = 1
	case 3:
		s.Timeout = 5 * time.Second
	}
	p, err := startProcess(r.dir, slot, s)
	if err != nil {
		return err
	}
	r.running[slot] = p
	r.all = append(r.all, p)
	return nil
}

// newRNG returns a new source of random numbers, seeded by the round's.
func (r *round) newRNG() *rand.Rand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rand.New(rand.NewPCG(r.rng.Uint64(), 0))
}

func (r *round) anyProcess() *process {
	rng := r.newRNG()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[rng.IntN(len(r.running))]
}

// strikeAll makes each fault strike, in random order, again and again.
func (r *round) strikeAll(d time.Duration) error {
	var parallel sync.WaitGroup
	defer parallel.Wait()
	rng := r.newRNG()
	var next []fault
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(upTo(rng, 300*time.Millisecond)) // a pause between strikes
		if len(next) == 0 {
			next = append(next, r.faults...)
			rng.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
		}
		f := next[0]
		next = next[1:]
		if f.parallel && rng.IntN(2) == 0 {
			parallel.Go(func() { _ = r.strike(f) }) // a fault that may strike in parallel returns no error
			continue
		}
		if rng.IntN(2) == 0 {
			parallel.Wait()
		}
		if err := r.strike(f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

func (r *round) strike(f fault) error {
	began := monotonic()
	effect, err := f.strike(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.highest = max(r.highest, r.server.offset)
	if effect == 0 {
		r.misses[f.name]++
	} else {
		r.strikes[f.name]++
		r.effects[f.name] += effect
	}
	r.logf("%v %-16s %6.3fs effect %d", began, f.name, (monotonic() - began).Seconds(), effect)
	return err
}

// stop ends the round's processes that still run. It may be called twice.
func (r *round) stop() {
	for _, p := range r.running {
		if p != nil {
			_ = p.child.Process.Kill()
			<-p.ended
		}
	}
	for _, p := range r.proxies {
		p.Stop()
	}
	if r.server != nil && r.server.Server != nil {
		r.server.Down()
	}
	if r.server != nil && r.server.replica != nil {
		r.server.replica.stop()
	}
	if r.register != nil {
		r.register.Down()
	}
}

// check reads the evidence and checks it.
func (r *round) check(ended time.Duration) (violations []string, counts tally, err error) {
	ended += time.Second
	log, seen, err := readLog(r.server, ended)
	if err != nil {
		return nil, nil, err
	}
	records, err := readRecords(r.dir)
	if err != nil {
		return nil, nil, err
	}
	e := &evidence{
		log: log, records: records, clock: r.server.times, ended: ended, cleared: r.cleared, listedDone: r.done,
		gaps: findGaps(r.server.ticks, seen, r.server.restarts), restarts: r.server.restarts,
		deaths: map[string]time.Duration{}, stops: map[string][]span{},
	}
	if len(e.gaps) > 0 {
		r.logf("a kill lost acknowledged writes: %v", e.gaps)
	}
	r.noteProcesses(e)
	violations, counts = check(e)
	return violations, counts, nil
}

// noteProcesses adds the processes' deaths and stops to the evidence.
func (r *round) noteProcesses(e *evidence) {
	single := map[string]bool{}
	for _, p := range r.all {
		if p.death != 0 {
			e.deaths[p.Process] = p.death
		}
		e.stops[p.Process] = p.stops
		if p.Pool == 1 {
			r.strikes[poolOfOne]++
			single[p.Process] = true
		}
	}
	for _, rec := range e.records {
		if single[rec.Process] {
			r.effects[poolOfOne]++
		}
	}
}
