package redistest

import (
	"context"
	"errors"
	"net"
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

// StartCluster starts a real Cluster for one test, and stops it when the test ends. A replica takes
// over after half a minute; with FastFailover within a second or two. The settings are added to each
// node's command line.
func StartCluster(t testing.TB, settings ...string) *Cluster {
	t.Helper()
	NotShort(t)
	c, err := startCluster(nil, slowFailover, settings...)
	if err != nil {
		require(t, nil, err)
	}
	t.Cleanup(c.stop)
	return c
}

// StartClusterApart is StartCluster with a network between all nodes, which are hosts 0 to 5 of it
// in the order of Nodes, as in StartSentinelApart.
func StartClusterApart(t testing.TB, settings ...string) (*Cluster, *Network) {
	t.Helper()
	NotShort(t)
	n := newNetwork()
	c, err := startCluster(n, 2*fastFailover, append(quickTimeout, settings...)...)
	if err != nil {
		_ = n.close()
		require(t, nil, err)
	}
	t.Cleanup(func() {
		c.stop()
		if err := n.close(); err != nil {
			t.Error(err)
		}
	})
	return c, n
}

// ClientAt is as that of Sentinel.
func (c *Cluster) ClientAt(t testing.TB, n *Network, host int) redis.UniversalClient {
	t.Helper()
	options := &redis.ClusterOptions{
		Dialer: n.Dialer(host), ReadTimeout: time.Second, PoolSize: 40,
		ReadBufferSize: Buffers, WriteBufferSize: Buffers,
	}
	for _, node := range c.Nodes {
		options.Addrs = append(options.Addrs, node.knownAddr())
	}
	rdb := redis.NewClusterClient(options)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Epoch rises with each failover, and with some that fail.
func (c *Cluster) Epoch() (highest int) {
	for _, node := range c.Nodes {
		epoch, _ := node.epoch()
		highest = max(highest, epoch)
	}
	return highest
}

// NewCluster starts a Cluster outside of tests. stop ends it.
func NewCluster() (c *Cluster, stop func(), err error) {
	if c, err = startCluster(nil, slowFailover); err != nil {
		return nil, nil, err
	}
	return c, c.stop, nil
}

const nodeTimeout = "--cluster-node-timeout"

// FastFailover are settings of a Cluster whose servers fail.
var FastFailover = []string{nodeTimeout, fmtMillis(fastFailover)}

// whileJoining are a node's last settings until it has joined its Cluster. The tests' own timeout
// may be so short that on a busy machine a node is taken for dead before the Cluster is whole.
var whileJoining = []string{nodeTimeout, fmtMillis(5 * time.Second)}

// hasJoined gives a node the timeout that it was meant to have.
func (s *Server) hasJoined() error {
	s.settings = s.settings[:len(s.settings)-len(whileJoining)]
	last := len(s.settings) - 1
	for s.settings[last-1] != nodeTimeout {
		last--
	}
	rdb := s.directFor(10 * time.Second)
	defer func() { _ = rdb.Close() }()
	return rdb.ConfigSet(context.Background(), nodeTimeout[2:], s.settings[last]).Err()
}

func startCluster(n *Network, downAfter time.Duration, settings ...string) (*Cluster, error) {
	var taken error // a port
	dir, servers, err := startGroup(2*shards, func(ports []int) (plan []member) {
		taken = nil
		for host, port := range ports {
			taken = errors.Join(taken, n.listen(host, port), n.listen(host, port+busPort))
			plan = append(plan, member{host: n.own(host), port: port, settings: slices.Concat([]string{
				"--cluster-enabled", "yes", "--cluster-replica-validity-factor", "0",
				nodeTimeout, fmtMillis(downAfter), "--repl-diskless-sync-delay", "0",
			}, n.settings(host, "--cluster-announce-ip", n.public(host)), settings, whileJoining)})
		}
		return plan
	}, func(servers []*Server) error {
		if taken != nil {
			return taken
		}
		n.introduce(servers)
		if err := joinCluster(servers); err != nil {
			return err
		}
		return forEach(servers, func(_ int, s *Server) error { return s.hasJoined() })
	})
	if err != nil {
		return nil, err
	}
	c := &Cluster{group{
		Server: Server{Name: "cluster", Addr: servers[0].Addr, temp: dir, group: servers},
		Nodes:  servers,
	}}
	c.connect, c.isWhole = c.dial, c.whole
	return c, nil
}

// joinCluster makes the first three servers primaries of a third of the slots each,
// and the others their replicas.
func joinCluster(servers []*Server) error {
	ids, err := meet(servers)
	if err != nil {
		return err
	}
	err = forEach(servers[shards:], func(i int, s *Server) error {
		rdb := s.direct()
		defer func() { _ = rdb.Close() }()
		return eventually("replica's primary", func() (bool, error) { // an error until it knows the primary
			err := rdb.ClusterReplicate(context.Background(), ids[i]).Err()
			return err == nil, err
		})
	})
	if err != nil {
		return err
	}
	return forEach(servers, func(i int, s *Server) error {
		if i >= shards {
			if err := eventually("replica", s.inSync); err != nil {
				return err
			}
		}
		return eventually("cluster", func() (bool, error) { return s.agrees(ids) })
	})
}

// meet introduces all nodes to each other, gives the first three their slots, and returns
// the nodes' IDs.
func meet(servers []*Server) (ids []string, err error) {
	ctx := context.Background()
	ids = make([]string, len(servers))
	err = forEach(servers, func(i int, s *Server) (err error) { // an epoch is taken only by a node that knows no other
		rdb := s.directFor(10 * time.Second)
		defer func() { _ = rdb.Close() }()
		if ids[i], err = rdb.ClusterMyID(ctx).Result(); err != nil {
			return err
		}
		if err := rdb.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil || i >= shards {
			return err
		}
		return rdb.ClusterAddSlotsRange(ctx, i*slots/shards, (i+1)*slots/shards-1).Err()
	})
	if err != nil {
		return nil, err
	}
	return ids, forEach(servers, func(i int, s *Server) error {
		rdb := s.directFor(10 * time.Second)
		defer func() { _ = rdb.Close() }()
		for _, other := range servers[:i] { // faster by a second than gossip alone
			host, port, _ := net.SplitHostPort(other.knownAddr())
			if err := rdb.ClusterMeet(ctx, host, port).Err(); err != nil {
				return err
			}
		}
		return nil
	})
}

// agrees says whether a node of a Cluster knows all nodes, and every primary with a replica.
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

// dial returns a client of the Cluster that connects through dial.
func (c *Cluster) dial(dial Dialer) client {
	options := &redis.ClusterOptions{Dialer: dial, ReadBufferSize: Buffers, WriteBufferSize: Buffers}
	for _, node := range c.Nodes {
		options.Addrs = append(options.Addrs, node.Addr)
	}
	return redis.NewClusterClient(options)
}

// Node is a line of CLUSTER NODES: what one node of a Cluster knows of another, or of
// itself.
type Node struct {
	ID, Addr, Primary string // Primary is the ID of a replica's primary, or "-"
	Flags             string
	Slots             []string
}

// nodes returns what a node of a Cluster knows of all nodes.
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

// Primary returns the server that owns a key's slot, once it replies; nil if none does within a
// minute.
func (c *Cluster) Primary(key string) *Server {
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(10 * time.Millisecond) {
		for _, node := range c.Nodes {
			if node.owns(key) {
				return node
			}
		}
	}
	return nil
}

// owns says whether the server replies, and owns a key's slot.
func (s *Server) owns(key string) bool {
	rdb := s.direct()
	defer func() { _ = rdb.Close() }()
	role, _ := s.field("role")
	err := rdb.Get(context.Background(), key).Err()
	return role == "master" && (err == nil || errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE"))
}

// Replica returns a replica of a node; nil if none is in sync.
func (c *Cluster) Replica(of *Server) *Server {
	for _, node := range c.Nodes {
		port, _ := node.field("master_port")
		if ok, _ := node.inSync(); ok && port == of.port() {
			return node
		}
	}
	return nil
}

// whole says whether all nodes are up and have the same view of the Cluster, in which each
// primary has slots and a replica in sync.
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

// Failover makes a replica of a primary take over in an orderly way. The replica may refuse,
// which is an error, or give up later.
func (c *Cluster) Failover(of *Server) error {
	replica := c.Replica(of)
	if replica == nil {
		return errors.New("no replica in sync")
	}
	rdb := replica.direct()
	defer func() { _ = rdb.Close() }()
	return rdb.ClusterFailover(context.Background()).Err()
}

// Slot returns a key's slot.
func (c *Cluster) Slot(t testing.TB, key string) int {
	t.Helper()
	rdb := c.Nodes[0].directFor(10 * time.Second)
	defer func() { _ = rdb.Close() }()
	slot, err := rdb.ClusterKeySlot(context.Background(), key).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(slot)
}

// Migrate moves a slot to another primary, key by key. It calls pause after each key.
func (c *Cluster) Migrate(t testing.TB, slot int, from, to *Server, pause func()) {
	t.Helper()
	ctx := context.Background()
	// A server does nothing else while it moves a key, which takes seconds if the key is large and
	// the machine busy.
	patient := func(s *Server) *redis.Client {
		return redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, ReadTimeout: time.Minute})
	}
	must := func(s *Server, command ...any) []string {
		t.Helper()
		rdb := patient(s)
		defer func() { _ = rdb.Close() }()
		cmd := redis.NewCmd(ctx, command...)
		if err := rdb.Process(ctx, cmd); err != nil {
			t.Fatalf("%v: %v", command[:2], err)
		}
		keys, _ := cmd.StringSlice()
		return keys
	}
	id := func(s *Server) string {
		rdb := patient(s)
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
		host, port, _ := net.SplitHostPort(to.knownAddr())
		must(from, "migrate", host, port, keys[0], 0, time.Minute.Milliseconds()) // the reply is NOKEY if the key was deleted meanwhile
		pause()
	}
	// The new owner's epoch must become the highest of all. Wait until the new owner knows
	// the epoch that the old owner got when the slot was moved to it.
	if err := eventually("epoch", func() (bool, error) {
		known, err := to.epoch()
		least, err2 := from.epoch()
		return known >= least, errors.Join(err, err2)
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

// epoch returns the highest epoch that a node of a Cluster knows.
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

// Errors returns how many replies of all nodes were errors with this code.
func (c *Cluster) Errors(code string) (n int) {
	for _, node := range c.Nodes {
		stat, _ := node.field("errorstat_" + code)
		count, _ := strconv.Atoi(strings.TrimPrefix(stat, "count="))
		n += count
	}
	return n
}
