package access

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// crowded has three processes of the user want the lock that another one of the user holds. They
// say on got that they have it.
func (g *guarded) crowded(ctx context.Context, retry time.Duration) (k *sluice.Lock, got <-chan *sluice.Lock) {
	g.Helper()
	options := []sluice.LockOption{sluice.WithTTL(time.Hour), sluice.WithRetryInterval(retry)}
	k, err := systest.NewLocker(g.T, g.user, options...).Lock(ctx, "a")
	require.NoError(g, err)
	locks := make(chan *sluice.Lock, 3)
	for range cap(locks) {
		l := systest.NewLocker(g.T, g.user, options...)
		go func() {
			if k, err := l.Lock(ctx, "a"); err == nil {
				locks <- k
			}
		}()
	}
	require.Eventually(g, func() bool { return systest.Listeners(ctx, g.admin, "Lock:a") == cap(locks) }, 10*time.Second, time.Millisecond)
	return k, locks
}

// takeTurns has each of those that wait take the lock, a retry interval after the release before it
// at the latest.
func (g *guarded) takeTurns(k *sluice.Lock, got <-chan *sluice.Lock, retry time.Duration) {
	g.Helper()
	lag := systest.LagOf(g.T, g.admin)
	for range cap(got) {
		require.NoError(g, k.Unlock(g.Context()))
		released := time.Now()
		k = <-got
		require.Less(g, time.Since(released), retry+50*time.Millisecond+10*lag())
	}
	require.NoError(g, k.Unlock(g.Context()))
}

// TestAccess_LinesWherePublishIsDenied: a release takes no process out of the line that it cannot
// wake, and all have the lock by their polls.
func TestAccess_LinesWherePublishIsDenied(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, grantsOfAll, grantsOfLocks)
	g.grant("+publish")
	inLine := func(n int64) func() bool {
		return func() bool { return systest.InLine(t.Context(), g.admin, "Lock:a") == n }
	}
	ctx, cancel := context.WithCancel(t.Context())
	k, got := g.crowded(ctx, time.Hour)
	require.Eventually(t, inLine(3), 10*time.Second, time.Millisecond)
	require.NoError(t, k.Unlock(ctx))
	require.True(t, inLine(3)(), "they lost their places")
	cancel()
	require.Eventually(t, inLine(0), 10*time.Second, time.Millisecond, "they do not leave")
	require.Empty(t, got)

	const retry = 200 * time.Millisecond
	k, got = g.crowded(t.Context(), retry)
	require.Eventually(t, inLine(3), 10*time.Second, time.Millisecond)
	g.takeTurns(k, got, retry)
	require.True(t, inLine(0)())
}

// TestAccess_LinesWhereSubscribersAreNotTold: the script does not know who listens, so that no
// process joins. All have the lock by their polls.
func TestAccess_LinesWhereSubscribersAreNotTold(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, grantsOfAll, grantsOfLocks)
	g.grant("+pubsub|numsub")
	const retry = 200 * time.Millisecond
	k, got := g.crowded(t.Context(), retry)
	scripts := func() int { return redistest.Calls(t, g.admin, "eval", "evalsha") }
	before := scripts()
	require.Eventually(t, func() bool { return scripts() >= before+9 }, 10*time.Second, time.Millisecond, "they do not poll")
	require.Zero(t, systest.InLine(t.Context(), g.admin, "Lock:a"))
	g.takeTurns(k, got, retry)
	require.Zero(t, systest.InLine(t.Context(), g.admin, "Lock:a"))
}
