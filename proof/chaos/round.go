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

// round is a minute or so of chaos on a server of its own. Then it is checked in
// full, and its log thrown away, so that a soak needs no more memory or disk than
// that.
type round struct {
	config
	dir       string
	server    *server
	register  *redistest.Server // for what fences protect; it is not struck
	proxies   []*proxy
	began     time.Duration
	struckFor time.Duration
	checkTook time.Duration

	mu      sync.Mutex // guards what follows
	dice    *rand.Rand
	running []*process // by slot
	all     []*process
	strikes tally // by fault
	astray  tally
	effects tally
	highest time.Duration // offset of the server's clock
}

// run runs a round and checks it.
func (r *round) run(strikeFor time.Duration) (wrong []string, counts tally, err error) {
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
		wrong, err = r.quiet()
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
	return append(wrong, found...), counts, err
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

// startClient starts the client in a slot, or the next one after it was killed. Each
// slot has settings of its own.
func (r *round) startClient(slot int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := settings{
		Process:  fmt.Sprintf("client%d.%d", slot, len(r.all)),
		Addr:     r.proxies[slot].Listen,
		Register: r.register.Addr,
		Began:    r.began,
		Seed:     r.dice.Uint64(),
		Patience: time.Second,
	}
	switch slot % 4 {
	case 1:
		s.Auto = true
	case 2:
		s.Pool = 1
	case 3:
		s.Patience = 5 * time.Second
	}
	p, err := startProcess(r.dir, slot, s)
	if err != nil {
		return err
	}
	r.running[slot] = p
	r.all = append(r.all, p)
	return nil
}

// rng is a source of its own for whoever asks, fed by the seed.
func (r *round) rng() *rand.Rand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rand.New(rand.NewPCG(r.dice.Uint64(), 0))
}

func (r *round) anyProcess() *process {
	rng := r.rng()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[rng.IntN(len(r.running))]
}

// strikeAll strikes with each of the faults in random order, again and again.
func (r *round) strikeAll(d time.Duration) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	rng := r.rng()
	var bag []fault
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(upTo(rng, 300*time.Millisecond)) // the calm between
		if len(bag) == 0 {
			bag = append(bag, r.faults...)
			rng.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		}
		f := bag[0]
		bag = bag[1:]
		if f.beside && rng.IntN(2) == 0 {
			beside.Go(func() { _ = r.strike(f) }) // such faults have no errors
			continue
		}
		if rng.IntN(2) == 0 {
			beside.Wait()
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
		r.astray[f.name]++
	} else {
		r.strikes[f.name]++
		r.effects[f.name] += effect
	}
	r.say("%v %-16s %6.3fs effect %d", began, f.name, (monotonic() - began).Seconds(), effect)
	return err
}

// stop ends what is left of the round's processes. It may be called twice.
func (r *round) stop() {
	for _, p := range r.running {
		if p != nil {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
	for _, p := range r.proxies {
		p.Stop()
	}
	if r.server != nil && r.server.Server != nil {
		r.server.Down()
	}
	if r.register != nil {
		r.register.Down()
	}
}

// check reads the evidence and checks it.
func (r *round) check(ended time.Duration) (wrong []string, counts tally, err error) {
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
		log: log, records: records, clock: r.server.times, ended: ended,
		gaps:   findGaps(r.server.ticks, seen, r.server.restarts),
		deaths: map[string]time.Duration{}, stops: map[string][]span{},
	}
	if len(e.gaps) > 0 {
		r.say("acknowledged writes were lost by a kill: %v", e.gaps)
	}
	r.noteProcesses(e)
	wrong, counts = check(e)
	return wrong, counts, nil
}

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
