package redisexec

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRequest_WaitsForReplicasWithinWhatItsCallerWaits: by halves, so that many callers share few
// lanes.
func TestRequest_WaitsForReplicasWithinWhatItsCallerWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := Request{Replication: Replication{Replicas: 1, ReplicaWait: time.Second}}
		for left, want := range map[time.Duration]time.Duration{
			time.Hour: time.Second, 1200 * time.Millisecond: time.Second, 1199 * time.Millisecond: 500 * time.Millisecond,
			time.Second: 500 * time.Millisecond, 400 * time.Millisecond: 125 * time.Millisecond,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), left)
			require.Equal(t, want, r.answeredInTime(ctx).ReplicaWait, left)
			cancel()
			until := r
			until.Until = time.Now().Add(left)
			require.Equal(t, want, until.answeredInTime(t.Context()).ReplicaWait, left)
			require.Equal(t, max(want, 250*time.Millisecond), r.AnsweredBy(until.Until, 250*time.Millisecond).ReplicaWait, left)
		}
		for _, left := range []time.Duration{0, -time.Second, time.Millisecond} { // WAIT 0 would have no end
			wait := r.AnsweredBy(time.Now().Add(left), time.Millisecond).ReplicaWait
			require.Positive(t, wait, left)
			require.LessOrEqual(t, wait, time.Millisecond, left)
		}
		require.Equal(t, time.Second, r.answeredInTime(t.Context()).ReplicaWait)
		require.Zero(t, Request{}.AnsweredBy(time.Now(), time.Millisecond).ReplicaWait)
	})
}
