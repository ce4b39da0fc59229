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

// TestRun_HandlesEachTaskOnce: tasks that were enqueued before the switch, during it and after it. The keys of the old queue are
// gone then, and a client with the old number of shards is refused.
func TestRun_HandlesEachTaskOnce(t *testing.T) {
	t.Parallel()
	for _, shards := range [][2]int{{1, 4}, {4, 2}, {3, 1}} {
		t.Run(fmt.Sprintf("%d to %d", shards[0], shards[1]), func(t *testing.T) {
			t.Parallel()
			m := miniredis.RunT(t)
			var out, log bytes.Buffer
			args := fmt.Sprintf("-redis %s -from %d -to %d", m.Addr(), shards[0], shards[1])
			require.Zero(t, run(t.Context(), strings.Fields(args), &out, &log), &log)
			t.Log(out.String())
			var tasks, once, byOld, byNext int
			_, err := fmt.Sscanf(out.String(), "%d tasks, %d of them handled once: %d by the old queue, %d by the new one\n", &tasks, &once, &byOld, &byNext)
			require.NoError(t, err)
			require.Equal(t, tasks, once)
			require.Equal(t, tasks, byOld+byNext)
			require.Positive(t, byOld)
			require.Positive(t, byNext)

			next := fmt.Sprintf("mail-%d", shards[1])
			for _, key := range m.Keys() {
				if strings.HasSuffix(key, ":line") && !strings.Contains(key, prefix+next) {
					require.Positive(t, m.TTL(key), "a look that was under way may leave it, for a minute at most")
					continue
				}
				require.Contains(t, key, prefix+next)
			}
			rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
			defer rdb.Close()
			right, err := sluice.NewQueue(rdb, next, sluice.WithShards(shards[1]))
			require.NoError(t, err)
			_, err = right.Enqueue(t.Context(), sluice.Task{ID: "a"})
			require.NoError(t, err)
			wrong, err := sluice.NewQueue(rdb, next, sluice.WithShards(shards[0]))
			require.NoError(t, err)
			_, err = wrong.Enqueue(t.Context(), sluice.Task{ID: "a"})
			require.ErrorIs(t, err, sluice.ErrInvalid)
			require.ErrorContains(t, err, fmt.Sprintf("the queue has %d shards, not %d", shards[1], shards[0]))
			_, err = wrong.Claim(t.Context(), 1, time.Minute)
			require.ErrorIs(t, err, sluice.ErrInvalid)
			s, err := right.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, int64(1), s.Due)
		})
	}
}

// TestRemoveKeys_LeavesOtherQueuesAlone: also queues whose names are like those of shards.
func TestRemoveKeys_LeavesOtherQueuesAlone(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 4} {
		m := miniredis.RunT(t)
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		defer rdb.Close()
		fill := func(name string, n int) {
			queue, err := sluice.NewQueue(rdb, name, sluice.WithShards(n), sluice.WithDeadLimit(1), sluice.WithMaxAttempts(1))
			require.NoError(t, err)
			for i := range 20 {
				_, err := queue.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p")})
				require.NoError(t, err)
			}
			entries, err := queue.Claim(t.Context(), 15, time.Minute)
			require.NoError(t, err)
			for _, e := range entries[:10] {
				require.NoError(t, queue.Bury(t.Context(), e, "test"))
			}
			require.NoError(t, queue.Pause(t.Context(), 0))
		}
		others := []string{"mail-4", "mail:1", "mail:1.4.notes", "voicemail", "Queue:mail"}
		for _, name := range others {
			fill(name, 1)
		}
		fill("mail-5", 4)
		before := m.Keys()
		fill("mail", shards)
		require.Greater(t, len(m.Keys()), len(before)+5)
		require.NoError(t, removeKeys(t.Context(), rdb, "mail", shards))
		require.Equal(t, before, m.Keys())
	}
}

// TestWaitUntilEmpty_SaysWhatIsLeft: a dead letter, which no Worker takes away.
func TestWaitUntilEmpty_SaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	queue, err := sluice.NewQueue(rdb, "mail")
	require.NoError(t, err)
	_, err = queue.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	entries, err := queue.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.NoError(t, queue.Bury(t.Context(), entries[0], "test"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorContains(t, waitUntilEmpty(ctx, queue), "due 0, scheduled 0, leased 0, dead 1")
	_, err = queue.Drop(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, waitUntilEmpty(t.Context(), queue))
}

func TestRun_RejectsBadFlags(t *testing.T) {
	t.Parallel()
	for args, status := range map[string]int{"-h": 0, "-from 0": 1, "-to x": 2, "x": 2, "-no-such": 2} {
		var out, log bytes.Buffer
		require.Equal(t, status, run(t.Context(), strings.Fields(args), &out, &log), args)
		require.NotEmpty(t, log.String())
	}
}
