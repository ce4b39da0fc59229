package sluicesql_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

// newQueue returns a queue on a Redis of its own.
func newQueue(t *testing.T, name string, opts ...sluice.QueueOption) (*sluice.Queue, *miniredis.Miniredis) {
	t.Helper()
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	q, err := sluice.NewQueue(rdb, name, append([]sluice.QueueOption{sluice.WithRetention(time.Hour), sluice.WithDuplicates(sluice.DuplicatesOnce)}, opts...)...)
	require.NoError(t, err)
	return q, m
}

// relay runs a relay until the test ends.
func relay(t *testing.T, r *sluicesql.Relay) {
	t.Helper()
	r.Poll = cmp.Or(r.Poll, 20*time.Millisecond)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
}

// inTx runs f in a transaction.
func inTx(ctx context.Context, db *sql.DB, f func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// enqueue writes tasks in a transaction of their own.
func enqueue(t *testing.T, db *sql.DB, o sluicesql.Outbox, queue string, ts ...sluice.Task) {
	t.Helper()
	require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error { return o.Enqueue(t.Context(), tx, queue, ts...) }))
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 30*time.Second, 5*time.Millisecond)
}

func rows(t *testing.T, db *sql.DB, table string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
	return n
}

// TestOutbox_CommittedIsEnqueued, with all its fields, and what was rolled back is not.
func TestOutbox_CommittedIsEnqueued(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		q, _ := newQueue(t, "orders")
		other, _ := newQueue(t, "mails")
		require.NoError(t, q.SetStock(t.Context(), "phone", 5))
		at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
		want := []sluice.Task{
			{ID: "plain"},
			{ID: "full", Kind: "k", Payload: []byte("\x00\xffp"), Header: map[string]string{"a": "1"}, At: at, Expires: at.Add(time.Hour), Group: "g", Take: sluice.Take{Item: "phone", Units: 2}},
			{ID: "odd\xff\x00", Kind: "k\xfe", Header: map[string]string{"h\xff": "v\xfe", "b": ""}, Group: "g\xff", Delay: time.Hour},
			{ID: "kept", Duplicates: sluice.DuplicatesKeep},
		}
		require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
			return errors.Join(o.Enqueue(t.Context(), tx, "orders", want...), o.Enqueue(t.Context(), tx, "mails", sluice.Task{ID: "mail"}), o.Enqueue(t.Context(), tx, "unserved", sluice.Task{ID: "x"}))
		}))
		back := errors.New("back")
		require.ErrorIs(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
			return errors.Join(o.Enqueue(t.Context(), tx, "orders", sluice.Task{ID: "rolled back"}), back)
		}), back)
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q, other}})
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 1 })
		for _, task := range want {
			got, err := q.Get(t.Context(), task.ID)
			require.NoError(t, err, task.ID)
			require.Equal(t, task.Kind, got.Kind)
			require.Equal(t, task.Payload, got.Payload)
			require.Equal(t, task.Header, got.Header)
			require.Equal(t, task.Group, got.Group)
			require.Equal(t, task.Take, got.Take)
			require.True(t, task.Expires.Equal(got.Expires))
			if !task.At.IsZero() {
				require.True(t, task.At.Equal(got.Due))
			}
			require.Equal(t, task.Delay > 0 || !task.At.IsZero(), got.State == sluice.StateScheduled)
		}
		_, err := other.Get(t.Context(), "mail")
		require.NoError(t, err)
		_, err = q.Get(t.Context(), "rolled back")
		require.ErrorIs(t, err, sluice.ErrNotFound)
		backlog, err := o.Backlog(t.Context(), db)
		require.NoError(t, err)
		require.Len(t, backlog, 1)
		require.EqualValues(t, 1, backlog["unserved"].Rows)
		require.WithinDuration(t, time.Now(), backlog["unserved"].Oldest, time.Minute)
	})
}

// TestOutbox_RefusesWhatIsWrong before anything is written.
func TestOutbox_RefusesWhatIsWrong(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		refuses := func(o sluicesql.Outbox, queue string, ts ...sluice.Task) {
			require.ErrorIs(t, inTx(t.Context(), db, func(tx *sql.Tx) error { return o.Enqueue(t.Context(), tx, queue, ts...) }), sluice.ErrInvalid)
		}
		refuses(sluicesql.Outbox{Dialect: d}, "q", sluice.Task{ID: "a"}, sluice.Task{})
		refuses(sluicesql.Outbox{Dialect: d, Table: "a b"}, "q", sluice.Task{ID: "a"})
		refuses(sluicesql.Outbox{Dialect: d}, "", sluice.Task{ID: "a"})
		refuses(sluicesql.Outbox{Dialect: d}, strings.Repeat("q", 513), sluice.Task{ID: "a"})
		// Each statement would be committed by itself.
		for _, tx := range []sluicesql.Execer{db, preparing{db}} {
			require.ErrorIs(t, sluicesql.Outbox{Dialect: d}.Enqueue(t.Context(), tx, "q", sluice.Task{ID: "a"}), sluice.ErrInvalid)
		}
		require.ErrorIs(t, sluicesql.Outbox{Dialect: 7}.Migrate(t.Context(), db), sluice.ErrInvalid)
		require.Zero(t, rows(t, db, "sluice_outbox"))
		require.ErrorIs(t, (&sluicesql.Relay{DB: db, Outbox: sluicesql.Outbox{Dialect: d}}).Run(t.Context()), sluice.ErrInvalid)
	})
}

// TestRelay_KeepsTheOrder of the tasks of one call, also of more than a row has, and of a megabyte.
func TestRelay_KeepsTheOrder(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		q, _ := newQueue(t, "orders")
		tasks := make([]sluice.Task, 600)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: fmt.Sprintf("%03d", i), Payload: make([]byte, 5000)}
		}
		enqueue(t, db, o, "orders", tasks...)
		require.Equal(t, 4, rows(t, db, "sluice_outbox"))
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}})
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		es, err := q.Claim(t.Context(), 600, time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 600)
		for i, e := range es {
			require.Equal(t, tasks[i].ID, e.ID)
		}
	})
}

// TestRelay_SetsAsideWhatIsRefused: the others of its row go on.
func TestRelay_SetsAsideWhatIsRefused(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		q, _ := newQueue(t, "orders")
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: "grouped", Group: "a"})
		require.NoError(t, err)
		require.NoError(t, q.SetStock(t.Context(), "phone", 1))
		phone := sluice.Take{Item: "phone"}
		enqueue(t, db, o, "orders",
			sluice.Task{ID: "before"}, sluice.Task{ID: "grouped", Group: "b"}, sluice.Task{ID: "first", Take: phone}, sluice.Task{ID: "too late", Take: phone}, sluice.Task{ID: "after"})
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: slog.New(slog.DiscardHandler)})
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		for _, id := range []string{"before", "first", "after"} {
			_, err := q.Get(t.Context(), id)
			require.NoError(t, err, id)
		}
		found, err := db.QueryContext(t.Context(), "SELECT task, reason FROM sluice_outbox_refused ORDER BY id")
		require.NoError(t, err)
		defer found.Close()
		var reasons []string
		for found.Next() {
			var task, reason string
			require.NoError(t, found.Scan(&task, &reason))
			reasons = append(reasons, reason)
		}
		require.NoError(t, found.Err())
		require.Len(t, reasons, 2)
		require.Contains(t, reasons[0], "Group")
		require.Equal(t, "sold out", reasons[1])
	})
}

// TestRelay_RowsWaitForRedis: a queue that takes nothing holds up no other, and is told of once.
func TestRelay_RowsWaitForRedis(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		q, m := newQueue(t, "orders")
		full, _ := newQueue(t, "full", sluice.WithMaxTasks(1))
		other, _ := newQueue(t, "mails")
		var warned atomic.Int64
		log := slog.New(countHandler{&warned})
		m.SetError("OOM command not allowed when used memory > 'maxmemory'")
		require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
			for i := range 10 {
				for _, name := range []string{"orders", "full", "mails"} {
					if err := o.Enqueue(t.Context(), tx, name, sluice.Task{ID: fmt.Sprint(i)}); err != nil {
						return err
					}
				}
			}
			return nil
		}))
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q, full, other}, Logger: log})
		waitFor(t, func() bool { b, _ := o.Backlog(t.Context(), db); return b["mails"].Rows == 0 })
		waitFor(t, func() bool { return warned.Load() >= 2 })
		time.Sleep(300 * time.Millisecond) // several tries
		b, err := o.Backlog(t.Context(), db)
		require.NoError(t, err)
		require.EqualValues(t, 10, b["orders"].Rows)
		require.NotZero(t, b["full"].Rows)
		require.EqualValues(t, 2, warned.Load())
		m.SetError("")
		waitFor(t, func() bool { b, _ := o.Backlog(t.Context(), db); return b["orders"].Rows == 0 })
	})
}

// countHandler counts the warnings.
type countHandler struct{ n *atomic.Int64 }

func (countHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h countHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		h.n.Add(1)
	}
	return nil
}
func (h countHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h countHandler) WithGroup(string) slog.Handler      { return h }

// TestRelay_TellsOfQueuesThatItHasNot: a name that is wrong would have its rows wait for ever.
func TestRelay_TellsOfQueuesThatItHasNot(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		q, _ := newQueue(t, "orders")
		write := func(names ...string) {
			for _, name := range names {
				enqueue(t, db, o, name, sluice.Task{ID: "a"}, sluice.Task{ID: "b"})
				enqueue(t, db, o, name, sluice.Task{ID: "c"})
			}
		}
		write("a typo", "order", "orders", "orderz")
		_, err := db.ExecContext(t.Context(), "UPDATE sluice_outbox SET written_at = written_at - 61000000") // a minute ago
		require.NoError(t, err)
		write("b typo") // which another relay may be about to move
		var warned atomic.Int64
		look, err := (&sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: slog.New(countHandler{&warned})}).Unserved()
		require.NoError(t, err)
		for range 2 { // it tells of each once
			look(t.Context())
			require.EqualValues(t, 3, warned.Load())
		}
	})
}

// TestMigrate_BySeveralAtATime: as the processes of a first deployment do.
func TestMigrate_BySeveralAtATime(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		for range 5 {
			for _, table := range []string{"sluice_outbox", "sluice_outbox_refused", "sluice_done"} {
				_, err := db.ExecContext(t.Context(), "DROP TABLE IF EXISTS "+table)
				require.NoError(t, err)
			}
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					if err := (sluicesql.Outbox{Dialect: d}).Migrate(t.Context(), db); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		enqueue(t, db, sluicesql.Outbox{Dialect: d}, "q", sluice.Task{ID: "a"})
	})
}

// TestRelay_AnyName of a queue that the library takes.
func TestRelay_AnyName(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		for _, name := range []string{"odd\xff\x00", strings.Repeat("é", 256), "Orders", "orders", "orders "} {
			q, _ := newQueue(t, name)
			enqueue(t, db, o, name, sluice.Task{ID: name})
			relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: slog.New(slog.DiscardHandler)})
			waitFor(t, func() bool { _, err := q.Get(t.Context(), name); return err == nil })
		}
	})
}

// TestRelay_KickIsAtOnce, where the relay polls each hour.
func TestRelay_KickIsAtOnce(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		q, _ := newQueue(t, "orders")
		r := &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Poll: time.Hour}
		r.Kick() // before Run
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		for i := range 5 {
			enqueue(t, db, o, "orders", sluice.Task{ID: fmt.Sprint(i)})
			r.Kick()
			waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		}
		cancel()
		require.NoError(t, <-ended)
	})
}

// TestRelay_SeveralMoveEachRowOnce: four relays, and producers that write meanwhile.
func TestRelay_SeveralMoveEachRowOnce(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		m := miniredis.RunT(t)
		var added atomic.Int64
		count := sluice.WithQueueHooks(sluice.QueueHooks{TasksSent: func(_ context.Context, i sluice.TasksSent) { added.Add(int64(len(i.Outcomes))) }})
		for range 4 {
			rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
			t.Cleanup(func() { _ = rdb.Close() })
			q, err := sluice.NewQueue(rdb, "orders", count)
			require.NoError(t, err)
			l, err := sluice.NewLocker(rdb)
			require.NoError(t, err)
			relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Locker: l})
		}
		var all sync.WaitGroup
		const producers, each = 4, 100
		for p := range producers {
			all.Go(func() {
				for i := range each {
					enqueue(t, db, o, "orders", sluice.Task{ID: fmt.Sprint(p, "-", i)})
				}
			})
		}
		all.Wait()
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		require.EqualValues(t, producers*each, added.Load())
	})
}

// TestRelay_ARowOfAnothersHoldsUpNone: it is set aside as it is.
func TestRelay_ARowOfAnothersHoldsUpNone(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		q, _ := newQueue(t, "orders")
		_, err := db.ExecContext(t.Context(), "INSERT INTO sluice_outbox (queue, tasks, written_at) VALUES ('orders', 'by hand', 0)")
		require.NoError(t, err)
		enqueue(t, db, o, "orders", sluice.Task{ID: "behind"})
		relay(t, &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: slog.New(slog.DiscardHandler)})
		waitFor(t, func() bool { return rows(t, db, "sluice_outbox") == 0 })
		_, err = q.Get(t.Context(), "behind")
		require.NoError(t, err)
		var text string
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT task FROM sluice_outbox_refused").Scan(&text))
		require.Equal(t, "by hand", text)
	})
}

// preparing is a database as gorm's with PrepareStmt: what it begins is of a type of its own.
type preparing struct{ *sql.DB }

func (preparing) BeginTx(context.Context, *sql.TxOptions) (sluicesql.Execer, error) {
	return nil, errors.ErrUnsupported
}
