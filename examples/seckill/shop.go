package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"

	_ "modernc.org/sqlite" // the driver, in plain Go
)

const schema = `
CREATE TABLE item (total INTEGER NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE orders (
	id        TEXT PRIMARY KEY,
	customer  INTEGER,
	status    TEXT NOT NULL,
	due       INTEGER, -- when it will be cancelled if unpaid, in Unix microseconds
	cancelled INTEGER  -- when it was cancelled
);
CREATE INDEX orders_customer ON orders (customer, status);
CREATE INDEX orders_status ON orders (status);

-- The units that left the stock and came back, in the order of the commits.
CREATE TABLE movement (seq INTEGER PRIMARY KEY, units INTEGER NOT NULL);

-- The holds of the lock: when it was acquired, and how long the wait was, in microseconds.
CREATE TABLE section (at INTEGER NOT NULL, waited INTEGER NOT NULL, result TEXT NOT NULL);
`

// errOvertaken says that a row is not, or no longer, as a statement requires: another process
// has changed it first.
var errOvertaken = errors.New("overtaken")

// shop is the database: everything about the sale that must outlive a process.
type shop struct {
	db *sql.DB
}

// createShop creates the database with this stock.
func createShop(ctx context.Context, file string, stock int) (*shop, error) {
	s, err := openShop(file)
	if err != nil {
		return nil, err
	}
	if _, err := s.db.ExecContext(ctx, schema+`INSERT INTO item VALUES (?1, ?1)`, stock); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// openShop opens the database, which several processes may share.
func openShop(file string) (*shop, error) {
	q := url.Values{
		// With these settings readers do not wait for the writer. Commits survive a
		// crash of the process, and may not survive one of the operating system.
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(NORMAL)"},
		// A transaction that has begun with a read cannot write once another
		// transaction has written, and waiting does not help. So every transaction
		// takes the write lock at its start.
		"_txlock": {"immediate"},
	}
	dsn := url.URL{Scheme: "file", Opaque: url.PathEscape(file), RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4) // SQLite allows one writer at a time anyway
	return &shop{db: db}, nil
}

func (s *shop) close() { _ = s.db.Close() }

func (s *shop) transact(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// one checks a statement that must change one row: the error is errOvertaken if it changed
// none.
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
