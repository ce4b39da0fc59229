package sluicesql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-go/sluice"
)

// Relay moves tasks from an outbox into their queues. It is used as an http.Server is: fill in the
// fields, and Run. It must not be copied. Any number of processes may run one.
type Relay struct {
	// DB is the database with the outbox. Required. While there is something to move, a relay uses
	// some of its connections: one for each queue, up to 8.
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

	// Locker has one relay at work on a queue at a time, where the database cannot have several skip
	// each other's rows: SQLite, MySQL before 8.0, MariaDB before 10.6. Without it, two relays on such a
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
	// stepsAtOnce is for how many queues a relay moves rows at a time.
	stepsAtOnce = 8
	// How often a relay looks for rows of queues that it has not, and how old they are if it says so.
	unservedEvery, unservedFor = time.Minute, time.Minute
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
// Rows of a queue are moved in the order in which they were written, some at a time by one EnqueueBatch;
// of several relays each has rows of its own. A row is deleted once its tasks are in the queue. If the
// process, the database or Redis fails between the two, they may be enqueued again. A queue that does
// not take its tasks is tried again within 5 s, and holds up no other.
//
// A task that the queue refuses for good is moved into the table <outbox>_refused, with the reason:
// one that is ErrInvalid, or takes units of what is sold out. The others of its row go on. So is a
// row that Enqueue has not written.
//
// A field that is wrong is ErrInvalid at once.
func (r *Relay) Run(ctx context.Context) error {
	w, err := r.start()
	if err == nil {
		w.run(ctx)
	}
	return err
}

// able is what a database can.
type able struct {
	skips bool // rows that are locked: other relays work beside this one
	early bool // show what is not on its disk yet
}

// relaying is a relay that runs.
type relaying struct {
	*Relay
	poll   time.Duration
	log    *slog.Logger
	queues map[string]*target
	able                   // what the database can
	asked  bool            // it was asked for that lately
	warned bool            // the log was told that it does not skip
	sqlite sync.Mutex      // guards its writes, of which there is one at a time; unused elsewhere
	places chan struct{}   // of steps
	search time.Time       // when it looks for rows of queues that it has not
	told   map[string]bool // of which of these
}

// start checks the fields.
func (r *Relay) start() (*relaying, error) {
	w := &relaying{Relay: r, poll: cmp.Or(r.Poll, defaultPoll), log: r.Logger, queues: map[string]*target{}, places: make(chan struct{}, stepsAtOnce), search: time.Now().Add(unservedEvery), told: map[string]bool{}}
	if w.log == nil {
		w.log = slog.Default()
	}
	if err := r.Outbox.Dialect.check(r.Outbox.Table); err != nil {
		return nil, err
	}
	for _, q := range r.Queues {
		if q == nil || w.queues[keyOf(q.Name())] != nil {
			return nil, fmt.Errorf("sluicesql: run: %w: a queue is nil, or two have one name", sluice.ErrInvalid)
		}
		w.queues[keyOf(q.Name())] = &target{Queue: q, rows: leastRows}
	}
	if r.DB == nil || len(w.queues) == 0 || w.poll < 0 {
		return nil, fmt.Errorf("sluicesql: run: %w: DB and Queues are required, and Poll is not negative", sluice.ErrInvalid)
	}
	return w, nil
}

// ask asks the database whether it can skip rows that are locked, and when it shows a commit. An error
// is not its answer.
func (w *relaying) ask(ctx context.Context) error {
	if w.asked {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepFor)
	defer cancel()
	w.skips = w.Outbox.Dialect == Postgres
	if w.Outbox.Dialect == MySQL {
		rows, err := w.DB.QueryContext(ctx, w.Outbox.firstRows(true, 1), "")
		if err == nil {
			err = errors.Join(rows.Err(), rows.Close())
		}
		if err != nil && !strings.Contains(err.Error(), "Error 1064") { // a syntax that it does not know
			return err
		}
		w.skips = err == nil
		if w.early, err = w.showsEarly(ctx); err != nil {
			return err
		}
	}
	if w.asked = true; !w.skips && w.Locker == nil && !w.warned {
		w.warned = true
		w.log.Info("sluicesql: this database cannot have several relays: run one, or give them a Locker")
	}
	return nil
}

// showsEarly reports whether MySQL may show a transaction before it is on disk: it has no binary log, or
// one in InnoDB itself.
func (w *relaying) showsEarly(ctx context.Context) (early bool, err error) {
	rows, err := w.DB.QueryContext(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_storage_engine')")
	if err != nil {
		return false, err
	}
	defer rows.Close()
	values := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return false, err
		}
		values[strings.ToLower(name)] = value
	}
	return values["log_bin"] != "ON" || values["binlog_storage_engine"] != "", rows.Err()
}

// moved is the end of the work on a queue.
type moved struct {
	queue *target
	some  bool  // rows were moved
	err   error // of the database
}

// run moves tasks until ctx ends. Each queue that has rows is worked on by a goroutine of its own.
func (w *relaying) run(ctx context.Context) {
	ended, under := make(chan moved), 0
	defer func() {
		for ; under > 0; under-- {
			<-ended
		}
	}()
	// end notes the end of the work on a queue, and on those that have ended since: one look at the
	// database is for all.
	end := func(e moved) (some bool, err error) {
		for {
			e.queue.busy, under = false, under-1
			some, err = some || e.some, cmp.Or(err, e.err)
			select {
			case e = <-ended:
			default:
				return some, err
			}
		}
	}
	failing, unseen := false, false // unseen: a queue that was worked on may have rows since
	for ctx.Err() == nil {
		names, err := w.waiting(ctx)
		unseen = under > 0
		failing = failing && (err != nil || unseen || len(names) > 0)
		for _, name := range names {
			q := w.queues[name]
			q.busy, q.able, under = true, w.able, under+1
			go func() { ended <- w.work(ctx, q) }() // ends when the queue has no rows, or does not take them; run waits for it
		}
		for look, again := time.Now().Add(w.next()), false; err == nil && !again && ctx.Err() == nil; {
			var e moved
			if again, e = w.pause(ctx, time.Until(look), ended); e.queue != nil {
				again, err = end(e)
				again, failing = again && unseen, failing && err != nil
				next := w.next() // it is tried again
				if unseen {
					next = min(next, leastPause) // others have its rows, and may give them back
				}
				if sooner := time.Now().Add(next); sooner.Before(look) {
					look = sooner
				}
			}
		}
		if err != nil && ctx.Err() == nil {
			if !failing {
				w.log.Warn("sluicesql: the database fails, its rows wait", slog.String("error", err.Error()))
			}
			failing, w.asked = true, false // another server may be behind its name now
			for until, over := time.Now().Add(w.poll), false; !over && ctx.Err() == nil; {
				var e moved
				if over, e = w.pause(ctx, time.Until(until), ended); e.queue != nil {
					_, _ = end(e) // it fails for all
				}
			}
		}
		if time.Now().After(w.search) {
			w.search, w.asked = time.Now().Add(unservedEvery), false
			w.tellUnserved(ctx)
		}
	}
}

// tellUnserved warns of queues whose rows wait and which the relay has not: once of each, since
// another relay may have it, or its name is wrong. It looks at the first row of each.
func (w *relaying) tellUnserved(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stepFor)
	defer cancel()
	query := fmt.Sprintf("SELECT queue, written_at FROM %s WHERE queue > %s ORDER BY queue, id LIMIT 1", w.Outbox.table(), w.Outbox.Dialect.places(1, 1))
	for name := ""; ; {
		var at int64
		if w.DB.QueryRowContext(ctx, query, name).Scan(&name, &at) != nil { // there are no more; what fails is told elsewhere
			return
		}
		if w.queues[name] == nil && !w.told[name] && time.Since(time.UnixMicro(at)) > unservedFor {
			w.told[name] = true
			w.log.Warn("sluicesql: rows wait for a queue that this relay does not have: is the name right?", slog.String("queue", name))
		}
	}
}

// next returns when to look for rows again.
func (w *relaying) next() time.Duration {
	next := w.poll
	for _, q := range w.queues {
		if !q.busy && !q.until.IsZero() {
			next = min(next, max(time.Until(q.until), leastPause))
		}
	}
	return next
}

// pause waits for d or a kick, after which rows are to be looked for; for the end of the work on a
// queue; or for ctx.
func (w *relaying) pause(ctx context.Context, d time.Duration, ended <-chan moved) (look bool, e moved) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
		look = true
	case <-w.kicks():
		look = true
	case e = <-ended:
	}
	return look, e
}

// work moves rows of a queue until it has none, or does not take them. Whether its Redis takes anything
// is asked first: while it does not, it must not keep a transaction, nor the place of another queue.
func (w *relaying) work(ctx context.Context, q *target) (e moved) {
	e.queue = q
	for more := w.takes(ctx, q); more; {
		select {
		case w.places <- struct{}{}:
		case <-ctx.Done():
			return e
		}
		if ctx.Err() != nil { // select takes either
			<-w.places
			return e
		}
		n, err := w.step(ctx, q)
		<-w.places
		e.some, e.err = e.some || n > 0, err
		if more = err == nil && n > 0 && q.fails == 0; more {
			var names []string
			names, e.err = w.haveRows(ctx, []any{keyOf(q.Name())})
			more = len(names) > 0
		}
	}
	return e
}

// waiting returns the queues that have rows and take them, and are not worked on.
func (w *relaying) waiting(ctx context.Context) (names []string, err error) {
	if err := w.ask(ctx); err != nil {
		return nil, err
	}
	var asked []any
	for name, q := range w.queues {
		if !q.busy && !time.Now().Before(q.until) {
			q.until = time.Time{}
			asked = append(asked, name)
		}
	}
	for part := range slices.Chunk(asked, mostAsked) {
		found, err := w.haveRows(ctx, part)
		names = append(names, found...)
		if err != nil {
			return names, err
		}
	}
	return names, nil
}

// mostAsked is how many queues are asked for at a time: SQLite has a limit for it.
const mostAsked = 200

// haveRows returns which of the queues have rows.
func (w *relaying) haveRows(ctx context.Context, asked []any) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepFor)
	defer cancel()
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

// firstRows is the query for the first n rows of a queue, which it locks where others skip those.
func (o Outbox) firstRows(lock bool, n int) string {
	query := fmt.Sprintf("SELECT id, tasks, written_at FROM %s WHERE queue = %s ORDER BY id LIMIT %d", o.table(), o.Dialect.places(1, 1), n)
	if lock {
		query += " FOR UPDATE SKIP LOCKED"
	}
	return query
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
