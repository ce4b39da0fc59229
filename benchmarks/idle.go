package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-go/sluice"
)

const (
	settling = time.Second
	minIdle  = 1500 * time.Millisecond // long enough for each contender to poll
)

// idle measures what a process sends while it waits and has nothing to do.
func idle() scenario {
	entries := enterQueues(sluiceName, sluiceName, asynqName)
	entries[0].settings = "defaults; in idle, with a caller that waits for a lock that another client holds"
	entries[1].name += ", no lock"
	return scenario{
		name:    "idle",
		about:   "a worker of 64 handlers on an empty queue and, for Sluice, a caller that waits for a lock: the server's commands",
		measure: commandsPerSecond,
		entries: entries,
		length:  4 * time.Second,
		turn:    idleTurn,
	}
}

func idleTurn(ctx context.Context, t turn) (r result, err error) {
	waiting, stop := context.WithCancel(ctx)
	var all errgroup.Group
	defer func() {
		stop()
		err = errors.Join(err, all.Wait())
	}()
	all.Go(func() error { return t.queue.Work(waiting, 64, func(int) {}) })
	if t.entrant.name == sluiceName {
		all.Go(func() error { return waitUntilEnd(waiting, t) })
	}
	sleep(ctx, min(settling, t.length))
	r.value, err = t.meter.commandsDuring(ctx, max(t.length, minIdle))
	return r, err
}

// waitUntilEnd waits until ctx ends for a lock that another client holds.
func waitUntilEnd(ctx context.Context, t turn) (err error) {
	holder, err := plain(func(rdb redis.UniversalClient, _ setup) (contender, error) {
		l, err := sluice.NewLocker(rdb, sluice.WithTTL(t.length+time.Minute)) // it renews nothing
		return locker{l}, err
	})(t.setup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.Close()) }()
	waiter, err := plain(newSluice)(t.setup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, waiter.Close()) }()

	name := uniqueName("idle")
	unlock, err := holder.Lock(ctx, name)
	if err != nil {
		return err
	}
	switch _, err := waiter.Lock(ctx, name); {
	case err == nil:
		return errors.New("NOT EXCLUSIVE: a held lock was acquired")
	case ctx.Err() == nil:
		return err
	}
	return unlock(context.WithoutCancel(ctx))
}
