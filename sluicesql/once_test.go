package sluicesql_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicesql"
)

// TestOnce_TheEffectIsThereOnce: of handlers that run beside each other one has it, and after a
// rollback the next one.
func TestOnce_TheEffectIsThereOnce(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		e := sluice.Entry{ID: "odd\xff\x00"}
		once := func(e sluice.Entry, then error, opts ...sluicesql.OnceOption) (bool, error) {
			var first bool
			err := inTx(t.Context(), db, func(tx *sql.Tx) (err error) {
				first, err = sluicesql.Once(t.Context(), tx, e, append(opts, sluicesql.InDialect(d))...)
				return errors.Join(err, then)
			})
			return first, err
		}
		back := errors.New("back")
		first, err := once(e, back)
		require.ErrorIs(t, err, back)
		require.True(t, first)
		var done atomic.Int64
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				e := e
				e.Due = time.Now().Add(time.Duration(i) * time.Second) // the lease has run out: it differs
				first, err := once(e, nil)
				if err == nil && first {
					done.Add(1)
				}
				for err != nil && strings.Contains(err.Error(), "eadlock") { // a database may refuse one of two
					_, err = once(e, nil)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, done.Load())
		for _, opt := range []sluicesql.OnceOption{sluicesql.InQueue("q"), sluicesql.OfVersion("2"), sluicesql.InQueue("q\xff")} {
			first, err := once(e, nil, opt)
			require.NoError(t, err)
			require.True(t, first)
			first, err = once(e, nil, opt)
			require.NoError(t, err)
			require.False(t, first)
		}
		_, err = once(e, nil, sluicesql.OfVersion(strings.Repeat("v", 513)))
		require.ErrorIs(t, err, sluice.ErrInvalid)
		_, err = sluicesql.Once(t.Context(), db, e, sluicesql.InDialect(d)) // it would commit without the effect
		require.ErrorIs(t, err, sluice.ErrInvalid)
	})
}

// TestForget_RemovesWhatIsOld, in steps.
func TestForget_RemovesWhatIsOld(t *testing.T) {
	each(t, func(t *testing.T, db *sql.DB, d sluicesql.Dialect) {
		require.NoError(t, inTx(t.Context(), db, func(tx *sql.Tx) error {
			for range 2500 {
				if _, err := sluicesql.Once(context.Background(), tx, sluice.Entry{ID: sluice.NewID()}, sluicesql.InDialect(d)); err != nil {
					return err
				}
			}
			return nil
		}))
		n, err := sluicesql.Forget(t.Context(), db, d, time.Hour)
		require.NoError(t, err)
		require.Zero(t, n)
		for _, age := range []time.Duration{0, -time.Second} { // such as a setting that is not there
			_, err = sluicesql.Forget(t.Context(), db, d, age)
			require.ErrorIs(t, err, sluice.ErrInvalid)
		}
		n, err = sluicesql.Forget(t.Context(), db, d, time.Nanosecond)
		require.NoError(t, err)
		require.EqualValues(t, 2500, n)
		require.Zero(t, rows(t, db, "sluice_done"))
	})
}
