package virtualtime

import (
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLine_AStoppedProcessCostsAPoll: the last but one of many is stopped, and woken once all
// before it have been served. The last one, which was told of no place since it joined, finds the
// lock free within a retry interval.
func TestLine_AStoppedProcessCostsAPoll(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, _ redis.UniversalClient) {
		const n, interval = 150, 100 * time.Millisecond
		f, end := newFleet(t, m, n+1, sluice.WithRetryInterval(interval), sluice.WithTTL(time.Hour))
		defer end()
		k := f.hold(0)
		got := f.enter(t.Context(), 1, n+1)
		stopped := f.faults[n-1]
		stopped.HalfOpen()
		stopped.StallRequests()
		for range n - 1 {
			released := f.release(k)
			next := <-got
			require.LessOrEqual(t, next.at.Sub(released), interval, "process %d", next.process)
			k = next.lock
		}
		require.Equal(t, 0, f.waiting())
		f.release(k)
		stopped.Resume()
		f.release((<-got).lock)
	})
}

// TestLine_MessagesDelayNoPoll: the first in line is told again and again, by another program, that
// the lock will be another's for a minute, and polls all the same.
func TestLine_MessagesDelayNoPoll(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		const interval = 100 * time.Millisecond
		f, end := newFleet(t, m, 2, sluice.WithRetryInterval(interval), sluice.WithTTL(time.Hour))
		defer end()
		f.hold(0)
		got := f.enter(t.Context(), 1, 2)
		members, err := m.ZMembers(lineKey)
		require.NoError(t, err)
		process, _, _ := strings.Cut(members[0], ":")
		m.Del(lockKey)
		freed := time.Now()
		for len(got) == 0 && time.Since(freed) <= 10*interval {
			require.NoError(t, rdb.Publish(t.Context(), "{Lock:a}:wake:"+process, "60000").Err())
			time.Sleep(5 * time.Millisecond)
		}
		next := <-got
		require.LessOrEqual(t, next.at.Sub(freed), interval)
		f.release(next.lock)
	})
}
