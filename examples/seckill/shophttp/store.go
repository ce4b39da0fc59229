package shophttp

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver, in plain Go
)

// The row decides what an order is, and a customer has one that counts at most.
const schema = `
CREATE TABLE orders (
	id        TEXT PRIMARY KEY,
	customer  INTEGER,
	status    TEXT NOT NULL,
	due       INTEGER, -- when it will be cancelled if unpaid, in Unix microseconds
	cancelled INTEGER
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_each ON orders (customer) WHERE status IN ('unpaid', 'paid');
CREATE INDEX orders_status ON orders (status);
`

// The states of an order.
const (
	Unpaid    = "unpaid"
	Paid      = "paid"
	Cancelled = "cancelled"
)

// Store is the database: what must outlive a process.
type Store struct {
	write, read  *sql.DB
	transactions atomic.Int64 // that this process has begun; a statement alone is one
}

// openStore opens the database, which several processes share.
func openStore(file string) (*Store, error) {
	open := func(connections int) (*sql.DB, error) {
		q := url.Values{
			// Readers do not wait for the writer. Commits survive a crash of the process, and
			// may not survive one of the operating system.
			"_pragma": {"busy_timeout(8000)", "journal_mode(WAL)", "synchronous(NORMAL)"},
			"_txlock": {"immediate"},
		}
		dsn := url.URL{Scheme: "file", Opaque: url.PathEscape(file), RawQuery: q.Encode()}
		db, err := sql.Open("sqlite", dsn.String())
		if err == nil {
			db.SetMaxOpenConns(connections)
			db.SetMaxIdleConns(connections)
		}
		return db, err
	}
	// SQLite has one writer at a time, and those of other connections look again after pauses. In
	// a process they queue for the one connection.
	write, err1 := open(1)
	read, err2 := open(2)
	return &Store{write: write, read: read}, errors.Join(err1, err2)
}

// CreateStore makes the database of a sale.
func CreateStore(ctx context.Context, file string) (*Store, error) {
	s, err := openStore(file)
	if err == nil {
		_, err = s.write.ExecContext(ctx, schema)
	}
	return s, err
}

// Close closes the database.
func (s *Store) Close() { _, _ = s.write.Close(), s.read.Close() }

// Transact calls fn in a transaction that may write.
func (s *Store) Transact(ctx context.Context, fn func(tx *sql.Tx) error) error {
	s.transactions.Add(1)
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// Query runs a query for one row.
func (s *Store) Query(ctx context.Context, query string, args ...any) *sql.Row {
	s.transactions.Add(1)
	return s.read.QueryRowContext(ctx, query, args...)
}

// One checks a statement that must change one row: the error is ErrOvertaken if it changed none.
func One(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = ErrOvertaken
	}
	return err
}

// Order returns an order's status, and until when it may be paid. It writes the row at its first
// call, and has it cancelled when that time is over. Two calls at once do no harm: each statement
// changes a row only as long as it is as the call has seen it, and the row that is read after that
// counts. If the customer has an order that counts, from before Redis lost some, that row decides for
// this one, too.
func (s *Store) Order(ctx context.Context, number string, customer int, payWithin time.Duration) (status string, due time.Time, err error) {
	look := func() {
		var at int64
		err = s.Query(ctx, `SELECT id, status, due FROM orders WHERE id = ?1 OR customer = ?2 AND status IN ('unpaid', 'paid')
			ORDER BY status = 'cancelled' LIMIT 1`, number, customer).Scan(&number, &status, &at)
		due = time.UnixMicro(at)
	}
	change := func(statement string, args ...any) {
		s.transactions.Add(1)
		if _, err = s.write.ExecContext(ctx, statement, args...); err == nil {
			look()
		}
	}
	now := time.Now()
	if look(); errors.Is(err, sql.ErrNoRows) {
		change(`INSERT OR IGNORE INTO orders (id, customer, status, due) VALUES (?, ?, 'unpaid', ?)`, number, customer, now.Add(payWithin).UnixMicro())
	}
	if err == nil && status == Unpaid && !now.Before(due) {
		change(`UPDATE orders SET status = 'cancelled', cancelled = ? WHERE id = ? AND status = 'unpaid'`, now.UnixMicro(), number)
	}
	return status, due, err
}

// Pay pays an order, and returns its customer. Of payment and cancellation, the first to change the
// row wins. An order that is paid already stays so, without an error. ErrNotYet: it has no row.
// ErrOvertaken: it is cancelled.
func (s *Store) Pay(ctx context.Context, number string) (customer int, err error) {
	s.transactions.Add(1)
	err = s.write.QueryRowContext(ctx, `UPDATE orders SET status = 'paid' WHERE id = ? AND status IN ('unpaid', 'paid') RETURNING customer`,
		number).Scan(&customer)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrOvertaken
		var exists bool
		if e := s.Query(ctx, `SELECT EXISTS (SELECT 1 FROM orders WHERE id = ?)`, number).Scan(&exists); e != nil {
			return 0, e
		} else if !exists {
			err = ErrNotYet
		}
	}
	return customer, err
}

// paid returns how many orders are.
func (s *Store) paid(ctx context.Context) (n int, err error) {
	return n, s.Query(ctx, `SELECT count(*) FROM orders WHERE status = 'paid'`).Scan(&n)
}

// standing is what is said of the sale by the database, and of the stock by the way to sell.
type standing struct {
	Total, Stock, Unpaid, Paid, Cancelled int
	Twice                                 int // customers with more than one unit
	Early                                 int // orders that were cancelled before they were due
}

func (s *Store) standing(ctx context.Context) (n standing, err error) {
	count := `(SELECT count(*) FROM orders WHERE status = '`
	err = s.read.QueryRowContext(ctx, `SELECT `+count+`unpaid'), `+count+`paid'), `+count+`cancelled'),
			`+count+`paid') - (SELECT count(DISTINCT customer) FROM orders WHERE status = 'paid'),
			`+count+`cancelled' AND cancelled < due)`).
		Scan(&n.Unpaid, &n.Paid, &n.Cancelled, &n.Twice, &n.Early)
	return n, err
}
