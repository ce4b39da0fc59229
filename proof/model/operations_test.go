package model_test

import (
	"testing"

	"github.com/sluice-go/sluice/internal/systest/operations"
)

// TestModel_HasEveryOperation, or the table of operations says why not.
func TestModel_HasEveryOperation(t *testing.T) {
	t.Parallel()
	operations.RequireCalls(t, "*_test.go", func(op operations.Operation) string { return op.NoModel })
}
