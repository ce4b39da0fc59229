package distributed

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestCluster_ReplicasOfTheSlotsOwnerAcknowledge: while a slot is moved and after it, the
// replicas that count are those of the server which has carried the command out. The client
// learns by ASK and MOVED which one that is.
func TestCluster_ReplicasOfTheSlotsOwnerAcknowledge(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "30000", "--cluster-allow-replica-migration", "no")
	plain := c.Client(t)
	cluster, ok := plain.(*redis.ClusterClient)
	require.True(t, ok)
	auto, err := cluster.AutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { _ = auto.Close() })
	const tag = "{tag}"
	from := c.Primary(tag)
	var to *redistest.Server
	for i := 0; to == nil || to == from; i++ {
		to = c.Primary(fmt.Sprint(i))
	}
	slot := c.Slot(t, tag)
	replica := c.Replica(to)
	require.NotNil(t, replica)
	tried := 0
	try := func(rdb redis.UniversalClient, may ...error) {
		t.Helper()
		tried++
		l := systest.NewLocker(t, rdb, sluice.WithTTL(4*time.Second), sluice.WithLockReplicas(1))
		name := fmt.Sprint(tag, tried)
		var k *sluice.Lock
		var err error
		if len(may) > 0 {
			_, err = l.Lock(t.Context(), name)
			require.ErrorIs(t, err, may[0])
			return
		}
		inTime(t, func() error { k, err = l.Lock(t.Context(), name); return err })
		inTime(t, func() error { return k.Extend(t.Context(), time.Minute) })
		require.NoError(t, k.Unlock(t.Context()))
		_, err = l.Lock(t.Context(), name, sluice.WithLockReplicas(2))
		require.ErrorIs(t, err, sluice.ErrUnderReplicated)
	}
	refused := func(rdb redis.UniversalClient) {
		t.Helper()
		tried++
		replica.Pause(t)
		defer replica.Resume(t)
		l := systest.NewLocker(t, rdb, sluice.WithTTL(time.Second), sluice.WithLockReplicas(1))
		_, err := l.Lock(t.Context(), fmt.Sprint(tag, tried))
		require.ErrorIs(t, err, sluice.ErrUnderReplicated, "its replica hangs")
	}
	try(plain)
	try(auto)
	require.NoError(t, plain.Set(t.Context(), "Lock:"+tag+"there", 1, 0).Err()) // one key, so that there is a pause
	moved := c.Client(t)
	require.NoError(t, moved.Get(t.Context(), "Lock:"+tag+"there").Err()) // it knows the slots of before the move
	c.Migrate(t, slot, from, to, func() {
		try(plain)
		refused(plain)
		try(auto, sluice.ErrUnderReplicated) // it learns only that another server has carried it out
	})
	require.NotZero(t, c.Errors("ASK"))
	refused(moved)
	try(moved)
	try(c.Client(t))
	try(auto)
	require.NotZero(t, c.Errors("MOVED"))
}
