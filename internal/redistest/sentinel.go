package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// MasterName is the name under which sentinels know the primary.
const MasterName = "primary"

const (
	sentinelConf = "sentinel.conf"
	quorum       = 2
)

// Sentinel is a primary with two replicas and three sentinels that watch it.
type Sentinel struct {
	group
	sentinels []*Server
}

// StartSentinel starts a primary, two replicas and three sentinels for one test, and stops
// them when the test ends. They fail over within a second or two. The settings are added
// to the command line of the primary and the replicas.
func StartSentinel(t testing.TB, settings ...string) *Sentinel {
	t.Helper()
	NotShort(t)
	s, err := startSentinel(nil, fastFailover, settings...)
	if err != nil {
		require(t, nil, err)
	}
	t.Cleanup(s.stop)
	return s
}

// StartSentinelApart is StartSentinel with a network between all servers, each of which is a host
// of its own: the data nodes are hosts 0 to 2, in the order of Nodes, and the sentinels 3 to 5.
// Clients may be any hosts from 6 to 99. A connection that is silent for two seconds ends
// replication on it. A server that is silent for a second is taken for dead.
func StartSentinelApart(t testing.TB, settings ...string) (*Sentinel, *Network) {
	t.Helper()
	NotShort(t)
	n := newNetwork()
	s, err := startSentinel(n, 2*fastFailover, append(quickTimeout, settings...)...)
	if err != nil {
		_ = n.close()
		require(t, nil, err)
	}
	t.Cleanup(func() {
		s.stop()
		if err := n.close(); err != nil {
			t.Error(err)
		}
	})
	return s, n
}

// quickTimeout ends replication on a connection that is silent.
var quickTimeout = []string{"--repl-timeout", "2", "--repl-ping-replica-period", "1"}

// startSentinel starts the servers on hosts of a network or, if that is nil, on one.
func startSentinel(n *Network, downAfter time.Duration, settings ...string) (*Sentinel, error) {
	var taken error // a port
	dir, servers, err := startGroup(6, func(ports []int) []member {
		taken = nil
		for host, port := range ports {
			taken = errors.Join(taken, n.listen(host, port))
		}
		return planSentinel(n, ports, settings)
	}, func(servers []*Server) error {
		if taken != nil {
			return taken
		}
		n.introduce(servers)
		return joinSentinel(servers, downAfter)
	})
	if err != nil {
		return nil, err
	}
	s := &Sentinel{
		group: group{
			Server: Server{Name: "sentinel", Addr: servers[0].Addr, temp: dir, group: servers},
			Nodes:  servers[:3],
		},
		sentinels: servers[3:],
	}
	s.connect, s.isWhole = s.dial, s.whole
	return s, nil
}

// planSentinel makes the first server the primary, the next two its replicas, and
// the others sentinels.
func planSentinel(n *Network, ports []int, settings []string) (plan []member) {
	for i, port := range ports {
		m := member{host: n.own(i), port: port, settings: append([]string{"--repl-diskless-sync-delay", "0"}, settings...)}
		switch {
		case i >= 3:
			m = sentinelAt(n, i, port)
		case i > 0:
			m.settings = append(m.settings, "--replicaof", n.public(0), strconv.Itoa(ports[0]))
		}
		if i < 3 {
			m.settings = append(m.settings, n.settings(i, "--replica-announce-ip", n.public(i))...)
		}
		plan = append(plan, m)
	}
	return plan
}

// sentinelAt describes a sentinel that watches nothing yet.
func sentinelAt(n *Network, host, port int) member {
	own := n.own(host)
	conf := fmt.Sprintf("port %d\nbind %s\n%s\n", port, own, strings.Join(OpenChannels, " ")[2:])
	if n != nil {
		conf += fmt.Sprintf("bind-source-addr %s\nsentinel announce-ip %s\nsentinel announce-port %d\n", own, n.public(host), port)
	}
	return member{host: own, port: port, settings: []string{sentinelConf, "--sentinel"}, files: map[string]string{sentinelConf: conf}}
}

// StartSentinelFor starts one sentinel for one test, with OpenChannels. The sentinel watches a
// primary, which the test has started, as MasterName; being alone, it never fails over. The
// returned server's Client is a client of the sentinel itself. The sentinel is stopped when the
// test ends.
func StartSentinelFor(t testing.TB, primary *Server) *Server {
	t.Helper()
	NotShort(t)
	dir, servers, err := startGroup(1, func(ports []int) []member {
		m := sentinelAt(nil, 0, ports[0])
		m.settings = append(m.settings, OpenChannels...)
		return []member{m}
	}, func(servers []*Server) error { return servers[0].watch(primary, slowFailover) })
	if err != nil {
		return require(t, nil, err)
	}
	t.Cleanup(func() { stopAll(dir, servers) })
	return servers[0]
}

// joinSentinel waits until the replicas have all data of the primary, then makes the
// sentinels watch it and waits until they know each other. A sentinel that watched the
// primary before it had replicas would find them ten seconds later.
func joinSentinel(servers []*Server, downAfter time.Duration) error {
	replicas, sentinels := servers[1:3], servers[3:]
	if err := forEach(replicas, func(_ int, s *Server) error { return eventually("replica", s.inSync) }); err != nil {
		return err
	}
	return forEach(sentinels, func(_ int, s *Server) error {
		if err := s.watch(servers[0], downAfter); err != nil {
			return err
		}
		return eventually("sentinel", func() (bool, error) {
			state, err := s.field("master0")
			return strings.HasSuffix(state, "status=ok,address="+servers[0].knownAddr()+",slaves=2,sentinels=3"), err
		})
	})
}

// watch makes a sentinel watch a primary.
func (s *Server) watch(primary *Server, downAfter time.Duration) error {
	ctx, rdb := context.Background(), s.sentinel()
	defer func() { _ = rdb.Close() }()
	// By default, a sentinel polls the servers every ten seconds, and publishes what it
	// knows every two. Redis 7.0 and later can do that more often.
	_ = rdb.Process(ctx, redis.NewCmd(ctx, "sentinel", "debug", "info-period", 200, "publish-period", 200, "ping-period", 100))
	host, port, _ := net.SplitHostPort(primary.knownAddr())
	if err := rdb.Monitor(ctx, MasterName, host, port, strconv.Itoa(quorum)).Err(); err != nil {
		return err
	}
	if err := rdb.Set(ctx, MasterName, "down-after-milliseconds", fmtMillis(downAfter)).Err(); err != nil {
		return err
	}
	return rdb.Set(ctx, MasterName, "failover-timeout", fmtMillis(4*downAfter)).Err()
}

// dial returns a client that connects to the current primary through dial. Connections to
// sentinels do not use dial: faults concern the data nodes only.
func (s *Sentinel) dial(dial Dialer) client {
	options := &redis.FailoverOptions{MasterName: MasterName, ReadBufferSize: Buffers, WriteBufferSize: Buffers}
	isSentinel := map[string]bool{}
	for _, sentinel := range s.sentinels {
		options.SentinelAddrs = append(options.SentinelAddrs, sentinel.knownAddr())
		isSentinel[sentinel.knownAddr()] = true
	}
	if dial != nil {
		options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if isSentinel[addr] {
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}
			return dial(ctx, network, addr)
		}
	}
	return redis.NewFailoverClient(options)
}

// Primary returns the node that most sentinels regard as the primary and that reports
// this role itself; nil if there is none.
func (s *Sentinel) Primary() *Server {
	votes := map[string]int{}
	for _, sentinel := range s.sentinels {
		if state, err := sentinel.field("master0"); err == nil {
			_, rest, _ := strings.Cut(state, "address=")
			addr, _, _ := strings.Cut(rest, ",")
			votes[addr]++
		}
	}
	for _, node := range s.Nodes {
		if votes[node.knownAddr()] < quorum {
			continue
		}
		if role, err := node.field("role"); err == nil && role == "master" {
			return node
		}
	}
	return nil
}

// whole says whether there is a primary, all replicas are in sync with it, and every
// sentinel knows that.
func (s *Sentinel) whole() (bool, error) {
	primary := s.Primary()
	if primary == nil {
		return false, nil
	}
	for _, node := range s.Nodes {
		if node == primary {
			continue
		}
		if ok, err := node.inSync(); !ok {
			return false, err
		}
		if port, err := node.field("master_port"); err != nil || port != primary.port() {
			return false, err
		}
	}
	for _, sentinel := range s.sentinels {
		rdb := sentinel.sentinel()
		replicas, err := rdb.Replicas(context.Background(), MasterName).Result()
		_ = rdb.Close()
		if err != nil {
			return false, err
		}
		for _, replica := range replicas {
			if replica["flags"] != "slave" || replica["master-port"] != primary.port() {
				return false, nil
			}
		}
	}
	return true, nil
}

// ClientAt returns a client at a host of a network, closed when the test ends. It waits a second
// for a server, and for a reply.
func (s *Sentinel) ClientAt(t testing.TB, n *Network, host int) redis.UniversalClient {
	t.Helper()
	options := &redis.FailoverOptions{
		MasterName: MasterName, Dialer: n.Dialer(host), ReadTimeout: time.Second, PoolSize: 40,
		ReadBufferSize: Buffers, WriteBufferSize: Buffers,
	}
	for _, sentinel := range s.sentinels {
		options.SentinelAddrs = append(options.SentinelAddrs, sentinel.knownAddr())
	}
	rdb := redis.NewFailoverClient(options)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Epoch counts the failovers that the sentinels have agreed on so far.
func (s *Sentinel) Epoch() (highest int) {
	for _, sentinel := range s.sentinels {
		rdb := sentinel.sentinel()
		state := rdb.Master(context.Background(), MasterName).Val()
		_ = rdb.Close()
		epoch, _ := strconv.Atoi(state["config-epoch"])
		highest = max(highest, epoch)
	}
	return highest
}

// sentinel returns a client for the commands of a sentinel.
func (s *Server) sentinel() *redis.SentinelClient {
	return redis.NewSentinelClient(s.direct().Options())
}

func (s *Server) port() string {
	_, port, _ := net.SplitHostPort(s.Addr)
	return port
}

// Failover makes a sentinel promote a replica although the primary is up. It is not
// orderly: the old primary still accepts writes for a moment. The sentinel may refuse, which
// is an error, or give up later.
func (s *Sentinel) Failover() error {
	rdb := s.sentinels[rand.IntN(len(s.sentinels))].sentinel()
	defer func() { _ = rdb.Close() }()
	return rdb.Failover(context.Background(), MasterName).Err()
}
