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
	due       INTEGER, -- when it is to be cancelled, in Unix microseconds
	cancelled INTEGER  -- when it was
);
CREATE INDEX orders_customer ON orders (customer, status);
CREATE INDEX orders_status ON orders (status);

-- What left the stock and came back, in the order in which it was committed.
CREATE TABLE movement (seq INTEGER PRIMARY KEY, units INTEGER NOT NULL);

-- What was done under the lock: when it was taken and how long it had been waited
-- for, in microseconds.
CREATE TABLE section (at INTEGER NOT NULL, waited INTEGER NOT NULL, result TEXT NOT NULL);
`

// errOvertaken says that a row is not, or no longer, as a statement requires:
// somebody else was first.
var errOvertaken = errors.New("overtaken")

// shop is the database: everything about the sale that has to outlive a process.
type shop struct {
	db *sql.DB
}

// createShop makes the database, with so much in stock.
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

// openShop opens the database. Several processes do so.
func openShop(file string) (*shop, error) {
	q := url.Values{
		// Readers do not wait for the writer; of an operating system's crash,
		// unlike a process's, nothing is promised here.
		"_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(NORMAL)"},
		// A transaction that began by reading cannot become a writing one once
		// somebody else has written, and waiting does not help it. These write
		// from the start.
		"_txlock": {"immediate"},
	}
	dsn := url.URL{Scheme: "file", Opaque: url.PathEscape(file), RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(4) // SQLite writes with one at a time anyway
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

// one is the error of a statement that was to change one row: errOvertaken if it
// changed none.
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
