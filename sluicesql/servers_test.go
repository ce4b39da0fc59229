package sluicesql_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/sluice-go/sluice/internal/sqltest"
	"github.com/sluice-go/sluice/sluicesql"
)

// database is a server of the tests, started once by the first that needs it.
type database struct {
	dialect sluicesql.Dialect
	driver  string
	start   func() (*sqltest.Server, error) // sqltest.ErrMissing if it is not installed
	once    sync.Once
	server  *sqltest.Server
	err     error
}

var databases = map[string]*database{
	"sqlite":   {dialect: sluicesql.SQLite, driver: "sqlite", start: func() (*sqltest.Server, error) { return &sqltest.Server{}, nil }},
	"postgres": {dialect: sluicesql.Postgres, driver: "pgx", start: sqltest.Postgres},
	"mariadb":  {dialect: sluicesql.MySQL, driver: "mysql", start: sqltest.MariaDB},
}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		play(role)
		return
	}
	status := m.Run()
	for _, d := range databases {
		if d.server != nil && d.dialect != sluicesql.SQLite {
			d.server.Close()
		}
	}
	os.Exit(status)
}

// each runs a test on an empty database of each kind, all at once: they mostly wait.
func each(t *testing.T, test func(t *testing.T, db *sql.DB, d sluicesql.Dialect)) {
	eachServer(t, func(t *testing.T, db *sql.DB, of *database, _ string) { test(t, db, of.dialect) })
}

func eachServer(t *testing.T, test func(t *testing.T, db *sql.DB, of *database, name string)) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	for name, of := range databases {
		all.Go(func() {
			t.Run(name, func(t *testing.T) {
				if testing.Short() && name != "sqlite" {
					t.Skip("-short")
				}
				test(t, of.open(t), of, name)
			})
		})
	}
}

// open returns an empty database.
func (s *database) open(t *testing.T) *sql.DB {
	t.Helper()
	s.once.Do(func() { s.server, s.err = s.start() })
	if errors.Is(s.err, sqltest.ErrMissing) && os.Getenv("CI") != "true" {
		t.Skip(s.driver, s.err)
	}
	require.NoError(t, s.err)
	if s.dialect == sluicesql.SQLite {
		s.server.DSN = "file:" + filepath.Join(t.TempDir(), "test.db") + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
	}
	db, err := sql.Open(s.driver, s.server.DSN)
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
