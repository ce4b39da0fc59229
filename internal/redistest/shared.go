package redistest

import (
	"flag"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2"
)

// shared are the servers that all tests of a package use.
var shared = struct{ mini, redis, guarded, sentinel, cluster lazy }{
	lazy{start: startMini},
	lazy{start: func() (*Server, error) { return start("", nil) }},
	lazy{start: startGuarded},
	lazy{start: func() (*Server, error) {
		s, err := startSentinel(nil, slowFailover)
		if err != nil {
			return nil, err
		}
		return &s.Server, nil
	}},
	lazy{start: func() (*Server, error) {
		c, err := startCluster(nil, slowFailover)
		if err != nil {
			return nil, err
		}
		return &c.Server, nil
	}},
}

// lazy is a shared server. The first test that needs it starts it.
type lazy struct {
	start  func() (*Server, error)
	once   sync.Once
	server *Server
	err    error
}

func (l *lazy) get(t testing.TB) *Server {
	t.Helper()
	l.once.Do(func() { l.server, l.err = l.start() })
	return require(t, l.server, l.err)
}

// minParallel is the least number of tests that run at once, unless -parallel sets it:
// more than a small machine has processors, because most tests mostly wait.
const minParallel = 16

// gcPercent is how much the heap may grow between two collections, unless GOGC is set. The
// interpreter of miniredis makes much garbage, and the heap of a test is small.
const gcPercent = 400

// Main runs a package's tests and stops the shared servers. Call it in TestMain.
func Main(m *testing.M) {
	if runtime.GOMAXPROCS(0) < minParallel {
		_ = flag.Set("test.parallel", strconv.Itoa(minParallel)) // m.Run parses the command line after this
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // that of workers without a Logger
	code := m.Run()
	for _, l := range []*lazy{&shared.redis, &shared.guarded, &shared.sentinel, &shared.cluster} {
		if l.server != nil {
			l.server.stop()
		}
	}
	os.Exit(code)
}

// Each runs a test as six parallel subtests: on a miniredis of its own; on a real server, with
// a plain client and with AutoPipeline; on a Guarded server; behind Sentinel; and on a Cluster.
// All tests of the package share the real servers, so take keys from Name. With -short there is
// miniredis only.
//
// There is no AutoPipeline on miniredis: AutoPipeline only changes how commands travel,
// which the real server shows, and miniredis runs scripts at a hundredth of its speed.
func Each(t *testing.T, test func(t *testing.T, s *Server)) {
	t.Helper()
	type backend struct {
		name string
		get  func(testing.TB) *Server
		auto bool
	}
	backends := []backend{
		{"miniredis", ownMini, false},
		{"redis", Redis, false},
		{"redis/autopipeline", Redis, true},
		{"redis/acl+tls", Guarded, false},
		{"sentinel", shared.sentinel.get, false},
		{"cluster", shared.cluster.get, false},
	}
	if testing.Short() {
		backends = backends[:1]
	}
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			t.Parallel()
			s := *backend.get(t)
			s.AutoPipeline = backend.auto
			test(t, &s)
		})
	}
}

// NotShort skips a test with -short: one that waits for seconds or, called by what starts them,
// that needs several servers or processes.
func NotShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out with -short: it takes long, or more than one plain server")
	}
}

// FullOrShort returns the size of a test: the first, or the second with -short.
func FullOrShort[T any](full, short T) T {
	if testing.Short() {
		return short
	}
	return full
}

// Mini returns the miniredis that all tests of a package share. Its keys expire in real
// time.
func Mini(t testing.TB) *Server {
	t.Helper()
	return shared.mini.get(t)
}

func startMini() (*Server, error) {
	m, err := newMini()
	if err != nil {
		return nil, err
	}
	return &Server{Name: "miniredis", Addr: m.Addr()}, nil
}

// ownMini starts a miniredis for one test. One for all would run the scripts of all tests one
// after the other, and look at all their keys for each command.
func ownMini(t testing.TB) *Server {
	t.Helper()
	m, err := newMini()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return &Server{Name: "miniredis", Addr: m.Addr()}
}

func newMini() (*miniredis.Miniredis, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	return m, m.Start()
}

// Redis returns the real server that all tests of a package share. Without a redis-server
// program the test is skipped or, if CI=true, fails.
func Redis(t testing.TB) *Server {
	t.Helper()
	return shared.redis.get(t)
}

// Guarded returns the shared real server on which the library's user has only the rights
// that docs/operations.md lists, and connects with TLS. Clients of it send the library's
// commands and subscriptions as that user, and the test's own commands as an
// administrator. The documented key patterns are extended to the prefixes that tests use.
// Addr is the administrator's address, without TLS.
func Guarded(t testing.TB) *Server {
	t.Helper()
	NotShort(t)
	return shared.guarded.get(t)
}
