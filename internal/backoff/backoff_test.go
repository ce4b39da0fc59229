package backoff_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/backoff"
)

func TestExponential_DoublesUpToItsLimit(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{
		-1:      time.Second,
		0:       time.Second,
		1:       2 * time.Second,
		3:       8 * time.Second,
		12:      time.Hour,
		1000000: time.Hour,
	} {
		require.Equal(t, want, backoff.Exponential(time.Second, time.Hour, n), n)
	}
}

func TestJitter_StaysWithinItsBounds(t *testing.T) {
	t.Parallel()
	const d = 9 * time.Nanosecond
	full, half := map[time.Duration]bool{}, map[time.Duration]bool{}
	for range 10_000 {
		full[backoff.Full(d)] = true
		half[backoff.Half(d)] = true
	}
	require.Len(t, full, 10) // 0 to 9
	require.Len(t, half, 6)  // 4 to 9
	for pause := range half {
		require.GreaterOrEqual(t, pause, d/2)
	}
	require.Zero(t, backoff.Full(0))
	require.Zero(t, backoff.Half(0))
}

func TestSooner_ZeroIsNever(t *testing.T) {
	t.Parallel()
	soon, late, never := time.Unix(1, 0), time.Unix(2, 0), time.Time{}
	for _, c := range [][3]time.Time{{soon, late, soon}, {late, soon, soon}, {soon, never, soon}, {never, soon, soon}, {never, never, never}} {
		require.Equal(t, c[2], backoff.Sooner(c[0], c[1]))
	}
}

func TestSleep_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		backoff.Sleep(t.Context(), time.Minute)
		require.Equal(t, time.Minute, time.Since(start))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		backoff.Sleep(ctx, time.Minute)
		require.Equal(t, time.Minute+time.Second, time.Since(start))
	})
}
