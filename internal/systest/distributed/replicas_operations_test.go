package distributed

import (
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// TestOperations_SayThatReplicasAreMissing: each that waits for replicas, and no other. What an
// operation on a queue returns stands beside the error.
func TestOperations_SayThatReplicasAreMissing(t *testing.T) {
	t.Parallel()
	g := redistest.StartReplicated(t, 1)
	// One connection for each operation: those that wait for a replica that hangs keep theirs for a
	// second, and before go-redis 9.23 pipelines have no pool of their own.
	rdb := systest.Dial(t, redis.Options{Addr: g.Addr, PoolSize: 2 * len(operations.Table)})
	for _, hung := range []bool{false, true} {
		table := make([]operations.Ready, len(operations.Table))
		values, errs := make([]any, len(table)), make([]error, len(table))
		for i, op := range operations.Table {
			var err error
			table[i] = op.Ready(t, operations.New(t, rdb, sluice.WithLockReplicas(1)))
			table[i].On.Queue, err = sluice.NewQueue(rdb, table[i].On.Name, sluice.WithQueueReplicas(1))
			require.NoError(t, err)
		}
		if hung {
			g.Replicas[0].Pause(t)
			defer g.Replicas[0].Resume(t)
		}
		var all sync.WaitGroup
		for i, op := range table {
			all.Go(func() { values[i], errs[i] = op.Do(t.Context()) })
		}
		all.Wait()
		acknowledged := 0
		for i, op := range table {
			switch {
			case !op.Replicated:
				require.NoError(t, errs[i], op.Name)
			case errs[i] == nil:
				acknowledged++
			default:
				require.ErrorIs(t, errs[i], sluice.ErrUnderReplicated, op.Name) // on a busy machine, also if it is well
			}
			require.False(t, op.Type() == "Queue" && operations.FoundNothing(values[i]), op.Name)
		}
		require.Equal(t, hung, acknowledged == 0, "%d were acknowledged", acknowledged)
	}
}
