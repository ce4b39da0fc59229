package main

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
)

// Names called "mix" are used plainly and with permits, and forced open.
const mixNames, mixLife = 2, 5 * time.Second

func isMixed(name string) bool { return strings.HasPrefix(name, "mix") }

func (c *client) contendMixed(rng *rand.Rand) {
	name, _ := c.lockName(rng, "mix", mixNames, mixLife)
	rec, options := taking(name, 30*time.Millisecond+upTo(rng, 300*time.Millisecond)), []sluice.LockOption(nil)
	if rec.Permit = rng.IntN(2) == 0; rec.Permit {
		options = append(options, sluice.WithPermits(gatePermits))
	}
	c.contend(rng, rec, false, rng.IntN(3) == 0, options...)
	work(rng, 10*time.Millisecond)
}

// force looks at a mixed name, and sometimes forces it open.
func (c *client) force(rng *rand.Rand) {
	work(rng, 100*time.Millisecond)
	name, _ := c.lockName(rng, "mix", mixNames, mixLife)
	ctx, cancel := withShortContext(context.Background(), rng, 12)
	defer cancel()
	rec := c.begin(record{Op: opInspect, Name: name})
	info, err := c.locker.Inspect(ctx, name)
	if c.endBy(ctx, rec, resultOfCall(info.Held, err)); rng.IntN(2) == 0 {
		return
	}
	rec = c.begin(record{Op: opForce, Name: name})
	held, err := c.locker.ForceUnlock(ctx, name)
	c.endBy(ctx, rec, resultOfCall(held, err))
}
