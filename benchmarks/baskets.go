package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
)

const (
	shelf    = 12 // items, of which a basket has 2 to 5
	oneByOne = ", one lock after the other in the order of their names"
)

// baskets measures sections that need several names at once.
func baskets() scenario {
	return scenario{
		name:    "baskets",
		about:   fmt.Sprintf("3 processes of 20 goroutines, each section with 2 to 5 of %d names: all at once, or nested by hand", shelf),
		measure: perSecond,
		entries: enter(sluiceName+" LockAll", sluiceName+" nested", "redislock nested"),
		length:  4 * time.Second,
		retry:   retryForCrowds,
		columns: []column{commandsColumn},
		turn:    crowds{processes: 3, size: 20, unguarded: true}.turn,
	}
}

// basketEntrants are the ways to take a basket.
func basketEntrants() []entrant {
	return []entrant{
		{name: sluiceName + " LockAll", settings: "defaults, which renew", open: plain(newTogether)},
		{name: sluiceName + " nested", settings: "WithAutoRenew" + oneByOne, open: plain(nestedIn(newRenewingFor(ttl)))},
		{name: "redislock nested", settings: redislockSettings + oneByOne, open: plain(nestedIn(newRedislock))},
	}
}

// basket returns some of the items of a shelf, in order.
func basket(shelfName string) []string {
	items := rand.Perm(shelf)[:2+rand.IntN(4)]
	names := make([]string, len(items))
	for i, item := range items {
		names[i] = fmt.Sprintf("%s-%02d", shelfName, item)
	}
	slices.Sort(names)
	return names
}

// together takes a basket of a shelf by LockAll.
type together struct{ locker }

func newTogether(rdb redis.UniversalClient, _ setup) (contender, error) {
	l, err := sluice.NewLocker(rdb)
	return together{locker{l}}, err
}

func (t together) Lock(ctx context.Context, shelfName string) (unlock, error) {
	set, err := t.LockAll(ctx, basket(shelfName))
	if err != nil {
		return nil, err
	}
	return set.Unlock, nil
}

// nested takes a basket of a shelf as one would without LockAll.
type nested struct{ contender }

func nestedIn(open onRedis) onRedis {
	return func(rdb redis.UniversalClient, s setup) (contender, error) {
		c, err := open(rdb, s)
		return nested{c}, err
	}
}

func (n nested) Lock(ctx context.Context, shelfName string) (unlock, error) {
	var held []unlock
	release := func(ctx context.Context) (err error) {
		for _, unlock := range slices.Backward(held) {
			err = errors.Join(err, unlock(ctx))
		}
		return err
	}
	for _, name := range basket(shelfName) {
		unlock, err := n.contender.Lock(ctx, name)
		if err != nil {
			return nil, errors.Join(err, release(context.WithoutCancel(ctx)))
		}
		held = append(held, unlock)
	}
	return release, nil
}
