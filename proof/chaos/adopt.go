package main

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// detachedKey is the list through which clients hand detached locks to each other. No fault strikes
// its server.
const detachedKey = "detached"

// detachedLock is what a client needs to adopt a lock.
type detachedLock struct {
	Name, Token string
	TTL         time.Duration
}

// detach lets go of a lock for any client that adopts it.
func (c *client) detach(a *attempt) {
	work(a.rng, a.ttl/4)
	a.sample()
	a.rec.Unlock = monotonic()
	c.write(a.rec)
	token, err := a.k.Detach(context.Background())
	if err != nil {
		a.rec = c.end(a.rec, expired)
		return
	}
	a.rec = c.end(a.rec, detached)
	c.stillDead(a)
	text, err := json.Marshal(detachedLock{a.rec.Name, token, a.ttl})
	if err == nil {
		err = c.register.RPush(context.Background(), detachedKey, text).Err()
	}
	if err != nil {
		panic(err) // no fault strikes that server
	}
}

// adopt adopts a lock that a client has detached, if there is one.
func (c *client) adopt(rng *rand.Rand) {
	text, err := c.register.LPop(context.Background(), detachedKey).Bytes()
	if errors.Is(err, redis.Nil) {
		time.Sleep(5 * time.Millisecond) // there may be one then
		return
	}
	var from detachedLock
	if err == nil {
		err = json.Unmarshal(text, &from)
	}
	if err != nil {
		panic(err) // no fault strikes that server
	}
	options := []sluice.LockOption{sluice.WithTTL(from.TTL), sluice.WithFencing()}
	if isGate(from.Name) {
		options = append(options, sluice.WithPermits(gatePermits))
	}
	if rng.IntN(6) == 0 {
		work(rng, 3*from.TTL) // it may be over then
	}
	ctx, cancel := withShortContext(context.Background(), rng, 10)
	defer cancel()
	a := &attempt{ttl: from.TTL, rng: rng, rec: c.begin(record{Op: opAdopt, Name: from.Name, TTL: from.TTL})}
	k, err := c.locker.Adopt(ctx, from.Name, from.Token, options...)
	if err != nil {
		a.rec = c.endBy(ctx, a.rec, resultOf(err))
		return
	}
	a.rec.Adopted = true
	c.acquired(a, k)
	c.brief(a)
}
