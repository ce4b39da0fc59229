package main

import (
	"bytes"
	"context"
	"sync"
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
	require.Equal(t, "sessions left: 0; swept more than once: true\n", out.String())
}

// TestWorker_ReportsOnceANight, however many processes there are.
func TestWorker_ReportsOnceANight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := sluicetest.New(t)
		var sessions Sessions
		begin := time.Now()
		sessions.Add("short", begin.Add(90*time.Minute))
		sessions.Add("long", begin.AddDate(1, 0, 0))
		var mu sync.Mutex
		var reports []time.Time
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		for range 2 {
			queue, err := sluice.NewQueue(r.NewClient(), "chores", sluice.WithPollInterval(time.Hour))
			require.NoError(t, err)
			w := Worker(queue, &sessions, time.Hour, func(due time.Time) {
				mu.Lock()
				defer mu.Unlock()
				reports = append(reports, due.UTC())
			})
			go func() { ended <- w.Run(ctx) }()
		}
		r.Advance(28 * time.Hour)
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
		first := Nightly{3, 0, time.UTC}.Next(begin)
		require.Equal(t, []time.Time{first, first.AddDate(0, 0, 1)}, reports)
		require.Equal(t, 1, sessions.Sweep(time.Time{}))
	})
}
