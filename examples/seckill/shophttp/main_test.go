package shophttp

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	RunChild(nil)
	os.Exit(m.Run())
}

// hold holds a small sale.
func hold(t *testing.T, o Options) Result {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("there is no redis-server program on this machine")
	}
	o.Processes, o.Generators, o.Connections = 2, 2, 16
	o.PayWithin, o.Say = 500*time.Millisecond, t.Logf
	require.NoError(t, o.Complete())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := Hold(ctx, o, nil)
	require.NoError(t, err)
	t.Logf("%s\n%s", o.Method, r.Table())
	return r
}

// newStore returns the database of a sale of its own.
func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := CreateStore(t.Context(), t.TempDir()+"/sale.db")
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// number runs a query for a number.
func number(t *testing.T, s *Store, query string) (n int) {
	t.Helper()
	require.NoError(t, s.read.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}
