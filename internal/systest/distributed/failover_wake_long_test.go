//go:build long

package distributed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestFailover_WakeUpsComeBack: go-redis leaves a pub/sub connection with the server that
// was the primary. Whatever became of that one, a waiter gets a lock within its retry
// interval, and is soon notified of releases again.
func TestFailover_WakeUpsComeBack(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(t *testing.T) failing{
		"sentinel": behindSentinel,
		"cluster":  func(t *testing.T) failing { f, _ := onCluster(t); return f },
	} {
		for _, how := range []string{killed, hung, "hung and back"} {
			t.Run(kind+"/"+how, func(t *testing.T) {
				t.Parallel()
				f := start(t)
				name := f.tags[0] + redistest.Name(t)
				holder, waiter := systest.NewLocker(t, f.servers.Client(t)), systest.NewLocker(t, f.servers.Client(t))
				// late is how long after its release the waiter had the lock.
				late := func(retry time.Duration) time.Duration {
					k, err := holder.Lock(t.Context(), name)
					require.NoError(t, err)
					taken := make(chan *sluice.Lock)
					go func() {
						k, err := waiter.Lock(t.Context(), name, sluice.WithRetryInterval(retry))
						if err != nil {
							t.Error(err)
						}
						taken <- k
					}()
					time.Sleep(150 * time.Millisecond) // until it has subscribed
					released := time.Now()
					require.NoError(t, k.Unlock(t.Context()))
					next := <-taken
					d := time.Since(released)
					require.NoError(t, next.Unlock(t.Context()))
					return d
				}
				require.Less(t, late(time.Minute), time.Second, "never notified")
				old := f.serving(t, f.tags[0])
				if how == killed {
					old.Down()
				} else {
					old.Pause(t)
					defer old.Resume(t)
				}
				require.Eventually(t, func() bool {
					now := f.primary(f.tags[0])
					return now != nil && now != old
				}, time.Minute, 20*time.Millisecond) // on a busy machine, sentinels may need several tries
				if how == "hung and back" {
					old.Resume(t)
					f.servers.AwaitWhole(t) // it takes and forgets locks until it is a replica
				}
				for _, l := range []*sluice.Locker{holder, waiter} {
					require.Eventually(t, func() bool { // its client has heard of the new one
						k, err := l.Lock(systest.Within(t, time.Second), name)
						return err == nil && k.Unlock(t.Context()) == nil
					}, 30*time.Second, 20*time.Millisecond)
				}
				const retry = 2 * time.Second
				begun, quick := time.Now(), 0
				for quick < 5 { // in a row: chance would make some of them quick
					d := late(retry)
					require.Less(t, d, retry+2*time.Second, "later than its retry interval")
					if quick++; d > retry/4 { // a waiter that polls has at least half of the interval to go when it is notified
						quick = 0
					}
					require.Less(t, time.Since(begun), time.Minute, "never notified again")
				}
				t.Logf("notified again %v after the failover at the latest", time.Since(begun).Round(time.Millisecond))
			})
		}
	}
}
