// Package redistest starts servers for tests, miniredis and real ones, also behind
// Sentinel and as a Cluster, and gives clients on them, also on connections that
// lose, delay or hold back replies.
package redistest

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Server is a running server.
type Server struct {
	// Name is "miniredis", "redis", "sentinel" or "cluster".
	Name string
	// Addr is its address on loopback; of a group of servers that of one that
	// was a primary when they were started.
	Addr string
	// AutoPipeline makes Client return the autopipelining face of a client.
	AutoPipeline bool

	dir      string
	temp     string   // a folder that goes when the server is stopped; "" if it is the test's
	env      []string // added to this process's
	settings []string
	pid      int
	stdin    interface{ Close() error } // closing it ends a real server
	ended    chan struct{}
	group    []*Server                   // what it consists of, if it is more than one process
	connect  func(dial dialer) connected // nil for a plain connection to a single server
	tls      *tls.Config                 // of its clients; nil for none
	tlsAddr  string
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// connected is a client of any kind.
type connected interface {
	redis.UniversalClient
	AutoPipeline() (*redis.AutoPipeliner, error)
}

// shared are the servers that all tests of a package run on.
var shared = struct{ mini, redis, guarded, sentinel, cluster lazy }{
	lazy{start: startMini},
	lazy{start: func() (*Server, error) { return start("", nil) }},
	lazy{start: startGuarded},
	lazy{start: func() (*Server, error) { s, err := startSentinel(patient); return s.server(), err }},
	lazy{start: func() (*Server, error) { c, err := startCluster(patient); return c.server(), err }},
}

// lazy is a shared server that is started when it is first wanted.
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

// atOnce is how many tests run at once at the least, unless -parallel says so: more
// than there may be processors, since most of them wait most of the time.
const atOnce = 4

// Main runs a package's tests and stops the shared servers. Call it in TestMain.
func Main(m *testing.M) {
	if runtime.GOMAXPROCS(0) < atOnce {
		_ = flag.Set("test.parallel", strconv.Itoa(atOnce)) // before they are parsed
	}
	code := m.Run()
	for _, l := range []*lazy{&shared.redis, &shared.guarded, &shared.sentinel, &shared.cluster} {
		if l.server != nil {
			l.server.stop()
		}
	}
	os.Exit(code)
}

// Each runs a test on miniredis and on a real server, each of them plainly and
// through AutoPipeline, on a Guarded one, behind Sentinel, and on a Cluster. The
// servers are shared: use Name for keys.
func Each(t *testing.T, test func(t *testing.T, s *Server)) {
	t.Helper()
	backends := []struct {
		name string
		get  func(testing.TB) *Server
		auto bool
	}{
		{"miniredis", Mini, false},
		{"miniredis/autopipeline", Mini, true},
		{"redis", Redis, false},
		{"redis/autopipeline", Redis, true},
		{"redis/acl+tls", Guarded, false},
		{"sentinel", shared.sentinel.get, false},
		{"cluster", shared.cluster.get, false},
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

// Mini returns the shared miniredis.
func Mini(t testing.TB) *Server {
	t.Helper()
	return shared.mini.get(t)
}

func startMini() (*Server, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	if err := m.Start(); err != nil {
		return nil, err
	}
	return &Server{Name: "miniredis", Addr: m.Addr()}, nil
}

// Redis returns the shared real server. Without a redis-server program the test
// is skipped or, where CI=true, fails.
func Redis(t testing.TB) *Server {
	t.Helper()
	return shared.redis.get(t)
}

// Start starts a real server of the test's own, with the settings added to
// redis-server's command line, and stops it when the test ends.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := start(t.TempDir(), settings)
	s = require(t, s, err)
	t.Cleanup(s.stop)
	return s
}

// StartIn starts a real server outside a test, in a folder that is there and is
// kept, with env added to the environment. It lives until Down, or the end of this
// process.
func StartIn(dir string, env []string, settings ...string) (*Server, error) {
	return start(dir, settings, env...)
}

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

// start runs redis-server on a free port, in a folder of its own. A shell stands
// between: it kills the server when its standard input ends, as it does when
// this process dies in whatever way.
func start(dir string, settings []string, env ...string) (*Server, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, err
	}
	temp := ""
	if dir == "" {
		var err error
		if temp, err = os.MkdirTemp("", "redistest"); err != nil {
			return nil, err
		}
		dir = temp
	}
	var err error
	for range 5 { // the port may be taken between finding and using it
		var s *Server
		if s, err = startOnce(dir, settings, env...); err == nil {
			s.temp = temp
			return s, nil
		}
	}
	return nil, err
}

func startOnce(dir string, settings []string, env ...string) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := listener.Addr().String()
	_ = listener.Close()
	return startAt(addr, dir, settings, env...)
}

func startAt(addr, dir string, settings []string, env ...string) (*Server, error) {
	_, port, _ := net.SplitHostPort(addr)
	own := []string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"}
	if len(settings) > 0 && settings[0] == sentinelConf {
		own = nil // it stands in the file
	}
	cmd := exec.Command("sh", slices.Concat([]string{
		"-c", `redis-server "$@" >redis.log 2>&1 & echo $!; read -r _; kill -9 $!; wait`, "sh",
	}, own, settings)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return nil, err
	}
	s := &Server{Name: "redis", Addr: addr, dir: dir, env: env, settings: settings, pid: pid, stdin: stdin, ended: make(chan struct{})}
	go func() { _ = cmd.Wait(); close(s.ended) }()
	if err := s.awaitReady(); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *Server) awaitReady() error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	deadline := time.Now().Add(10 * time.Second)
	for {
		info, err := rdb.Info(context.Background(), "server").Result()
		switch {
		case err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r", s.pid)):
			return nil
		case err == nil:
			return errors.New("another server answers on the port")
		case time.Now().After(deadline):
			log, _ := os.ReadFile(s.dir + "/redis.log")
			return fmt.Errorf("not ready: %w\n%s", err, log)
		}
		time.Sleep(5 * time.Millisecond) // waiting for a process to come up
	}
}

func (s *Server) stop() {
	for _, member := range s.group {
		_ = member.stdin.Close()
	}
	for _, member := range s.group {
		<-member.ended
	}
	if s.group == nil {
		_ = s.stdin.Close()
		<-s.ended
	}
	if s.temp != "" {
		_ = os.RemoveAll(s.temp)
	}
}

// Log returns the writes that a real server, started with "--appendonly", "yes",
// has carried out, in order, as it logs them: expiries are absolute, and a script's
// writes stand there one by one.
func (s *Server) Log(t testing.TB) (commands [][]string) {
	t.Helper()
	content, err := os.ReadFile(s.LogFile())
	if err == nil {
		_, err = ReadLog(content, func(command []string, _ int) { commands = append(commands, command) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return commands
}

// LogFile is where a real server logs its writes, unless it has rewritten the log.
func (s *Server) LogFile() string {
	files, _ := filepath.Glob(s.dir + "/appendonlydir/*.incr.aof")
	if len(files) == 0 {
		return s.dir + "/appendonly.aof" // Redis 6
	}
	return files[0]
}

// Down kills a real server's process.
func (s *Server) Down() { s.stop() }

// Up starts it again after Down, on the same port and with what it has on disk.
func (s *Server) Up(t testing.TB) {
	t.Helper()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
}

// Restart is Up outside a test, with settings added to those it had.
func (s *Server) Restart(settings ...string) error {
	again, err := startAt(s.Addr, s.dir, append(slices.Clip(s.settings), settings...), s.env...)
	if err == nil {
		s.pid, s.stdin, s.ended, s.settings = again.pid, again.stdin, again.ended, again.settings
	}
	return err
}

// Dir is the folder in which a real server keeps its files.
func (s *Server) Dir() string { return s.dir }

// Pause stops a real server's process: it accepts and never answers, until
// Resume.
func (s *Server) Pause(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// Resume lets a paused server go on, with what it has received meanwhile.
func (s *Server) Resume(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := s.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// Signal sends a real server's process a signal.
func (s *Server) Signal(sig syscall.Signal) error { return syscall.Kill(s.pid, sig) }

// Client returns a client with go-redis's default options, closed when the test
// ends.
func (s *Server) Client(t testing.TB) redis.UniversalClient {
	t.Helper()
	return s.client(t, nil)
}

// Faulty returns a client whose connections have faults, to be switched on.
func (s *Server) Faulty(t testing.TB) (redis.UniversalClient, *Faults) {
	t.Helper()
	f := newFaults()
	if s.tls != nil { // faults strike what is within
		f = NewFaults((&tls.Dialer{Config: s.tls}).DialContext)
	}
	return s.client(t, f.Dial), f
}

// client returns a client that connects through dial or, if that is nil, as go-redis
// does.
func (s *Server) client(t testing.TB, dial dialer) redis.UniversalClient {
	t.Helper()
	var rdb connected
	if s.connect != nil {
		rdb = s.connect(dial)
	} else {
		rdb = redis.NewClient(&redis.Options{Addr: s.Addr, Dialer: dial, TLSConfig: s.tls})
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

// Now is the server's clock.
func (s *Server) Now(t testing.TB, rdb redis.UniversalClient) time.Time {
	t.Helper()
	now, err := rdb.Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// Name is a key or queue name of the test's own.
func Name(t testing.TB) string {
	return strings.ReplaceAll(t.Name(), "/", ".") + "." + strconv.FormatInt(time.Now().UnixNano(), 36)
}
