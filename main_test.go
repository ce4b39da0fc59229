package sluice_test

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// How much the longer tests do: enough for every run by default, and in full when
// they are told to; see each test.
var (
	acquisitions = flag.Int("acquisitions", 40_000, "how many locks TestExclusion takes")
	stalls       = flag.Int("stalls", 40, "how many locks TestStall stalls")
	heldFor      = flag.Duration("held", 3*time.Second, "for how long TestHeldLocks holds its locks; with their default TTL, from a minute on")
	failovers    = flag.Int("failovers", 3, "how many failovers each of the tests of failovers goes through")
	migrations   = flag.Int("migrations", 20, "how often TestSlotMigration moves a slot")
	cycles       = flag.Int("cycles", 5_000, "how many locks TestRenewalsEndWithUnlock takes")
)

func TestMain(m *testing.M) {
	if env := os.Getenv(childEnv); env != "" {
		child(env)
		return
	}
	watchLoggers()
	redistest.Main(m)
}

// each runs a test on every backend.
func each(t *testing.T, test func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, test)
}

func newLocker(t *testing.T, rdb redis.UniversalClient, opts ...sluice.LockOption) *sluice.Locker {
	t.Helper()
	l, err := sluice.NewLocker(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func newQueue(t *testing.T, rdb redis.UniversalClient, opts ...sluice.QueueOption) *sluice.Queue {
	t.Helper()
	q, err := sluice.NewQueue(rdb, redistest.Name(t), opts...)
	require.NoError(t, err)
	return q
}

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// within returns a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
