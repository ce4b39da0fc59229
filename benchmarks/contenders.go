package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sluice-go/sluice"
)

const (
	// ttl is the locks' TTL, Sluice's default; rueidislock keeps its own 5s.
	ttl = 15 * time.Second
	// poolSize is the size of each go-redis client's pool.
	poolSize = 64
)

// A contender is a lock library with the connections that it needs.
type contender interface {
	// Lock acquires the named lock. It waits until the lock is free or ctx ends.
	Lock(ctx context.Context, name string) (unlock, error)
	Close() error
}

type unlock func(ctx context.Context) error

// setup has the settings for opening a contender.
type setup struct {
	Addr string
	// Retry is the pause between two attempts of a contender that polls.
	Retry time.Duration
	// Pool is the size of a client's pool; 0 for poolSize.
	Pool int
	// Queue is the name of a contender's queue. No other turn uses it.
	Queue string

	// Etcd is for contenders on it. A child process connects to its parent's server.
	Etcd *etcd

	postgres *postgres     // for contenders on it
	cluster  *cluster      // likewise
	sent     *atomic.Int64 // counts the commands that the clients send; nil for no counting
}

// An entrant opens a contender, or a queue.
type entrant struct {
	name      string
	settings  string // other than the defaults
	open      func(setup) (contender, error)
	openQueue func(setup) (queue, error)
	fewer     int      // divides the number of tasks in scenarios of a rate, for the slow; 0 for all of them
	unmetered []string // the columns that say nothing of it, since they are of Redis or of this process
}

const (
	sluiceName = "Sluice"
	floorName  = "floor"
	fifoName   = "local FIFO, no Redis"

	floorSettings = "SET NX PX and a compare-delete script by EVALSHA, bare go-redis; never waits"
)

// entrants returns all entrants with locks.
func entrants() []entrant {
	return append(basketEntrants(), []entrant{
		{name: sluiceName, settings: "defaults", open: plain(newSluice)},
		{name: sluiceName + " WithPermits", settings: fmt.Sprint(permitsOfName, " permits"), open: plain(newPermits)},
		{name: sluiceName + " on AutoPipeline", settings: "defaults", open: pipelined(newSluice)},
		{name: floorName, settings: floorSettings, open: plain(newFloor)},
		{name: floorName + " on AutoPipeline", settings: "the same", open: pipelined(newFloor)},
		{name: "redislock", settings: redislockSettings, open: plain(newRedislock)},
		{name: "redsync", settings: redsyncSettings, open: plain(newRedsync)},
		{name: "redsync on AutoPipeline", settings: redsyncSettings, open: pipelined(newRedsync)},
		{name: "redislock on AutoPipeline", settings: redislockSettings, open: pipelined(newRedislock)},
		{name: "rueidislock", settings: rueidislockSettings, open: newRueidislock},
		{name: etcdName, settings: etcdSettings, open: newEtcdLocks},
		{name: fifoName, settings: "a mutex and a list of channels, first come first served: no Redis at all", open: func(setup) (contender, error) { return &fifo{}, nil }},
		{name: "local mutex", settings: "a sync.Mutex: no Redis at all", open: func(setup) (contender, error) { return &local{}, nil }},
	}...)
}

// enter returns the entrants with these names, in this order.
func enter(names ...string) []entrant { return pick(entrants(), names) }

func pick(all []entrant, names []string) []entrant {
	byName := map[string]entrant{}
	for _, e := range all {
		byName[e.name] = e
	}
	var list []entrant
	for _, name := range names {
		e, ok := byName[name]
		if !ok {
			panic("no entrant " + name)
		}
		list = append(list, e)
	}
	return list
}

// peers returns the entrants that can wait for a lock, Sluice first.
func peers() []entrant { return enter(sluiceName, "redislock", "redsync", "rueidislock") }

// onRedis makes a contender on a client that the caller closes.
type onRedis func(redis.UniversalClient, setup) (contender, error)

// plain opens a contender on a client of its own.
func plain(open onRedis) func(setup) (contender, error) {
	return func(s setup) (contender, error) {
		rdb := s.newClient()
		return own(open, rdb, s, rdb.Close)
	}
}

// pipelined opens a contender on a client that batches the commands of all goroutines.
func pipelined(open onRedis) func(setup) (contender, error) {
	return func(s setup) (contender, error) {
		rdb := s.newClient()
		auto, err := rdb.AutoPipeline()
		if err != nil {
			return nil, errors.Join(err, rdb.Close())
		}
		return own(open, auto, s, func() error { return errors.Join(auto.Close(), rdb.Close()) })
	}
}

func newClient(addr string) *redis.Client { return setup{Addr: addr}.newClient() }

func (s setup) newClient() *redis.Client {
	options := &redis.Options{Addr: s.Addr, PoolSize: cmp.Or(s.Pool, poolSize)}
	if s.sent != nil {
		options.Dialer = func(ctx context.Context, _, addr string) (net.Conn, error) { return dialCounted(ctx, addr, s.sent) }
	}
	return redis.NewClient(options)
}

// owned is a contender with its client.
type owned struct {
	contender
	closeClient func() error
}

func own(open onRedis, rdb redis.UniversalClient, s setup, closeClient func() error) (contender, error) {
	c, err := open(rdb, s)
	if err != nil {
		return nil, errors.Join(err, closeClient())
	}
	return owned{c, closeClient}, nil
}

func (o owned) Close() error { return errors.Join(o.contender.Close(), o.closeClient()) }

// locker is the contender of Sluice.
type locker struct{ *sluice.Locker }

func newSluice(rdb redis.UniversalClient, _ setup) (contender, error) {
	l, err := sluice.NewLocker(rdb)
	return locker{l}, err
}

func (l locker) Lock(ctx context.Context, name string) (unlock, error) {
	lock, err := l.Locker.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}

// floor is the least that a lock on Redis needs: two round trips, with no more safety than
// they give. It does not wait.
type floor struct{ rdb redis.UniversalClient }

var (
	errTaken  = errors.New("taken")
	errLost   = errors.New("the lock was lost")
	floorFree = redis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`)
)

func newFloor(rdb redis.UniversalClient, _ setup) (contender, error) {
	err := floorFree.Load(context.Background(), rdb).Err()
	return floor{rdb}, err
}

func (f floor) Lock(ctx context.Context, name string) (unlock, error) {
	key, token := key(name), newToken()
	ok, err := f.rdb.SetNX(ctx, key, token, ttl).Result()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, errTaken)
	}
	return func(ctx context.Context) error {
		n, err := floorFree.EvalSha(ctx, f.rdb, []string{key}, token).Int()
		if err == nil && n != 1 {
			err = errLost
		}
		return err
	}, nil
}

func (f floor) Close() error { return nil }

// local is a lock within one process.
type local struct{ mu sync.Mutex }

func (l *local) Lock(ctx context.Context, _ string) (unlock, error) {
	l.mu.Lock()
	if err := ctx.Err(); err != nil {
		l.mu.Unlock()
		return nil, err
	}
	return func(context.Context) error { l.mu.Unlock(); return nil }, nil
}

func (l *local) Close() error { return nil }
