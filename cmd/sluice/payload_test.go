package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestTasks_ReadNoPayloads: no command has Redis send one, except with --payload; headers come with
// --wide, if they are not large.
func TestTasks_ReadNoPayloads(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx, q := t.Context(), s.queue("orders")
	const n, size = 20, 300_000
	for _, state := range []string{"dead", "due", "scheduled"} {
		for i := range n {
			task := sluice.Task{ID: state + strconv.Itoa(i), Payload: make([]byte, size), Header: map[string]string{"tenant": "north"}}
			if state == "scheduled" {
				task.Delay = time.Hour
			}
			_, err := q.Enqueue(ctx, task)
			require.NoError(t, err)
		}
		if state == "dead" {
			entries, err := q.Claim(ctx, n, time.Hour)
			require.NoError(t, err)
			for _, e := range entries {
				require.NoError(t, q.Bury(ctx, "broken", e))
			}
		}
	}
	for i := range n {
		s.finish(s.queue("orders", sluice.WithRetention(time.Hour)), "done"+strconv.Itoa(i), strings.Repeat("r", 60_000))
	}
	_, err := q.Enqueue(ctx, sluice.Task{ID: "small", Kind: "email\n", Payload: []byte("p"), Header: map[string]string{"tenant": "south"}})
	require.NoError(t, err)
	sent := func() (bytes int) {
		info, err := s.rdb.InfoMap(ctx, "stats").Result()
		require.NoError(t, err)
		bytes, err = strconv.Atoi(info["Stats"]["total_net_output_bytes"])
		require.NoError(t, err)
		return bytes
	}
	for _, line := range []string{
		"ls orders", "ls orders --state dead --reason broken", "ls orders --state scheduled --json", "ls orders --wide", "get orders due3", "get orders due3 --json",
		"ls orders --state done", "ls orders --state done --wide --json", "get orders done3", "cancel orders done0", "cancel orders --all --state done --contains done1 --yes",
		"cancel orders due0 --dry-run", "bury orders due0", "bury orders --all --contains due1 --yes", "run orders --all --state scheduled --yes",
		"drop orders dead0", "revive orders --all --reason broken --yes", "cancel orders --all --state due --contains scheduled1 --yes",
	} {
		before := sent()
		s.ok(strings.Fields(line)...)
		require.Less(t, sent()-before, size, "bytes that Redis has sent for %s", line)
	}
	require.Contains(t, s.ok("ls", "orders", "--wide"), "tenant=south")
	require.Contains(t, s.ok("get", "orders", "small"), "tenant=south")
	require.Regexp(t, `kind +"email\\n"\n`, s.ok("get", "orders", "small"))
	require.Contains(t, s.ok("get", "orders", "small", "--json"), `"kind": "email\n"`)
	require.NotContains(t, s.ok("get", "orders", "due3", "--payload"), "kind")
	for _, flag := range []string{"--wide", "--payload"} {
		require.Contains(t, s.ok("ls", "orders", flag), `email\n`)
	}
	require.Contains(t, s.ok("get", "orders", "due3"), "300,019 bytes with the header, shown with --payload")
	require.Contains(t, s.ok("get", "orders", "due3", "--payload"), "tenant=north")
	require.Regexp(t, `result +60,000 bytes, shown with --payload\n`, s.ok("get", "orders", "done3"))
	require.Regexp(t, `done3 .* 60,000 bytes\n`, s.ok("ls", "orders", "--state", "done", "--wide"))
	require.Contains(t, s.ok("get", "orders", "done3", "--payload"), "rrrr")
	var page tasksJSON
	s.json(exitOK, &page, "ls", "orders", "--limit", "1", "--payload")
	require.Equal(t, size, *page.Tasks[0].PayloadBytes)
	require.Equal(t, map[string]string{"tenant": "north"}, page.Tasks[0].Header)
	page = tasksJSON{}
	s.json(exitOK, &page, "ls", "orders", "--limit", "1")
	require.Nil(t, page.Tasks[0].PayloadBytes, "it was not asked for")
}

// TestTasks_AHeaderThatIsNoText is shown exactly in JSON.
func TestTasks_AHeaderThatIsNoText(t *testing.T) {
	s := newStage(t)
	_, err := s.queue("orders").Enqueue(t.Context(), sluice.Task{ID: "a", Delay: time.Hour, Header: map[string]string{"k": "v\xff", "plain": "text"}})
	require.NoError(t, err)
	var got taskJSON
	s.json(exitOK, &got, "get", "orders", "a")
	require.Equal(t, map[string]string{"aw==": "dv8=", "cGxhaW4=": "dGV4dA=="}, got.HeaderBase64)
	require.Equal(t, "text", got.Header["plain"])
}
