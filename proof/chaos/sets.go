package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// setNames of each life are taken together, by LockAll and DoAll, and sometimes one by one.
const setNames, setLife = 5, 10 * time.Second

// Names called "gate" have permits.
const (
	gatePermits         = 3
	gateNames, gateLife = 2, 10 * time.Second
)

func isGate(name string) bool { return strings.HasPrefix(name, "gate") }

func (c *client) contendGate(rng *rand.Rand) {
	name, fenced := c.lockName(rng, "gate", gateNames, gateLife)
	c.contend(rng, taking(name, 30*time.Millisecond+upTo(rng, 300*time.Millisecond)), fenced, rng.IntN(4) == 0, sluice.WithPermits(gatePermits))
}

// contendSet tries to get several locks once, or only one of them.
func (c *client) contendSet(rng *rand.Rand) {
	ttl := 30*time.Millisecond + upTo(rng, 300*time.Millisecond)
	if rng.IntN(4) == 0 {
		name, fenced := c.lockName(rng, "set", setNames, setLife)
		c.contend(rng, taking(name, ttl), fenced, false)
		return
	}
	names := map[string]bool{}
	for range 2 + rng.IntN(3) {
		name, _ := c.lockName(rng, "set", setNames, setLife)
		names[name] = true
	}
	s := &setAttempt{rng: rng}
	for name := range names {
		s.names = append(s.names, name)
		s.each = append(s.each, &attempt{rec: c.begin(record{Op: opTakeSet, Name: name, TTL: ttl, Set: true}), ttl: ttl, rng: rng})
	}
	ctx, cancel := context.WithCancel(c.produce)
	defer cancel()
	if rng.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(ctx, upTo(rng, 60*time.Millisecond))
		defer cancel()
	}
	options := []sluice.LockOption{sluice.WithTTL(ttl), sluice.WithFencing()}
	if rng.IntN(3) == 0 {
		c.doAll(ctx, s, options)
		return
	}
	c.lockAll(ctx, s, options)
}

// setAttempt is one attempt of a client to get several locks.
type setAttempt struct {
	names []string // in any order
	each  []*attempt
	rng   *rand.Rand
}

// acquired records that all locks were acquired.
func (s *setAttempt) acquired(c *client, lock func(name string) *sluice.Lock) {
	for i, a := range s.each {
		c.acquired(a, lock(s.names[i]))
	}
}

// hold holds all the locks for a moment or, in one of eight cases, for longer than their TTL.
func (s *setAttempt) hold() {
	until := monotonic() + upTo(s.rng, 4*time.Millisecond)
	if s.rng.IntN(8) == 0 {
		until += 2 * s.each[0].ttl
	}
	for all := true; all && monotonic() < until; {
		time.Sleep(time.Millisecond) // the work
		for _, a := range s.each {
			all = a.sample() && all
		}
	}
	for _, a := range s.each {
		a.sample()
		a.rec.Unlock = monotonic()
	}
}

// end records what became of all. Of several locks an error is not that of each.
func (s *setAttempt) end(ctx context.Context, c *client, err error) {
	result := done
	if err != nil {
		result = lostIt
	}
	if errors.Is(err, sluice.ErrUnknown) {
		result = unknown
	}
	for _, a := range s.each {
		a.rec = c.endBy(ctx, a.rec, result)
	}
}

// failed records that none was acquired.
func (s *setAttempt) failed(ctx context.Context, c *client, err error) {
	for _, a := range s.each {
		a.rec = c.endBy(ctx, a.rec, resultOf(err))
	}
	work(s.rng, 10*time.Millisecond)
}

func (c *client) lockAll(ctx context.Context, s *setAttempt, options []sluice.LockOption) {
	set, err := c.locker.LockAll(ctx, s.names, options...)
	if err != nil {
		s.failed(ctx, c, err)
		return
	}
	s.acquired(c, set.Get)
	c.at(holding)
	s.hold()
	ctx, cancel := withShortContext(context.Background(), s.rng, 10)
	defer cancel()
	s.end(ctx, c, set.Unlock(ctx))
	for _, a := range s.each {
		c.stillDead(a)
	}
}

func (c *client) doAll(ctx context.Context, s *setAttempt, options []sluice.LockOption) {
	called := false
	err := c.locker.DoAll(ctx, s.names, func(ctx context.Context) error {
		called = true
		s.acquired(c, func(name string) *sluice.Lock {
			return sluice.LockFromContext(ctx, name)
		})
		s.hold()
		return nil
	}, options...)
	if !called {
		s.failed(ctx, c, err)
		return
	}
	for _, a := range s.each {
		a.rec.Section = true
	}
	s.end(context.Background(), c, err)
}
