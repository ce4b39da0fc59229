package redistest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	shards = 3
	slots  = 16384
)

// Cluster is a Redis Cluster of three primaries, each with a replica.
type Cluster struct{ group }

// StartCluster starts a real Cluster of the test's own, whose replicas take over
// within a second or two, with the settings added to redis-server's command line, and
// stops it when the test ends.
func StartCluster(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	c, err := startCluster(hasty, settings...)
	require(t, c.server(), err)
	t.Cleanup(c.stop)
	return c
}

func startCluster(downAfter time.Duration, settings ...string) (*Cluster, error) {
	dir, servers, err := startGroup(2*shards, func(ports []int) (plan []member) {
		for _, port := range ports {
			plan = append(plan, member{port: port, settings: append([]string{
				"--cluster-enabled", "yes", "--cluster-replica-validity-factor", "0",
				"--cluster-node-timeout", fmtMillis(downAfter), "--repl-diskless-sync-delay", "0",
			}, settings...)})
		}
		return plan
	}, joinCluster)
	if err != nil {
		return nil, err
	}
	c := &Cluster{group{Server{Name: "cluster", Addr: servers[0].Addr, temp: dir, group: servers}, servers}}
	c.connect = c.dial
	return c, nil
}

// joinCluster makes the first three servers primaries of a third of the slots each,
// and the others their replicas.
func joinCluster(servers []*Server) error {
	ctx := context.Background()
	ids := make([]string, len(servers))
	err := together(servers, func(i int, s *Server) (err error) {
		rdb := s.direct()
		defer func() { _ = rdb.Close() }()
		if ids[i], err = rdb.ClusterMyID(ctx).Result(); err != nil {
			return err
		}
		if err := rdb.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return err
		}
		if i < shards {
			if err := rdb.ClusterAddSlotsRange(ctx, i*slots/shards, (i+1)*slots/shards-1).Err(); err != nil {
				return err
			}
		}
		for _, other := range servers[:i] { // gossip alone takes a second more
			if err := rdb.ClusterMeet(ctx, "127.0.0.1", other.port()).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = together(servers[shards:], func(i int, s *Server) error {
		rdb := s.direct()
		defer func() { _ = rdb.Close() }()
		return until("replica's primary", func() (bool, error) { // when it has heard of it
			err := rdb.ClusterReplicate(ctx, ids[i]).Err()
			return err == nil, err
		})
	})
	if err != nil {
		return err
	}
	return together(servers, func(i int, s *Server) error {
		if i >= shards {
			if err := until("replica", s.inSync); err != nil {
				return err
			}
		}
		return until("cluster", func() (bool, error) { return s.agrees(ids) })
	})
}

// agrees says whether a node of a Cluster sees all its nodes, with a third of them
// replicas of another.
func (s *Server) agrees(ids []string) (bool, error) {
	rdb := s.direct()
	defer func() { _ = rdb.Close() }()
	ctx := context.Background()
	info, err := rdb.ClusterInfo(ctx).Result()
	if err != nil || !strings.Contains(info, "cluster_state:ok") {
		return false, err
	}
	nodes, err := rdb.ClusterNodes(ctx).Result()
	replicas := 0
	for _, id := range ids {
		if !strings.Contains(nodes, id+" ") || strings.Contains(nodes, "handshake") {
			return false, err
		}
		if strings.Contains(nodes, "slave "+id) {
			replicas++
		}
	}
	return replicas == len(ids)/2, err
}

func (c *Cluster) dial(dial dialer) connected {
	options := &redis.ClusterOptions{Dialer: dial}
	for _, node := range c.Nodes {
		options.Addrs = append(options.Addrs, node.Addr)
	}
	return redis.NewClusterClient(options)
}
