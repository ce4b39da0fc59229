package sluicesql_test

import (
	"context"
	"database/sql"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/sqltest"
	"github.com/sluice-go/sluice/sluicesql"
)

// TestRelay_WaitsForTheDisk of a database that shows a transaction to others before it is on disk, as
// InnoDB does without a binary log: a crash just then takes it back, and no task of it may be in a queue.
func TestRelay_WaitsForTheDisk(t *testing.T) {
	redistest.NotShort(t)
	s := sqltest.Start(t, sqltest.MariaDB)
	db, err := sql.Open(s.Driver, s.DSN)
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxIdleConns(0) // its connections end with the server
	o := sluicesql.Outbox{Dialect: sluicesql.MySQL}
	require.NoError(t, o.Migrate(t.Context(), db))
	run := func(statement string) {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	run("CREATE TABLE orders (id INT PRIMARY KEY)")
	// order commits one, which the server writes to its disk with the next commit, or in 45 minutes.
	order := func() {
		run("SET GLOBAL innodb_flush_log_at_timeout = 2700")
		run("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
		require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO orders (id) VALUES (1)")
			require.NoError(t, err)
			return o.Enqueue(t.Context(), tx, "orders", sluice.Task{ID: "1"})
		}))
		run("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
		require.Equal(t, 1, rows(t, db, "orders"))
	}
	order()
	s.Kill()
	require.NoError(t, s.Up())
	require.Zero(t, rows(t, db, "orders"), "it was on disk: what follows shows nothing")

	order()
	killed := make(chan struct{})
	kill := sync.OnceFunc(func() { s.Kill(); close(killed) })
	q, _ := newQueue(t, "orders", sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(context.Context, sluice.TasksSent) { kill() }}))
	relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: quiet})
	<-killed // the task is in its queue
	require.NoError(t, s.Up())
	require.Equal(t, 1, rows(t, db, "orders"), "its task is in a queue")
	waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
}
