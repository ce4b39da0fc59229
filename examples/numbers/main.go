// Numbers hands out invoice numbers without a gap: each is stored with its invoice, or not used. A
// lock keeps the crowd away from the row, and a fence keeps out a holder that was stopped and has
// lost the lock.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	_ "modernc.org/sqlite" // the driver, in plain Go

	"github.com/sluice-go/sluice"
)

const schema = `CREATE TABLE counter (last INTEGER NOT NULL, fence INTEGER NOT NULL); INSERT INTO counter VALUES (0, 0);
CREATE TABLE invoice (number INTEGER PRIMARY KEY, text TEXT NOT NULL);`

// errOvertaken says that a later holder of the lock has been here.
var errOvertaken = errors.New("overtaken by a later holder")

// Invoices writes invoices.
type Invoices struct {
	DB     *sql.DB
	Locker *sluice.Locker
}

// Write stores an invoice under the next number, and returns that. After an error no number is
// used, unless it was the commit's: then look whether the invoice is there.
func (i *Invoices) Write(ctx context.Context, text string) (number int64, err error) {
	const name = "invoices"
	err = i.Locker.Do(ctx, name, func(ctx context.Context) error {
		number, err = i.write(ctx, sluice.LockFromContext(ctx, name).Fence(), text)
		return err
	}, sluice.WithFencing(), sluice.WithMaxWait(10*time.Second))
	return number, err
}

// write stores an invoice as the holder with this fence. The first statement enters the fence,
// before anything is read: from then on every earlier holder is refused. "<=" and not "<": a holder
// may write more than once.
func (i *Invoices) write(ctx context.Context, fence int64, text string) (number int64, err error) {
	tx, err := i.DB.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() //nolint:errcheck // after the commit it does nothing
	err = tx.QueryRowContext(ctx, "UPDATE counter SET fence = ?1, last = last + 1 WHERE fence <= ?1 RETURNING last", fence).Scan(&number)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, errOvertaken
	}
	if err != nil {
		return 0, err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO invoice VALUES (?, ?)", number, text); err != nil {
		return 0, err
	}
	return number, tx.Commit()
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "numbers:", err)
		os.Exit(1)
	}
}

// run writes invoices, many at once. Some of them fail.
func run(ctx context.Context, out io.Writer) error {
	rdb, done, err := connect()
	if err != nil {
		return err
	}
	defer done()
	db, err := open(ctx, schema)
	if err != nil {
		return err
	}
	defer db.Close()
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		return err
	}
	defer locker.Close()
	invoices := &Invoices{db, locker}
	var all errgroup.Group
	for i := range 100 {
		all.Go(func() error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if i%10 == 0 {
				cancel() // this customer has left
			}
			if _, err := invoices.Write(ctx, fmt.Sprint("to customer ", i)); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
	}
	err = all.Wait()
	var count, last int
	err = errors.Join(err, db.QueryRow("SELECT count(*), max(number) FROM invoice").Scan(&count, &last))
	fmt.Fprintf(out, "%d invoices, the last number is %d\n", count, last)
	return err
}

// connect starts a Redis within this process. A real program connects to its own.
func connect() (rdb *redis.Client, done func(), err error) {
	m, err := miniredis.Run()
	if err != nil {
		return nil, nil, err
	}
	m.ClockTTL(true)
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, func() { _ = rdb.Close(); m.Close() }, nil
}

// open opens a database in memory. One connection, so that there is one memory.
func open(ctx context.Context, schema string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}
