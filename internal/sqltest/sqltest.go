// Package sqltest starts servers of databases for tests: PostgreSQL and MariaDB. The drivers are the
// caller's: "pgx" and "mysql".
package sqltest

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ErrMissing is the error of a server that is not installed.
var ErrMissing = errors.New("not installed (Debian: postgresql, mariadb-server)")

// Server is a server of a database, on a free port, which keeps its files in a temporary folder. It
// ends with this process, in whatever way that dies.
type Server struct {
	Driver, DSN string

	folder  string
	as      *syscall.SysProcAttr // whom it runs as: it refuses root
	command []string
	signal  string // ends it in order

	pid   int
	stdin io.Closer
	ended chan struct{}
}

// Start starts a server for one test: Start(t, sqltest.Postgres). It skips the test if the server is
// not installed, and fails it where CI is "true".
func Start(t testing.TB, start func() (*Server, error)) *Server {
	t.Helper()
	s, err := start()
	if errors.Is(err, ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// prepare returns a server that has a folder.
func prepare(account string) (*Server, error) {
	folder, err := os.MkdirTemp("", "sluicesql")
	if err != nil {
		return nil, err
	}
	s := &Server{folder: folder, as: &syscall.SysProcAttr{Setpgid: true}}
	if os.Geteuid() != 0 {
		return s, nil
	}
	u, err := user.Lookup(account)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	gid, err1 := strconv.ParseUint(u.Gid, 10, 32)
	s.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return s, errors.Join(err, err1, os.Chown(folder, int(uid), int(gid)))
}

// make runs the command that makes the server's files.
func (s *Server) make(program string, args ...string) error {
	c := exec.Command(program, args...) //nolint:noctx // a test's
	c.SysProcAttr, c.Dir = s.as, s.folder
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port, l.Close()
}

// serverShell starts a server, prints its process ID, and ends when it does. It ends the server when
// the shell's standard input ends, as that does when this process dies in whatever way.
const serverShell = `exec 3<&0; signal=$1; shift
"$@" >>log 2>&1 3<&- & p=$!
echo $p
{ read -r _ <&3; kill -$signal $p; } 2>/dev/null & reader=$!
wait $p; kill $reader 2>/dev/null`

// Up starts the server, and waits until it answers.
func (s *Server) Up() error {
	db, err := sql.Open(s.Driver, s.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	for began := time.Now(); time.Since(began) < time.Minute; {
		if err = s.try(db); err == nil {
			return nil
		}
		s.stop() // what a killed one has left may be in its way
		time.Sleep(50 * time.Millisecond)
	}
	return err
}

// try starts the server once.
func (s *Server) try(db *sql.DB) error {
	c := exec.Command("sh", append([]string{"-c", serverShell, "sh", s.signal}, s.command...)...) //nolint:noctx // it lives as long as the tests
	c.SysProcAttr, c.Dir = s.as, s.folder
	stdin, err := c.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	s.stdin, s.ended = stdin, make(chan struct{})
	_, err = fmt.Fscan(stdout, &s.pid)
	go func() { _ = c.Wait(); close(s.ended) }() // it ends with the server
	for err == nil {
		if db.Ping() == nil { //nolint:noctx // a test's
			return nil
		}
		select {
		case <-s.ended:
			err = errors.New("the server has ended")
		case <-time.After(20 * time.Millisecond): // between two tries
		}
	}
	return err
}

// Kill ends the server as a crash does.
func (s *Server) Kill() {
	_ = syscall.Kill(s.pid, syscall.SIGKILL)
	s.stop()
}

// Close ends the server in order, and removes its files.
func (s *Server) Close() {
	s.stop()
	_ = os.RemoveAll(s.folder)
}

// stop ends the server, and waits for that.
func (s *Server) stop() {
	if s.stdin != nil {
		_ = s.stdin.Close()
		<-s.ended
	}
}

// Postgres starts a PostgreSQL server.
func Postgres() (*Server, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return nil, ErrMissing
	}
	s, err := prepare("postgres")
	if err != nil {
		return nil, err
	}
	initdb, data := found[len(found)-1], filepath.Join(s.folder, "data")
	if err := s.make(initdb, "-D", data, "-U", "test", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8"); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s.Driver, s.signal = "pgx", "INT"
	s.DSN = "host=127.0.0.1 port=" + port + " user=test dbname=postgres sslmode=disable"
	s.command = []string{filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-k", "", "-h", "127.0.0.1", "-p", port}
	return s, s.Up()
}

// MariaDB starts a MariaDB server.
func MariaDB() (*Server, error) { return MariaDBWith() }

// MariaDBWith is MariaDB with options of mariadbd.
func MariaDBWith(options ...string) (*Server, error) {
	program, err := exec.LookPath("mariadbd")
	if err != nil {
		if program = "/usr/sbin/mariadbd"; !isThere(program) {
			return nil, ErrMissing
		}
	}
	s, err := prepare("mysql")
	if err != nil {
		return nil, err
	}
	data := "--datadir=" + filepath.Join(s.folder, "data")
	if err := s.make("mariadb-install-db", "--no-defaults", data, "--auth-root-authentication-method=normal", "--skip-test-db"); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s.Driver, s.signal = "mysql", "TERM"
	s.DSN = "root@tcp(127.0.0.1:" + port + ")/mysql"
	s.command = append([]string{
		program, "--no-defaults", data, "--port=" + port, "--bind-address=127.0.0.1", "--socket=" + filepath.Join(s.folder, "s"), "--pid-file=" + filepath.Join(s.folder, "pid"),
	}, options...)
	return s, s.Up()
}

func isThere(path string) bool { _, err := os.Stat(path); return err == nil }
