package main

import (
	"testing"

	table "github.com/sluice-go/sluice/internal/systest/operations"
)

// TestChaos_HasEveryOperation, or the table of operations says why not.
func TestChaos_HasEveryOperation(t *testing.T) {
	t.Parallel()
	table.RequireCalls(t, "*.go", func(op table.Operation) string { return op.NoChaos })
}
