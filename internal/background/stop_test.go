package background_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/background"
)

// TestStart_StopEndsAndWaits: for each of the functions, and once more for none.
func TestStart_StopEndsAndWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var returned atomic.Int64
		f := func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(time.Second)
			returned.Add(1)
		}
		stop := background.Start(t.Context(), f, f)
		synctest.Wait()
		require.Zero(t, returned.Load())
		start := time.Now()
		stop()
		require.EqualValues(t, 2, returned.Load())
		require.Equal(t, time.Second, time.Since(start))
		stop()
		background.Start(t.Context())()
	})
}
