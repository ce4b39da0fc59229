package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, "90 invoices, the last number is 90\n", out.String())
}

// TestInvoices_AHolderThatWasStoppedIsRefused: its write comes after that of a later holder, and
// leaves no gap.
func TestInvoices_AHolderThatWasStoppedIsRefused(t *testing.T) {
	t.Parallel()
	ctx, r := t.Context(), sluicetest.New(t)
	db, err := open(ctx, schema)
	require.NoError(t, err)
	defer db.Close()
	locker, err := sluice.NewLocker(r.Client())
	require.NoError(t, err)
	defer locker.Close()
	invoices := &Invoices{db, locker}
	stopped, err := locker.Lock(ctx, "invoices", sluice.WithFencing())
	require.NoError(t, err)
	_, err = locker.ForceUnlock(ctx, "invoices")
	require.NoError(t, err)

	number, err := invoices.Write(ctx, "first")
	require.NoError(t, err)
	require.EqualValues(t, 1, number)
	_, err = invoices.write(ctx, stopped.Fence(), "late")
	require.ErrorIs(t, err, errOvertaken)
	number, err = invoices.Write(ctx, "second")
	require.NoError(t, err)
	require.EqualValues(t, 2, number)
}
