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

const schema = `
CREATE TABLE item (total INTEGER NOT NULL, stock INTEGER NOT NULL, fence INTEGER NOT NULL);
CREATE TABLE orders (
	id        TEXT PRIMARY KEY,
	customer  INTEGER,
	status    TEXT NOT NULL, -- unpaid, paid or cancelled; void: see cancelOrder
	fence     INTEGER,       -- of the turn in which it was placed
	due       INTEGER,       -- when it will be cancelled if unpaid, in Unix microseconds
	cancelled INTEGER
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_each ON orders (customer) WHERE status IN ('unpaid', 'paid');
CREATE INDEX orders_status ON orders (status);
`

// errOvertaken says that a row is not, or no longer, as a statement requires.
var errOvertaken = errors.New("overtaken")

// store is the database: what must outlive a process.
type store struct {
	write, read  *sql.DB
	transactions atomic.Int64 // that this process has begun; a statement alone is one
}

// openStore opens the database, which several processes share.
func openStore(file string) (*store, error) {
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
	return &store{write: write, read: read}, errors.Join(err1, err2)
}

func createStore(ctx context.Context, file string, stock int) (*store, error) {
	s, err := openStore(file)
	if err == nil {
		_, err = s.write.ExecContext(ctx, schema+`INSERT INTO item VALUES (?1, ?1, 0)`, stock)
	}
	return s, err
}

func (s *store) close() { _, _ = s.write.Close(), s.read.Close() }

func (s *store) transact(ctx context.Context, fn func(tx *sql.Tx) error) error {
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

// one checks a statement that must change one row: the error is errOvertaken if it changed none.
func one(result sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = errOvertaken
	}
	return err
}

// look returns the stock, and whether the customer has an order.
func (s *store) look(ctx context.Context, customer int) (stock int, has bool, err error) {
	s.transactions.Add(1)
	err = s.read.QueryRowContext(ctx, `SELECT stock, EXISTS
		(SELECT 1 FROM orders WHERE customer = ? AND status IN ('unpaid', 'paid')) FROM item`, customer).Scan(&stock, &has)
	return stock, has, err
}

// left returns the stock, and whether the sale is over: nothing is left that could be sold again.
// Where the stock is not to be relied on (NoLock), the sale is over when as much is paid as there
// was.
func (s *store) left(ctx context.Context, method string) (stock int, over bool, err error) {
	s.transactions.Add(1)
	query := `SELECT stock, stock <= 0 AND NOT EXISTS (SELECT 1 FROM orders WHERE status = 'unpaid') FROM item`
	if method == NoLock {
		query = `SELECT stock, (SELECT count(*) FROM orders WHERE status = 'paid') >= total FROM item`
	}
	err = s.read.QueryRowContext(ctx, query).Scan(&stock, &over)
	return stock, over, err
}

type order struct {
	id       string
	customer int
	fence    uint64
	due      time.Time
}

// The ways to take a unit out of the stock, of which ?1 was seen before and ?2 is the fence.
var takeUnit = map[string]string{
	// Overwrites what other buyers have written since.
	NoLock: `UPDATE item SET stock = ?1 - 1, fence = max(fence, ?2)`,
	// Needs neither turns nor a look.
	Conditional: `UPDATE item SET stock = stock - 1, fence = max(fence, ?2) WHERE stock > 0 AND ?1 = ?1`,
}

// takeSeen is how a unit is taken during a turn. During turns its conditions are met. A process
// that was stopped for longer than the lock's TTL goes on as if it had its turn: the row refuses
// it.
const takeSeen = `UPDATE item SET stock = ?1 - 1, fence = ?2 WHERE stock = ?1 AND stock > 0 AND fence <= ?2`

// place takes a unit out of the stock and writes the order. After errOvertaken nothing has changed.
func (s *store) place(ctx context.Context, method string, o order, seen int) error {
	take, ok := takeUnit[method]
	if !ok {
		take = takeSeen
	}
	return s.transact(ctx, func(tx *sql.Tx) error {
		if err := one(tx.ExecContext(ctx, take, seen, int64(o.fence))); err != nil {
			return err
		}
		// OR IGNORE: the customer may have an order, and the ID may be void.
		return one(tx.ExecContext(ctx, `INSERT OR IGNORE INTO orders (id, customer, status, fence, due)
			VALUES (?, ?, 'unpaid', ?, ?)`, o.id, o.customer, int64(o.fence), o.due.UnixMicro()))
	})
}

// pay pays an order, unless it was cancelled before: errOvertaken. Of pay and cancel, the first to
// change the row wins. An order that is paid already stays so, without an error.
func (s *store) pay(ctx context.Context, id string) error {
	s.transactions.Add(1)
	return one(s.write.ExecContext(ctx, `UPDATE orders SET status = 'paid' WHERE id = ? AND status IN ('unpaid', 'paid')`, id))
}

// cancel cancels an order if it is unpaid, and puts its unit back.
//
// An order that does not exist was never committed: its buyer's process died between Enqueue and
// commit. Its ID becomes void, so that a commit that was only late fails.
func (s *store) cancel(ctx context.Context, id string, fence uint64) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		err := one(tx.ExecContext(ctx, `UPDATE orders SET status = 'cancelled', cancelled = ? WHERE id = ? AND status = 'unpaid'`,
			time.Now().UnixMicro(), id))
		if errors.Is(err, errOvertaken) { // paid, cancelled before, or not existing
			_, err = tx.ExecContext(ctx, `INSERT OR IGNORE INTO orders (id, status) VALUES (?, 'void')`, id)
			return err
		}
		if err != nil {
			return err
		}
		return one(tx.ExecContext(ctx, `UPDATE item SET stock = stock + 1, fence = max(fence, ?)`, int64(fence)))
	})
}

// standing is what the database says of the sale.
type standing struct {
	Total, Stock, Unpaid, Paid, Cancelled int
	Twice                                 int // customers with more than one unit
	Early                                 int // orders that were cancelled before they were due
}

func (s *store) standing(ctx context.Context) (n standing, err error) {
	count := `(SELECT count(*) FROM orders WHERE status = '`
	err = s.read.QueryRowContext(ctx, `SELECT total, stock, `+count+`unpaid'), `+count+`paid'), `+count+`cancelled'),
			`+count+`paid') - (SELECT count(DISTINCT customer) FROM orders WHERE status = 'paid'),
			`+count+`cancelled' AND cancelled < due) FROM item`).
		Scan(&n.Total, &n.Stock, &n.Unpaid, &n.Paid, &n.Cancelled, &n.Twice, &n.Early)
	return n, err
}
