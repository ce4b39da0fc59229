package redisexec

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Where one connection has gone quiet, the others of its pool may have too: a firewall has
// forgotten them all. A loop would meet one after the other. So once a loop has waited for
// firstQuiet, each connection that is idle then is sent a PING, all at the same time, and go-redis
// closes those that do not answer. A server that is slow loses the idle connections of its clients,
// and no others.

// sweepPatience is how long an idle connection has to answer.
const sweepPatience = 4 * time.Second

// Suspect has the idle connections swept if the function that it returns is not called within
// firstQuiet.
func (e *Executor) Suspect() (answered func()) {
	timer := time.AfterFunc(firstQuiet, e.sweep)
	return func() { timer.Stop() }
}

// swept are the clients of which that is being done, by any executor: each would dial anew for what
// another has taken.
var swept sync.Map // *redis.Client to true

// sweep starts to close the idle connections that are quiet. It knows those of go-redis's clients;
// what wraps one, and an autopipeline, does not say. Its goroutine ends after sweepPatience at
// most; Close waits for it.
func (e *Executor) sweep() {
	e.Go(func() {
		var failed error
		defer Contain(&failed)
		switch c := e.rdb.(type) {
		case *redis.Client:
			_ = sweepPools(context.Background(), c)
		case interface {
			ForEachShard(ctx context.Context, f func(ctx context.Context, node *redis.Client) error) error
		}:
			_ = c.ForEachShard(context.Background(), sweepPools)
		}
	})
}

// sweepPools sends a PING on each idle connection of a client's pools, and waits for the answers,
// or for the end of sweepPatience, unless that is being done.
func sweepPools(ctx context.Context, client *redis.Client) error {
	if _, isSwept := swept.LoadOrStore(client, true); isSwept {
		return nil
	}
	defer swept.Delete(client)
	idle, patient := client.PoolStats(), client.WithTimeout(sweepPatience) // it has the same pools
	var pings sync.WaitGroup
	ping := func() redis.Cmder { return &command{Cmd: redis.NewCmd(ctx, "ping")} }
	for range idle.IdleConns {
		pings.Go(func() { _ = process(ctx, patient, ping()) })
	}
	if idle.PipelineStats != nil {
		for range idle.PipelineStats.IdleConns {
			pings.Go(func() { _ = execOn(ctx, patient, []redis.Cmder{ping()}) })
		}
	}
	pings.Wait()
	return nil
}

// process sends a command by a client.
func process(ctx context.Context, client *redis.Client, c redis.Cmder) (err error) {
	defer Contain(&err)
	return client.Process(ctx, c)
}
