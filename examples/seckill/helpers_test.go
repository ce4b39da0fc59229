package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// newSale returns what a process of a new sale has, with a server and a shop of its own.
func newSale(t *testing.T, c config) *byLock {
	t.Helper()
	server, err := openServer(t.Context(), "")
	require.NoError(t, err)
	t.Cleanup(server.close)
	return join(t, assignment{config: c, Addr: server.addr, Run: "test"}, newShop(t, c.Stock))
}

// join returns what another process of the same sale has.
func join(t *testing.T, e assignment, db *shop) *byLock {
	t.Helper()
	rdb := connect(e.Addr)
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(lockTTL))
	require.NoError(t, err)
	queue, err := sluice.NewQueue(rdb, e.Run)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = locker.Close()
		_ = rdb.Close()
	})
	return &byLock{assignment: e, shop: db, locker: locker, queue: queue}
}

func newShop(t *testing.T, stock int) *shop {
	t.Helper()
	db, err := createShop(t.Context(), filepath.Join(t.TempDir(), "shop.db"), stock)
	require.NoError(t, err)
	t.Cleanup(db.close)
	return db
}

// quiet returns a screen that shows nothing.
func quiet(t *testing.T) *screen {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return newScreen(f)
}

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// count runs a query for one number.
func count(t *testing.T, db *shop, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, db.db.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}
