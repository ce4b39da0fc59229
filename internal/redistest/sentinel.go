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

const (
	masterName   = "primary"
	sentinelConf = "sentinel.conf"
	quorum       = 2
)

// Sentinel is a primary with two replicas and three sentinels that watch it.
type Sentinel struct {
	group
	sentinels []*Server
}

// StartSentinel starts real servers of the test's own that fail over within a second
// or two, with the settings added to redis-server's command line, and stops them when
// the test ends.
func StartSentinel(t testing.TB, settings ...string) *Sentinel {
	t.Helper()
	s, err := startSentinel(hasty, settings...)
	require(t, s.server(), err)
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
		group:     group{Server{Name: "sentinel", Addr: servers[0].Addr, temp: dir, group: servers}, servers[:3]},
		sentinels: servers[3:],
	}
	s.connect = s.dial
	return s, nil
}

// planSentinel makes the first server the primary, the next two its replicas, and
// the others sentinels.
func planSentinel(ports []int, settings []string) (plan []member) {
	for i, port := range ports {
		m := member{port: port, settings: append([]string{"--repl-diskless-sync-delay", "0"}, settings...)}
		switch {
		case i >= 3:
			m.settings = []string{sentinelConf, "--sentinel"}
			m.files = map[string]string{sentinelConf: fmt.Sprintf("port %d\nbind 127.0.0.1\n", port)}
		case i > 0:
			m.settings = append(m.settings, "--replicaof", fmt.Sprint("127.0.0.1 ", ports[0]))
		}
		plan = append(plan, m)
	}
	return plan
}

// joinSentinel waits until the replicas have what the primary has, and has the
// sentinels watch them until they know each other. Told before, they would find the
// replicas with their next look only, ten seconds later.
func joinSentinel(servers []*Server, downAfter time.Duration) error {
	replicas, sentinels := servers[1:3], servers[3:]
	if err := together(replicas, func(_ int, s *Server) error { return until("replica", s.inSync) }); err != nil {
		return err
	}
	return together(sentinels, func(_ int, s *Server) error {
		if err := s.watch(servers[0], downAfter); err != nil {
			return err
		}
		return until("sentinel", func() (bool, error) {
			state, err := s.field("master0")
			return strings.HasSuffix(state, "status=ok,address="+servers[0].Addr+",slaves=2,sentinels=3"), err
		})
	})
}

// watch has a sentinel watch a primary.
func (s *Server) watch(primary *Server, downAfter time.Duration) error {
	ctx, rdb := context.Background(), s.sentinel()
	defer func() { _ = rdb.Close() }()
	// Sentinels look at what they watch every ten seconds, and tell each other of it
	// every two; where Redis knows how to (since 7.0), let that be sooner.
	_ = rdb.Process(ctx, redis.NewCmd(ctx, "sentinel", "debug", "info-period", 200, "publish-period", 200, "ping-period", 100))
	if err := rdb.Monitor(ctx, masterName, "127.0.0.1", primary.port(), strconv.Itoa(quorum)).Err(); err != nil {
		return err
	}
	if err := rdb.Set(ctx, masterName, "down-after-milliseconds", fmtMillis(downAfter)).Err(); err != nil {
		return err
	}
	return rdb.Set(ctx, masterName, "failover-timeout", fmtMillis(4*downAfter)).Err()
}

// dial connects to whatever is the primary. What is asked of the sentinels does not
// go through dial: faults are for the data.
func (s *Sentinel) dial(dial dialer) connected {
	options := &redis.FailoverOptions{MasterName: masterName}
	asked := map[string]bool{}
	for _, sentinel := range s.sentinels {
		options.SentinelAddrs = append(options.SentinelAddrs, sentinel.Addr)
		asked[sentinel.Addr] = true
	}
	if dial != nil {
		options.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if asked[addr] {
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}
			return dial(ctx, network, addr)
		}
	}
	return redis.NewFailoverClient(options)
}

// Primary is the node that most sentinels take for the primary, and that says so
// itself; nil if there is none.
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

// AwaitWhole waits until all nodes are up, one of them the primary, the others in
// sync with it, and the sentinels know that.
func (s *Sentinel) AwaitWhole(t testing.TB) {
	t.Helper()
	if err := until("whole", s.whole); err != nil {
		t.Fatal(err)
	}
}

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
		replicas, err := rdb.Replicas(context.Background(), masterName).Result()
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

func (s *Server) sentinel() *redis.SentinelClient {
	return redis.NewSentinelClient(s.direct().Options())
}

func (s *Server) port() string {
	_, port, _ := net.SplitHostPort(s.Addr)
	return port
}

// Failover has a sentinel promote a replica though the primary is well. The old
// primary goes on for a moment: it is not orderly. A sentinel may refuse, or give up.
func (s *Sentinel) Failover() error {
	rdb := s.sentinels[rand.IntN(len(s.sentinels))].sentinel()
	defer func() { _ = rdb.Close() }()
	return rdb.Failover(context.Background(), masterName).Err()
}
