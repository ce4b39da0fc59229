package sluicesql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
)

const (
	// A step takes rows until it has so many, or tasks, or bytes. It begins with few: they may be
	// large.
	leastRows, mostRows, stepTasks, stepBytes = 16, 500, 1000, 4 << 20
	// stepFor bounds the database's part of a step, and enqueueFor Redis's; probeFor that of a queue
	// which did not take tasks lately.
	stepFor, enqueueFor, probeFor = 30 * time.Second, 5 * time.Second, time.Second
	// A queue that did not take tasks is left alone for so long: twice as long each time.
	leastPause, mostPause = 100 * time.Millisecond, 5 * time.Second
)

// target is a queue, and how it was lately.
type target struct {
	*sluice.Queue
	rows     int        // how many to read at a time
	enqueued []*written // of the last step, as far as their tasks were taken, until that is in the database
	fails    int
	until    time.Time // it is left alone until then
	able               // what the database could when the work on it began

	busy bool // it is worked on. It belongs to run, as the others do while it is false
}

// written is a row of the outbox.
type written struct {
	id, at  int64 // at is when it was written. A database that has lost commits may give an ID out again
	tasks   []sluice.Task
	left    []sluice.Task // that were not enqueued
	refused []refusal
	text    string
	isOdd   bool // its text is not what Enqueue writes
}

// isUnchanged reports whether a row stays as it is: its queue has taken none of its tasks.
func (r *written) isUnchanged() bool { return !r.isOdd && len(r.left) == len(r.tasks) }

// refusal is a task that a queue does not take, and why.
type refusal struct {
	task   sluice.Task
	reason string
}

// step moves rows of a queue, unless another relay does, where they cannot do so at a time.
func (w *relaying) step(ctx context.Context, q *target) (moved int, err error) {
	if q.skips || w.Locker == nil {
		return w.move(ctx, q)
	}
	name := "sluicesql:" + w.Outbox.table() + ":" + q.Name()
	if _, err := keyspace.Key("", name); err != nil { // too long, for one
		name = fmt.Sprintf("sluicesql:%x", sha256.Sum256([]byte(name)))
	}
	asking, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	lock, err := w.Locker.TryLock(asking, name)
	if errors.Is(err, sluice.ErrLocked) {
		return 0, nil
	}
	if err != nil {
		w.noteQueue(q, err)
		return 0, nil
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeFor)
		defer cancel()
		_ = lock.Unlock(ctx) // else it ends with its TTL
	}()
	return w.move(ctx, q)
}

// move moves rows of a queue. What is begun is finished, also if ctx ends meanwhile. What was enqueued
// by the step before, and may still be in the database, is deleted first: it must not be enqueued again.
func (w *relaying) move(ctx context.Context, q *target) (moved int, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepFor)
	defer cancel()
	if moved, err = w.finishLate(ctx, q); err != nil {
		return 0, err
	}
	tx, rows, err := w.take(ctx, q)
	if tx != nil {
		defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	}
	if err != nil || len(rows) == 0 {
		return moved, err
	}
	w.noteQueue(q, w.enqueue(ctx, q, rows))
	q.enqueued = slices.DeleteFunc(rows, (*written).isUnchanged)
	for _, r := range q.enqueued {
		if len(r.left) == 0 { // write needs no tasks; if the database fails now, they may stay for long
			r.tasks = nil
		}
	}
	n := 0
	if tx != nil {
		n, err = w.finish(ctx, q, tx, q.enqueued)
	} else {
		n, err = w.finishLate(ctx, q)
	}
	return moved + n, err
}

// take returns rows to be moved, and the transaction that holds them until they are deleted. There is
// none where relays cannot skip what others hold.
func (w *relaying) take(ctx context.Context, q *target) (tx *sql.Tx, rows []*written, err error) {
	if !q.skips && !q.early {
		rows, err = w.read(ctx, w.DB, q)
		return nil, rows, err
	}
	if tx, err = w.begin(ctx); err != nil {
		return nil, nil, err
	}
	if rows, err = w.read(ctx, tx, q); err == nil && len(rows) > 0 && q.early {
		rows, err = w.onDisk(ctx, tx, q, rows)
	}
	return tx, rows, err
}

// onDisk has MySQL write to its disk whatever it has shown, and returns those of the rows that no other
// relay has taken meanwhile. InnoDB shows a transaction to others before it is on disk, if no binary log
// has it: a crash may take it back. A commit that has changed anything, if only there and back, has all
// written that was committed before it. (MariaDB: trx_commit_in_memory, and behind it the flush.)
func (w *relaying) onDisk(ctx context.Context, tx *sql.Tx, q *target, rows []*written) (there []*written, err error) {
	defer func() {
		if err == nil && len(there) == 0 { // another relay has them
			q.until = time.Now().Add(leastPause)
		}
	}()
	for _, change := range []string{"+ 1", "- 1"} {
		statement := fmt.Sprintf("UPDATE %s SET written_at = written_at %s WHERE queue = ? AND id = ?", w.Outbox.table(), change)
		result, err := tx.ExecContext(ctx, statement, keyOf(q.Name()), rows[0].id)
		if err != nil {
			return nil, err
		}
		if n, err := result.RowsAffected(); n == 0 { // it is gone: nothing is written
			return nil, err
		}
	}
	if _, err = tx.ExecContext(ctx, "COMMIT AND CHAIN"); err != nil {
		return nil, err
	}
	skip := ""
	if q.skips {
		skip = " SKIP LOCKED"
	}
	return w.stillThere(ctx, tx, q, rows, skip)
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// begin begins a transaction. On the level of READ COMMITTED none locks more than the rows that it has
// read: transactions of others wait for no relay. PostgreSQL gives the rows back soon if this machine dies,
// and not when TCP notices that it has, two hours later.
func (w *relaying) begin(ctx context.Context) (*sql.Tx, error) {
	if w.Outbox.Dialect == SQLite { // which knows no levels
		return w.DB.BeginTx(ctx, nil)
	}
	tx, err := w.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil || w.Outbox.Dialect != Postgres {
		return tx, err
	}
	if _, err := tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = '1min'"); err != nil {
		_ = tx.Rollback()
		return nil, err
	}
	return tx, nil
}

// finishLate is finish by another transaction than that which has read the rows. Some may have gone since:
// by a commit whose reply was lost, or by another relay.
func (w *relaying) finishLate(ctx context.Context, q *target) (moved int, err error) {
	if len(q.enqueued) == 0 {
		return 0, nil
	}
	if w.Outbox.Dialect == SQLite { // there a transaction that has read may not write, if another one has
		rows, err := w.stillThere(ctx, w.DB, q, q.enqueued, "")
		if err != nil {
			return 0, err
		}
		return w.finish(ctx, q, nil, rows)
	}
	tx, err := w.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	rows, err := w.stillThere(ctx, tx, q, q.enqueued, "")
	if err != nil {
		return 0, err
	}
	return w.finish(ctx, q, tx, rows)
}

// finish writes what became of rows that were enqueued, by the transaction that has locked them, or one of
// its own. It returns how many it has deleted.
func (w *relaying) finish(ctx context.Context, q *target, tx *sql.Tx, rows []*written) (moved int, err error) {
	if w.Outbox.Dialect == SQLite {
		w.sqlite.Lock()
		defer w.sqlite.Unlock()
	}
	if tx == nil {
		if tx, err = w.begin(ctx); err != nil {
			return 0, err
		}
		defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	}
	if moved, err = w.write(ctx, tx, keyOf(q.Name()), rows); err == nil {
		err = tx.Commit()
	}
	if err != nil {
		return 0, err
	}
	for _, r := range q.enqueued {
		for _, no := range r.refused {
			w.log.Warn("sluicesql: a task is refused, and set aside", slog.String("queue", q.Name()), slog.String("task", no.task.ID), slog.String("reason", no.reason))
		}
		if r.isOdd {
			w.log.Warn("sluicesql: a row is not what Enqueue writes, and set aside", slog.String("queue", q.Name()), slog.Int64("row", r.id))
		}
	}
	q.enqueued = nil
	return moved, nil
}

// read returns the first rows of a queue that no other relay has.
func (w *relaying) read(ctx context.Context, from querier, q *target) (all []*written, err error) {
	rows, err := from.QueryContext(ctx, w.Outbox.firstRows(q.skips, q.rows), keyOf(q.Name()))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	size, n := 0, 0
	for size < stepBytes && n < stepTasks && rows.Next() {
		var text []byte
		r := &written{}
		if err := rows.Scan(&r.id, &text, &r.at); err != nil {
			return nil, err
		}
		var of []row
		if json.Unmarshal(text, &of) != nil || len(of) == 0 { // it must not hold up the others for ever
			r.isOdd, r.text, of = true, string(text), nil
		}
		for i := range of {
			r.tasks = append(r.tasks, of[i].task())
		}
		size, n, all = size+len(text), n+len(of), append(all, r)
	}
	switch {
	case size >= stepBytes || n >= stepTasks:
		q.rows = len(all) // what is read and not moved is read in vain
	case len(all) == q.rows:
		q.rows = min(4*q.rows, mostRows)
	}
	return all, rows.Err()
}

// enqueue enqueues the tasks of rows, and notes in each row which are left, and which are refused for
// good. It returns the error that keeps tasks from their queue.
func (w *relaying) enqueue(ctx context.Context, q *target, rows []*written) (err error) {
	patience := enqueueFor
	if q.fails > 0 {
		patience = probeFor
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var tasks []sluice.Task
	for _, r := range rows {
		tasks = append(tasks, r.tasks...)
	}
	outcomes, err := q.EnqueueBatch(ctx, tasks)
	if errors.Is(err, sluice.ErrUnderReplicated) {
		outcomes = nil // they are there, and are enqueued again until the replicas have them
	}
	isInvalid := errors.Is(err, sluice.ErrInvalid)
	if isInvalid {
		err = nil
	}
	at := 0
	for _, r := range rows {
		for _, t := range r.tasks {
			var outcome sluice.Outcome
			if at < len(outcomes) {
				outcome = outcomes[at]
			}
			at++
			var failed error
			if outcome == 0 && isInvalid && err == nil { // this one is wrong, or another one of the batch
				if outcome, failed = q.Enqueue(ctx, t); failed != nil && !errors.Is(failed, sluice.ErrInvalid) {
					outcome, err = 0, failed // if it is there, too few replicas have it
				}
			}
			switch {
			case errors.Is(failed, sluice.ErrInvalid):
				r.refused = append(r.refused, refusal{t, failed.Error()})
			case outcome == sluice.OutcomeSoldOut:
				r.refused = append(r.refused, refusal{t, "sold out"})
			case outcome == 0:
				r.left = append(r.left, t)
			}
		}
	}
	return err
}

// takes reports whether a queue's server takes writes, by a change that changes nothing. Other errors
// than those of a server that does not are left to the step, which has them again.
func (w *relaying) takes(ctx context.Context, q *target) bool {
	ctx, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	_, err := q.Cancel(ctx, sluice.NewID())
	for _, no := range []error{sluice.ErrUnavailable, sluice.ErrUnknown, sluice.ErrUnderReplicated, context.DeadlineExceeded} {
		if errors.Is(err, no) {
			w.noteQueue(q, err)
			return false
		}
	}
	return true
}

// noteQueue notes whether a queue has taken what it was given.
func (w *relaying) noteQueue(q *target, err error) {
	if err == nil {
		if q.fails > 0 {
			w.log.Info("sluicesql: the queue takes tasks again", slog.String("queue", q.Name()))
		}
		q.fails, q.until = 0, time.Time{}
		return
	}
	if q.fails == 0 {
		w.log.Warn("sluicesql: the queue takes no tasks, its rows wait", slog.String("queue", q.Name()), slog.String("error", err.Error()))
	}
	q.until = time.Now().Add(min(leastPause<<min(q.fails, 10), mostPause))
	q.fails++
}

// write deletes the rows whose tasks are in their queue, and keeps what is left of others. It sets
// aside what was refused. It returns how many rows have gone.
func (w *relaying) write(ctx context.Context, tx *sql.Tx, queue string, rows []*written) (moved int, err error) {
	var done []*written
	for _, r := range rows {
		for _, no := range r.refused {
			if err := w.setAside(ctx, tx, queue, no.task, no.reason); err != nil {
				return 0, err
			}
		}
		switch {
		case r.isOdd:
			if err := w.insertRefused(ctx, tx, queue, r.text, "not what Enqueue writes"); err != nil {
				return 0, err
			}
			done = append(done, r)
		case len(r.left) == 0:
			done = append(done, r)
		case len(r.left) < len(r.tasks):
			if err := w.keepLeft(ctx, tx, queue, r); err != nil {
				return 0, err
			}
		}
	}
	if len(done) == 0 {
		return 0, nil
	}
	_, err = tx.ExecContext(ctx, w.Outbox.deleteRows(done), queue)
	return len(done), err
}

// stillThere returns those of some rows which are in the database, and locks them. It waits for others that
// have them locked, or skips those.
func (w *relaying) stillThere(ctx context.Context, from querier, q *target, some []*written, skip string) (there []*written, err error) {
	rows, err := from.QueryContext(ctx, w.Outbox.lockRows(some)+skip, keyOf(q.Name()))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	at := map[int64]int64{}
	for rows.Next() {
		var id, of int64
		if err := rows.Scan(&id, &of); err != nil {
			return nil, err
		}
		at[id] = of
	}
	for _, r := range some {
		if of, ok := at[r.id]; ok && of == r.at {
			there = append(there, r)
		}
	}
	return there, rows.Err()
}

// lockRows is the query that locks rows of a queue, where locks are, and deleteRows the statement that
// deletes them.
func (o Outbox) lockRows(rows []*written) string {
	query := "SELECT o.id, o.written_at" + o.ofRows(rows)
	if o.Dialect != SQLite {
		query += " FOR UPDATE"
	}
	return query
}

func (o Outbox) deleteRows(rows []*written) string {
	if o.Dialect == MySQL {
		return "DELETE o" + o.ofRows(rows)
	}
	return "DELETE" + o.ofRows(rows)
}

// ofRows is the part of a statement about rows of a queue, which are in the order of their IDs. It must
// not look at others: MySQL would wait for those that are locked. It looks each ID up; PostgreSQL takes
// the index for a range.
func (o Outbox) ofRows(rows []*written) string {
	ids, queue := make([]string, len(rows)), o.Dialect.places(1, 1)
	for i, r := range rows {
		ids[i] = strconv.FormatInt(r.id, 10)
	}
	if o.Dialect == MySQL {
		return fmt.Sprintf(" FROM (SELECT %s AS id) AS d STRAIGHT_JOIN %s AS o FORCE INDEX (PRIMARY) ON o.queue = %s AND o.id = d.id",
			strings.Join(ids, " AS id UNION ALL SELECT "), o.table(), queue)
	}
	return fmt.Sprintf(" FROM %s AS o WHERE o.queue = %s AND o.id BETWEEN %s AND %s AND o.id IN (%s)", o.table(), queue, ids[0], ids[len(ids)-1], strings.Join(ids, ", "))
}

// keepLeft has a row keep the tasks that its queue did not take. It is another row from then on: if the
// reply to the commit is lost, what was refused is not set aside again.
func (w *relaying) keepLeft(ctx context.Context, tx *sql.Tx, queue string, r *written) error {
	left := make([]row, len(r.left))
	for i, t := range r.left {
		left[i] = rowOf(t)
	}
	text, err := json.Marshal(left)
	if err != nil {
		return err
	}
	d := w.Outbox.Dialect
	statement := fmt.Sprintf("UPDATE %s SET tasks = %s, written_at = written_at + 1 WHERE queue = %s AND id = %s", w.Outbox.table(), d.places(1, 1), d.places(2, 1), d.places(3, 1))
	_, err = tx.ExecContext(ctx, statement, string(ascii(text)), queue, r.id)
	return err
}

// setAside keeps a task that a queue does not take.
func (w *relaying) setAside(ctx context.Context, tx *sql.Tx, queue string, t sluice.Task, reason string) error {
	text, err := json.Marshal(rowOf(t))
	if err != nil {
		return err
	}
	return w.insertRefused(ctx, tx, queue, string(ascii(text)), reason)
}

func (w *relaying) insertRefused(ctx context.Context, tx *sql.Tx, queue, text, reason string) error {
	statement := fmt.Sprintf("INSERT INTO %s_refused (queue, task, reason, refused_at) VALUES (%s)", w.Outbox.table(), w.Outbox.Dialect.places(1, 4))
	_, err := tx.ExecContext(ctx, statement, queue, text, reason, time.Now().UnixMicro())
	return err
}
