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
	number      int // from 0
	dir         string
	server      *server
	register    *redistest.Server // holds the state that fences protect; no fault strikes it
	proxies     []*proxy
	began       time.Duration
	struckFor   time.Duration
	checkTook   time.Duration
	cleared     time.Duration       // when the limits were taken away
	done        map[string]doneTask // when everything is quiet
	stocks      map[stockKey]listedStock
	firstStrike time.Duration
	waits       waits

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
	if r.liveness {
		err = r.strikeForGood()
	} else {
		err = r.strikeAll(strikeFor)
	}
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
	if r.liveness {
		s.Calm, s.Pool = calmPause, 0 // calls that wait for a connection are not the subject
	}
	p, err := startProcess(r.dir, slot, s)
	if err != nil {
		return err
	}
	r.running[slot] = p
	r.all = append(r.all, p)
	return nil
}

// strikeAll carries out the plan until the time is over.
func (r *round) strikeAll(d time.Duration) error {
	var parallel sync.WaitGroup
	defer parallel.Wait()
	p := r.newPlan(r.number)
	for end := time.Now().Add(d); time.Now().Before(end); {
		s := p.draw()
		time.Sleep(s.pause) // between strikes
		if s.beside {
			parallel.Go(func() { _ = r.strike(s) }) // a fault that may strike in parallel returns no error
			continue
		}
		if s.alone {
			parallel.Wait()
		}
		if err := r.strike(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (r *round) strike(s strike) error {
	r.logf("%v", s)
	began := monotonic()
	effect, err := s.do(r, s)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.highest = max(r.highest, r.server.offset)
	if effect == 0 {
		r.misses[s.name]++
	} else {
		r.strikes[s.name]++
		r.effects[s.name] += effect
	}
	r.logf("  %d: from %v, %.3fs, effect %d", s.number, began, (monotonic() - began).Seconds(), effect)
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
		log: log, records: records, clock: r.server.times, ended: ended, cleared: r.cleared, listedDone: r.done, listedStocks: r.stocks,
		gaps: findGaps(r.server.ticks, seen, r.server.restarts), restarts: r.server.restarts,
		deaths: map[string]time.Duration{}, stops: map[string][]span{},
		clients: r.clients, since: r.firstStrike, gone: map[string]time.Duration{},
	}
	if len(e.gaps) > 0 {
		r.logf("a kill lost acknowledged writes: %v", e.gaps)
	}
	r.noteProcesses(e)
	if r.liveness {
		e.waits = waits{}
	}
	violations, counts = check(e)
	r.waits = e.waits
	if r.histories != "" {
		err = writeHistories(r.histories, fmt.Sprintf("round-%d-", r.number+1), e.locks)
	}
	return violations, counts, err
}

// noteProcesses adds the processes' deaths and stops to the evidence.
func (r *round) noteProcesses(e *evidence) {
	single := map[string]bool{}
	for _, p := range r.all {
		if p.death != 0 {
			e.deaths[p.Process] = p.death
		}
		if p.gone != 0 {
			e.gone[p.Process] = p.gone
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
