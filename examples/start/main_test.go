package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/sluicetest"
)

// TestRun_DoesBothTasks, and ends when its context does.
func TestRun_DoesBothTasks(t *testing.T) {
	t.Parallel()
	r := sluicetest.New(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, r.NewClient()) }()
	require.Eventually(t, func() bool { return r.Stats("orders").Finished == 1 }, 20*time.Second, time.Millisecond)
	r.Advance(3 * time.Second)
	require.Eventually(t, func() bool { return r.Stats("orders").Finished == 2 }, 20*time.Second, time.Millisecond)
	r.RequireEmpty("orders")
	stop()
	require.NoError(t, <-ended)
}
