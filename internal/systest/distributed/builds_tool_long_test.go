//go:build long

package distributed

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestBuilds_ToolsOfBoth has the operator's tool of each build look at a queue on which Workers of
// both are at work, and change tasks that the other one has changed.
func TestBuilds_ToolsOfBoth(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	s, source := redistest.Redis(t), sourceBefore(t)
	tools := map[string]string{"before": compile(t, source, tool), "now": compile(t, systest.Root(t), tool)}
	c := newBuildCrew(t, s.Addr, "work", buildClients(t, source))
	rdb := s.Client(t)
	q, err := sluice.NewQueue(rdb, c.name)
	require.NoError(t, err)
	run := func(build string, args ...string) (answer any) {
		out, err := exec.CommandContext(t.Context(), tools[build], append(args, "--json", "--url", "redis://"+s.Addr)...).CombinedOutput()
		require.NoError(t, err, "%s: %v: %s", build, args, out)
		require.NoError(t, json.Unmarshal(out, &answer), "%s", out)
		return answer
	}
	state := func(id string) sluice.State {
		info, err := q.Get(t.Context(), id)
		require.NoError(t, err)
		return info.State
	}
	c.work()
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "later", Delay: time.Hour})
	require.NoError(t, err)
	for _, pair := range [][2]string{{"before", "now"}, {"now", "before"}, {"now", "now"}} {
		for _, build := range pair {
			for _, look := range [][]string{{"queues"}, {"ls", c.name, "--state", "due"}, {"ls", c.name, "--state", "leased"}, {"locks"}} {
				run(build, look...)
			}
		}
		run(pair[0], "pause", c.name)
		stats, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.True(t, stats.Paused)
		run(pair[0], "bury", c.name, "later", "--why", "seen")
		for _, build := range pair {
			require.Contains(t, fmt.Sprint(run(build, "ls", c.name, "--state", "dead")), "id:later", build)
		}
		run(pair[1], "revive", c.name, "later")
		require.Equal(t, sluice.StateDue, state("later"))
		run(pair[0], "delay", c.name, "later", "--for", "1h")
		require.Equal(t, sluice.StateScheduled, state("later"))
		run(pair[1], "resume", c.name)
		c.work() // Workers of both go on
	}
	run("now", "workers", c.name)
	run("before", "cancel", c.name, "later")
	_, err = q.Get(t.Context(), "later")
	require.ErrorIs(t, err, sluice.ErrNotFound)
	c.rest(rdb)
	c.end()
	c.checkTasks()
}
