package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestRun: it measures twice.
func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, "", 5000))
	require.Regexp(t, `^0 of 0 imported; small .* p99 .*\n\d+ of 100 imported; small .*\n$`, out.String())
}

// TestService_SmallTenantsAreNotHeldUp: while each task of the import that has begun goes on, all
// tasks of small tenants are done.
func TestService_SmallTenantsAreNotHeldUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // for ever, if they are held up
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer func() { require.NoError(t, rdb.Close()) }()
	smallDone := make(chan struct{})
	var begun, ended, imported atomic.Int64
	s := service{waits: map[string]time.Duration{}, work: func(e sluice.Entry) {
		if e.Kind == "import" {
			begun.Add(1)
			select {
			case <-smallDone:
			case <-ctx.Done():
			}
		} else if ended.Add(1) == small {
			imported.Store(begun.Load())
			close(smallDone)
		}
	}}
	_, err := s.serve(ctx, rdb, 100)
	require.NoError(t, err, "of %d tasks of small tenants %d were done", small, ended.Load())
	require.Len(t, s.waits, small)
	require.Less(t, imported.Load(), int64(20), "tasks of the import that had begun by then")
}
