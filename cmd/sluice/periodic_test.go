package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestPeriodic_NextAndLastRuns: a periodic task that has run is listed with both times, one that
// fails with its error, and other tasks are not, also if they have taken over a header.
func TestPeriodic_NextAndLastRuns(t *testing.T) {
	s := newStage(t)
	q := s.queue("reports")
	headers := make(chan map[string]string, 1)
	w := &sluice.Worker{
		Queue: q, Backoff: func(int, error) time.Duration { return time.Hour },
		Periodic: []sluice.Periodic{{ID: "often", Schedule: sluice.Every(50 * time.Millisecond)}, {ID: "daily", Kind: "report", Payload: make([]byte, 20_000), Schedule: sluice.Every(24 * time.Hour)}, {ID: "wrong", Schedule: sluice.Every(50 * time.Millisecond)}},
		Handler: func(_ context.Context, e sluice.Entry) error {
			if e.ID == "wrong" {
				return errors.New("no paper")
			}
			select {
			case headers <- e.Header:
			default:
			}
			return nil
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }() // it ends below
	byID := func() map[string]periodicJSON {
		var list []periodicJSON
		s.json(exitOK, &list, "periodic", "reports")
		all := map[string]periodicJSON{}
		for _, p := range list {
			all[p.ID] = p
		}
		return all
	}
	require.Eventually(t, func() bool {
		all := byID()
		return all["often"].Last != nil && all["wrong"].Reason != ""
	}, time.Minute, 20*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "follow-up", Delay: time.Hour, Header: <-headers})
	require.NoError(t, err)

	all := byID()
	require.Len(t, all, 3)
	moments := func(text *string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, *text)
		require.NoError(t, err)
		return at
	}
	require.Equal(t, "report", all["daily"].Kind)
	require.Nil(t, all["daily"].Last)
	require.WithinDuration(t, time.Now().Add(12*time.Hour), moments(all["daily"].Next), 13*time.Hour)
	require.True(t, moments(all["often"].Next).After(moments(all["often"].Last)))
	require.Equal(t, "no paper", all["wrong"].Reason)
	require.Regexp(t, `(?s)ID +KIND +STATE +NEXT .*daily +report +scheduled`, s.ok("periodic", "reports"))
	require.Contains(t, s.run("periodic", "none").err, "No periodic task")
}
