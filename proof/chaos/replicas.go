package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// What is called "safe" is acknowledged once the server's replica has it: locks, and a queue of
// which nothing is consumed. Whenever the server is killed, the replica is looked at, as a failover
// would find it.
const (
	safeQueue           = "safe"
	safeNames, safeLife = 2, 10 * time.Second
	safeDelay           = 24 * time.Hour // more than the clock is set ahead
)

func isSafe(name string) bool { return strings.HasPrefix(name, safeQueue) }

// replica is the server's replica. It keeps nothing on its disk.
type replica struct {
	*redistest.Server
	rdb  *redis.Client
	link *proxy // between the two
}

// found is what a replica has when the server is dead.
type found struct {
	span
	versions map[string]bool
	tokens   map[string]uint64 // by lock
}

// startReplica starts a replica of the server, with the same clock.
func startReplica(dir string, of *server, shim string) (*replica, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	link, err := newProxy(of.Addr, true)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(link.Listen)
	if err != nil {
		return nil, err
	}
	s, err := redistest.StartIn(dir, []string{"LD_PRELOAD=" + shim, "CHAOS_CLOCK=" + of.clock.file.Name()}, "--replicaof", host, port)
	if err != nil {
		return nil, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: 10 * time.Second, ContextTimeoutEnabled: true})
	return &replica{s, rdb, link}, nil
}

// look returns what the replica has; nil if it is loading.
func (r *replica) look() *found {
	ctx := context.Background()
	f := &found{versions: map[string]bool{}, tokens: map[string]uint64{}}
	f.after = monotonic()
	tasks, err := r.rdb.HGetAll(ctx, "{Queue:"+safeQueue+"}:tasks").Result()
	if err != nil {
		return nil
	}
	for id, payload := range tasks {
		f.versions[versionOf(id, payload)] = true
	}
	for _, key := range r.rdb.Keys(ctx, "Lock:"+safeQueue+"*").Val() {
		name, _ := lockName(key)
		if token, err := r.rdb.Get(ctx, key).Result(); err == nil {
			f.tokens[name] = digest(token)
		}
	}
	f.before = monotonic()
	return f
}

// enqueueSafely enqueues a task that the replica must have.
func (c *client) enqueueSafely(rng *rand.Rand) {
	work(rng, 100*time.Millisecond)
	version := fmt.Sprintf("%s/%d", c.Process, c.seq.Add(1))
	task := sluice.Task{ID: version, Payload: []byte(version + " "), Delay: safeDelay}
	ctx, cancel := withShortContext(context.Background(), rng, 12)
	defer cancel()
	rec := c.begin(record{Op: opEnqueue, Name: safeQueue, ID: version, Version: version, Delay: task.Delay})
	outcome, err := c.queue(safeQueue, sluice.DuplicatesReplace).Enqueue(ctx, task)
	rec.Outcome = int(outcome)
	c.endBy(ctx, rec, resultOf(err))
}

// contendSafe tries to get a lock that the replica must have, and holds it for about its TTL.
func (c *client) contendSafe(rng *rand.Rand) {
	name, fenced := c.lockName(rng, safeQueue, safeNames, safeLife)
	c.contend(rng, taking(name, 700*time.Millisecond), fenced, rng.IntN(2) == 0, sluice.WithLockReplicas(1))
	work(rng, 50*time.Millisecond)
}

// stop ends the replica.
func (r *replica) stop() {
	r.link.Stop()
	_ = r.rdb.Close()
	r.Down()
}

// cutReplica has nothing reach the replica for a while, in which what needs it fails. At the end
// the server may be killed: what was on its way is lost.
func cutReplica(r *round, s strike) (int, error) {
	link := r.server.replica.link
	defer link.clear()
	link.replies.set(condition{hold: true})
	s.during(2 * time.Second)
	if s.pick < 0.5 {
		return 1, nil
	}
	if _, err := r.server.kill(0); err != nil {
		return 0, err
	}
	link.replies.set(condition{reset: true})
	return 1, r.server.up("always")
}
