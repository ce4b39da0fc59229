package main

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out))
	require.Equal(t, 3, strings.Count(out.String(), "leads"))
	for _, name := range []string{"process 1", "process 2", "process 3"} {
		require.Equal(t, 1, strings.Count(out.String(), name))
	}
}

// TestCampaign_OneLeads: for days; another one takes over when it ends, and after its lock was
// forced open.
func TestCampaign_OneLeads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		var leading, terms atomic.Int64
		var ends []context.CancelFunc
		ended := make(chan error, 2)
		for range 2 {
			locker, err := sluice.NewLocker(r.NewClient(), sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Hour))
			require.NoError(t, err)
			ctx, end := context.WithCancel(t.Context())
			ends = append(ends, end)
			go func() {
				defer locker.Close()
				ended <- Campaign(ctx, locker, "leader", func(ctx context.Context) error {
					leading.Add(1)
					defer leading.Add(-1)
					terms.Add(1)
					<-ctx.Done()
					return context.Cause(ctx)
				})
			}()
			r.Advance(time.Second)
		}
		r.Advance(24 * time.Hour)
		require.EqualValues(t, 1, leading.Load())
		require.EqualValues(t, 1, terms.Load())

		operator, err := sluice.NewLocker(r.Client())
		require.NoError(t, err)
		defer operator.Close()
		_, err = operator.ForceUnlock(t.Context(), "leader")
		require.NoError(t, err)
		r.Advance(time.Hour)
		require.EqualValues(t, 1, leading.Load())
		require.EqualValues(t, 2, terms.Load())

		ends[1]() // it leads by now
		require.NoError(t, <-ended)
		r.Advance(time.Second)
		require.EqualValues(t, 1, leading.Load())
		require.EqualValues(t, 3, terms.Load())
		ends[0]()
		require.NoError(t, <-ended)
	})
}
