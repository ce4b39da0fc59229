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
	older = "1 to 11" // what A writes, from a plan of before
	newer = "1 to 12" // and what B does

	accepted = "A goes on and writes: accepted"
	refused  = "A goes on and writes: refused, a higher fence stands there"
)

const row = "floor-numbers"

const schema = `
CREATE TABLE plain (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE fenced (name TEXT PRIMARY KEY, value TEXT NOT NULL, fence INTEGER NOT NULL);
INSERT INTO plain VALUES ('` + row + `', '');
INSERT INTO fenced VALUES ('` + row + `', '', 0);`

// errand is what a holder has to know. To A it travels in an environment variable, as JSON.
type errand struct {
	Addr   string // of Redis
	DB     string // the database's file
	Lock   string // the lock's name
	Fenced bool   // which row to write
}

// write writes the row, and says whether it was taken. The row itself has to
// compare, in one statement: to read its fence first and write then would only make
// a second place to be stopped at. A holder that writes more than once needs <=.
func (e errand) write(ctx context.Context, db *sql.DB, value string, fence int64) (bool, error) {
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

// take takes the lock. It renews itself: a live holder keeps it, a stopped one not.
func (e errand) take(ctx context.Context, rdb *redis.Client) (*sluice.Lock, func(), error) {
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew(), sluice.WithFencing())
	if err != nil {
		return nil, nil, err
	}
	lock, err := locker.Lock(ctx, e.Lock)
	if err != nil {
		return nil, nil, errors.Join(err, locker.Close())
	}
	return lock, func() {
		_ = lock.Unlock(ctx) // A's is ErrNotHeld: it was lost long ago
		_ = locker.Close()
	}, nil
}

// processA is the one that will be stopped. It renews its lock and looks before it
// writes: there is no more that a holder can do.
func processA(spec string, out io.Writer) error {
	awake := make(chan os.Signal, 1)
	signal.Notify(awake, syscall.SIGCONT)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var e errand
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
	fmt.Fprintf(out, "A has the lock, with fence %d. It looks, and Valid() is true\n", lock.Fence())

	// Here it is stopped. In earnest that may be anywhere, also within the write: it
	// waits so that it is here for sure. With lock.Context() the write would mostly
	// have failed, but not surely: that is a race of two goroutines.
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
