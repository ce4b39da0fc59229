package redistest

import (
	"context"
	"errors"
	"slices"
	"strconv"
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

// Node is what a node of a Cluster knows of one, by CLUSTER NODES.
type Node struct {
	ID, Addr, Primary string // Primary is the ID of a replica's primary, or "-"
	Flags             string
	Slots             []string
}

func (s *Server) nodes() (nodes []Node, err error) {
	rdb := s.direct()
	defer func() { _ = rdb.Close() }()
	text, err := rdb.ClusterNodes(context.Background()).Result()
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 8 {
			continue
		}
		addr, _, _ := strings.Cut(words[1], "@")
		nodes = append(nodes, Node{ID: words[0], Addr: addr, Flags: words[2], Primary: words[3], Slots: words[8:]})
	}
	return nodes, err
}

func (n Node) is(flag string) bool {
	return slices.Contains(strings.Split(n.Flags, ","), flag)
}

// Primary is the server that owns a key's slot and answers; nil if there is none.
func (c *Cluster) Primary(key string) *Server {
	for _, node := range c.Nodes {
		rdb := node.direct()
		role, _ := node.field("role")
		_, err := rdb.Get(context.Background(), key).Result()
		_ = rdb.Close()
		if role == "master" && (err == nil || errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE")) {
			return node
		}
	}
	return nil
}

// Replica is a replica of a node; nil if it has none that is in sync.
func (c *Cluster) Replica(of *Server) *Server {
	for _, node := range c.Nodes {
		port, _ := node.field("master_port")
		if ok, _ := node.inSync(); ok && port == of.port() {
			return node
		}
	}
	return nil
}

// AwaitWhole waits until all nodes are up and agree on it, each primary with a replica
// in sync.
func (c *Cluster) AwaitWhole(t testing.TB) {
	t.Helper()
	if err := until("whole", c.whole); err != nil {
		t.Fatal(err)
	}
}

func (c *Cluster) whole() (bool, error) {
	var first string
	for _, server := range c.Nodes {
		nodes, err := server.nodes()
		if err != nil || len(nodes) != len(c.Nodes) {
			return false, err
		}
		var view []string
		primaries := map[string]bool{}
		for _, node := range nodes {
			if strings.Contains(node.Flags, "fail") || node.is("handshake") || primaries[node.Primary] {
				return false, nil
			}
			if node.is("slave") {
				primaries[node.Primary] = true
			} else if len(node.Slots) == 0 {
				return false, nil
			}
			view = append(view, node.ID+node.Primary)
		}
		slices.Sort(view)
		if first == "" {
			first = strings.Join(view, " ")
		}
		if len(primaries) != shards || first != strings.Join(view, " ") {
			return false, nil
		}
		if role, err := server.field("role"); err != nil || role == "slave" {
			if ok, err := server.inSync(); !ok {
				return false, err
			}
		}
	}
	return true, nil
}

// Failover has a replica of a primary take over in an orderly way. It may refuse, or
// give up.
func (c *Cluster) Failover(of *Server) error {
	replica := c.Replica(of)
	if replica == nil {
		return errors.New("no replica in sync")
	}
	rdb := replica.direct()
	defer func() { _ = rdb.Close() }()
	return rdb.ClusterFailover(context.Background()).Err()
}

// Slot is a key's slot.
func (c *Cluster) Slot(t testing.TB, key string) int {
	t.Helper()
	rdb := c.Nodes[0].direct()
	defer func() { _ = rdb.Close() }()
	slot, err := rdb.ClusterKeySlot(context.Background(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(slot)
}

// Migrate moves a slot with its keys, one by one with a pause after each, to another
// primary.
func (c *Cluster) Migrate(t testing.TB, slot int, from, to *Server, pause func()) {
	t.Helper()
	ctx := context.Background()
	must := func(s *Server, command ...any) []string {
		t.Helper()
		rdb := s.direct()
		defer func() { _ = rdb.Close() }()
		cmd := redis.NewCmd(ctx, command...)
		if err := rdb.Process(ctx, cmd); err != nil {
			t.Fatalf("%v: %v", command[:2], err)
		}
		keys, _ := cmd.StringSlice()
		return keys
	}
	id := func(s *Server) string {
		rdb := s.direct()
		defer func() { _ = rdb.Close() }()
		return rdb.ClusterMyID(ctx).Val()
	}
	must(to, "cluster", "setslot", slot, "importing", id(from))
	must(from, "cluster", "setslot", slot, "migrating", id(to))
	for {
		keys := must(from, "cluster", "getkeysinslot", slot, 1)
		if len(keys) == 0 {
			break
		}
		must(from, "migrate", "127.0.0.1", to.port(), keys[0], 0, 1000) // NOKEY, if it has gone meanwhile
		pause()
	}
	// The new owner's epoch has to be the highest. It may not have heard yet of the
	// one that this server had when it was the new owner.
	if err := until("epoch", func() (bool, error) {
		theirs, err := to.epoch()
		ours, err2 := from.epoch()
		return theirs >= ours, errors.Join(err, err2)
	}); err != nil {
		t.Fatal(err)
	}
	owner := id(to)
	must(to, "cluster", "setslot", slot, "node", owner)
	for _, node := range c.Nodes {
		if role, _ := node.field("role"); role == "master" && node != to {
			must(node, "cluster", "setslot", slot, "node", owner)
		}
	}
}

// epoch is the highest epoch that a node of a Cluster has heard of.
func (s *Server) epoch() (int, error) {
	rdb := s.direct()
	defer func() { _ = rdb.Close() }()
	info, err := rdb.ClusterInfo(context.Background()).Result()
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(info, "cluster_current_epoch:")
	text, _, _ := strings.Cut(rest, "\r")
	return strconv.Atoi(text)
}

// Errors is how many errors with a code the servers have replied with.
func (c *Cluster) Errors(code string) (n int) {
	for _, node := range c.Nodes {
		said, _ := node.field("errorstat_" + code)
		count, _ := strconv.Atoi(strings.TrimPrefix(said, "count="))
		n += count
	}
	return n
}
