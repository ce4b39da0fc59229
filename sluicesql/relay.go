package sluicesql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// Relay moves tasks from an outbox into their queues. It is used as an http.Server is: fill in the
// fields, and Run. It must not be copied. Any number of processes may run one.
type Relay struct {
	// DB is the database with the outbox. Required. While there is something to move, a relay uses
	// one of its connections, and two on SQLite.
	DB *sql.DB

	// Outbox is the table. Defaults to "sluice_outbox" on Postgres.
	Outbox Outbox

	// Queues are those for which the relay moves tasks, by their names. Rows of other queues stay for
	// other relays. At least one is required. Their options count: WithDuplicates, WithMaxTasks,
	// WithQueueReplicas.
	Queues []*sluice.Queue

	// Poll is how often the relay looks for rows, if nobody calls Kick: another process has written
	// them, or died before it could. Defaults to 1s.
	Poll time.Duration

	// Locker has one relay at work at a time, where the database cannot have several skip each
	// other's rows: SQLite, MySQL before 8.0, MariaDB before 10.6. Without it, two relays on such a
	// database may enqueue a task twice. Not used elsewhere. Optional.
	Locker *sluice.Locker

	// Logger gets a warning when a queue or the database does not take what is moved, once until it
	// does again, and one for each task that is refused for good. They hold names of queues, IDs and
	// errors, and no payloads. Defaults to slog.Default().
	Logger *slog.Logger

	once   sync.Once // makes kicked
	kicked chan struct{}
}

const (
	defaultPoll = time.Second
	// A step takes rows until it has so many, or tasks, or bytes.
	stepRows, stepTasks, stepBytes = 500, 1000, 4 << 20
	// stepFor bounds the database's part of a step, and enqueueFor Redis's.
	stepFor, enqueueFor = 30 * time.Second, 5 * time.Second
	// A queue that did not take tasks is left alone for so long: twice as long each time.
	leastPause, mostPause = 100 * time.Millisecond, 5 * time.Second
)

// Kick has the relay look for rows at once: call it after a commit. It never blocks, and does
// nothing if the relay does not run in this process.
func (r *Relay) Kick() {
	select {
	case r.kicks() <- struct{}{}:
	default:
	}
}

func (r *Relay) kicks() chan struct{} {
	r.once.Do(func() { r.kicked = make(chan struct{}, 1) })
	return r.kicked
}

// Run moves tasks until ctx ends; then it finishes the step that is under way, and returns nil. It
// does not end because Redis or the database fails: rows stay where they are, and are tried again.
//
// Rows are moved in the order in which they were written, those of a step by one EnqueueBatch; of
// several relays each has rows of its own. A row is deleted once its tasks are in the queue. If the
// process, the database or Redis fails between the two, they are enqueued again.
//
// A task that the queue refuses for good is moved into the table <outbox>_refused, with the reason:
// one that is ErrInvalid, or takes units of what is sold out. The others of its row go on. So is a
// row that Enqueue has not written.
//
// A field that is wrong is ErrInvalid at once.
func (r *Relay) Run(ctx context.Context) error {
	w, err := r.start(ctx)
	if err != nil {
		return err
	}
	if w.skips || r.Locker == nil {
		w.run(ctx)
		return nil
	}
	for ctx.Err() == nil {
		err := r.Locker.Do(ctx, "sluicesql:"+r.Outbox.table(), func(ctx context.Context) error {
			w.run(ctx)
			return nil
		})
		if err != nil && ctx.Err() == nil {
			w.log.Warn("sluicesql: the relay's lock", slog.String("error", err.Error()))
			w.pause(ctx, w.poll)
		}
	}
	return nil
}

// relaying is a relay that runs.
type relaying struct {
	*Relay
	poll   time.Duration
	log    *slog.Logger
	skips  bool // rows that another relay has locked
	queues map[string]*target
}

// target is a queue, and how it was lately.
type target struct {
	*sluice.Queue
	fails int
	until time.Time // it is left alone until then
}

// start checks the fields, and asks the database what it can do.
func (r *Relay) start(ctx context.Context) (*relaying, error) {
	w := &relaying{Relay: r, poll: cmp.Or(r.Poll, defaultPoll), log: r.Logger, queues: map[string]*target{}}
	if w.log == nil {
		w.log = slog.Default()
	}
	if err := r.Outbox.Dialect.check(r.Outbox.Table); err != nil {
		return nil, err
	}
	for _, q := range r.Queues {
		if q == nil || w.queues[q.Name()] != nil {
			return nil, fmt.Errorf("sluicesql: run: %w: a queue is nil, or two have one name", sluice.ErrInvalid)
		}
		w.queues[q.Name()] = &target{Queue: q}
	}
	if r.DB == nil || len(w.queues) == 0 || w.poll < 0 {
		return nil, fmt.Errorf("sluicesql: run: %w: DB and Queues are required, and Poll is not negative", sluice.ErrInvalid)
	}
	w.skips = r.Outbox.Dialect == Postgres
	if r.Outbox.Dialect == MySQL {
		_, err := r.DB.ExecContext(ctx, "SELECT id FROM "+r.Outbox.table()+" WHERE id < 0 FOR UPDATE SKIP LOCKED")
		w.skips = err == nil
	}
	return w, nil
}

// run moves tasks until ctx ends.
func (w *relaying) run(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		moved, err := w.pass(ctx)
		if err != nil && ctx.Err() == nil {
			if !failing {
				w.log.Warn("sluicesql: the database fails, its rows wait", slog.String("error", err.Error()))
			}
			failing = true
			w.pause(ctx, w.poll)
			continue
		}
		failing = false
		if moved == 0 {
			w.pause(ctx, w.next())
		}
	}
}

// next returns for how long to wait if nothing was moved.
func (w *relaying) next() time.Duration {
	next := w.poll
	for _, q := range w.queues {
		if !q.until.IsZero() {
			next = min(next, max(time.Until(q.until), leastPause))
		}
	}
	return next
}

// pause waits for d, for a kick, or for ctx.
func (w *relaying) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-w.kicks():
	}
}

// pass makes a step for each queue that has rows. It returns how many rows have gone.
func (w *relaying) pass(ctx context.Context) (moved int, err error) {
	names, err := w.waiting(ctx)
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		n, failed := w.step(ctx, w.queues[name])
		moved, err = moved+n, errors.Join(err, failed)
	}
	return moved, err
}

// waiting returns the queues that have rows, and take them.
func (w *relaying) waiting(ctx context.Context) (names []string, err error) {
	var asked []any
	for name, q := range w.queues {
		if !time.Now().Before(q.until) {
			asked = append(asked, name)
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	rows, err := w.DB.QueryContext(ctx, w.Outbox.haveRows(len(asked)), asked...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var place int
		if err := rows.Scan(&place); err != nil {
			return nil, err
		}
		name, _ := asked[place].(string)
		names = append(names, name)
	}
	return names, rows.Err()
}

// haveRows is the query for which of n queues, by their places, have rows: one look at the index for
// each.
func (o Outbox) haveRows(n int) string {
	dual := ""
	if o.Dialect == MySQL {
		dual = " FROM DUAL"
	}
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf("SELECT %d AS place%s WHERE (SELECT id FROM %s WHERE queue = %s ORDER BY id LIMIT 1) IS NOT NULL", i, dual, o.table(), o.Dialect.places(i+1, 1))
	}
	return strings.Join(parts, " UNION ALL ")
}

// firstRows is the query for the first rows of a queue, which it locks where others skip those.
func (o Outbox) firstRows(lock bool) string {
	query := fmt.Sprintf("SELECT id, tasks FROM %s WHERE queue = %s ORDER BY id LIMIT %d", o.table(), o.Dialect.places(1, 1), stepRows)
	if lock {
		query += " FOR UPDATE SKIP LOCKED"
	}
	return query
}

// written is a row of the outbox.
type written struct {
	id    int64
	tasks []sluice.Task
	left  []sluice.Task // that were not enqueued
	odd   string        // its text, if that is not what Enqueue writes
}

// step moves rows of a queue. What is begun is finished, also if ctx ends meanwhile.
func (w *relaying) step(ctx context.Context, q *target) (moved int, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepFor)
	defer cancel()
	var tx *sql.Tx
	var from interface {
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	} = w.DB
	if w.skips { // it holds the rows until they are deleted
		if tx, err = w.DB.BeginTx(ctx, nil); err != nil {
			return 0, err
		}
		defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
		from = tx
	}
	rows, err := w.read(ctx, from, q.Name())
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	refused, failed := w.enqueue(ctx, q, rows)
	w.noteQueue(q, failed)
	if tx == nil {
		if tx, err = w.DB.BeginTx(ctx, nil); err != nil {
			return 0, err
		}
		defer tx.Rollback() //nolint:errcheck // likewise
	}
	moved, err = w.write(ctx, tx, q.Name(), rows, refused)
	if err == nil {
		err = tx.Commit()
	}
	return moved, err
}

// read returns the first rows of a queue that no other relay has.
func (w *relaying) read(ctx context.Context, from interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, name string) (all []*written, err error) {
	rows, err := from.QueryContext(ctx, w.Outbox.firstRows(w.skips), name)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for size, n := 0, 0; size < stepBytes && n < stepTasks && rows.Next(); {
		var text []byte
		r := &written{}
		if err := rows.Scan(&r.id, &text); err != nil {
			return nil, err
		}
		var of []row
		if json.Unmarshal(text, &of) != nil { // it must not hold up the others for ever
			r.odd, of = string(text), nil
		}
		for i := range of {
			r.tasks = append(r.tasks, of[i].task())
		}
		size, n, all = size+len(text), n+len(of), append(all, r)
	}
	return all, rows.Err()
}

// refusal is a task that a queue does not take, and why.
type refusal struct {
	task   sluice.Task
	reason string
}

// enqueue enqueues the tasks of rows, and notes in each row which are left. It returns those that
// are refused for good, and the error that keeps others from their queue.
func (w *relaying) enqueue(ctx context.Context, q *target, rows []*written) (refused []refusal, err error) {
	ctx, cancel := context.WithTimeout(ctx, enqueueFor)
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
					err = failed
				}
			}
			switch {
			case errors.Is(failed, sluice.ErrInvalid):
				refused = append(refused, refusal{t, failed.Error()})
			case outcome == sluice.OutcomeSoldOut:
				refused = append(refused, refusal{t, "sold out"})
			case outcome == 0:
				r.left = append(r.left, t)
			}
		}
	}
	return refused, err
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
func (w *relaying) write(ctx context.Context, tx *sql.Tx, queue string, rows []*written, refused []refusal) (moved int, err error) {
	d, table := w.Outbox.Dialect, w.Outbox.table()
	for _, no := range refused {
		w.log.Warn("sluicesql: a task is refused, and set aside", slog.String("queue", queue), slog.String("task", no.task.ID), slog.String("reason", no.reason))
		text, err := json.Marshal(rowOf(no.task))
		if err != nil {
			return 0, err
		}
		if err := w.setAside(ctx, tx, queue, string(text), no.reason); err != nil {
			return 0, err
		}
	}
	var done []string
	for _, r := range rows {
		if r.odd != "" {
			w.log.Warn("sluicesql: a row is not what Enqueue writes, and set aside", slog.String("queue", queue), slog.Int64("row", r.id))
			if err := w.setAside(ctx, tx, queue, r.odd, "not what Enqueue writes"); err != nil {
				return 0, err
			}
		}
		if len(r.left) == 0 {
			done = append(done, fmt.Sprint(r.id))
			continue
		}
		if len(r.left) == len(r.tasks) {
			continue
		}
		left := make([]row, len(r.left))
		for i, t := range r.left {
			left[i] = rowOf(t)
		}
		text, err := json.Marshal(left)
		if err != nil {
			return 0, err
		}
		statement := fmt.Sprintf("UPDATE %s SET tasks = %s WHERE queue = %s AND id = %s", table, d.places(1, 1), d.places(2, 1), d.places(3, 1))
		if _, err := tx.ExecContext(ctx, statement, string(text), queue, r.id); err != nil {
			return 0, err
		}
	}
	if len(done) == 0 {
		return 0, nil
	}
	_, err = tx.ExecContext(ctx, "DELETE FROM "+table+" WHERE queue = "+d.places(1, 1)+" AND id IN ("+strings.Join(done, ", ")+")", queue)
	return len(done), err
}

// setAside keeps the text of what a queue does not take.
func (w *relaying) setAside(ctx context.Context, tx *sql.Tx, queue, text, reason string) error {
	statement := fmt.Sprintf("INSERT INTO %s_refused (queue, task, reason, refused_at) VALUES (%s)", w.Outbox.table(), w.Outbox.Dialect.places(1, 4))
	_, err := tx.ExecContext(ctx, statement, queue, text, reason, time.Now().UnixMicro())
	return err
}

// Backlog is what waits in an outbox for one queue.
type Backlog struct {
	Rows   int64
	Oldest time.Time // when the first of them was written, by the clock of its writer
}

// Backlog counts the rows that wait, by queue: for a gauge each minute. A queue without rows is not
// there. It reads the whole index: a quarter of a second where a million rows wait.
func (o Outbox) Backlog(ctx context.Context, db *sql.DB) (map[string]Backlog, error) {
	if err := o.Dialect.check(o.Table); err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, fmt.Sprintf("SELECT b.queue, b.n, o.written_at FROM (SELECT queue, COUNT(*) AS n, MIN(id) AS first_id FROM %s GROUP BY queue) b JOIN %s o ON o.queue = b.queue AND o.id = b.first_id", o.table(), o.table()))
	if err != nil {
		return nil, fmt.Errorf("sluicesql: backlog: %w", err)
	}
	defer rows.Close()
	backlogs := map[string]Backlog{}
	for rows.Next() {
		var name string
		var n, at int64
		if err := rows.Scan(&name, &n, &at); err != nil {
			return nil, fmt.Errorf("sluicesql: backlog: %w", err)
		}
		backlogs[name] = Backlog{Rows: n, Oldest: time.UnixMicro(at)}
	}
	return backlogs, rows.Err()
}
