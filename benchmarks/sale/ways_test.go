package main

import (
	"database/sql"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/examples/seckill/shophttp"
)

// begin begins a sale of its own, without workers.
func begin(t *testing.T, method string, stock int) (shophttp.Site, shophttp.Way) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	store, err := shophttp.CreateStore(t.Context(), t.TempDir()+"/sale.db")
	require.NoError(t, err)
	s := shophttp.Site{Redis: rdb, Store: store, Name: "test", Stock: stock, PayWithin: time.Hour}
	way, err := ways[method](s)
	require.NoError(t, err)
	t.Cleanup(func() {
		way.Close()
		store.Close()
		_ = rdb.Close()
	})
	require.NoError(t, way.Begin(t.Context()))
	return s, way
}

func number(t *testing.T, s shophttp.Site, query string) (n int) {
	t.Helper()
	require.NoError(t, s.Store.Query(t.Context(), query).Scan(&n))
	return n
}

func left(t *testing.T, way shophttp.Way) int {
	t.Helper()
	n, err := way.Left(t.Context())
	require.NoError(t, err)
	return n
}

// tasks returns the tasks of a sale, as if they were due.
func tasks(t *testing.T, queue *sluice.Queue) (entries []sluice.Entry) {
	t.Helper()
	for _, state := range []sluice.State{sluice.StateScheduled, sluice.StateDue} {
		for info, err := range queue.All(t.Context(), state) {
			require.NoError(t, err)
			entries = append(entries, info.Entry)
		}
	}
	return entries
}

// TestByScript_ACrashBetweenItsStepsStrandsAUnit: the reason why Task.Take is one step.
func TestByScript_ACrashBetweenItsStepsStrandsAUnit(t *testing.T) {
	t.Parallel()
	s, way := begin(t, script, 2)
	taken, err := seckill.Run(t.Context(), s.Redis, way.(*byScript).keys(), 1).Int() // and the process dies
	require.NoError(t, err)
	require.Zero(t, taken)
	_, err = way.Buy(t.Context(), 1)
	require.ErrorIs(t, err, shophttp.ErrHasOne, "the buyer is told that there is an order")
	_, err = way.Buy(t.Context(), 2)
	require.NoError(t, err)
	_, err = way.Buy(t.Context(), 3)
	require.ErrorIs(t, err, shophttp.ErrSoldOut)
	require.Len(t, tasks(t, way.(*byScript).queue), 1, "of two units")
	require.Zero(t, left(t, way))
}

func TestByScript_PutsAnUnpaidUnitBackOnce(t *testing.T) {
	t.Parallel()
	_, way := begin(t, script, 1)
	b := way.(*byScript)
	_, err := b.Buy(t.Context(), 1)
	require.NoError(t, err)
	order := tasks(t, b.queue)[0]
	b.PayWithin = 0
	for range 3 { // a task may be handed out twice
		require.NoError(t, b.order(t.Context(), order))
		require.Equal(t, 1, left(t, b))
	}
}

// TestByTurns_EnqueuesBeforeTheCommit has the commit fail, like a process that dies just before it.
// If the process was only stopped, its commit comes too late.
func TestByTurns_EnqueuesBeforeTheCommit(t *testing.T) {
	t.Parallel()
	s, way := begin(t, lockerDo, 1)
	crash := func(statement string) {
		require.NoError(t, s.Store.Transact(t.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), statement)
			return err
		}))
	}
	crash(`CREATE TRIGGER crash BEFORE INSERT ON orders WHEN new.status = 'unpaid' BEGIN SELECT RAISE(ABORT, 'crash'); END`)
	_, err := way.Buy(t.Context(), 1)
	require.ErrorContains(t, err, "crash")
	b := way.(*byTurns)
	left := tasks(t, b.queue)
	require.Len(t, left, 1, "the task that reminds of the order is there")
	require.NoError(t, b.cancel(t.Context(), left[0]))
	require.Equal(t, 1, number(t, s, `SELECT stock FROM item`))
	require.Equal(t, 1, number(t, s, `SELECT count(*) FROM orders WHERE status = 'void'`))
}

// TestByTurns_RefusesAFormerTurn has a process write that was stopped during its turn.
func TestByTurns_RefusesAFormerTurn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		customer int
		fence    uint64
		want     error
	}{
		"a lower fence":             {2, 6, shophttp.ErrOvertaken},
		"the customer has an order": {1, 8, shophttp.ErrHasOne},
		"the next turn":             {2, 8, nil},
	} {
		s, way := begin(t, lockerDo, 3)
		b := way.(*byTurns)
		_, err := b.sell(t.Context(), 1, 7)
		require.NoError(t, err, name)
		_, err = b.sell(t.Context(), tc.customer, tc.fence)
		require.ErrorIs(t, err, tc.want, name)
		want := map[bool]int{true: 1, false: 2}[tc.want == nil]
		require.Equal(t, want, number(t, s, `SELECT stock FROM item`), name)
	}
}

// TestByTurns_CancelsOnce: of payment and cancellation the first wins, and a unit is put back once.
func TestByTurns_CancelsOnce(t *testing.T) {
	t.Parallel()
	s, way := begin(t, conditional, 3)
	b := way.(*byTurns)
	paid, err := b.Buy(t.Context(), 1)
	require.NoError(t, err)
	late, err := b.Buy(t.Context(), 2)
	require.NoError(t, err)
	orders := tasks(t, b.queue)
	require.NoError(t, b.Pay(t.Context(), paid))
	for range 2 {
		for _, o := range orders {
			require.NoError(t, b.cancel(t.Context(), o))
		}
	}
	require.ErrorIs(t, b.Pay(t.Context(), late), shophttp.ErrOvertaken)
	require.Equal(t, 2, number(t, s, `SELECT stock FROM item`))
	require.Equal(t, 1, number(t, s, `SELECT count(*) FROM orders WHERE status = 'paid'`))
}
