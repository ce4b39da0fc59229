package sluicesql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/sqltest"
	"github.com/sluice-go/sluice/sluicesql"
)

// early is a database that shows a transaction to others before it is on disk, as InnoDB does where no
// binary log has it.
type early struct {
	*testing.T
	*sqltest.Server
	db *sql.DB
	o  sluicesql.Outbox
}

func startEarly(t *testing.T) *early {
	t.Helper()
	redistest.NotShort(t)
	e := &early{T: t, Server: sqltest.Start(t, sqltest.MariaDB), o: sluicesql.Outbox{Dialect: sluicesql.MySQL}}
	var err error
	e.db, err = sql.Open(e.Driver, e.DSN)
	require.NoError(t, err)
	t.Cleanup(func() { _ = e.db.Close() })
	e.db.SetMaxIdleConns(0) // its connections end with the server
	require.NoError(t, e.o.Migrate(t.Context(), e.db))
	e.run("CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY)")
	return e
}

func (e *early) run(statement string) {
	e.Helper()
	_, err := e.db.ExecContext(e.Context(), statement)
	require.NoError(e, err)
}

// commit commits an order and something else, which the server writes to its disk with the next commit, or
// in 45 minutes.
func (e *early) commit(more func(tx *sql.Tx) error) {
	e.Helper()
	e.run("DELETE FROM orders")
	e.run("SET GLOBAL innodb_flush_log_at_timeout = 2700")
	e.run("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
	require.NoError(e, inTx(e.Context(), e.db, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(e.Context(), "INSERT INTO orders () VALUES ()")
		require.NoError(e, err)
		return more(tx)
	}))
	e.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
	require.Equal(e, 1, rows(e.T, e.db, "orders"))
}

// takesBack checks that a crash takes back what commit has committed: else a test shows nothing.
func (e *early) takesBack() {
	e.Helper()
	for range 10 { // the server may write by itself just then
		e.commit(func(*sql.Tx) error { return nil })
		e.Kill()
		require.NoError(e, e.Up())
		if rows(e.T, e.db, "orders") == 0 {
			return
		}
	}
	e.Fatal("it was on disk each time")
}

// TestRelay_WaitsForTheDisk: no task is in its queue whose transaction a crash may still take back.
func TestRelay_WaitsForTheDisk(t *testing.T) {
	e := startEarly(t)
	for name, of := range map[string]driver.Connector{"skips what others hold": nil, "does not": older{e.db.Driver(), e.DSN}} {
		t.Run(name, func(t *testing.T) {
			e.T = t
			db := e.db
			if of != nil {
				db = sql.OpenDB(of)
				t.Cleanup(func() { _ = db.Close() })
			}
			e.takesBack()
			e.commit(func(tx *sql.Tx) error { return e.o.Enqueue(t.Context(), tx, "orders", sluice.Task{ID: "1"}) })
			killed := make(chan struct{})
			kill := sync.OnceFunc(func() { e.Kill(); close(killed) })
			q, m := newQueue(t, "orders", sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(context.Context, sluice.TasksSent) { kill() }}))
			rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
			t.Cleanup(func() { _ = rdb.Close() })
			l, err := sluice.NewLocker(rdb)
			require.NoError(t, err)
			relay(t, &sluicesql.Relay{DB: db, Outbox: e.o, Queues: []*sluice.Queue{q}, Locker: l, Logger: quiet})
			select {
			case <-killed: // the task is in its queue
			case <-time.After(30 * time.Second):
				t.Fatal("no task has come into the queue")
			}
			require.NoError(t, e.Up())
			require.Equal(t, 1, rows(t, e.db, "orders"))
			waitFor(t, func() bool { return rows(t, e.db, "sluice_outbox") == 0 })
		})
	}
}

// older is the driver of a database that does not know SKIP LOCKED.
type older struct {
	under driver.Driver
	dsn   string
}

func (o older) Driver() driver.Driver { return o.under }

func (o older) Connect(context.Context) (driver.Conn, error) {
	c, err := o.under.Open(o.dsn)
	return olderConn{c}, err
}

type olderConn struct{ driver.Conn }

func (c olderConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	return c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
}

func (c olderConn) Prepare(query string) (driver.Stmt, error) {
	if strings.Contains(query, "SKIP LOCKED") {
		return nil, errors.New("Error 1064: near LOCKED")
	}
	return c.Conn.Prepare(query)
}

// TestOnce_WaitsForTheDisk: who finds that another attempt has done the work, and commits, has it on disk.
func TestOnce_WaitsForTheDisk(t *testing.T) {
	e := startEarly(t)
	e.takesBack()
	once := func(tx *sql.Tx) (bool, error) {
		return sluicesql.Once(t.Context(), tx, sluice.Entry{ID: "1"}, sluicesql.InDialect(sluicesql.MySQL))
	}
	e.commit(func(tx *sql.Tx) error { _, err := once(tx); return err })
	require.NoError(t, inTx(t.Context(), e.db, func(tx *sql.Tx) error {
		first, err := once(tx)
		require.False(t, first)
		return err
	}))
	e.Kill()
	require.NoError(t, e.Up())
	require.Equal(t, 1, rows(t, e.db, "orders"))
	require.Equal(t, 1, rows(t, e.db, "sluice_done"))
}

// TestRelay_WhereABinaryLogIsOnDiskFirst: several relays move each row once, and change none.
func TestRelay_WhereABinaryLogIsOnDiskFirst(t *testing.T) {
	redistest.NotShort(t)
	s := sqltest.Start(t, func() (*sqltest.Server, error) { return sqltest.MariaDBWith("--log-bin=log", "--sync-binlog=1") })
	db, err := sql.Open(s.Driver, s.DSN)
	require.NoError(t, err)
	defer db.Close()
	o := sluicesql.Outbox{Dialect: sluicesql.MySQL}
	require.NoError(t, o.Migrate(t.Context(), db))
	const n = 2000
	require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
		for range n {
			if err := o.Enqueue(t.Context(), tx, "orders", sluice.Task{ID: sluice.NewID()}); err != nil {
				return err
			}
		}
		return nil
	}))
	var moved atomic.Int64
	q, _ := newQueue(t, "orders", sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(_ context.Context, i sluice.TasksSent) { moved.Add(int64(len(i.Outcomes))) }}))
	for range 4 {
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: quiet, Poll: 100 * time.Millisecond})
	}
	waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
	require.EqualValues(t, n, moved.Load())
	var name string
	var updates int
	require.NoError(t, db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Com_update'").Scan(&name, &updates))
	require.Zero(t, updates)
}
