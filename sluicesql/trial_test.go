package sluicesql_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/sluicesql"
)

var strikes = flag.Int("strikes", 3, "how often TestTrial kills each kind of process and server")

// roleEnv has this program play a part of a trial: "ROLE STEP SIDE REDIS DATABASE DSN". It dies at
// its STEP-th message to a server, if that is not 0: at SIDE 0 before it is sent, at 1 after it.
const roleEnv = "SLUICESQL_ROLE"

// steps dies at a step.
type steps struct {
	n    atomic.Int64
	at   int64
	side int
}

func (s *steps) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	return stepConn{c, s}, err
}

type stepConn struct {
	net.Conn
	steps *steps
}

func (c stepConn) Write(p []byte) (n int, err error) {
	dies := c.steps.n.Add(1) == c.steps.at
	if !dies || c.steps.side == 1 {
		n, err = c.Conn.Write(p)
	}
	if dies {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return n, err
}

// play is a process of a trial. It ends with its standard input.
func play(settings string) {
	var role, addr, name string
	s := &steps{}
	words := strings.SplitN(settings, " ", 6)
	if _, err := fmt.Sscan(settings, &role, &s.at, &s.side, &addr, &name); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr, Dialer: s.dial})
	d := databases[name].dialect
	db, err := s.open(d, words[5])
	if err != nil {
		panic(err)
	}
	db.SetMaxOpenConns(8)
	q, err := trialQueue(rdb)
	if err != nil {
		panic(err)
	}
	go func() { // it ends this process
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	ctx, quiet := context.Background(), slog.New(slog.DiscardHandler)
	switch o := (sluicesql.Outbox{Dialect: d}); role {
	case "producer":
		for {
			_ = produce(ctx, db, o) // what fails is not committed, or is
			time.Sleep(3 * time.Millisecond)
		}
	case "relay":
		l, err := sluice.NewLocker(rdb, sluice.WithTTL(time.Second))
		if err != nil {
			panic(err)
		}
		_ = (&sluicesql.Relay{DB: db, Outbox: o, Queues: []*sluice.Queue{q}, Poll: 20 * time.Millisecond, Locker: l, Logger: quiet}).Run(ctx)
	case "worker":
		w := &sluice.Worker{
			Queue: q, Concurrency: 4, Lease: time.Second, Logger: quiet,
			Backoff: func(int, error) time.Duration { return 20 * time.Millisecond },
			Handler: func(ctx context.Context, e sluice.Entry) error { return consume(ctx, db, d, e) },
		}
		_ = w.Run(ctx)
	}
}

func (s *steps) open(d sluicesql.Dialect, dsn string) (*sql.DB, error) {
	switch d {
	case sluicesql.Postgres:
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		config.DialFunc = s.dial
		return stdlib.OpenDB(*config), nil
	case sluicesql.MySQL:
		config, err := mysql.ParseDSN(dsn)
		if err != nil {
			return nil, err
		}
		config.Logger = &mysql.NopLogger{}
		config.DialFunc = s.dial
		c, err := mysql.NewConnector(config)
		return sql.OpenDB(c), err
	default:
		return sql.Open("sqlite", dsn)
	}
}

func trialQueue(rdb redis.UniversalClient) (*sluice.Queue, error) {
	return sluice.NewQueue(rdb, "orders", sluice.WithRetention(time.Hour), sluice.WithDuplicates(sluice.DuplicatesOnce), sluice.WithMaxAttempts(-1))
}

var errTrial = errors.New("at random")

// produce writes orders with their tasks, one to three in a transaction, and rolls each fifth back.
func produce(ctx context.Context, db *sql.DB, o sluicesql.Outbox) error {
	return inTx(ctx, db, func(tx *sql.Tx) error {
		for range 1 + rand.N(3) {
			id := sluice.NewID()
			if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id) VALUES ('"+id+"')"); err != nil {
				return err
			}
			if err := o.Enqueue(ctx, tx, "orders", sluice.Task{ID: id, Payload: []byte(id)}); err != nil {
				return err
			}
		}
		if rand.N(5) == 0 {
			return errTrial
		}
		return nil
	})
}

// consume writes the effect of a task, and fails after it now and then.
func consume(ctx context.Context, db *sql.DB, d sluicesql.Dialect, e sluice.Entry) error {
	err := inTx(ctx, db, func(tx *sql.Tx) error {
		first, err := sluicesql.Once(ctx, tx, e, sluicesql.InDialect(d))
		if err != nil || !first {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO effects (id) VALUES ('"+e.ID+"')"); err != nil {
			return err
		}
		if rand.N(20) == 0 {
			return errTrial
		}
		return nil
	})
	if err == nil && rand.N(20) == 0 {
		return errTrial // committed, and not done
	}
	return err
}

// trial is a shop whose processes and servers are killed.
type trial struct {
	t     *testing.T
	name  string
	of    *database
	redis *redistest.Server
	q     *sluice.Queue
}

func (r *trial) start(role string, step, side int) *redistest.Child {
	settings := fmt.Sprint(role, " ", step, " ", side, " ", r.redis.Addr, " ", r.name, " ", r.of.server.DSN)
	c, err := redistest.StartChild(context.WithoutCancel(r.t.Context()), os.Stderr, roleEnv+"="+settings)
	require.NoError(r.t, err)
	return c
}

var trialRoles = []string{"producer", "relay", "worker"}

// byStep has each role die at its first message to a server, before it and after it, at its second
// one, and so on: as many times as strikes says, up to the hundredth.
func (r *trial) byStep() {
	var all sync.WaitGroup
	for _, role := range trialRoles {
		if role == "producer" && r.of.dialect == sluicesql.SQLite { // which sends no messages
			c := r.start(role, 0, 0)
			defer c.Kill()
			continue
		}
		all.Go(func() {
			for i := range *strikes {
				c := r.start(role, 1+max(i/2, i*100 / *strikes), i%2)
				late := time.AfterFunc(30*time.Second, func() { _ = c.Process.Signal(syscall.SIGABRT) })
				if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "killed") || !late.Stop() {
					r.t.Errorf("a %s has not died at its step %d: %v", role, i/2, err)
				}
			}
		})
	}
	all.Wait()
}

// byChance kills processes and servers in turn, and starts them again.
func (r *trial) byChance() {
	running := map[string][]*redistest.Child{}
	for _, role := range trialRoles {
		running[role] = []*redistest.Child{r.start(role, 0, 0), r.start(role, 0, 0)}
	}
	kinds := append(slices.Clone(trialRoles), "redis")
	if r.of.dialect != sluicesql.SQLite {
		kinds = append(kinds, "database")
	}
	for i := range *strikes * len(kinds) {
		time.Sleep(50*time.Millisecond + rand.N(100*time.Millisecond)) // it is struck at any moment
		switch kind := kinds[i%len(kinds)]; kind {
		case "redis":
			r.redis.Down()
			r.redis.Up(r.t)
		case "database":
			r.of.server.Kill()
			require.NoError(r.t, r.of.server.Up())
		default:
			which := i / len(kinds) % 2
			running[kind][which].Kill()
			running[kind][which] = r.start(kind, 0, 0)
		}
	}
	for _, c := range running["producer"] {
		c.Kill()
	}
	r.settle()
	for _, c := range append(running["relay"], running["worker"]...) {
		c.Kill()
	}
}

// settle waits until nothing is left to do.
func (r *trial) settle() {
	db, err := sql.Open(r.of.driver, r.of.server.DSN)
	require.NoError(r.t, err)
	defer db.Close()
	require.Eventually(r.t, func() bool {
		left := -1
		s, err := r.q.Stats(r.t.Context())
		err = errors.Join(err, db.QueryRowContext(r.t.Context(), "SELECT COUNT(*) FROM sluice_outbox").Scan(&left)) // a server that was killed may still end a connection
		return err == nil && left == 0 && s.Due+s.Scheduled+s.Leased == 0
	}, 2*time.Minute+time.Duration(*strikes)*5*time.Second, 100*time.Millisecond)
}

// TestTrial_CommittedIsDoneOnce: producers, relays, workers, Redis and the database are killed, at
// each step and by chance; then each order that was committed has its effect once, and no other one
// has any. By hand: go test -run Trial -v -strikes 200 .
func TestTrial_CommittedIsDoneOnce(t *testing.T) {
	redistest.NotShort(t)
	eachServer(t, func(t *testing.T, db *sql.DB, of *database, name string) {
		ctx := t.Context()
		db.SetMaxIdleConns(0) // its connections end with the server
		kind := "VARCHAR(40)"
		if of.dialect == sluicesql.MySQL {
			kind += " CHARACTER SET ascii"
		}
		_, err := db.ExecContext(ctx, "CREATE TABLE orders (id "+kind+" PRIMARY KEY)")
		require.NoError(t, err)
		_, err = db.ExecContext(ctx, "CREATE TABLE effects (id "+kind+")") // which does not keep an effect from being there twice
		require.NoError(t, err)
		s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
		q, err := trialQueue(s.Client(t))
		require.NoError(t, err)
		r := &trial{t: t, name: name, of: of, redis: s, q: q}
		r.byStep()
		r.byChance()
		count := func(what string) (n int) {
			require.NoError(t, db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+what).Scan(&n))
			return n
		}
		orders, effects := count("orders"), count("effects")
		t.Logf("%d orders, %d effects", orders, effects)
		require.Greater(t, orders, 5**strikes)
		require.Zero(t, count("orders WHERE id NOT IN (SELECT id FROM effects)"), "orders without an effect")
		require.Zero(t, count("effects WHERE id NOT IN (SELECT id FROM orders)"), "effects of what was rolled back")
		require.Equal(t, orders, effects)
		require.Zero(t, count("sluice_outbox_refused"))
	})
}
