package main

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
)

// TestDone_IsSeenAndForgotten: what a Worker has finished is listed, with its attempt; its result
// is shown when it is asked for; cancel forgets it, and what is for tasks that are still to be done
// leaves it alone.
func TestDone_IsSeenAndForgotten(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	results := map[string]string{"text": "sent as 4711", "bytes": "\xff\x00", "none": ""}
	q := s.queue("mails", sluice.WithRetention(time.Hour))
	for id := range results {
		_, err := q.Enqueue(ctx, sluice.Task{ID: id, Kind: "email", Payload: []byte("payload")})
		require.NoError(t, err)
	}
	working, stop := context.WithCancel(ctx)
	ended := make(chan error)
	w := sluice.Worker{Queue: q, Backoff: func(int, error) time.Duration { return 0 }, Handler: func(ctx context.Context, e sluice.Entry) error {
		if e.Attempt == 1 {
			return context.DeadlineExceeded
		}
		return sluice.RecordResult(ctx, []byte(results[e.ID]))
	}}
	go func() { ended <- w.Run(working) }() // ends with working; the test waits for it
	require.Eventually(t, func() bool { return w.Stats().Done == 3 }, 20*time.Second, time.Millisecond)
	stop()
	require.NoError(t, <-ended)

	require.Regexp(t, `(?m)^mails .* 3 done$`, s.ok("queues"))
	require.Regexp(t, `(?m)^text +2 +\S+Z +\S+$`, s.ok("ls", "mails", "--state", "done"))
	require.NotContains(t, s.ok("ls", "mails", "--state", "done", "--wide"), "4711")
	require.Regexp(t, `(?m)^text +2 +\S+Z +\S+ +sent as 4711$`, s.ok("ls", "mails", "--state", "done", "--payload", "--contains", "t"))
	require.Regexp(t, `(?s)state +done\nattempts +2\ndone +\S+Z, \S+ ago\nresult +12 bytes, shown with --payload\n$`, s.ok("get", "mails", "text"))
	require.Regexp(t, `result +"\\xff\\x00"\n$`, s.ok("get", "mails", "bytes", "--payload"))
	require.Regexp(t, `result +none\n$`, s.ok("get", "mails", "none", "--payload"))
	require.NotContains(t, s.ok("ls", "mails", "--state", "done", "--until", "1h"), "text")
	require.Contains(t, s.ok("ls", "mails", "--state", "done", "--until", "1ns"), "text")

	now := time.Now()
	require.True(t, inspect.Filter{Before: now}.IsPast(sluice.TaskInfo{State: sluice.StateDone, DoneAt: now.Add(1)}, false), "the rest of the list is not read")
	require.True(t, inspect.Filter{After: now}.IsPast(sluice.TaskInfo{State: sluice.StateDead, DiedAt: now.Add(-1)}, true), "nor that from behind")
	require.False(t, inspect.Filter{After: now}.IsPast(sluice.TaskInfo{State: sluice.StateDead, DiedAt: now.Add(-1)}, false))

	var task taskJSON
	s.json(exitOK, &task, "get", "mails", "bytes", "--payload")
	require.Equal(t, 2, *task.ResultBytes)
	require.Equal(t, base64.StdEncoding.EncodeToString([]byte(results["bytes"])), *task.ResultBase64)
	require.Nil(t, task.PayloadBytes)
	task = taskJSON{}
	s.json(exitOK, &task, "get", "mails", "text")
	require.Equal(t, 12, *task.ResultBytes)
	require.Nil(t, task.Result)
	require.NotNil(t, task.Done)
	var ids []string
	page := tasksJSON{}
	for page.After = ""; len(ids) == 0 || page.After != ""; {
		args := []string{"ls", "mails", "--state", "done", "--limit", "1", "--after", page.After}
		page = tasksJSON{}
		s.json(exitOK, &page, args...)
		for _, task := range page.Tasks {
			require.Nil(t, task.ResultBytes, "it was not asked for")
			ids = append(ids, task.ID)
		}
	}
	require.ElementsMatch(t, []string{"text", "bytes", "none"}, ids)

	for _, line := range []string{"bury mails text", "run mails text", "delay mails text --for 1m", "revive mails text", "drop mails text"} {
		got := s.run(strings.Fields(line)...)
		require.Equal(t, exitNotFound, got.code, "%s: %s%s", line, got.out, got.err)
		require.Equal(t, "done", s.stateOf(q, "text"), line)
	}
	require.Equal(t, "text: would be forgotten (was done)\n", s.ok("cancel", "mails", "text", "--dry-run"))
	require.Equal(t, "text: forgotten (was done)\n", s.ok("cancel", "mails", "text"))
	require.Equal(t, "absent", s.stateOf(q, "text"))
	require.Contains(t, s.ok("cancel", "mails", "--all", "--state", "done", "--dry-run"), "would forget 2 done tasks of mails")
	require.Equal(t, "done", s.stateOf(q, "bytes"))
	require.Contains(t, s.ok("cancel", "mails", "--all", "--state", "done", "--contains", "bytes", "--confirm", "1"), "forgotten 1 of 1")
	require.Equal(t, "absent", s.stateOf(q, "bytes"))
	require.Contains(t, s.run("purge", "mails").err, "done 1")
	require.NotContains(t, s.ok("queues"), "3 done")
}
