package sluicesql_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/sqltest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/sluicesql"
)

var quiet = slog.New(slog.DiscardHandler)

// hungQueue returns a queue on a Redis that takes connections and never answers.
func hungQueue(t *testing.T, name string) *sluice.Queue {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	rdb := redis.NewClient(&redis.Options{Addr: l.Addr().String()})
	t.Cleanup(func() { _ = rdb.Close() })
	q, err := sluice.NewQueue(rdb, name)
	require.NoError(t, err)
	return q
}

// TestOutbox_WritesAllOrNothing: what is wrong in the second row is found before the first is written.
func TestOutbox_WritesAllOrNothing(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		tasks := make([]sluice.Task, 300)
		for i := range tasks[:299] {
			tasks[i].ID = fmt.Sprint(i)
		}
		require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
			require.ErrorIs(t, sluicesql.Outbox{Dialect: d}.Enqueue(t.Context(), tx, "q", tasks...), sluice.ErrInvalid)
			return nil // it is committed nevertheless
		}))
		require.Zero(t, rows(t, db, "sluice_outbox"))
	})
}

// TestOutbox_ARowIsBounded, by all that is in it, and is ASCII.
func TestOutbox_ARowIsBounded(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		tasks := make([]sluice.Task, 100)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: fmt.Sprint("☎", i, "\U0001F468"), Header: map[string]string{"h": strings.Repeat("\x01", 20_000)}, At: time.Now().Add(time.Hour).In(time.FixedZone("odd", 1172))}
		}
		enqueue(t, db, o, "orders", tasks...)
		var longest, plain int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT MAX(LENGTH(tasks)) FROM sluice_outbox").Scan(&longest))
		require.Less(t, longest, 2<<20)
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM sluice_outbox WHERE tasks LIKE '%☎%'").Scan(&plain))
		require.Zero(t, plain)
		q, _ := newQueue(t, "orders")
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}})
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		got, err := q.Get(t.Context(), tasks[99].ID)
		require.NoError(t, err)
		require.WithinDuration(t, tasks[99].At, got.Due, time.Microsecond, "an offset of 19 min 32 s")
	})
}

// TestRelay_HasOthersWaitForNoRedis: while a relay waits for one that hangs, transactions that enqueue
// do not, and other queues go on.
func TestRelay_HasOthersWaitForNoRedis(t *testing.T) {
	othersGoOn(t, redistest.FullOrShort(200, 40), hungQueue)
}

// TestRelay_HasOthersWaitForNoPrimary: likewise while one answers what only reads, and takes nothing.
func TestRelay_HasOthersWaitForNoPrimary(t *testing.T) {
	redistest.NotShort(t)
	rdb := redistest.Start(t, "--min-replicas-to-write", "1").Client(t)
	othersGoOn(t, 100, func(t *testing.T, name string) *sluice.Queue {
		q, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)
		return q
	})
}

// othersGoOn has a relay with some queues that take nothing, and one that does.
func othersGoOn(t *testing.T, n int, bad func(t *testing.T, name string) *sluice.Queue) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		good, _ := newQueue(t, "mails")
		queues := []*sluice.Queue{good}
		for i := range n {
			queues = append(queues, bad(t, fmt.Sprint("orders", i)))
			enqueue(t, db, o, fmt.Sprint("orders", i), sluice.Task{ID: "a"})
		}
		r := &sluicesql.Relay{DB: db, Outbox: o, Queues: queues, Logger: quiet}
		relay(t, r)
		time.Sleep(300 * time.Millisecond) // it waits for them
		lag := systest.Lag(t)
		for _, name := range []string{"mails", "orders1", "pears"} {
			began := time.Now()
			enqueue(t, db, o, name, sluice.Task{ID: "b"})
			require.Less(t, time.Since(began), 2*time.Second+10*lag(), name)
		}
		waitFor(t, func() bool { _, err := good.Get(t.Context(), "b"); return err == nil })
		for i := range 5 {
			id, began := fmt.Sprint("c", i), time.Now()
			enqueue(t, db, o, "mails", sluice.Task{ID: id})
			r.Kick()
			waitFor(t, func() bool { _, err := good.Get(t.Context(), id); return err == nil })
			require.Less(t, time.Since(began), time.Duration(n)*50*time.Millisecond, "though all of them are asked in vain, for a second each")
		}
	})
}

// TestRelay_WaitsForReplicas, and does not enqueue the same tasks again and again meanwhile.
func TestRelay_WaitsForReplicas(t *testing.T) {
	redistest.NotShort(t)
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		primary, o := redistest.Start(t, "--repl-diskless-sync-delay", "0"), sluicesql.Outbox{Dialect: d}
		var calls atomic.Int64
		q, err := sluice.NewQueue(primary.Client(t), "orders", sluice.WithQueueReplicas(1),
			sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(context.Context, sluice.TasksSent) { calls.Add(1) }}))
		require.NoError(t, err)
		enqueue(t, db, o, q.Name(), sluice.Task{ID: "a"})
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: quiet})
		time.Sleep(3 * time.Second) // it looks four times
		require.Zero(t, calls.Load())
		require.Equal(t, 1, rows(t, db, "sluice_outbox"))
		host, port, err := net.SplitHostPort(primary.Addr)
		require.NoError(t, err)
		redistest.Start(t, "--replicaof", host+" "+port)
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		require.Positive(t, calls.Load()) // on a busy machine a replica that has just come may answer too late once more
	})
}

// TestRelay_DeadlocksNoTransaction of those that enqueue, on the database's own level of isolation.
func TestRelay_DeadlocksNoTransaction(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		a, _ := newQueue(t, "a")
		b, _ := newQueue(t, "b")
		l, err := sluice.NewLocker(redistest.Start(t).Client(t))
		require.NoError(t, err)
		for range 2 {
			relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{a, b}, Locker: l})
		}
		var failed atomic.Int64
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				for range 50 {
					err := inTx(t.Context(), db, func(tx *sql.Tx) error {
						if err := o.Enqueue(t.Context(), tx, "b", sluice.Task{ID: sluice.NewID()}); err != nil {
							return err
						}
						return o.Enqueue(t.Context(), tx, "a", sluice.Task{ID: sluice.NewID()})
					})
					if err != nil {
						failed.Add(1)
						t.Log(err)
					}
				}
			})
		}
		all.Wait()
		require.Zero(t, failed.Load())
	})
}

// strict opens PostgreSQL, where every transaction is serializable unless it says otherwise.
func strict(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	config.RuntimeParams["default_transaction_isolation"] = "serializable"
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestRelay_SeveralBeforeTheTable is there, and where the database is strict: each row is moved once.
func TestRelay_SeveralBeforeTheTable(t *testing.T) {
	eachServer(t, func(t *testing.T, db *sql.DB, of *database, _ string) {
		o := sluicesql.Outbox{Dialect: of.dialect}
		_, err := db.ExecContext(t.Context(), "DROP TABLE sluice_outbox")
		require.NoError(t, err)
		if of.dialect == sluicesql.Postgres {
			db = strict(t, of.server.DSN)
		}
		m := miniredis.RunT(t)
		var sent atomic.Int64
		count := sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(_ context.Context, i sluice.TasksSent) { sent.Add(int64(len(i.Outcomes))) }})
		for range 3 {
			rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
			t.Cleanup(func() { _ = rdb.Close() })
			q, err := sluice.NewQueue(rdb, "orders", count)
			require.NoError(t, err)
			l, err := sluice.NewLocker(rdb)
			require.NoError(t, err)
			relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Locker: l, Logger: quiet})
		}
		time.Sleep(200 * time.Millisecond) // they find no table
		require.NoError(t, o.Migrate(t.Context(), db))
		for i := range 300 {
			enqueue(t, db, o, "orders", sluice.Task{ID: fmt.Sprint(i)})
		}
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		require.EqualValues(t, 300, sent.Load())
	})
}

// TestRelay_ALockerHoldsUpNoOtherQueue: relays of several queues of one database, or of databases whose
// tables have one name, share a Redis.
func TestRelay_ALockerHoldsUpNoOtherQueue(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		l, err := sluice.NewLocker(redistest.Start(t).Client(t))
		require.NoError(t, err)
		for _, name := range []string{"a", "b"} {
			q, _ := newQueue(t, name)
			relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Locker: l})
		}
		for i := range 20 {
			enqueue(t, db, o, []string{"a", "b"}[i%2], sluice.Task{ID: fmt.Sprint(i)})
			waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		}
	})
}

// relayThatFailsBehind has a relay enqueue a task for "orders", and not write that, for want of a table for
// another one. It returns the queue, and how often it was called.
func relayThatFailsBehind(t *testing.T, db *sql.DB, o sluicesql.Outbox) (*sluice.Queue, *atomic.Int64) {
	t.Helper()
	calls := new(atomic.Int64)
	q, _ := newQueue(t, "orders", sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(context.Context, sluice.TasksSent) { calls.Add(1) }}))
	_, err := db.ExecContext(t.Context(), "DROP TABLE sluice_outbox_refused")
	require.NoError(t, err)
	enqueue(t, db, o, "orders", sluice.Task{ID: "good"}, sluice.Task{ID: "none left", Take: sluice.Take{Item: "phone"}})
	relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: quiet})
	return q, calls
}

// TestRelay_EnqueuesOnceWhereTheDatabaseFailsBehind: what is in the queue is deleted first, however
// often that fails, and is not enqueued again.
func TestRelay_EnqueuesOnceWhereTheDatabaseFailsBehind(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		_, calls := relayThatFailsBehind(t, db, o)
		waitFor(t, func() bool { return calls.Load() > 0 })
		time.Sleep(time.Second) // many polls
		require.EqualValues(t, 1, calls.Load())
		require.NoError(t, o.Migrate(t.Context(), db))
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		require.EqualValues(t, 1, calls.Load())
		require.Equal(t, 1, rows(t, db, "sluice_outbox_refused"))
	})
}

// TestRelay_PausesOnceForADatabaseThatFails, and not once for each queue that it fails.
func TestRelay_PausesOnceForADatabaseThatFails(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		_, err := db.ExecContext(t.Context(), "DROP TABLE sluice_outbox_refused")
		require.NoError(t, err)
		var queues []*sluice.Queue
		var calls atomic.Int64
		for i := range 40 {
			q, _ := newQueue(t, fmt.Sprint("orders", i), sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(context.Context, sluice.TasksSent) { calls.Add(1) }}))
			queues = append(queues, q)
			enqueue(t, db, o, q.Name(), sluice.Task{ID: "none left", Take: sluice.Take{Item: "phone"}})
		}
		const poll = time.Second
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: queues, Logger: quiet, Poll: poll})
		waitFor(t, func() bool { return calls.Load() == 40 })
		require.NoError(t, o.Migrate(t.Context(), db))
		mended := time.Now()
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		require.Less(t, time.Since(mended), 10*poll)
		require.EqualValues(t, 40, calls.Load())
	})
}

// TestRelay_LargeRowsAreReadOnce, about: not five hundred of them to move three.
func TestRelay_LargeRowsAreReadOnce(t *testing.T) {
	redistest.NotShort(t)
	db := databases["postgres"].open(t)
	const n, size = 24, 1 << 20
	for i := range n {
		enqueue(t, db, sluicesql.Outbox{}, "orders", sluice.Task{ID: fmt.Sprint(i), Payload: make([]byte, size)})
	}
	var got atomic.Int64
	config, err := pgx.ParseConfig(databases["postgres"].server.DSN)
	require.NoError(t, err)
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return countConn{c, &got}, err
	}
	counted := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = counted.Close() })
	q, _ := newQueue(t, "orders")
	relay(t, &sluicesql.Relay{DB: counted, Queues: []*sluice.Queue{q}})
	waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
	t.Logf("%.2f bytes were read for each", float64(got.Load())/(n*size*4/3))
	require.Less(t, got.Load(), int64(n*size*4/3*2))
}

type countConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// TestRelay_HasManyQueues, more than a statement of SQLite may ask for.
func TestRelay_HasManyQueues(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
		t.Cleanup(func() { _ = rdb.Close() })
		queues, err := sluice.NewQueues(rdb, "orders", 700)
		require.NoError(t, err)
		for _, i := range []int{0, 350, 699} {
			enqueue(t, db, o, queues[i].Name(), sluice.Task{ID: "a"})
		}
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: queues})
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
	})
}

// TestSchema_OfASchema: the table's name may have one, and is cut off by no database.
func TestSchema_OfASchema(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		schema := map[sluicesql.Dialect]string{sluicesql.Postgres: "public", sluicesql.MySQL: "mysql", sluicesql.SQLite: "main"}[d]
		o := sluicesql.Outbox{Dialect: d, Table: schema + "." + strings.Repeat("o", 55)}
		_, _ = db.ExecContext(t.Context(), "DROP TABLE IF EXISTS "+o.Table)
		require.NoError(t, o.Migrate(t.Context(), db))
		require.ErrorIs(t, sluicesql.Outbox{Dialect: d, Table: strings.Repeat("o", 56)}.Migrate(t.Context(), db), sluice.ErrInvalid)
		q, _ := newQueue(t, "orders")
		enqueue(t, db, o, "orders", sluice.Task{ID: "a"}, sluice.Task{ID: "sold", Take: sluice.Take{Item: "none"}})
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: quiet})
		waitFor(t, func() bool { return rows(t, db, o.Table) == 0 })
		require.Equal(t, 1, rows(t, db, o.Table+"_refused"))
		_, err := db.ExecContext(t.Context(), "DROP TABLE "+o.Table+"_refused")
		require.NoError(t, err)
	})
}

// TestRelay_DeletesByTheIndex, and locks, however few rows there are: MariaDB would read all of a small table, and
// wait for those that other relays have locked.
func TestRelay_DeletesByTheIndex(t *testing.T) {
	redistest.NotShort(t)
	db, o := databases["mariadb"].open(t), sluicesql.Outbox{Dialect: sluicesql.MySQL}
	looked := 0
	for _, size := range []int{0, 4, 30, 2000} {
		tasks := make([]sluice.Task, 1)
		for i := rows(t, db, "sluice_outbox"); i < size; i++ {
			tasks[0].ID = fmt.Sprint(i)
			enqueue(t, db, o, "orders", tasks...)
		}
		for _, n := range []int{1, 4, 16, 500} {
			for _, of := range []string{o.DeleteRows(n), o.LockRows(n)} {
				for line := range strings.SplitSeq(planOf(t, db, "EXPLAIN "+of, "orders"), "\n") {
					if words := strings.Fields(line); len(words) > 3 && words[2] == "o" {
						looked++
						require.Contains(t, []string{"const", "eq_ref"}, words[3], "%d of %d: %s", n, size, line)
					}
				}
			}
		}
	}
	require.GreaterOrEqual(t, looked, 24)
}

// TestRelay_RowsOfADeadMachine are given back soon: PostgreSQL ends a transaction of a relay that says
// nothing for a minute, and no other session of the application.
func TestRelay_RowsOfADeadMachine(t *testing.T) {
	t.Parallel()
	s := sqltest.Start(t, sqltest.Postgres)
	db, err := sql.Open(s.Driver, s.DSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	db.SetMaxOpenConns(1)
	limit := func(from interface {
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}) (limit string) {
		require.NoError(t, from.QueryRowContext(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&limit))
		return limit
	}
	before := limit(db)
	relay := &sluicesql.Relay{DB: db, Queues: []*sluice.Queue{hungQueue(t, "orders")}}
	tx, err := relay.Begin(t.Context())
	require.NoError(t, err)
	require.Equal(t, "1min", limit(tx))
	require.NoError(t, tx.Commit())
	require.Equal(t, before, limit(db))
	require.NotEqual(t, "1min", before)
}
