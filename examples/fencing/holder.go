//go:build unix

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver, in plain Go

	"github.com/sluice-go/sluice"
)

const (
	ttl   = 300 * time.Millisecond
	older = "1 to 11" // A's value, from an outdated plan
	newer = "1 to 12" // B's value

	accepted = "A goes on and writes: accepted"
	refused  = "A goes on and writes: refused, a higher fence stands there"
)

const row = "floor-numbers"

const schema = `
CREATE TABLE plain (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE fenced (name TEXT PRIMARY KEY, value TEXT NOT NULL, fence INTEGER NOT NULL);
INSERT INTO plain VALUES ('` + row + `', '');
INSERT INTO fenced VALUES ('` + row + `', '', 0);`

// assignment is what a holder needs to know. A gets it in an environment variable, as JSON.
type assignment struct {
	Addr   string // of Redis
	DB     string // the database's file
	Lock   string // the lock's name
	Fenced bool   // which row to write
}

// write writes the row, and says whether it was accepted. The comparison of fences must be part
// of the statement that writes: a process can be stopped between reading the fence and writing.
// A holder that writes more than once needs <= instead of <.
func (e assignment) write(ctx context.Context, db *sql.DB, value string, fence int64) (bool, error) {
	query, args := `UPDATE plain SET value = ? WHERE name = ?`, []any{value, row}
	if e.Fenced {
		query = `UPDATE fenced SET value = ?1, fence = ?3 WHERE name = ?2 AND fence < ?3`
		args = append(args, fence)
	}
	result, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// take gets the lock, with automatic renewal: a live holder keeps it, a stopped one does not.
func (e assignment) take(ctx context.Context, rdb *redis.Client) (*sluice.Lock, func(), error) {
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew(), sluice.WithFencing())
	if err != nil {
		return nil, nil, err
	}
	lock, err := locker.Lock(ctx, e.Lock)
	if err != nil {
		return nil, nil, errors.Join(err, locker.Close())
	}
	return lock, func() {
		_ = lock.Unlock(ctx) // for A this is ErrNotHeld: its lock was lost
		_ = locker.Close()
	}, nil
}

// processA is the process that will be stopped. It renews its lock and checks Valid before it
// writes: a holder can do no more.
func processA(spec string, out io.Writer) error {
	awake := make(chan os.Signal, 1)
	signal.Notify(awake, syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var e assignment
	if err := json.Unmarshal([]byte(spec), &e); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", e.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	rdb := redis.NewClient(&redis.Options{Addr: e.Addr, ContextTimeoutEnabled: true})
	defer rdb.Close()
	lock, unlock, err := e.take(ctx, rdb)
	if err != nil {
		return err
	}
	defer unlock()
	if !lock.Valid() {
		return sluice.ErrLost
	}
	fmt.Fprintf(out, "A has the lock, with fence %d. It checks the lock: Valid() is true\n", lock.Fence())

	// Process A is stopped here. In production that may happen anywhere, also within the
	// write; here it waits, so that it is stopped at this point. With lock.Context() the write
	// would usually fail, and not always: that is a race of two goroutines.
	select {
	case <-awake:
	case <-ctx.Done():
		return ctx.Err()
	}
	ok, err := e.write(ctx, db, older, lock.Fence())
	switch {
	case err != nil:
		return err
	case ok:
		fmt.Fprintln(out, accepted)
	default:
		fmt.Fprintln(out, refused)
	}
	return nil
}
