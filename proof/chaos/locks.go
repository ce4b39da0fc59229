package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// The names of locks change every few seconds, so that the history of each can be checked as
// a whole. The names called "long" live through several faults.
const (
	hotNames, hotLife   = 2, 3 * time.Second  // many callers wait, and hold it for a moment
	slowNames, slowLife = 4, 10 * time.Second // held for about their TTL
	longNames, longLife = 2, 20 * time.Second // fenced
)

// attempt is one attempt of a client to get a lock.
type attempt struct {
	rec record
	ttl time.Duration
	rng *rand.Rand
	k   *sluice.Lock
}

func (c *client) lockName(rng *rand.Rand, kind string, names int, life time.Duration) (name string, fenced bool) {
	if c.Calm != 0 && kind != "set" {
		names = 1 // so that all want the same
	}
	n := rng.IntN(names)
	return fmt.Sprintf("%s%d.%d", kind, n, (monotonic()-c.Began)/life), n%2 == 0 || kind == "long" || rng.IntN(100) == 0
}

func (c *client) contendHot(rng *rand.Rand) {
	name, fenced := c.lockName(rng, "hot", hotNames, hotLife)
	ttl := 120 * time.Millisecond // a lock is handed over among callers with similar TTLs
	if rng.IntN(10) == 0 {
		ttl = 8*time.Millisecond + upTo(rng, 200*time.Millisecond)
	}
	c.contend(rng, taking(name, ttl), fenced, rng.IntN(40) == 0)
}

func (c *client) contendSlow(rng *rand.Rand) {
	name, fenced := c.lockName(rng, "slow", slowNames, slowLife)
	c.contend(rng, taking(name, 30*time.Millisecond+upTo(rng, 400*time.Millisecond)), fenced, rng.IntN(2) == 0)
}

func (c *client) contendLong(rng *rand.Rand) {
	name, _ := c.lockName(rng, "long", longNames, longLife)
	c.contend(rng, taking(name, 150*time.Millisecond), true, rng.IntN(5) == 0)
	work(rng, 20*time.Millisecond)
}

// taking returns the record of an attempt to get a lock.
func taking(name string, ttl time.Duration) record { return record{Op: opTake, Name: name, TTL: ttl} }

// contend tries to get a lock once, by Lock, TryLock or Do. If long is true, it then holds
// the lock for a long time.
func (c *client) contend(rng *rand.Rand, rec record, fenced, long bool, options ...sluice.LockOption) {
	name, ttl := rec.Name, rec.TTL
	ctx, cancel := context.WithCancel(c.produce)
	defer cancel()
	if rng.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(ctx, upTo(rng, 60*time.Millisecond))
		defer cancel()
	}
	options = append(options, sluice.WithTTL(ttl))
	if fenced {
		options = append(options, sluice.WithFencing())
	}
	a := &attempt{rec: rec, ttl: ttl, rng: rng}
	lock, hold := c.locker.Lock, c.brief
	switch rng.IntN(10) {
	case 0:
		c.do(ctx, a, long, options)
		return
	case 1:
		lock = c.locker.TryLock
	}
	if long {
		switch rng.IntN(5) {
		case 0:
			hold = c.extendLock
		case 1, 2:
			hold, options = c.renewLock, append(options, sluice.WithAutoRenew())
			if rng.IntN(4) == 0 {
				options = append(options, sluice.WithMaxHold(2*ttl))
			}
		case 3:
			hold = c.overrun
		case 4:
			if isMixed(name) { // who adopts it knows the kind by the name
				break
			}
			hold = c.detach
			if rng.IntN(2) == 0 {
				options = append(options, sluice.WithAutoRenew())
			}
		}
	}
	a.rec = c.begin(a.rec)
	c.soon(waiting)
	k, err := lock(ctx, name, options...)
	if err != nil {
		c.notAcquired(ctx, a, err)
		return
	}
	c.acquired(a, k)
	c.at(holding)
	hold(a)
}

// acquired records a lock that was acquired.
func (c *client) acquired(a *attempt, k *sluice.Lock) {
	a.k, a.rec.Op = k, opHold
	a.rec.Got = monotonic()
	a.rec.From, a.rec.Until, a.rec.Deadline = a.rec.Got, a.rec.Got, a.deadline()
	a.rec.Token, a.rec.Fence = digest(k.Token()), k.Fence()
	if !a.sample() {
		a.rec.From, a.rec.Until = 0, 0 // it came too late, and was never held
	}
	c.write(a.rec)
}

// notAcquired records why a lock was not acquired, and waits a little.
func (c *client) notAcquired(ctx context.Context, a *attempt, err error) {
	a.rec = c.endBy(ctx, a.rec, resultOf(err))
	if ctx.Err() == nil && a.rec.Result != locked && a.rec.Result != waited {
		work(a.rng, 20*time.Millisecond)
	} else {
		work(a.rng, 5*time.Millisecond)
	}
}

// sample says whether Valid is true, and if so, records that the lock was held until now.
func (a *attempt) sample() bool {
	now := monotonic()
	if !a.k.Valid() {
		return false
	}
	a.rec.Until, a.rec.Deadline = now, a.deadline()
	return true
}

// deadline returns the lock's deadline, or a time slightly later.
func (a *attempt) deadline() time.Duration {
	left := time.Until(a.k.Deadline())
	return monotonic() + left
}

// brief holds a lock for a few milliseconds.
func (c *client) brief(a *attempt) {
	work(a.rng, 4*time.Millisecond)
	if a.rng.IntN(4) == 0 {
		c.put(a)
	}
	a.sample()
	c.unlock(a)
}

// extendLock holds a lock for longer than its TTL by extending it.
func (c *client) extendLock(a *attempt) {
	for range 3 + a.rng.IntN(4) {
		time.Sleep(a.ttl / 4) // the work
		if !a.sample() {
			break
		}
		c.write(a.rec)
		rec := c.begin(record{Op: opExtendLock, Name: a.rec.Name, Token: a.rec.Token, TTL: a.ttl})
		ctx, cancel := withShortContext(context.Background(), a.rng, 8)
		c.endBy(ctx, rec, resultOf(a.k.Extend(ctx, a.ttl)))
		cancel()
	}
	a.sample()
	c.unlock(a)
}

// renewLock holds a lock for longer than its TTL by automatic renewal.
func (c *client) renewLock(a *attempt) {
	for until := a.rec.Got + time.Duration(2+a.rng.IntN(5))*a.ttl; a.rec.Until < until; c.write(a.rec) {
		time.Sleep(5 * time.Millisecond) // the work
		if !a.sample() {
			break
		}
	}
	c.unlock(a)
}

// overrun keeps working past a lock's deadline, and calls a holder's methods too late.
func (c *client) overrun(a *attempt) {
	ended, extendLate := a.k.Context(), a.rng.IntN(2) == 0
	for i := 0; a.sample(); i++ {
		if i%8 == 0 {
			c.write(a.rec)
		}
		if extendLate && time.Until(a.k.Deadline()) < 3*time.Millisecond {
			extendLate = false // this extension comes too late, or just in time
			go func() { _ = a.k.Extend(context.Background(), a.ttl) }()
		}
		time.Sleep(time.Millisecond) // the work
	}
	a.rec = c.end(a.rec, expired)
	for range 10 {
		work(a.rng, 10*time.Millisecond) // the holder has not noticed
		c.stillDead(a)
	}
	c.put(a)
	select {
	case <-ended.Done():
	case <-time.After(calmLimit):
		c.end(c.begin(record{Op: opStuck, Name: "the context of a lost lock"}), refused)
	}
	if a.rng.IntN(2) == 0 {
		_ = a.k.Unlock(c.produce)
	}
	c.stillDead(a)
}

// stillDead records it if a handle is valid again after its end.
func (c *client) stillDead(a *attempt) {
	if now := monotonic(); a.k.Valid() {
		a.rec.Until = now
		c.write(a.rec)
	}
}

// do gets a lock by Do. It was held to the end of the function if Do returns nil.
func (c *client) do(ctx context.Context, a *attempt, long bool, options []sluice.LockOption) {
	a.rec = c.begin(a.rec)
	err := c.locker.Do(ctx, a.rec.Name, func(context.Context) error {
		a.rec.From = monotonic()
		if long {
			held := a.rec // in case that this process is killed, or stopped for good, meanwhile
			held.Op, held.Until = opHold, held.From
			c.write(held)
			work(a.rng, 2*a.ttl)
		} else {
			work(a.rng, 4*time.Millisecond)
		}
		a.rec.Until = monotonic()
		return nil
	}, options...)
	if err != nil {
		if a.rec.From != 0 {
			ctx = context.WithoutCancel(ctx) // the function works on when the context has ended
		}
		a.rec.From, a.rec.Until = 0, 0
		c.notAcquired(ctx, a, err)
		return
	}
	a.rec.Op, a.rec.Unlock = opHold, a.rec.Until
	c.end(a.rec, done)
}

// unlock releases a lock, and records the result.
func (c *client) unlock(a *attempt) {
	ctx, cancel := withShortContext(context.Background(), a.rng, 10)
	defer cancel()
	a.rec.Unlock = monotonic()
	c.write(a.rec)
	a.rec = c.endBy(ctx, a.rec, resultOf(a.k.Unlock(ctx)))
	c.stillDead(a)
}

// guarded writes to the state that a fence protects: it rejects a fence lower than the last
// one.
var guarded = redis.NewScript(`
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < last then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1`)

// put writes to the state that the lock protects. Holders of permits would refuse each other's
// writes.
func (c *client) put(a *attempt) {
	if a.rec.Fence == 0 || isGate(a.rec.Name) {
		return
	}
	valid := a.k.Valid()
	rec := c.begin(record{Op: opRegister, Name: a.rec.Name, Fence: a.rec.Fence, Token: a.rec.Token})
	n, err := guarded.Run(context.Background(), c.register, []string{a.rec.Name}, a.rec.Fence).Int()
	if err != nil {
		panic(err) // no fault strikes that server
	}
	if valid && a.sample() {
		rec.From, rec.Until = rec.Call, a.rec.Until // held throughout
	}
	if n == 1 {
		c.end(rec, done)
	} else {
		c.end(rec, refused)
	}
}

// finalLocks gets every lock, which must succeed when everything is quiet.
func (c *client) finalLocks() {
	rng := c.rng()
	for range 3 {
		for _, name := range []string{"hot0.final", "hot1.final", "slow0.final", "gate0.final"} {
			ctx, cancel := context.WithTimeout(context.Background(), calmLimit)
			rec := c.begin(record{Op: opFinal, Name: name})
			options := []sluice.LockOption{sluice.WithTTL(200 * time.Millisecond)}
			if isGate(name) {
				options = append(options, sluice.WithPermits(gatePermits))
			}
			k, err := c.locker.Lock(ctx, name, options...)
			if err == nil {
				work(rng, 2*time.Millisecond)
				err = k.Unlock(ctx)
			}
			cancel()
			if errors.Is(err, sluice.ErrNotHeld) || errors.Is(err, sluice.ErrLost) {
				err = nil // on a slow machine the TTL may end
			}
			c.end(rec, resultOf(err))
		}
	}
}
