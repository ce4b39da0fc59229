package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestStock_IsShownSetAndDeleted, in text and in JSON.
func TestStock_IsShownSetAndDeleted(t *testing.T) {
	s := newStage(t)
	ctx, q := t.Context(), s.queue("orders")
	require.Equal(t, "orders: no stocks\n", s.ok("stock", "orders"))
	s.ok("stock", "set", "orders", "phone", "10", "--dry-run")
	require.Equal(t, "orders: no stocks\n", s.ok("stock", "orders"))
	s.ok("stock", "set", "orders", "phone", "10")
	outcome, err := q.Enqueue(ctx, sluice.Task{ID: "a", Take: sluice.Take{Item: "phone", Units: 3}})
	require.NoError(t, err)
	require.Equal(t, sluice.OutcomeAdded, outcome)
	require.Equal(t, "ITEM   TOTAL  LEFT  HELD  SOLD\nphone     10     7     3     0\n", s.ok("stock", "orders"))
	require.Regexp(t, `(?m)^holds +3 of phone$`, s.ok("get", "orders", "a"))
	require.Contains(t, s.ok("--json", "get", "orders", "a"), `"item": "phone",`)
	s.ok("--quoted", "stock", "set", "orders", `"\x1b[2J"`, "1")
	require.Contains(t, s.ok("stock", "orders"), `"\x1b[2J"`)
	s.ok("--quoted", "stock", "delete", "orders", `"\x1b[2J"`)
	var shown stockJSON
	s.json(exitOK, &shown, "stock", "orders")
	require.Equal(t, stockJSON{Queue: "orders", Items: []itemJSON{{Item: "phone", Total: 10, Left: 7, Held: 3}}}, shown)
	require.Contains(t, s.ok("stock", "delete", "orders", "phone"), "phone      0    -3     3     0")
	_, err = q.Cancel(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "orders: no stocks\n", s.ok("stock", "delete", "orders", "phone"))
	for _, wrong := range [][]string{{"stock"}, {"stock", "set", "orders", "phone"}, {"stock", "set", "orders", "phone", "-1"}, {"stock", "set", "orders", "phone", "many"}} {
		require.Equal(t, exitUsage, s.run(wrong...).code, wrong)
	}
}
