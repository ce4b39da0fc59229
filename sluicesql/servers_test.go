package sluicesql_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/sluice-go/sluice/sluicesql"
)

// database is a server of the tests, started once by the first that needs it.
type database struct {
	dialect sluicesql.Dialect
	driver  string
	start   func() (dsn string, err error) // errMissing if it is not installed
	once    sync.Once
	dsn     string
	err     error
}

var errMissing = errors.New("not installed")

var databases = map[string]*database{
	"sqlite":   {dialect: sluicesql.SQLite, driver: "sqlite", start: func() (string, error) { return "", nil }},
	"postgres": {dialect: sluicesql.Postgres, driver: "pgx", start: startPostgres},
	"mariadb":  {dialect: sluicesql.MySQL, driver: "mysql", start: startMariaDB},
}

// processes end with the tests, and folders go.
var (
	processes []*exec.Cmd
	folders   []string
)

func TestMain(m *testing.M) {
	status := m.Run()
	for _, p := range processes {
		_ = p.Process.Signal(syscall.SIGTERM)
		_ = p.Wait()
	}
	for _, f := range folders {
		_ = os.RemoveAll(f)
	}
	os.Exit(status)
}

// each runs a test on an empty database of each kind.
func each(t *testing.T, test func(t *testing.T, db *sql.DB, d sluicesql.Dialect)) {
	for name, server := range databases {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "sqlite" {
				t.Skip("-short")
			}
			test(t, server.open(t), server.dialect)
		})
	}
}

// open returns an empty database.
func (s *database) open(t *testing.T) *sql.DB {
	t.Helper()
	s.once.Do(func() { s.dsn, s.err = s.start() })
	if errors.Is(s.err, errMissing) && os.Getenv("CI") != "true" {
		t.Skipf("%s is not installed (Debian: postgresql, mariadb-server)", s.driver)
	}
	require.NoError(t, s.err)
	dsn := s.dsn
	if s.dialect == sluicesql.SQLite {
		dsn = "file:" + filepath.Join(t.TempDir(), "test.db") + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
	}
	db, err := sql.Open(s.driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(16)
	for _, table := range []string{"sluice_outbox", "sluice_outbox_refused", "sluice_done", "orders", "effects"} {
		_, err := db.ExecContext(t.Context(), "DROP TABLE IF EXISTS "+table)
		require.NoError(t, err)
	}
	require.NoError(t, sluicesql.Outbox{Dialect: s.dialect}.Migrate(t.Context(), db))
	return db
}

// prepare returns a folder for a server, which runs as its own user: it refuses root.
func prepare(account string) (folder string, as *syscall.SysProcAttr, err error) {
	if folder, err = os.MkdirTemp("", "sluicesql"); err != nil {
		return "", nil, err
	}
	folders = append(folders, folder)
	as = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return folder, as, nil
	}
	u, err := user.Lookup(account)
	if err != nil {
		return "", nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	gid, err1 := strconv.ParseUint(u.Gid, 10, 32)
	as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return folder, as, errors.Join(err, err1, os.Chown(folder, int(uid), int(gid)))
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// serve starts a server, and waits until it answers.
func serve(folder string, as *syscall.SysProcAttr, driver, dsn, program string, args ...string) error {
	c := exec.Command(program, args...) //nolint:noctx // it lives as long as the tests
	c.SysProcAttr, c.Dir = as, folder
	if err := c.Start(); err != nil {
		return err
	}
	processes = append(processes, c)
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	for range 600 {
		if err = db.Ping(); err == nil { //nolint:noctx // likewise
			return nil
		}
		time.Sleep(100 * time.Millisecond) // between two tries
	}
	return err
}

func startPostgres() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", errMissing
	}
	folder, as, err := prepare("postgres")
	if err != nil {
		return "", err
	}
	initdb, data := found[len(found)-1], filepath.Join(folder, "data")
	made := exec.Command(initdb, "-D", data, "-U", "test", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8") //nolint:noctx // a test's
	made.SysProcAttr, made.Dir = as, folder
	if out, err := made.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	dsn := fmt.Sprintf("host=127.0.0.1 port=%d user=test dbname=postgres sslmode=disable", port)
	return dsn, serve(folder, as, "pgx", dsn, filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-k", "", "-h", "127.0.0.1", "-p", strconv.Itoa(port))
}

func startMariaDB() (string, error) {
	server, err := exec.LookPath("mariadbd")
	if err != nil {
		if server = "/usr/sbin/mariadbd"; !isThere(server) {
			return "", errMissing
		}
	}
	folder, as, err := prepare("mysql")
	if err != nil {
		return "", err
	}
	data := filepath.Join(folder, "data")
	made := exec.Command("mariadb-install-db", "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db") //nolint:noctx // a test's
	made.SysProcAttr, made.Dir = as, folder
	if out, err := made.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	dsn := fmt.Sprintf("root@tcp(127.0.0.1:%d)/mysql", port)
	return dsn, serve(folder, as, "mysql", dsn, server, "--no-defaults", "--datadir="+data, "--port="+strconv.Itoa(port), "--bind-address=127.0.0.1", "--socket="+filepath.Join(folder, "s"), "--pid-file="+filepath.Join(folder, "pid"))
}

func isThere(path string) bool { _, err := os.Stat(path); return err == nil }
