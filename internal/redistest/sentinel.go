package redistest

import (
	"context"
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
	s, err := startSentinel(fastFailover, settings...)
	if err != nil {
		require(t, nil, err)
	}
	t.Cleanup(s.stop)
	return s
}

func startSentinel(downAfter time.Duration, settings ...string) (*Sentinel, error) {
	dir, servers, err := startGroup(6, func(ports []int) []member {
		return planSentinel(ports, settings)
	}, func(servers []*Server) error { return joinSentinel(servers, downAfter) })
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
func planSentinel(ports []int, settings []string) (plan []member) {
	for i, port := range ports {
		m := member{port: port, settings: append([]string{"--repl-diskless-sync-delay", "0"}, settings...)}
		switch {
		case i >= 3:
			m = sentinelAt(port)
		case i > 0:
			m.settings = append(m.settings, "--replicaof", "127.0.0.1", strconv.Itoa(ports[0]))
		}
		plan = append(plan, m)
	}
	return plan
}

// sentinelAt describes a sentinel that watches nothing yet.
func sentinelAt(port int) member {
	return member{
		port:     port,
		settings: []string{sentinelConf, "--sentinel"},
		files:    map[string]string{sentinelConf: fmt.Sprintf("port %d\nbind 127.0.0.1\n%s\n", port, strings.Join(OpenChannels, " ")[2:])},
	}
}

// StartSentinelFor starts one sentinel for one test, with OpenChannels. The sentinel watches a
// primary, which the test has started, as MasterName; being alone, it never fails over. The
// returned server's Client is a client of the sentinel itself. The sentinel is stopped when the
// test ends.
func StartSentinelFor(t testing.TB, primary *Server) *Server {
	t.Helper()
	NotShort(t)
	dir, servers, err := startGroup(1, func(ports []int) []member {
		m := sentinelAt(ports[0])
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
			return strings.HasSuffix(state, "status=ok,address="+servers[0].Addr+",slaves=2,sentinels=3"), err
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
	if err := rdb.Monitor(ctx, MasterName, "127.0.0.1", primary.port(), strconv.Itoa(quorum)).Err(); err != nil {
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
		options.SentinelAddrs = append(options.SentinelAddrs, sentinel.Addr)
		isSentinel[sentinel.Addr] = true
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
		if votes[node.Addr] < quorum {
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
		if port, err := node.field("master_port"); err != nil || "127.0.0.1:"+port != primary.Addr {
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
