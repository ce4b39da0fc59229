package main

import (
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redistest"
)

// cluster is a Redis Cluster that starts when a contender needs it.
type cluster struct {
	mu    sync.Mutex
	addrs []string
	end   func()
}

// client returns a client of the Cluster.
func (c *cluster) client() (*redis.ClusterClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end == nil {
		started, end, err := redistest.NewCluster()
		if err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
		for _, node := range started.Nodes {
			c.addrs = append(c.addrs, node.Addr)
		}
		c.end = end
	}
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.addrs, PoolSize: poolSize}), nil
}

func (c *cluster) stop() {
	if c.end != nil {
		c.end()
	}
}
