package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRun: all bookings are made, in order.
func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, 200))
	require.Contains(t, out.String(), "the small wallets are done")
	require.Contains(t, out.String(), "big: 200 bookings in order, balance 201\n")
}
