package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

func TestRun_NeedsNothingElse(t *testing.T) {
	t.Parallel()
	var out, log bytes.Buffer
	require.Zero(t, run(t.Context(), nil, &out, &log), &log)
	require.Contains(t, out.String(), "handled once")
}

// TestRun_HandlesEachTaskOnce: those that were enqueued before the switch, during it and after it.
// All the queues are empty then.
func TestRun_HandlesEachTaskOnce(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	var out, log bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-redis", m.Addr()}, &out, &log), &log)
	t.Log(out.String())
	var tasks, once, byOld, byNext int
	_, err := fmt.Sscanf(out.String(),
		"%d tasks, %d of them handled once: %d by the old queues, %d by the new\n",
		&tasks, &once, &byOld, &byNext)
	require.NoError(t, err)
	require.Equal(t, 600, tasks)
	require.Equal(t, 600, once)
	require.Equal(t, tasks, byOld+byNext)
	require.Positive(t, byOld)
	require.Positive(t, byNext)
	for _, key := range m.Keys() {
		require.Contains(t, key, "Queue:orders")
		require.False(t, strings.HasPrefix(key, "Queue:"), "%s still has tasks", key)
	}
}

// TestWaitUntilEmpty_SaysWhatIsLeft: a dead letter, which no Pool takes away.
func TestWaitUntilEmpty_SaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	queues, err := sluice.NewQueues(rdb, "orders", 3)
	require.NoError(t, err)
	queue := queues.Of("a")
	_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	entries, err := queue.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.NoError(t, queue.Bury(t.Context(), "test", entries[0]))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = waitUntilEmpty(ctx, queues)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, queue.Name()+": due 0, scheduled 0, leased 0, dead 1")
	_, err = queue.Drop(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, waitUntilEmpty(t.Context(), queues))
}

// TestTally_ReportsWhatWasNotHandledOnce: a task that was handled twice, and one that was not.
func TestTally_ReportsWhatWasNotHandledOnce(t *testing.T) {
	t.Parallel()
	for _, times := range []map[string]int{{"a": 1, "b": 2}, {"a": 1}} {
		var out bytes.Buffer
		require.Error(t, (&tally{times: times}).report(&out, 2))
		require.Contains(t, out.String(), "2 tasks, 1 of them handled once")
	}
}

// TestRun_Fails without a server, and for bad flags.
func TestRun_Fails(t *testing.T) {
	t.Parallel()
	args := map[string]int{"-h": 0, "-redis 127.0.0.1:1": 1, "x": 2, "-no-such": 2}
	for args, status := range args {
		var out, log bytes.Buffer
		require.Equal(t, status, run(t.Context(), strings.Fields(args), &out, &log), args)
		require.NotEmpty(t, log.String())
	}
}
