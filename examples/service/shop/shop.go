// Package shop is what the service does whatever its queue is: orders and a stock in SQLite, a
// thumbnail, an export, a call of a partner.
package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver, in plain Go
)

const schema = `
CREATE TABLE IF NOT EXISTS item (stock INTEGER NOT NULL CHECK (stock >= 0));
CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT NOT NULL, at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY, result BLOB);
INSERT INTO item SELECT ? WHERE NOT EXISTS (SELECT * FROM item);`

var (
	// ErrSoldOut says that there is no phone left.
	ErrSoldOut = errors.New("sold out")
	// ErrNotUnpaid says that the order was cancelled, or never was.
	ErrNotUnpaid = errors.New("no such unpaid order")
)

// Shop is the database, which several processes share.
type Shop struct {
	DB   *sql.DB
	temp string // the folder that Close removes
}

// Open opens the database, which without a name is a temporary one. A new one has this stock.
func Open(ctx context.Context, file string, stock int) (*Shop, error) {
	s := &Shop{}
	if file == "" {
		var err error
		if s.temp, err = os.MkdirTemp("", "shop"); err != nil {
			return nil, err
		}
		file = filepath.Join(s.temp, "shop.db")
	}
	options := url.Values{
		"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(NORMAL)"},
		"_txlock": {"immediate"}, // a transaction that begins by reading could not write after another one has
	}
	var err error
	if s.DB, err = sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: file, RawQuery: options.Encode()}).String()); err != nil {
		return nil, err
	}
	err = s.Tx(ctx, func(ctx context.Context) error {
		_, err := s.db(ctx).ExecContext(ctx, schema, stock)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close closes the database.
func (s *Shop) Close() error {
	err := s.DB.Close()
	if s.temp != "" {
		err = errors.Join(err, os.RemoveAll(s.temp))
	}
	return err
}

type txKey struct{}

// Tx calls fn within a transaction, which the methods find in fn's ctx. It commits if fn returns
// nil. If fn fails or panics, or ctx ends, it rolls back.
func (s *Shop) Tx(ctx context.Context, fn func(ctx context.Context) error) error {
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	if err := fn(context.WithValue(ctx, txKey{}, tx)); err != nil {
		return err
	}
	return tx.Commit()
}

// db returns the transaction of ctx, or the database if there is none.
func (s *Shop) db(ctx context.Context) interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
} {
	if tx, ok := ctx.Value(txKey{}).(*sql.Tx); ok {
		return tx
	}
	return s.DB
}

// change runs a statement, and returns otherwise if it has changed no row.
func (s *Shop) change(ctx context.Context, otherwise error, query string, args ...any) error {
	changed, err := s.db(ctx).ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	if n, err := changed.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, otherwise)
	}
	return nil
}

// State returns an order's state: "unpaid", "paid", "canceled", or "" for none.
func (s *Shop) State(ctx context.Context, order string) (state string, err error) {
	err = s.db(ctx).QueryRowContext(ctx, "SELECT state FROM orders WHERE id = ?", order).Scan(&state)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return state, err
}

// Sell takes a phone from the stock, within a transaction.
func (s *Shop) Sell(ctx context.Context, order string) error {
	if err := s.change(ctx, ErrSoldOut, "UPDATE item SET stock = stock - 1 WHERE stock > 0"); err != nil {
		return err
	}
	return s.change(ctx, nil, "INSERT INTO orders VALUES (?, 'unpaid', ?)", order, time.Now().Unix())
}

// Pay pays an order.
func (s *Shop) Pay(ctx context.Context, order string) error {
	return s.change(ctx, ErrNotUnpaid, "UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'unpaid'", order)
}

// Cancel gives an unpaid order's phone back to the stock, within a transaction. For another order
// it does nothing.
func (s *Shop) Cancel(ctx context.Context, order string) error {
	err := s.change(ctx, ErrNotUnpaid, "UPDATE orders SET state = 'canceled' WHERE id = ? AND state = 'unpaid'", order)
	if errors.Is(err, ErrNotUnpaid) {
		return nil
	} else if err != nil {
		return err
	}
	return s.change(ctx, nil, "UPDATE item SET stock = stock + 1")
}

// Sweep forgets orders that were made, and then cancelled, before a time.
func (s *Shop) Sweep(ctx context.Context, before time.Time) error {
	return s.change(ctx, nil, "DELETE FROM orders WHERE state = 'canceled' AND at < ?", before.Unix())
}

// Record notes that a task is done, once or again.
func (s *Shop) Record(ctx context.Context, task string, result []byte) error {
	return s.change(ctx, nil, "INSERT OR REPLACE INTO done VALUES (?, ?)", task, result)
}

// Export returns all orders as lines. It is slow, and stops when ctx ends.
func (s *Shop) Export(ctx context.Context) ([]byte, error) {
	rows, err := s.db(ctx).QueryContext(ctx, "SELECT id, state FROM orders ORDER BY id")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var lines strings.Builder
	for rows.Next() {
		var id, state string
		if err := rows.Scan(&id, &state); err != nil {
			return nil, err
		}
		fmt.Fprintf(&lines, "%s,%s\n", id, state)
		select {
		case <-time.After(time.Millisecond): // stands for work
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return []byte(lines.String()), rows.Err()
}
