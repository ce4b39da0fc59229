package virtualtime

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMerge_WhatWasClaimedForACallerThatLeftIsForTheNext: for one of the group that would get
// nothing and, once it is given back, for one that waits.
func TestMerge_WhatWasClaimedForACallerThatLeftIsForTheNext(t *testing.T) {
	faultyBubble(t, func(net network) {
		g := newMerging(net, mergedKinds[2], alone+3)
		var all, left sync.WaitGroup
		g.hold(&all)
		ctx, cancel := context.WithCancel(g.Context())
		g.start(ctx, 10, 12, &left) // two that will leave, and two that stay, for three tasks
		g.start(g.Context(), 12, 14, &all)
		g.resumeOne()
		before := g.faults.Scripts()
		last := g.start(g.Context(), 20, 21, &all)
		cancel()
		left.Wait()
		g.faults.Resume()
		all.Wait()
		requireNoErrors(g.T, last)
		g.requireDone(12, 14)
		g.requireDone(20, 21)
		require.Equal(g, before+3, g.faults.Scripts(), "one gives back, which the server does not know yet, and one claims")
		time.Sleep(time.Minute)
	})
}
