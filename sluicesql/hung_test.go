package sluicesql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/sluicesql"
)

// fakeDB is a database whose answers a test gives, on a fake clock. It has no rows of tasks.
type fakeDB struct {
	// query says, of the queues for which it is asked, which have rows.
	query func(ctx context.Context, text string, queues []string) (has []string, err error)
	begin func(ctx context.Context) error

	mu    sync.Mutex // guards asked
	asked []string   // each query, and the queues
}

func (d *fakeDB) Connect(context.Context) (driver.Conn, error) { return fakeConn{d}, nil }
func (d *fakeDB) Driver() driver.Driver                        { return nil }

// times returns how many queries with a text there have been.
func (d *fakeDB) times(text string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, query := range d.asked {
		if strings.Contains(query, text) {
			n++
		}
	}
	return n
}

type fakeConn struct{ *fakeDB }

func (fakeConn) Close() error                        { return nil }
func (fakeConn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }
func (fakeConn) Commit() error                       { return nil }
func (fakeConn) Rollback() error                     { return nil }

func (c fakeConn) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	if c.begin == nil {
		return c, nil
	}
	return c, c.begin(ctx)
}

func (c fakeConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	names := make([]string, len(args))
	for i, arg := range args {
		names[i] = fmt.Sprint(arg.Value)
	}
	c.mu.Lock()
	c.asked = append(c.asked, query+strings.Join(names, " "))
	c.mu.Unlock()
	if c.query == nil {
		return new(places), nil
	}
	has, err := c.query(ctx, query, names)
	found := new(places)
	for i, name := range names {
		if slices.Contains(has, name) {
			*found = append(*found, int64(i))
		}
	}
	return found, err
}

// places are those of the queues that have rows, among those that were asked for.
type places []int64

func (*places) Columns() []string { return []string{"place"} }
func (*places) Close() error      { return nil }

func (p *places) Next(row []driver.Value) error {
	if len(*p) == 0 {
		return io.EOF
	}
	row[0], *p = (*p)[0], (*p)[1:]
	return nil
}

// inFakeDB calls a function with a relay that runs on a fake clock, and its database and queues. It
// returns how long it took until the relay had ended.
func inFakeDB(t *testing.T, d *fakeDB, n int, test func(m *miniredis.Miniredis)) (ended time.Duration) {
	t.Helper()
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		rdb := systest.BubbleClientOf(t, systest.BubbleDialer(m), 2*n) // none waits for a connection
		defer rdb.Close()
		db := sql.OpenDB(d)
		defer db.Close()
		queues := make([]*sluice.Queue, n)
		for i := range queues {
			var err error
			queues[i], err = sluice.NewQueue(rdb, fmt.Sprint("q", i))
			require.NoError(t, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- (&sluicesql.Relay{DB: db, Queues: queues, Logger: quiet}).Run(ctx) }()
		test(m)
		began := time.Now()
		cancel()
		require.NoError(t, <-result)
		ended = time.Since(began)
	})
	return ended
}

const haveRows, unserved, firstRows = "AS place", "written_at", "SKIP LOCKED" // parts of queries

// TestRelay_WaitsHalfAMinuteForADatabase that does not answer, and then looks again, whichever of its
// looks hangs.
func TestRelay_WaitsHalfAMinuteForADatabase(t *testing.T) {
	for hung, looks := range map[string]int{haveRows: 14, unserved: 200} { // in eight minutes: it hangs for all of them, or half
		t.Run(hung, func(t *testing.T) {
			d := &fakeDB{query: func(ctx context.Context, text string, _ []string) ([]string, error) {
				if !strings.Contains(text, hung) {
					return nil, nil
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			inFakeDB(t, d, 1, func(*miniredis.Miniredis) { time.Sleep(8 * time.Minute) })
			require.Greater(t, d.times(haveRows), looks)
			require.Greater(t, d.times(unserved), 6)
		})
	}
}

// TestRelay_BeginsNothingAfterItsEnd: what waits for a place does not begin, and what has begun has half
// a minute.
func TestRelay_BeginsNothingAfterItsEnd(t *testing.T) {
	var begun atomic.Int64
	d := &fakeDB{
		query: func(_ context.Context, _ string, queues []string) ([]string, error) { return queues, nil },
		begin: func(ctx context.Context) error {
			begun.Add(1)
			<-ctx.Done()
			return ctx.Err()
		},
	}
	ended := inFakeDB(t, d, 40, func(*miniredis.Miniredis) { time.Sleep(time.Second) })
	require.LessOrEqual(t, ended, 30*time.Second)
	require.EqualValues(t, 8, begun.Load())
}

// TestRelay_LooksEachPoll also while the work on other queues ends, again and again.
func TestRelay_LooksEachPoll(t *testing.T) {
	var mu sync.Mutex
	done, n := map[string]bool{"q40": true}, 0 // q40 has no rows
	d := &fakeDB{query: func(_ context.Context, text string, queues []string) (has []string, err error) {
		if strings.Contains(text, firstRows) { // one ends each half a second
			mu.Lock()
			n++
			took := min(n, 8) * int(time.Second) / 2
			mu.Unlock()
			time.Sleep(time.Duration(took))
		}
		mu.Lock()
		defer mu.Unlock()
		for _, name := range queues {
			if strings.Contains(text, firstRows) {
				done[name] = true
			} else if strings.Contains(text, haveRows) && !done[name] {
				has = append(has, name)
			}
		}
		return has, nil
	}}
	inFakeDB(t, d, 41, func(*miniredis.Miniredis) { time.Sleep(15 * time.Second) })
	require.GreaterOrEqual(t, d.times("q40"), 10)
}
