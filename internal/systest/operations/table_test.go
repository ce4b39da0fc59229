package operations_test

import (
	"go/types"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest/operations"
)

// sendNothing are the exported methods and functions that are no operations: they ask no server.
var sendNothing = []string{
	"Lock.Context", "Lock.Deadline", "Lock.Fence", "Lock.Format", "Lock.Name", "Lock.Token", "Lock.Valid",
	"LockSet.Context", "LockSet.Format", "LockSet.Get", "LockSet.Valid", "Locker.Format", "Mux.Serve", "Typed.Batch", "Typed.Handle", "Typed.Handler", "Typed.Task",
	"Queues.Of", "Queues.Workers", "Queue.Format", "Queue.MaxAttempts", "Queue.Name", "Task.Check", "TaskInfo.Check", "Worker.SetConcurrency", "Worker.Stats", "Pool.SetConcurrency", "BatchContext", "LeaseValid", "LockFromContext", "RecordResult",
}

// TestTable_HasEveryOperation: each exported function and method that takes a context, and each
// other method of a type that has operations, is a row of the table or is known to send nothing.
func TestTable_HasEveryOperation(t *testing.T) {
	t.Parallel()
	known, typesWithRows := map[string]bool{}, map[string]bool{}
	for _, name := range sendNothing {
		known[name] = true
	}
	for _, op := range operations.Table {
		require.False(t, known[op.Name], "two rows of %s, or a row of what sends nothing", op.Name)
		known[op.Name], typesWithRows[op.Type()] = true, true
	}
	pkg, err := operations.Importer(t, ".").Import("github.com/sluice-go/sluice")
	require.NoError(t, err)
	exported := map[string]bool{}
	look := func(prefix string, f types.Object) {
		if !f.Exported() {
			return
		}
		params, name := f.Type().(*types.Signature).Params(), prefix+f.Name()
		exported[name] = true
		takesContext := params.Len() > 0 && params.At(0).Type().String() == "context.Context"
		if (takesContext || typesWithRows[prefix[:max(0, len(prefix)-1)]]) && !known[name] {
			t.Errorf("%s has no row: add it to Table in internal/systest/operations/table.go, and each test of all operations has it; "+
				"if it sends nothing to a server, add it to sendNothing in table_test.go", name)
		}
	}
	for _, name := range pkg.Scope().Names() {
		switch o := pkg.Scope().Lookup(name).(type) {
		case *types.Func:
			look("", o)
		case *types.TypeName:
			if methods := types.NewMethodSet(types.NewPointer(o.Type())); o.Exported() {
				for i := range methods.Len() {
					look(name+".", methods.At(i).Obj())
				}
			}
		}
	}
	for name := range known {
		require.True(t, exported[name], "the table, or sendNothing, has %s, which does not exist", name)
	}
}
