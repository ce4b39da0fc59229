package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// strike is one strike of a fault. All that is random of it is drawn before it begins, so that a
// seed always leads to the same strikes, however long each takes.
type strike struct {
	fault
	number int
	pause  time.Duration // before it
	beside bool          // the next may begin before it has ended
	alone  bool          // those under way end before it begins
	slot   int           // the client that it hits
	all    bool          // or it hits every client
	length float64       // how long it lasts, from 0 to 1
	pick   float64       // what else is to be chosen, from 0 to 1
}

func (s strike) String() string {
	client := fmt.Sprint("client ", s.slot)
	if s.all {
		client = "all clients"
	}
	return fmt.Sprintf("strike %d: %s, %s, length %.3f, pick %.3f, after %v, beside %v, alone %v",
		s.number, s.name, client, s.length, s.pick, s.pause.Round(time.Microsecond), s.beside, s.alone)
}

// during waits for a time between d/2 and d.
func (s strike) during(d time.Duration) {
	time.Sleep(d/2 + part(s.length, d/2)) // the fault
}

// part returns a part of a duration, from 0 to 1.
func part(of float64, d time.Duration) time.Duration { return time.Duration(of * float64(d)) }

// plan draws the strikes of a round: each fault, in random order, again and again.
type plan struct {
	config
	rng   *rand.Rand
	next  []fault
	slots []int // with -liveness: each client is hit once
	drawn int
}

func (c *config) newPlan(round int) *plan {
	p := &plan{config: *c, rng: rand.New(rand.NewPCG(c.seed, uint64(round)))}
	if c.liveness { // a round is short: it goes on with the faults where the one before has stopped
		p.slots = p.rng.Perm(c.clients)
		order := plan{config: *c, rng: rand.New(rand.NewPCG(c.seed, 1<<32))}
		for len(order.next) < (round+1)*c.clients/2 {
			order.shuffle()
		}
		p.next = order.next[round*(c.clients/2):]
	}
	return p
}

// shuffle has each fault strike once more.
func (p *plan) shuffle() {
	all := slices.Clone(p.faults)
	p.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	p.next = append(p.next, all...)
}

func (p *plan) draw() strike {
	if len(p.next) == 0 {
		p.shuffle()
	}
	s := strike{fault: p.next[0], number: p.drawn + 1, pause: upTo(p.rng, 300*time.Millisecond)}
	s.beside = p.rng.IntN(2) == 0 && s.parallel
	s.alone = p.rng.IntN(2) == 0
	s.slot, s.all = p.rng.IntN(p.clients), p.rng.IntN(3) == 0
	s.length, s.pick = p.rng.Float64(), p.rng.Float64()
	if p.liveness {
		s.slot, s.all = p.slots[p.drawn%p.clients], false
		s.pause += betweenStrikes
	}
	p.next, p.drawn = p.next[1:], p.drawn+1
	return s
}
