//go:build unix

// Fencing shows why a lock alone is not enough, and how a fence helps.
//
// Process A holds a lock with automatic renewal. It is stopped between its last call of Valid
// and its write, for longer than the TTL. Process B gets the lock and writes. Then A continues:
// its write is outdated, and A does not know. This happens twice: with a row that accepts every
// write, where A's write overwrites B's; and with a row that keeps the fence of its last
// writer, where A's write is refused. The exit status is 0 only if it was refused and the row
// is as B wrote it.
//
//	go run -C examples ./fencing
//	go run -C examples ./fencing -redis localhost:6379
//
// Without the flag, Redis is a miniredis within the process. The program needs a Unix, whose
// processes can be stopped.
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// limit bounds the program in case the server hangs. Usually it takes a second.
const limit = 20 * time.Second

func main() {
	if spec, ok := os.LookupEnv(childEnv); ok {
		os.Exit(status(processA(spec, os.Stdout)))
	}
	os.Exit(status(program(os.Args[1:], os.Stdout)))
}

func status(err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "fencing:", err)
	return 1
}

// program returns nil if the fence refused A's write.
func program(args []string, out io.Writer) error {
	f := flag.NewFlagSet("fencing", flag.ContinueOnError)
	addr := f.String("redis", "", "`address` of a Redis server, as host:port (default: an embedded one)")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	if *addr == "" {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true) // keys expire in real time, not only when a test says so
		if err := m.Start(); err != nil {
			return err
		}
		defer m.Close()
		*addr = m.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: *addr, ContextTimeoutEnabled: true})
	defer rdb.Close()
	dir, err := os.MkdirTemp("", "fencing-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "building.db")
	db, err := sql.Open("sqlite", file)
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return err
	}

	// A name of this run, so that other runs on the same server do not interfere.
	name := row + "-" + strings.ToLower(rand.Text()[:10])
	defer clean(rdb, name)
	err = stage{assignment{Addr: *addr, DB: file, Lock: name}, rdb, db, out}.show(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // the reason why A has ended
	}
	return err
}

// clean removes the keys: the fence's counter would stay for a day.
func clean(rdb *redis.Client, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = rdb.Del(ctx, "Lock:"+name, "{Lock:"+name+"}:fence").Err()
}

// stage is what process B uses.
type stage struct {
	assignment
	rdb *redis.Client
	db  *sql.DB
	out io.Writer
}

// show runs both parts.
func (s stage) show(ctx context.Context) error {
	fmt.Fprintln(s.out, "Without a fence in the row:")
	if _, err := s.overtake(ctx); err != nil {
		return err
	}
	fmt.Fprintln(s.out, "With one, UPDATE ... WHERE name = ? AND fence < ?:")
	s.Fenced = true
	refusedA, err := s.overtake(ctx)
	if err == nil && !refusedA {
		err = errors.New("the fence did not refuse A's write")
	}
	return err
}

// overtake stops A, gets the lock, writes, and lets A continue. It says whether A's write was
// refused and the row is as B wrote it.
func (s stage) overtake(ctx context.Context) (refusedA bool, err error) {
	a, err := s.start(ctx)
	if err != nil {
		return false, err
	}
	defer a.end()
	line, err := a.line()
	if err != nil {
		return false, err
	}
	s.say("%s", line)

	if err := a.signal("STOP"); err != nil {
		return false, err
	}
	s.say("A is stopped, for longer than its TTL of %v", ttl)
	lock, unlock, err := s.take(ctx, s.rdb)
	if err != nil {
		return false, err
	}
	defer unlock()
	if ok, err := s.write(ctx, s.db, newer, lock.Fence()); err != nil || !ok {
		return false, errors.Join(errors.New("process B could not write"), err)
	}
	s.say("B has the lock, with fence %d, and writes: %q", lock.Fence(), newer)

	if err := a.signal("CONT"); err != nil {
		return false, err
	}
	if line, err = a.line(); err != nil {
		return false, err
	}
	s.say("%s", line)
	same, err := s.kept(ctx, lock.Fence())
	return same && line == refused, err
}

// kept reads the row, and says whether it is as B wrote it.
func (s stage) kept(ctx context.Context, fence int64) (same bool, err error) {
	query, args := `SELECT value FROM plain WHERE name = ?`, []any{row}
	if s.Fenced {
		query, args = `SELECT value FROM fenced WHERE name = ? AND fence = ?`, append(args, fence)
	}
	var value string
	err = s.db.QueryRowContext(ctx, query, args...).Scan(&value)
	switch {
	case err != nil && !errors.Is(err, sql.ErrNoRows):
		return false, err
	case value != newer:
		s.say("WRONG: the row says %q, and what B wrote is lost", value)
		return false, nil
	}
	s.say("RIGHT: the row says %q, as B wrote it", value)
	return true, nil
}

func (s stage) say(format string, args ...any) { fmt.Fprintf(s.out, "  "+format+"\n", args...) }
