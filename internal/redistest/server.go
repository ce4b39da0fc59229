// Package redistest starts servers for tests: miniredis, redis-server, redis-server
// behind Sentinel, and Redis Cluster. It returns clients of them, also with connections
// that lose, delay or hold back replies, and starts child processes.
package redistest

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a running server, or several that form one deployment.
type Server struct {
	// Name is "miniredis", "redis", "sentinel" or "cluster".
	Name string
	// Addr is the server's address on loopback. For a deployment of several servers it
	// is the address of one that was a primary at the start.
	Addr string
	// AutoPipeline makes Client return a client that sends through go-redis's
	// AutoPipeline.
	AutoPipeline bool

	known    string // the address that others know; "" if it is Addr
	dir      string
	temp     string   // the folder that stop removes; "" if the caller owns the folder
	env      []string // added to this process's environment
	settings []string
	pid      int
	stdin    interface{ Close() error } // closing it ends a real server
	ended    chan struct{}              // closed when the process has ended
	group    []*Server                  // the members of a deployment of several servers
	connect  func(dial Dialer) client   // makes a client; nil for a plain one
	tls      *tls.Config                // of clients; nil without TLS
	tlsAddr  string
}

// client is any of go-redis's clients.
type client interface {
	redis.UniversalClient
	AutoPipeline() (*redis.AutoPipeliner, error)
}

// Start starts a real server for one test, with the settings added to redis-server's
// command line, and stops it when the test ends. Without a redis-server program the test
// is skipped or, if CI=true, fails.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := start(t.TempDir(), settings)
	s = require(t, s, err)
	t.Cleanup(s.stop)
	return s
}

// StartIn starts a real server for a program that is not a test, with the settings added
// to redis-server's command line and env to its environment. It keeps its files in dir,
// which must exist; if dir is "", in a temporary folder, which Down removes. The server
// runs until Down, or until this process ends. Without a redis-server program the error
// is exec.ErrNotFound.
func StartIn(dir string, env []string, settings ...string) (*Server, error) {
	return start(dir, settings, env...)
}

// require returns a server that was started, or ends the test.
func require(t testing.TB, s *Server, err error) *Server {
	t.Helper()
	if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true" {
		t.Skip("no redis-server on this machine: install it to run this test (Debian: redis-server)")
	}
	if err != nil {
		t.Fatalf("redis-server: %v", err)
	}
	return s
}

func (s *Server) knownAddr() string { return cmp.Or(s.known, s.Addr) }

// Dir returns the folder in which a real server keeps its files.
func (s *Server) Dir() string { return s.dir }

// Down kills a real server's process.
func (s *Server) Down() { s.stop() }

// Up starts a real server again after Down, on the same port and with its files.
func (s *Server) Up(t testing.TB) {
	t.Helper()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
}

// Restart is Up for a program that is not a test. It adds settings to those that the
// server had.
func (s *Server) Restart(settings ...string) error {
	again, err := startAt(s.Addr, s.dir, append(slices.Clip(s.settings), settings...), s.env...)
	if err == nil {
		s.pid, s.stdin, s.ended, s.settings = again.pid, again.stdin, again.ended, again.settings
	}
	return err
}

// Pause stops a real server's process: the kernel still accepts connections, and the
// server does not reply until Resume.
func (s *Server) Pause(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Resume ends Pause. The server then carries out what it has received meanwhile.
func (s *Server) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// Signal sends a signal to a real server's process.
func (s *Server) Signal(sig syscall.Signal) error { return syscall.Kill(s.pid, sig) }

// Waited returns for how long a real server's main thread has waited for a processor since its
// start, as the kernel counts it: what a busy machine has added to the times that the server
// measures. It is 0 where the kernel does not tell.
func (s *Server) Waited(t testing.TB) time.Duration {
	t.Helper()
	counts, err := os.ReadFile("/proc/" + strconv.Itoa(s.pid) + "/schedstat")
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	fields := strings.Fields(string(counts))
	if err != nil || len(fields) != 3 {
		t.Fatalf("schedstat: %q, %v", counts, err)
	}
	waited, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(waited)
}

// Slowest returns for how long the slowest command of what run does has worked: by the server's slow
// log, less the time for which the server has waited for a processor meanwhile. It is 0 if none is in
// that log, which has what took longer than the server's "slowlog-log-slower-than".
func (s *Server) Slowest(t testing.TB, rdb redis.UniversalClient, run func()) (slowest time.Duration) {
	t.Helper()
	if err := rdb.Do(t.Context(), "slowlog", "reset").Err(); err != nil {
		t.Fatal(err)
	}
	before := s.Waited(t)
	run()
	waited := s.Waited(t) - before
	log, err := rdb.SlowLogGet(t.Context(), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, slow := range log {
		slowest = max(slowest, slow.Duration-waited)
	}
	return slowest
}

// Client returns a client with go-redis's default options; that of a miniredis has a longer
// ReadTimeout. It is closed when the test ends.
func (s *Server) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	return s.client(t, nil)
}

// Faulty returns a client and the faults that the test can cause on its connections.
func (s *Server) Faulty(t testing.TB) (redis.UniversalClient, *Faults) {
	t.Helper()
	f := newFaults()
	if s.tls != nil { // the faults are about the commands, so they lie within TLS
		f = NewFaults((&tls.Dialer{Config: s.tls}).DialContext)
	}
	return s.client(t, f.Dial), f
}

// Buffers is the size of the buffers of a connection in tests. Those of go-redis, 32 KB each, are
// most of what tests allocate, and the race detector clears its memory for each.
const Buffers = 4 << 10

// client returns a client that connects through dial or, if dial is nil, as go-redis
// does by default.
func (s *Server) client(t testing.TB, dial Dialer) redis.UniversalClient {
	t.Helper()
	var rdb client
	if s.connect != nil {
		rdb = s.connect(dial)
	} else {
		options := redis.Options{Addr: s.Addr, Dialer: dial, TLSConfig: s.tls, ReadBufferSize: Buffers, WriteBufferSize: Buffers}
		if s.Name == "miniredis" && dial == nil {
			options.ReadTimeout = 30 * time.Second // it shares a busy machine's processors with the tests
		}
		rdb = redis.NewClient(&options)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	if !s.AutoPipeline {
		return rdb
	}
	auto, err := rdb.AutoPipeline()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = auto.Close() })
	return auto
}

// Now returns the time of the server's clock.
func (s *Server) Now(t testing.TB, rdb redis.UniversalClient) time.Time {
	t.Helper()
	now, err := rdb.Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// Calls returns how many of these commands a server of Redis was sent.
func Calls(t testing.TB, rdb redis.UniversalClient, commands ...string) (n int) {
	t.Helper()
	info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatalf("INFO: %v", err)
	}
	for _, c := range commands {
		calls, _, _ := strings.Cut(strings.TrimPrefix(info["Commandstats"]["cmdstat_"+c], "calls="), ",")
		some, _ := strconv.Atoi(calls) // none if it was never sent
		n += some
	}
	return n
}

// Name returns a name for a key or queue that no other test uses.
func Name(t testing.TB) string {
	return strings.ReplaceAll(t.Name(), "/", ".") + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
}
