package sluicesql_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/sluicesql"
)

var rates = flag.Bool("rates", false, "have TestRelay_Rates measure: with 100,000 rows, and 3,000 commits")

// TestRelay_Rates: one relay and four move all rows, and tasks of a thousand commits a second are
// handled. It logs the rates: go test -run Rates -v -rates .
func TestRelay_Rates(t *testing.T) {
	moved, commits := 2000, 100
	if *rates {
		moved, commits = 100_000, 3000
	}
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		o := sluicesql.Outbox{Dialect: d}
		rdb := redistest.Start(t).Client(t)
		quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
		for _, relays := range []int{1, 4} {
			q, err := sluice.NewQueue(rdb, fmt.Sprint("rates", relays))
			require.NoError(t, err)
			for range 100 {
				require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
					for range moved / 100 {
						if err := o.Enqueue(t.Context(), tx, q.Name(), sluice.Task{ID: sluice.NewID()}); err != nil {
							return err
						}
					}
					return nil
				}))
			}
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			began := time.Now()
			for range relays {
				all.Go(func() {
					_ = (&sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Logger: quiet}).Run(ctx)
				})
			}
			for rows(t, db, "sluice_outbox") > 0 {
				time.Sleep(5 * time.Millisecond) // between two looks
			}
			t.Logf("%d relays: %.0f rows/s", relays, float64(moved)/time.Since(began).Seconds())
			stop()
			all.Wait()
		}
		latency(t, db, o, rdb, commits)
	})
}

// latency measures from commits to handlers.
func latency(t *testing.T, db *sql.DB, o sluicesql.Outbox, rdb redis.UniversalClient, n int) {
	q, err := sluice.NewQueue(rdb, "latency")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	committed, late := map[string]time.Time{}, []time.Duration{}
	w := &sluice.Worker{Queue: q, Concurrency: 64, Handler: func(_ context.Context, e sluice.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		late = append(late, time.Since(committed[e.ID]))
		return nil
	}}
	r := &sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}}
	var all sync.WaitGroup
	all.Go(func() { _ = w.Run(ctx) })
	all.Go(func() { _ = r.Run(ctx) })
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var commits sync.WaitGroup
	for range n {
		<-tick.C
		commits.Go(func() {
			id := sluice.NewID()
			err := inTx(ctx, db, func(tx *sql.Tx) error {
				if err := o.Enqueue(ctx, tx, "latency", sluice.Task{ID: id}); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				committed[id] = time.Now() // just before
				return nil
			})
			r.Kick()
			if err != nil {
				t.Error(err)
			}
		})
	}
	commits.Wait()
	waitFor(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(late) == n })
	slices.Sort(late)
	t.Logf("a thousand commits a second: the handler is called %v after the commit (p50), p99 %v", late[n/2], late[n*99/100])
	stop()
	all.Wait()
}

// TestRelay_ABacklogIsMovedSteadily: however much waits, each look at it goes by the index; and where
// -rates measures, a million rows go at one pace, by a process that needs little memory.
func TestRelay_ABacklogIsMovedSteadily(t *testing.T) {
	redistest.NotShort(t)
	n := 20_000
	if *rates {
		n = 1_000_000
	}
	eachServer(t, func(t *testing.T, db *sql.DB, of *database, name string) {
		o := sluicesql.Outbox{Dialect: of.dialect}
		for range n / 1000 {
			require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
				for range 1000 {
					if err := o.Enqueue(t.Context(), tx, "orders", sluice.Task{ID: sluice.NewID()}); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		requireIndex(t, db, o, n)
		r := &trial{t: t, name: name, of: of, redis: redistest.Start(t)}
		relay := r.start("relay", 0, 0)
		began, left := time.Now(), n
		for left > 0 {
			time.Sleep(time.Duration(n) * 5 * time.Microsecond) // between two figures
			now := rows(t, db, "sluice_outbox")
			t.Logf("%7d rows left, %.0f/s, %s", now, float64(left-now)/time.Since(began).Seconds(), memoryOf(relay.Process.Pid))
			began, left = time.Now(), now
		}
		relay.Kill()
	})
}

// requireIndex requires that what a relay asks for reads no whole table, and logs how it is read.
func requireIndex(t *testing.T, db *sql.DB, o sluicesql.Outbox, rows int) {
	t.Helper()
	explain, whole := "EXPLAIN ", "Seq Scan"
	switch o.Dialect {
	case sluicesql.MySQL:
		explain, whole = "EXPLAIN FORMAT=JSON ", `"access_type": "ALL"`
	case sluicesql.SQLite:
		explain, whole = "EXPLAIN QUERY PLAN ", "SCAN sluice_outbox"
	case sluicesql.Postgres:
		_, err := db.ExecContext(t.Context(), "ANALYZE")
		require.NoError(t, err)
	}
	queries := map[string][]any{o.HaveRows(2): {"orders", "mails"}, o.FirstRows(o.Dialect != sluicesql.SQLite): {"orders"}}
	if o.Dialect != sluicesql.MySQL { // for which see TestRelay_DeletesByTheIndex
		queries[o.DeleteRows(500)], queries[o.LockRows(500)] = []any{"orders"}, []any{"orders"}
	}
	for query, args := range queries {
		plan := planOf(t, db, explain+query, args...)
		t.Logf("of %d rows, %.200s\n%.2000s", rows, query, plan)
		require.NotContains(t, plan, whole)
	}
}

// planOf returns all that a query returns, as text.
func planOf(t *testing.T, db *sql.DB, query string, args ...any) string {
	t.Helper()
	found, err := db.QueryContext(t.Context(), query, args...)
	require.NoError(t, err)
	defer found.Close()
	columns, err := found.Columns()
	require.NoError(t, err)
	var plan strings.Builder
	for found.Next() {
		values, places := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			places[i] = &values[i]
		}
		require.NoError(t, found.Scan(places...))
		for _, v := range values {
			fmt.Fprint(&plan, v.String, " ")
		}
		fmt.Fprintln(&plan)
	}
	require.NoError(t, found.Err())
	return plan.String()
}

// memoryOf returns the most memory that a process has had.
func memoryOf(pid int) string {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	peak, _, _ = strings.Cut(peak, "\n")
	return strings.TrimSpace(peak)
}
