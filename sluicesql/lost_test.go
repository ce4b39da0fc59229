package sluicesql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/sluicesql"
)

// lossy is a database's driver which loses the replies to some commits.
type lossy struct {
	under driver.Driver
	dsn   string
	lose  atomic.Int64
}

func (l *lossy) Connect(context.Context) (driver.Conn, error) {
	c, err := l.under.Open(l.dsn)
	return &lossyConn{c, l}, err
}

type lossyConn struct {
	driver.Conn
	of *lossy
}

func (c *lossyConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	return lossyTx{tx, c.of}, err
}

type lossyTx struct {
	driver.Tx
	of *lossy
}

func (t lossyTx) Commit() error {
	err := t.Tx.Commit()
	if err == nil && t.of.lose.Add(-1) >= 0 {
		return errors.New("the reply was lost")
	}
	return err
}

func (l *lossy) Driver() driver.Driver { return l.under }

// TestRelay_ACommitWhoseReplyIsLost: what was refused is set aside once, and nothing is enqueued again.
func TestRelay_ACommitWhoseReplyIsLost(t *testing.T) {
	eachServer(t, func(t *testing.T, db *sql.DB, of *database, _ string) {
		o := sluicesql.Outbox{Dialect: of.dialect}
		lossy := &lossy{under: db.Driver(), dsn: of.server.DSN}
		var calls atomic.Int64
		q, _ := newQueue(t, "orders", sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(context.Context, sluice.TasksSent) {
			if calls.Add(1) == 1 {
				lossy.lose.Store(1)
			}
		}}))
		enqueue(t, db, o, "orders", sluice.Task{ID: "good"}, sluice.Task{ID: "none left", Take: sluice.Take{Item: "phone"}})
		lost := sql.OpenDB(lossy)
		defer lost.Close()
		relay(t, &sluicesql.Relay{DB: lost, Outbox: o, Queues: []*sluice.Queue{q}, Logger: quiet})
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		enqueue(t, db, o, "orders", sluice.Task{ID: "next"})
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		require.Negative(t, lossy.lose.Load())
		require.EqualValues(t, 2, calls.Load())
		require.Equal(t, 1, rows(t, db, "sluice_outbox_refused"))
	})
}

// TestRelay_AnIDThatIsGivenOutAgain, by a database that has lost commits: the row of one whose commit it
// has kept is moved, and not taken for the one that was lost.
func TestRelay_AnIDThatIsGivenOutAgain(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		enqueue(t, db, o, "others", sluice.Task{ID: "next"})
		var text string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT tasks FROM sluice_outbox").Scan(&text))
		q, calls := relayThatFailsBehind(t, db, o)
		waitFor(t, func() bool { return calls.Load() == 1 })
		statement := "UPDATE sluice_outbox SET tasks = ?, written_at = written_at + 1000000 WHERE queue = 'orders'"
		if d == sluicesql.Postgres {
			statement = strings.Replace(statement, "?", "$1", 1)
		}
		_, err := db.ExecContext(t.Context(), statement, text)
		require.NoError(t, err)
		require.NoError(t, o.Migrate(t.Context(), db))
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 1 })
		_, err = q.Get(t.Context(), "next")
		require.NoError(t, err)
	})
}

// TestRelay_LeavesToOthersWhatTheyHave locked: it looks for it ten times a second, at the most, also
// while it works on another queue.
func TestRelay_LeavesToOthersWhatTheyHave(t *testing.T) {
	d := &fakeDB{query: func(_ context.Context, text string, queues []string) ([]string, error) {
		if !strings.Contains(text, firstRows) {
			return queues, nil
		}
		if queues[0] == "q0" {
			time.Sleep(20 * time.Second)
		}
		return nil, nil
	}}
	inFakeDB(t, d, 2, func(*miniredis.Miniredis) { time.Sleep(10 * time.Second) })
	require.LessOrEqual(t, d.times("q1"), 2*(100+1), "looks, and those at its rows")
}

// TestRelay_LooksEachPollAfterAnOutage, also for a queue whose rows another relay has moved.
func TestRelay_LooksEachPollAfterAnOutage(t *testing.T) {
	var moved atomic.Bool
	d := &fakeDB{query: func(_ context.Context, _ string, queues []string) ([]string, error) {
		if moved.Load() {
			return nil, nil
		}
		return queues, nil
	}}
	inFakeDB(t, d, 1, func(m *miniredis.Miniredis) {
		m.SetError("READONLY You can't write against a read only replica.")
		time.Sleep(10 * time.Second)
		m.SetError("")
		moved.Store(true)
		time.Sleep(10 * time.Second)
		before := d.times(haveRows)
		time.Sleep(time.Minute)
		require.InDelta(t, 60, d.times(haveRows)-before, 2)
	})
}

// TestRelay_OnSQLiteWaitsForOtherWriters, also where transactions lock nothing before they write: one that
// had read could not go on to write behind another's commit.
func TestRelay_OnSQLiteWaitsForOtherWriters(t *testing.T) {
	databases["sqlite"].open(t) // makes the tables
	db, err := sql.Open("sqlite", strings.Replace(databases["sqlite"].server.DSN, "&_txlock=immediate", "", 1))
	require.NoError(t, err)
	defer db.Close()
	o := sluicesql.Outbox{Dialect: sluicesql.SQLite}
	q, _ := newQueue(t, "orders")
	var log systest.Buffer
	relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: systest.LogTo(&log)})
	for i := range 300 {
		enqueue(t, db, o, "orders", sluice.Task{ID: sluice.NewID()})
		enqueue(t, db, o, "others", sluice.Task{ID: sluice.NewID()})
		if i == 150 {
			enqueue(t, db, o, "orders", sluice.Task{ID: "none left", Take: sluice.Take{Item: "phone"}})
		}
	}
	waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 300 })
	require.Equal(t, 1, log.Count("a task is refused"))
	require.Zero(t, log.Count("the database fails"), log.String())
}
