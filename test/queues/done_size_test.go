package queues

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestDone_WhatItTakes: a finished task, with an ID of 36 bytes, takes what docs/sizing.md says of the server's memory.
func TestDone_WhatItTakes(t *testing.T) {
	t.Parallel()
	const tasks = 20_000
	b := systest.NewQueueTest(t, redistest.Start(t).Client(t), "q", sluice.WithRetention(time.Hour))
	used := func() (n int) {
		_, of, _ := strings.Cut(b.RDB.Info(t.Context(), "memory").Val(), "used_memory:")
		_, err := fmt.Sscan(of, &n)
		require.NoError(t, err)
		return n
	}
	finish := func(n int) {
		batch := make([]sluice.Task, n)
		for i := range batch {
			batch[i].ID = fmt.Sprintf("%036d", i)
		}
		_, err := b.Q.EnqueueBatch(t.Context(), batch)
		require.NoError(t, err)
		for left := n; left > 0; {
			es := b.Claim(250, time.Minute)
			require.NoError(t, b.Q.Dequeue(t.Context(), es...))
			left -= len(es)
		}
	}
	finish(1) // the server has its scripts
	before := used()
	finish(tasks)
	each := float64(used()-before) / tasks
	t.Logf("%.0f bytes", each)
	require.InDelta(t, 144, each, 30)
}
