package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func begun(ttl time.Duration, limit time.Duration) *Lease {
	var l Lease
	now := time.Now()
	l.Begin(now, now.Add(ttl), now.Add(ttl), limit)
	return &l
}

func TestSafeUntil_LiesWithinTheTTL(t *testing.T) {
	t.Parallel()
	sent := time.Unix(1000, 0)
	for ttl, want := range map[time.Duration]time.Duration{
		100 * time.Second:    99*time.Second - 2*time.Millisecond,
		time.Second:          990*time.Millisecond - 2*time.Millisecond,
		2 * time.Millisecond: time.Millisecond, // too short for the margin: half
	} {
		require.Equal(t, want, SafeUntil(sent, ttl).Sub(sent), ttl)
	}
}

func TestLease_ContextEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := begun(time.Second, 0)
		ctx := l.Context()
		require.True(t, l.Extend(time.Now().Add(3*time.Second), time.Now()))
		require.True(t, l.Extend(time.Now().Add(time.Second), time.Now()), "it never gets shorter")
		start := time.Now()
		<-ctx.Done()
		require.Equal(t, 3*time.Second, time.Since(start))
		require.ErrorIs(t, context.Cause(ctx), ErrLost)
		require.False(t, l.Valid())
		require.False(t, l.Extend(time.Now().Add(time.Hour), time.Now()), "what is lost stays lost")
		require.True(t, l.End(nil), "there is still something to release")
		require.False(t, l.End(nil))
	})
}

func TestLease_EndSaysWhyOnce(t *testing.T) {
	t.Parallel()
	cause := errors.New("closed")
	l := begun(time.Minute, 0)
	ctx := l.Context()
	require.True(t, l.Valid())
	require.True(t, l.End(cause))
	require.False(t, l.End(nil))
	require.ErrorIs(t, context.Cause(ctx), cause)
	require.True(t, l.Ended())

	late := begun(time.Minute, 0)
	require.True(t, late.End(cause))
	require.ErrorIs(t, context.Cause(late.Context()), cause, "a context that is asked for afterwards")
	past := begun(0, 0)
	require.ErrorIs(t, context.Cause(past.Context()), ErrLost)
	require.True(t, past.End(cause))
	require.ErrorIs(t, context.Cause(past.Context()), ErrLost)
}

func TestLease_LimitBoundsExtensions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := begun(time.Second, 2*time.Second)
		start := time.Now()
		require.True(t, l.Renewable())
		require.True(t, l.Extend(start.Add(time.Hour), start.Add(time.Hour)))
		deadline, covered, _ := l.Bounds()
		require.Equal(t, start.Add(2*time.Second), deadline)
		require.Equal(t, start.Add(time.Hour), covered)
		require.False(t, l.Renewable(), "nothing more can be had")
		time.Sleep(2 * time.Second)
		require.False(t, l.Valid())
	})
}

// TestLease_CountsWhatIsNotSettled: until every extension that was sent is settled, the
// lease tells for how long one of them may make the key live.
func TestLease_CountsWhatIsNotSettled(t *testing.T) {
	t.Parallel()
	asked := func(l *Lease) time.Duration { _, _, asked := l.Bounds(); return asked }
	l := begun(time.Minute, 0)
	require.Zero(t, asked(l))
	require.True(t, l.Ask(time.Hour))
	require.True(t, l.Ask(time.Second))
	require.Equal(t, time.Hour, asked(l))
	l.Settle()
	require.Equal(t, time.Hour, asked(l), "it may have been the other one")
	l.Settle()
	require.Zero(t, asked(l))
	require.True(t, l.End(nil))
	require.False(t, l.Ask(time.Hour), "it would be sent after the end")
	require.Zero(t, asked(l))
}

// TestBudget_LeavesTimeForAnotherTry, and waits no longer than any loop for a connection that has
// gone quiet.
func TestBudget_LeavesTimeForAnotherTry(t *testing.T) {
	t.Parallel()
	require.Equal(t, 20*time.Millisecond, Budget(0))
	require.Equal(t, 3*time.Second, Budget(6*time.Second))
	require.Equal(t, 5*time.Second, Budget(time.Hour))
}
