package replicas

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// TestOperations_SayThatReplicasAreMissing: each that waits for replicas, and no other.
func TestOperations_SayThatReplicasAreMissing(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	rdb := g.Client(t)
	fixtures, errs := make([]*operations.Fixture, len(operations.Table)), make([]error, len(operations.Table))
	for i, op := range operations.Table {
		var err error
		fixtures[i] = operations.New(t, rdb, sluice.WithLockReplicas(1))
		op.Prepare(t, fixtures[i])
		fixtures[i].Queue, err = sluice.NewQueue(rdb, fixtures[i].Name, sluice.WithQueueReplicas(1))
		require.NoError(t, err)
	}
	g.Replicas[0].Pause(t)
	defer g.Replicas[0].Resume(t)
	var all sync.WaitGroup
	for i, op := range operations.Table {
		all.Go(func() { _, errs[i] = op.Call(t.Context(), fixtures[i]) })
	}
	all.Wait()
	for i, op := range operations.Table {
		if op.Replicated {
			require.ErrorIs(t, errs[i], sluice.ErrUnderReplicated, op.Name)
		} else {
			require.NoError(t, errs[i], op.Name)
		}
	}
}
