package main

import (
	"cmp"
	"fmt"
	"syscall"
	"time"
)

// With -liveness faults strike that never end. Each hits another client, until half of them are
// struck. The others must go on in time: see checkLiveness.
const (
	betweenStrikes = 700 * time.Millisecond  // longer than most TTLs and leases and what follows them
	livenessTail   = 1500 * time.Millisecond // after the last strike
	calmPause      = 50 * time.Millisecond   // see settings.Calm
	// seldom is for how many such pauses a client enqueues nothing: then no message about another
	// task makes up for one that was lost.
	seldom = 100
	// livenessRound is about how long a round takes with that many clients.
	livenessRound   = 15 * time.Second
	livenessClients = 10
)

// moment is what a client is about when it is struck.
type moment = string

const (
	holding  moment = "holding" // it has been granted a lock, permit or lock set
	waiting  moment = "waiting" // it stands in line for a lock, and comes to be the first
	told     moment = "told"    // it was told of a task, and has not asked for it
	withTask moment = "leasing" // it has a task
)

var moments = []moment{holding, waiting, told, withTask}

// lasting are the faults that do not end.
var lastingFaults = []fault{
	{name: "stop-holder", do: stopForGood(holding)},
	{name: "stop-waiter", do: stopForGood(waiting)},
	{name: "stop-told", do: stopForGood(told)},
	{name: "stop-leaser", do: stopForGood(withTask)},
	{name: "kill-for-good", do: killForGood},
	{name: "silent-links", do: silenceForGood},
	{name: "half-open", do: makeHardOfHearing(condition{deaf: true})},
	{name: "mute", do: makeHardOfHearing(condition{mute: true})},
}

// at is called where a client is at a moment. If that is wanted, the caller never goes on: the
// process is struck.
func (c *client) at(m moment) {
	if c.wanted.CompareAndSwap(m, "") {
		fmt.Println(m)
		select {}
	}
}

// soon is at for a caller that is about to wait, and does. The goroutine ends by itself; nothing
// waits for it.
func (c *client) soon(m moment) {
	if c.wanted.CompareAndSwap(m, "") {
		go func() {
			time.Sleep(2 * time.Millisecond) // it is in line then
			fmt.Println(m)
		}()
	}
}

// leave notes that the client of a slot is gone, and since when.
func (p *process) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = monotonic()
}

// stopForGood stops a client at a moment.
func stopForGood(m moment) func(*round, strike) (int, error) {
	return func(r *round, s strike) (int, error) {
		p := r.running[s.slot]
		if err := p.send(m, m, calmLimit); err != nil {
			return 0, err
		}
		if err := p.child.Process.Signal(syscall.SIGSTOP); err != nil {
			return 0, err
		}
		p.leave()
		p.death = p.gone
		return 1, nil
	}
}

func killForGood(r *round, s strike) (int, error) {
	p, m := r.running[s.slot], moments[int(s.pick*float64(len(moments)))]
	if err := p.send(m, m, calmLimit); err != nil {
		return 0, err
	}
	p.kill()
	p.leave()
	return 1, nil
}

// silenceForGood has no connection of a client, old or new, carry anything any more.
func silenceForGood(r *round, s strike) (int, error) {
	link := r.proxies[s.slot]
	r.running[s.slot].leave() // what it was told until now counts
	link.requests.set(condition{quiet: true})
	link.replies.set(condition{quiet: true})
	return 1, nil
}

// makeHardOfHearing has a client get no messages any more, which costs it time. It is not gone.
func makeHardOfHearing(how condition) func(*round, strike) (int, error) {
	return func(r *round, s strike) (int, error) {
		r.proxies[s.slot].replies.set(how)
		return 1, nil
	}
}

// strikeForGood hits half of the clients, one after the other. Then it kills those that are gone:
// nothing is left that they could do.
func (r *round) strikeForGood() error {
	p := r.newPlan(r.number)
	muted, deaf := applied.muted.Load(), applied.deaf.Load()
	for range r.clients / 2 {
		s := p.draw()
		time.Sleep(s.pause) // between strikes
		r.firstStrike = cmp.Or(r.firstStrike, monotonic())
		if err := r.strike(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	time.Sleep(livenessTail) // the others go on
	r.effects["mute"] += int(applied.muted.Load()-muted) - r.strikes["mute"]
	r.effects["half-open"] += int(applied.deaf.Load()-deaf) - r.strikes["half-open"]
	var left []*process
	for _, p := range r.running {
		if p.gone == 0 {
			left = append(left, p)
		} else {
			p.kill()
		}
	}
	r.running = left
	return nil
}
