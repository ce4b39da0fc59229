package redisexec

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// refreshTopology makes a Cluster's client ask again which server keeps which slots,
// when a command had no reply, or the server could not serve it.
//
// go-redis asks when it receives MOVED, which a dead node never sends, or once a minute;
// until then it misses a replica that has been promoted. It asks in the background, one
// question at a time. An autopipeline gives no access to this: behind one, it takes up
// to a minute.
func (e *Executor) refreshTopology(r Result) Result {
	if r.Outcome == Unknown || r.Outcome == NotSent || r.Outcome == Unavailable {
		e.RefreshTopology()
	}
	return r
}

// RefreshTopology makes a Cluster's client ask again which server keeps which slots. It does not
// wait for the answer.
func (e *Executor) RefreshTopology() {
	if cluster, ok := e.rdb.(interface{ ReloadState(ctx context.Context) }); ok {
		var failed error // it is tried again after the next failure
		defer Contain(&failed)
		cluster.ReloadState(context.Background())
	}
}

// IsCluster reports whether a client is a Cluster's and says which server keeps a key.
func IsCluster(rdb redis.UniversalClient) bool {
	_, ok := rdb.(clusterClient)
	return ok
}

// NodeOf returns the server that keeps a key, as far as a Cluster's client knows, and
// nil with other clients. It never blocks.
//
// go-redis waits for all servers that a pipeline goes to. So work that must not wait
// for a server that hangs goes there in pipelines of its own. An autopipeline does not
// say which client it belongs to: behind one, a pipeline goes to all servers.
func (e *Executor) NodeOf(key any) any {
	c, ok := e.rdb.(clusterClient)
	if !ok {
		return nil
	}
	name, _ := key.(string)
	node, err := masterFor(endedContext, c, name)
	if err != nil {
		return nil
	}
	return node
}

// ByNode returns which of n keys each server keeps, see [Executor.NodeOf]: for work that goes to
// each server by itself.
func (e *Executor) ByNode(n int, key func(i int) any) map[any][]int {
	byNode := map[any][]int{}
	for i := range n {
		node := e.NodeOf(key(i))
		byNode[node] = append(byNode[node], i)
	}
	return byNode
}

func masterFor(ctx context.Context, c clusterClient, key string) (node *redis.Client, err error) {
	defer Contain(&err)
	return c.MasterForKey(ctx, key)
}

// endedContext is a context that has ended: what is called with it does not use the network.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()
