package virtualtime

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLock_RenewalsEndWithUnlock releases locks at about the time at which they are
// renewed, while replies take a millisecond: once Unlock has returned, no renewal is sent
// or under way.
func TestLock_RenewalsEndWithUnlock(t *testing.T) {
	r := systest.NewRenewals(t)
	faultyBubble(t, func(n network) {
		const ttl, together = 8 * time.Millisecond, 16
		l, done := n.taught(sluice.WithTTL(ttl), sluice.WithAutoRenew())
		defer done()
		n.warmPipelines(together)
		n.faulty.AddHook(r)
		n.faults.Delay(time.Millisecond)
		cycles := 60 * systest.Scale()
		var lost atomic.Int64
		var all sync.WaitGroup
		for i := range together {
			name := fmt.Sprint("a", i) // a token is released once only where no other caller waits
			all.Go(func() {
				for range cycles {
					k, err := l.Lock(n.Context(), name)
					if err != nil {
						lost.Add(1)
						continue
					}
					time.Sleep(ttl/3 - time.Millisecond + rand.N(2*time.Millisecond)) // until its renewal is about due
					if k.Unlock(n.Context()) != nil {
						lost.Add(1)
					}
					r.Released(k.Token())
				}
			})
		}
		all.Wait()
		time.Sleep(ttl) // the next renewals would be due
		n.faults.Delay(0)
		sent, after := r.Counts()
		n.Logf("%d locks, %d renewals, %d locks lost, %d renewals after Unlock", cycles*together, sent, lost.Load(), after)
		require.Zero(n, after)
		require.GreaterOrEqual(n, sent, cycles*together/10, "hardly a renewal")
		require.Zero(n, lost.Load())
	})
}

// TestLock_OutlivesSlowRenewals: a reply counts that comes after its batch has timed out.
// So a lock outlives replies which take nearly half its TTL.
func TestLock_OutlivesSlowRenewals(t *testing.T) {
	faultyBubble(t, func(n network) {
		l, done := n.taught(sluice.WithTTL(6*time.Second), sluice.WithAutoRenew())
		defer done()
		n.warmPipelines(4) // a new connection would need several replies before it is of use
		k, err := l.Lock(n.Context(), "a")
		require.NoError(n, err)
		time.Sleep(2500 * time.Millisecond) // beyond the first renewal
		// A batch is given half of what is left, which is less; the client waits for longer.
		n.faults.Delay(2500 * time.Millisecond)
		for range 60 {
			time.Sleep(time.Second)
			require.True(n, k.Valid())
			require.NoError(n, k.Context().Err())
			require.True(n, n.m.Exists("Lock:a"))
		}
		n.faults.Delay(0)
		require.NoError(n, k.Unlock(n.Context()))
	})
}

// TestLock_IsRenewedBesideAStalledBatch: a renewal that hangs, of a lock that has time,
// does not hold up that of a lock which has none.
func TestLock_IsRenewedBesideAStalledBatch(t *testing.T) {
	faultyBubble(t, func(n network) {
		l, done := n.taught(sluice.WithAutoRenew())
		defer done()
		patient, err := l.Lock(n.Context(), "patient", sluice.WithTTL(6*time.Second))
		require.NoError(n, err)
		// The patient lock is renewed at 2s, the pressed one at 2.1s.
		time.Sleep(1900 * time.Millisecond)
		pressed, err := l.Lock(n.Context(), "pressed", sluice.WithTTL(600*time.Millisecond))
		require.NoError(n, err)
		time.Sleep(50 * time.Millisecond)
		n.faults.Cut() // new connections are all right
		sent := len(n.log.times())
		for range 15 {
			time.Sleep(100 * time.Millisecond)
			require.True(n, pressed.Valid())
			require.True(n, patient.Valid())
		}
		require.Greater(n, len(n.log.times()), sent+4, "nothing was renewed")
		// A release may go out on a connection that was cut, and outlive its lock.
		_ = pressed.Unlock(n.Context())
		_ = patient.Unlock(n.Context())
		time.Sleep(time.Minute)
	})
}

// quietRenewals has extensions hang, as on a connection that is cut off without a word.
type quietRenewals struct {
	digest string
	over   chan struct{}
}

func (q quietRenewals) hang(cmds ...redis.Cmder) {
	for _, cmd := range cmds {
		if args := cmd.Args(); len(args) > 1 && args[1] == q.digest {
			<-q.over
		}
	}
}

func (quietRenewals) DialHook(next redis.DialHook) redis.DialHook { return next }

func (q quietRenewals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		q.hang(cmd)
		return next(ctx, cmd)
	}
}

func (q quietRenewals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		q.hang(cmds...)
		return next(ctx, cmds)
	}
}

// TestLocker_ClosesThoughARenewalHangs: its connection is dead, others work, and each lock is free when
// Close returns.
func TestLocker_ClosesThoughARenewalHangs(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q := quietRenewals{systest.Scripts().Digest("extend"), make(chan struct{})}
		own := systest.BubbleClient(t, systest.BubbleDialer(m))
		own.AddHook(q)
		l, err := sluice.NewLocker(own, sluice.WithTTL(30*time.Second), sluice.WithAutoRenew())
		require.NoError(t, err)
		for _, name := range []string{"a", "b"} {
			_, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
		}
		time.Sleep(10*time.Second + 100*time.Millisecond) // the renewal is under way
		began := time.Now()
		err = l.Close()
		took, left := time.Since(began), rdb.Keys(t.Context(), "Lock:*").Val()
		close(q.over)
		require.NoError(t, own.Close())
		require.NoError(t, err)
		require.Empty(t, left)
		require.LessOrEqual(t, took, time.Second, "it waits for what is under way")
	})
}
