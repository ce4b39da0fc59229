package sluicesql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluice-go/sluice"
)

const onceTable = "sluice_done"

// OnceOption says of what Once is.
type OnceOption func(*once)

type once struct {
	dialect        Dialect
	queue, version string
}

// InDialect says which SQL the database speaks. Defaults to Postgres, which SQLite understands.
func InDialect(d Dialect) OnceOption { return func(o *once) { o.dialect = d } }

// InQueue names the queue. Without it a task of another queue that has the same ID has no effect.
// Defaults to "".
func InQueue(name string) OnceOption { return func(o *once) { o.queue = name } }

// OfVersion names a version of the task, where the same ID comes again, and is to have its effect
// again: a number in its payload, or the time of an occurrence of a Periodic (Entry.Due). It has to
// be the same each time that the version is handed out. Defaults to "".
func OfVersion(v string) OnceOption { return func(o *once) { o.version = v } }

// Once notes, by a handler's transaction, that its task has its effect. It reports whether this is
// the first time: if it is, do the work in the same transaction. Commit it in both cases, and return
// nil then: where it is not the first time, the work was committed before.
//
//	first, err := sluicesql.Once(ctx, tx, e, sluicesql.InQueue("orders"))
//	if err == nil && first {
//		err = work(ctx, tx)
//	}
//	if err != nil {
//		return err // the deferred Rollback ends the transaction
//	}
//	return tx.Commit()
//
// (MySQL and MariaDB without a binary log show a transaction before it is on their disk. A crash just
// then takes back the work that an attempt has found done, unless that attempt commits, too.)
//
// A task is known by its ID, by its queue and version if they are given, and not by its due time: that
// changes each time that a lease runs out. A handler that runs beside it, since a lease has run out,
// waits in Once for the end of the first one's transaction (on SQLite, at most as long as its
// busy_timeout says). Rows stay until Forget removes them.
func Once(ctx context.Context, tx Execer, e sluice.Entry, opts ...OnceOption) (first bool, err error) {
	var o once
	for _, opt := range opts {
		opt(&o)
	}
	err = o.dialect.check("")
	if err == nil {
		err = inTransaction(tx)
	}
	if err != nil {
		return false, fmt.Errorf("sluicesql: once: %w", err)
	}
	if max(len(o.queue), len(e.ID), len(o.version)) > longest {
		return false, fmt.Errorf("sluicesql: once: %w: a queue, ID or version of more than %d bytes", sluice.ErrInvalid, longest)
	}
	statement := "INSERT INTO " + onceTable + " (queue, task, version, done_at) VALUES (" + o.dialect.places(1, 4) + ") ON CONFLICT DO NOTHING"
	if o.dialect == MySQL {
		// Where it is there, something is changed: the commit then has it written to the disk (see onDisk).
		statement = "INSERT INTO " + onceTable + " (queue, task, version, done_at) VALUES (" + o.dialect.places(1, 4) + ") ON DUPLICATE KEY UPDATE done_at = done_at + 1"
	}
	result, err := tx.ExecContext(ctx, statement, keyOf(o.queue), keyOf(e.ID), keyOf(o.version), time.Now().UnixMicro())
	if err == nil {
		var n int64
		n, err = result.RowsAffected()
		first = n == 1
	}
	if err != nil {
		return false, fmt.Errorf("sluicesql: once: %w", err)
	}
	return first, nil
}

// longest is the most bytes of a name in the table.
const longest = 512

// keyOf returns a name as it is written: one that is no UTF-8, or has a zero byte, by its hash; so is
// one that looks like a hash.
func keyOf(name string) string {
	if utf8.ValidString(name) && !strings.ContainsRune(name, 0) && !strings.HasPrefix(name, "sha256:") {
		return name
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(name)))
}

// forgetStep is how many rows one statement of Forget removes at the most.
const forgetStep = 1000

// Forget removes what Once has noted longer than age ago, a thousand rows at a time, and returns how
// many. A task that is handed out again after that has its effect again: take longer than any task
// lives, so longer than its attempts and pauses take, and the queue's retention. A month is often
// right. Call it now and then: each hour from a Periodic, say. An age that is not positive is
// ErrInvalid.
func Forget(ctx context.Context, db *sql.DB, d Dialect, age time.Duration) (removed int64, err error) {
	if err := d.check(""); err != nil {
		return 0, err
	}
	if age <= 0 {
		return 0, fmt.Errorf("sluicesql: forget: %w: the age is not positive", sluice.ErrInvalid)
	}
	statement := fmt.Sprintf("DELETE FROM %s WHERE done_at < %s LIMIT %d", onceTable, d.places(1, 1), forgetStep)
	if d != MySQL { // which alone has a limit for what is deleted
		key := map[Dialect]string{Postgres: "ctid", SQLite: "rowid"}[d]
		skip := map[Dialect]string{Postgres: " FOR UPDATE SKIP LOCKED"}[d]
		statement = fmt.Sprintf("DELETE FROM %s WHERE %s IN (SELECT %s FROM %s WHERE done_at < %s LIMIT %d%s)", onceTable, key, key, onceTable, d.places(1, 1), forgetStep, skip)
	}
	before := time.Now().Add(-age).UnixMicro()
	for {
		result, err := db.ExecContext(ctx, statement, before)
		if err != nil {
			return removed, fmt.Errorf("sluicesql: forget: %w", err)
		}
		n, err := result.RowsAffected()
		removed += n
		if err != nil || n < forgetStep {
			return removed, err
		}
	}
}
