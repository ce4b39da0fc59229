package sluicesql_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

// hanging is a database without rows that never answers queries with some text.
type hanging struct {
	mu    sync.Mutex // guards what follows
	text  string     // empty: it answers all
	asked []string
}

func (h *hanging) Connect(context.Context) (driver.Conn, error) { return hangingConn{h}, nil }
func (h *hanging) Driver() driver.Driver                        { return nil }

// hang has queries with the text hang from now on, and returns those that were asked before.
func (h *hanging) hang(text string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := h.asked
	h.text, h.asked = text, nil
	return asked
}

type hangingConn struct{ *hanging }

func (hangingConn) Close() error                        { return nil }
func (hangingConn) Begin() (driver.Tx, error)           { return nil, errors.ErrUnsupported }
func (hangingConn) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }

func (c hangingConn) QueryContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	c.mu.Lock()
	c.asked = append(c.asked, query)
	hangs := c.text != "" && strings.Contains(query, c.text)
	c.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return noRows{}, nil
}

type noRows struct{}

func (noRows) Columns() []string         { return []string{"place", "of"} }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }

// TestRelay_WaitsHalfAMinuteForADatabase that does not answer, and then looks again, whichever of its
// queries hangs.
func TestRelay_WaitsHalfAMinuteForADatabase(t *testing.T) {
	for name, query := range map[string]string{"which queues have rows": "AS place", "rows of queues that it has not": "written_at"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := new(hanging)
				db := sql.OpenDB(h)
				defer db.Close()
				rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // not used: there are no rows
				defer rdb.Close()
				q, err := sluice.NewQueue(rdb, "q")
				require.NoError(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					ended <- (&sluicesql.Relay{DB: db, Outbox: sluicesql.Outbox{Dialect: sluicesql.Postgres}, Queues: []*sluice.Queue{q}, Logger: quiet}).Run(ctx)
				}()
				time.Sleep(5 * time.Minute)
				h.hang(query)
				time.Sleep(3 * time.Minute)
				asked := h.hang("")
				for _, text := range []string{"AS place", "written_at"} {
					n := 0
					for _, query := range asked {
						if strings.Contains(query, text) {
							n++
						}
					}
					require.Greater(t, n, 1, text)
				}
				cancel()
				require.NoError(t, <-ended)
			})
		})
	}
}
