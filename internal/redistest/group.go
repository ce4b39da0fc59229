package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// How long a server must be silent before the others of its group take it for dead.
const (
	// slowFailover is for groups in which no server is killed: a busy machine must not
	// look like a failure.
	slowFailover = 30 * time.Second
	// fastFailover is for tests of failovers.
	fastFailover = 500 * time.Millisecond
)

// busPort is the distance from a Cluster node's port to its second port, the bus.
const busPort = 10_000

// freePorts finds ports that are free and whose bus ports are free. All of them lie below
// the ports that the kernel gives to clients, so a killed server finds its port free when
// it starts again.
func freePorts(n int) ([]int, error) {
	var ports []int
	taken := map[int]bool{}
	for try := 0; len(ports) < n; try++ {
		port := 10_000 + rand.IntN(10_000)
		if try > 100*n {
			return nil, errors.New("no free ports")
		}
		if !taken[port] && isFree(port) && isFree(port+busPort) {
			taken[port] = true
			ports = append(ports, port)
		}
	}
	return ports, nil
}

func isFree(port int) bool {
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// member describes one server of a group before its start.
type member struct {
	host     string // "" for 127.0.0.1
	port     int
	settings []string
	files    map[string]string // to write into its folder
}

// group is several servers that form one deployment.
type group struct {
	Server
	// Nodes are the servers that hold data.
	Nodes []*Server

	// isWhole says whether every node is up and has its role, and all servers agree.
	isWhole func() (bool, error)
}

// AwaitWhole waits until every node is up, every replica is in sync with its primary, and
// all servers of the group agree on who is who.
func (g *group) AwaitWhole(t testing.TB) {
	t.Helper()
	if err := eventually("whole", g.isWhole); err != nil {
		t.Fatal(err)
	}
}

// IsWhole says whether the group is as AwaitWhole has it, for a test with more patience.
func (g *group) IsWhole() (bool, error) { return g.isWhole() }

// startGroup starts n servers at once, each in a folder of its own and on a free port, and
// then calls join to connect them. It tries a few times, since another process may take a
// port between finding and using it.
func startGroup(n int, plan func(ports []int) []member, join func(servers []*Server) error) (dir string, servers []*Server, err error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return "", nil, err
	}
	for range 5 {
		if dir, servers, err = startMembers(n, plan); err != nil {
			continue
		}
		if err = join(servers); err == nil {
			return dir, servers, nil
		}
		stopAll(dir, servers)
	}
	return "", nil, err
}

func startMembers(n int, plan func(ports []int) []member) (string, []*Server, error) {
	ports, err := freePorts(n)
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		return "", nil, err
	}
	servers, errs := make([]*Server, n), make([]error, n)
	var all sync.WaitGroup
	for i, m := range plan(ports) {
		all.Go(func() { servers[i], errs[i] = m.start(filepath.Join(dir, strconv.Itoa(m.port))) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		stopAll(dir, servers)
		return "", nil, err
	}
	return dir, servers, nil
}

func stopAll(dir string, servers []*Server) {
	started := slices.DeleteFunc(slices.Clone(servers), func(s *Server) bool { return s == nil })
	(&Server{temp: dir, group: started}).stop()
}

// forEach calls do for all servers at once, and waits for all calls.
func forEach(servers []*Server, do func(i int, s *Server) error) error {
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { errs[i] = do(i, s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (m member) start(dir string) (*Server, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	for name, content := range m.files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	return startAt(net.JoinHostPort(cmp.Or(m.host, "127.0.0.1"), strconv.Itoa(m.port)), dir, m.settings)
}

// eventually calls done again and again until it returns true. A server sends no event
// for the states that this waits for, so it polls.
func eventually(what string, done func() (bool, error)) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		ok, err := done()
		if ok && err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within 20s: %w", what, cmp.Or(err, errors.New("not yet")))
		}
	}
}

// field returns a field of a server's INFO.
func (s *Server) field(name string) (string, error) {
	rdb := s.direct()
	defer func() { _ = rdb.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, err := rdb.Info(ctx).Result()
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(info, "\n"+name+":")
	value, _, _ := strings.Cut(rest, "\r")
	return value, nil
}

// direct returns a client of this one server, which waits for replies for half a second.
func (s *Server) direct() *redis.Client { return s.directFor(time.Second / 2) }

// directFor is direct for who asks once, and waits so long.
func (s *Server) directFor(timeout time.Duration) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.Addr, MaxRetries: -1, DialerRetries: 1, DialTimeout: timeout,
		ReadTimeout: timeout, ContextTimeoutEnabled: true, PoolSize: 2,
	})
}

// inSync says whether a server is a replica that has all data of its primary.
func (s *Server) inSync() (bool, error) {
	state, err := s.field("master_link_status")
	return state == "up", err
}

func fmtMillis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
