package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

func TestChange_NamedTasks(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)

	s.ok("run", "orders", "later-1")
	require.Equal(t, "due", s.stateOf(q, "later-1"))
	s.ok("delay", "orders", "later-1", "due-1", "--for", "10m")
	require.Equal(t, "scheduled", s.stateOf(q, "due-1"))
	e, err := q.Get(t.Context(), "later-1")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(10*time.Minute), e.Due, 30*time.Second)

	s.ok("bury", "orders", "due-2", "leased-1", "later-1", "--why", "poison")
	for _, id := range []string{"due-2", "leased-1", "later-1"} {
		e, err := q.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, sluice.StateDead, e.State, id)
		require.Equal(t, "poison", e.Reason)
	}
	s.input = "dead-1\n\ndead-2\n"
	s.ok("revive", "orders", "-", "due-2")
	require.Equal(t, "due", s.stateOf(q, "dead-2"))
	var result resultJSON
	s.json(exitNotFound, &result, "drop", "orders", "leased-1", "dead-1")
	require.Equal(t, 1, result.Done)
	require.Equal(t, "due", s.stateOf(q, "dead-1"), "drop removed what was no dead letter")
	require.Equal(t, "absent", s.stateOf(q, "leased-1"))
	require.Equal(t, "dead-1: cancelled (was due)\n", s.ok("cancel", "orders", "dead-1"))
	require.Equal(t, "absent", s.stateOf(q, "dead-1"))
}

// TestChange_All chooses among some thousand tasks, and a dry run changes nothing.
func TestChange_All(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	q := s.queue("orders")
	var batch []sluice.Task
	for i := range 1200 {
		batch = append(batch, sluice.Task{ID: fmt.Sprintf("order-%04d", i), Delay: time.Duration(i+1000) * time.Second})
	}
	_, err := q.EnqueueBatch(ctx, batch)
	require.NoError(t, err)
	var result resultJSON

	s.json(exitOK, &result, "bury", "orders", "--all", "--state", "scheduled", "--dry-run")
	require.Equal(t, resultJSON{Action: "bury", Queue: "orders", DryRun: true, Matched: 1200, Outcomes: map[string]int{}}, result)
	stats, err := q.Stats(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1200, stats.Scheduled)

	result = resultJSON{}
	s.json(exitOK, &result, "bury", "orders", "--all", "--state", "scheduled", "--contains", "order-00", "--why", "first hundred", "--yes")
	require.Equal(t, 100, result.Done)
	result = resultJSON{}
	s.json(exitOK, &result, "bury", "orders", "--all", "--state", "scheduled", "--limit", "300", "--yes")
	require.Equal(t, 300, result.Done)
	require.True(t, result.Limited)
	result = resultJSON{}
	s.json(exitOK, &result, "drop", "orders", "--all", "--reason", "hundred", "--confirm", "100")
	require.Equal(t, 100, result.Done)
	require.Equal(t, "absent", s.stateOf(q, "order-0042"))
	require.Equal(t, "dead", s.stateOf(q, "order-0123"))

	// What is delayed is met again further behind, and must be touched once.
	result = resultJSON{}
	s.json(exitOK, &result, "delay", "orders", "--all", "--state", "scheduled", "--for", "30m", "--yes")
	require.Equal(t, 800, result.Done)
	entries, err := q.List(ctx, sluice.StateScheduled, sluice.TaskInfo{}, 1000)
	require.NoError(t, err)
	require.Len(t, entries, 800)
	for _, e := range entries {
		require.WithinDuration(t, time.Now().Add(30*time.Minute), e.Due, time.Minute)
	}
	result = resultJSON{}
	s.json(exitOK, &result, "cancel", "orders", "--all", "--state", "scheduled", "--yes")
	require.Equal(t, 800, result.Done)
	result = resultJSON{}
	s.json(exitOK, &result, "revive", "orders", "--all", "--yes")
	require.Equal(t, 300, result.Done)
	stats, err = q.Stats(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 300, stats.Due)
	require.Zero(t, stats.Dead+stats.Scheduled)
}

func TestLs_GoesOnBehind(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	for i := range 700 {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprintf("a:%d", i), Delay: time.Hour})
		require.NoError(t, err)
	}
	seen := map[string]bool{}
	after := ""
	for range 100 {
		var page tasksJSON
		s.json(exitOK, &page, "ls", "orders", "--state", "scheduled", "--limit", "33", "--after", after)
		for _, e := range page.Tasks {
			require.False(t, seen[e.ID], "twice")
			seen[e.ID] = true
		}
		if after = page.After; after == "" {
			break
		}
	}
	require.Len(t, seen, 700)
	var page tasksJSON
	s.json(exitOK, &page, "ls", "orders", "--state", "scheduled", "--contains", "99")
	require.Len(t, page.Tasks, 7)
	require.Empty(t, page.After)
	page = tasksJSON{}
	s.json(exitOK, &page, "ls", "orders", "--state", "scheduled", "--contains", "a:699", "--max-look", "250")
	require.Empty(t, page.Tasks)
	require.NotEmpty(t, page.After, "it says that it has not looked at all")
}

// TestPause_EndsWhereTheServerIsAway: each further queue would wait as long for it.
func TestPause_EndsWhereTheServerIsAway(t *testing.T) {
	s := newStage(t)
	for _, name := range []string{"a", "b", "c"} {
		s.queue(name)
	}
	var out bytes.Buffer
	a := &app{rdb: s.rdb, json: true, out: &output{Writer: &out}, errOut: io.Discard}
	err := a.control(t.Context(), []string{"a", "b", "c"}, deed{verb: "pause", unread: true}, func(q *sluice.Queue, _ string, _ sluice.Stats) error {
		s.server.Down()
		return q.Pause(t.Context(), 0)
	})
	require.Error(t, err)
	var results []queueResultJSON
	require.NoError(t, json.Unmarshal(out.Bytes(), &results))
	require.Len(t, results, 1)
}

func TestPause_NothingIsClaimed(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	s.ok("pause", "orders")
	entries, err := q.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.Contains(t, s.ok("queues"), "PAUSED")
	s.ok("resume", "orders")
	entries, err = q.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NotContains(t, s.ok("queues"), "PAUSED")

	s.ok("pause", "orders", "nowhere", "--for", "1h") // one that has no keys yet is found by its pause
	require.Equal(t, 2, strings.Count(s.ok("queues"), "PAUSED for 59m"))

	for _, name := range []string{"shop/a", "shop/b"} {
		_, err := s.queue(name).Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
	}
	require.Equal(t, 2, strings.Count(s.ok("pause", "--match", "shop/*"), "paused until resume"))
	require.Equal(t, 4, strings.Count(s.ok("queues"), "PAUSED"))
	require.Equal(t, 2, strings.Count(s.ok("drain", "--match", "shop/?", "--wait", "1ns"), "drained"))
	require.Equal(t, 2, strings.Count(s.ok("resume", "--match", "shop/*"), "resumed"))
	for _, wrong := range [][]string{{"pause"}, {"pause", "orders", "--match", "*"}, {"drain"}, {"resume", "orders", "--match", "*"}} {
		require.Equal(t, exitUsage, s.run(wrong...).code, wrong)
	}
	require.Equal(t, exitNotFound, s.run("pause", "--match", "none*").code)

	// One that is damaged is paused, too, and the others are; a name that is wrong keeps all from
	// being drained.
	require.NoError(t, s.rdb.Set(t.Context(), "{Queue:shop/a}:leased", "foreign", 0).Err())
	var results []queueResultJSON
	s.json(exitFailed, &results, "pause", "--match", "shop/*")
	require.Len(t, results, 2)
	require.NotEmpty(t, results[0].Error)
	require.Empty(t, results[1].Error)
	require.EqualValues(t, 2, s.rdb.Exists(t.Context(), "{Queue:shop/a}:paused", "{Queue:shop/b}:paused").Val())
	s.ok("resume", "shop/b")
	require.Equal(t, exitNotFound, s.run("drain", "shop/b", "none").code)
	require.Zero(t, s.rdb.Exists(t.Context(), "{Queue:shop/b}:paused").Val())
}

// TestQueues_Worst: in the order of their signs, with handlers that are stuck before what has no
// worker.
func TestQueues_Worst(t *testing.T) {
	s := newStage(t)
	hangs := make(chan struct{})
	stuck := s.queue("stuck")
	w := &sluice.Worker{Queue: stuck, Timeout: 20 * time.Millisecond, Grace: time.Millisecond, Handler: func(context.Context, sluice.Entry) error {
		<-hangs
		return nil
	}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }() // it ends below
	for _, name := range []string{"all-right", "no-worker", "stuck"} {
		task := sluice.Task{ID: "a"}
		if name == "all-right" {
			task.Delay = time.Hour
		}
		_, err := s.queue(name).Enqueue(ctx, task)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return strings.Contains(s.ok("queues"), "1 STUCK") }, time.Minute, 50*time.Millisecond)
	require.Regexp(t, `(?s)\nall-right .*\nno-worker .*\nstuck `, s.ok("queues"))
	require.Regexp(t, `(?s)\nstuck .*\nno-worker .*\nall-right `, s.ok("queues", "--worst"))
	close(hangs)
	stop()
	require.NoError(t, <-ended)
}

// TestLimit_IsHeededAndReplacesAll: what is handed out, what is shown, and that a limit which is
// not given is taken away.
func TestLimit_IsHeededAndReplacesAll(t *testing.T) {
	s := newStage(t)
	ctx, q := t.Context(), s.queue("orders")
	s.fill(q) // one is leased
	limits := func() sluice.Limits {
		l, err := q.Limits(ctx)
		require.NoError(t, err)
		return l
	}
	require.Equal(t, "orders: no limits (due 2, scheduled 1, leased 1, dead 2)\n", s.ok("limit", "orders"))
	s.ok("limit", "orders", "--running", "2", "--rate", "10/500ms", "--burst", "5", "--dry-run")
	require.Zero(t, limits())
	s.ok("limit", "orders", "--running", "2", "--rate", "10/500ms", "--burst", "5")
	require.Equal(t, sluice.Limits{Running: 2, Rate: 10, Per: 500 * time.Millisecond, Burst: 5}, limits())
	require.Contains(t, s.ok("queues"), "limits: 2 running, 10/500ms, burst 5")
	entries, err := q.Claim(ctx, 9, time.Minute)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	s.ok("pause", "orders")
	for _, line := range [][]string{{"queues"}, {"top", "--frames", "1"}, {"limit", "orders"}} {
		require.Contains(t, s.ok(line...), "at its limit: 2 of 2 running; 10/500ms, burst 5", line)
	}
	require.Contains(t, s.ok("queues"), "PAUSED; at its limit")
	s.ok("resume", "orders")
	var shown limitJSON
	s.json(exitOK, &shown, "limit", "orders")
	require.Equal(t, limitJSON{Queue: "orders", Leased: 2, Limits: &report.Limits{Running: 2, Rate: 10, PerSeconds: .5, Burst: 5, AtLimit: true}}, shown)

	require.Contains(t, s.ok("limit", "orders", "--running", "3", "--per-group", "4"), "orders: limits: 3 running, 4 per group; before: limits: 2 running, 10/500ms, burst 5 (")
	require.Equal(t, sluice.Limits{Running: 3, PerGroup: 4}, limits())
	require.Contains(t, s.ok("queues"), "limits: 3 running, 4 per group")
	s.ok("limit", "orders", "--running", "3")
	require.Equal(t, sluice.Limits{Running: 3}, limits(), "the rate is taken away")
	for _, wrong := range [][]string{{"--running", "-1"}, {"--rate", "0.5/s"}, {"--burst", "2"}, {"--off", "--running", "1"}, {"--running", "2", "--rate", ""}, {"--rate", "10/us"}, {"--per-group", "1001"}, {"--off", "--per-group", "4"}} {
		got := s.run(append([]string{"limit", "orders"}, wrong...)...)
		require.Equal(t, exitUsage, got.code, wrong)
		require.Equal(t, sluice.Limits{Running: 3}, limits(), wrong)
	}
	s.ok("limit", "orders", "--off", "--dry-run")
	require.Equal(t, sluice.Limits{Running: 3}, limits())
	s.ok("limit", "orders", "--off")
	require.Zero(t, limits())
	require.NotContains(t, s.ok("queues"), "limit")

	require.Contains(t, s.ok("limit", "nowhere", "--rate", "3/d"), "nowhere: limits: 3/d, burst 1") // one that has no keys yet is found by its limits
	require.Contains(t, s.ok("queues"), "limits: 3/d, burst 1")
}

// TestCompletion_OffersCommandsAndFlags of a command that is not typed to its end.
func TestCompletion_OffersCommandsAndFlags(t *testing.T) {
	s := shell{t: t}
	require.Contains(t, s.ok("__complete", "lim"), "limit\t")
	flags := s.ok("__complete", "limit", "orders", "--")
	for _, flag := range []string{"--running", "--rate", "--burst", "--per-group", "--off", "--dry-run"} {
		require.Contains(t, flags, flag+"\t")
	}
}

// TestChange_Filters are the same for ls and for --all.
func TestChange_Filters(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	for i, reason := range []string{"dial: i/o Timeout", "card declined", "TIMEOUT"} {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint("order-", i), Group: fmt.Sprint("g", i)})
		require.NoError(t, err)
		entries, err := q.Claim(t.Context(), 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Bury(t.Context(), reason, entries[0]))
	}
	for flags, want := range map[string][]string{
		"--reason timeout":              {"order-0", "order-2"},
		"--reason TIMEOUT --contains 2": {"order-2"},
		"--prefix order-1":              {"order-1"},
		"--prefix rder-1":               nil,
		"--group g2":                    {"order-2"},
		"--since 1h --reason declined":  {"order-1"},
		"--until 1h":                    nil,
		"--since 2020-01-31T12:00:00Z":  {"order-0", "order-1", "order-2"},
		"--since 2020-01-31T12:00:00Z --until 2020-02-01T12:00:00Z": nil,
	} {
		var page tasksJSON
		s.json(exitOK, &page, append([]string{"ls", "orders", "--state", "dead"}, strings.Fields(flags)...)...)
		var found []string
		for _, task := range page.Tasks {
			found = append(found, task.ID)
		}
		require.Equal(t, want, found, flags)
		var result resultJSON
		s.json(exitOK, &result, append([]string{"revive", "orders", "--all", "--dry-run"}, strings.Fields(flags)...)...)
		require.Equal(t, len(want), result.Matched, flags)
	}
	for _, flags := range []string{"--since -1h", "--until soon", "--since 1h --until 2h"} {
		require.Equal(t, exitUsage, s.run(append([]string{"revive", "orders", "--all"}, strings.Fields(flags)...)...).code, flags)
	}
	require.Contains(t, s.ok("revive", "orders", "--all", "--reason", "timeout", "--since", "1h", "--confirm", "2"), "revived 2 of 2")
}

// TestChange_Rate is not exceeded: a herd that comes back at once would do again what has killed it.
func TestChange_Rate(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	for i := range 41 {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), Delay: time.Hour})
		require.NoError(t, err)
	}
	began := time.Now()
	require.Contains(t, s.ok("run", "orders", "--all", "--state", "scheduled", "--rate", "40", "--yes"), "due now 41 of 41")
	require.GreaterOrEqual(t, time.Since(began), time.Second)
	require.Equal(t, exitUsage, s.run("run", "orders", "--all", "--rate", "-1").code)
}

// TestIDs_AreKeptWhole, also empty ones and the first.
func TestIDs_AreKeptWhole(t *testing.T) {
	var s ids
	for _, id := range []string{"a", "", "bc", "\x00"} {
		s.add(id)
	}
	require.Equal(t, []string{"a", "", "bc", "\x00"}, s.of(0, s.len()))
	require.Equal(t, []string{"bc"}, s.of(2, 3))
}

// TestChange_SeveralQueuesAndStates: one tenant's tasks over all queues that match, in each state that is
// named, and nothing else; one question for all.
func TestChange_SeveralQueuesAndStates(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	for _, name := range []string{"mail", "mail:high", "sms"} {
		q := s.queue(name)
		for _, tenant := range []string{"acme", "other"} {
			for i, delay := range []time.Duration{0, 0, time.Hour} {
				_, err := q.Enqueue(ctx, sluice.Task{ID: fmt.Sprintf("%s-%d", tenant, i), Group: tenant, Kind: "k" + strconv.Itoa(i), Delay: delay})
				require.NoError(t, err)
			}
		}
		e, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Bury(ctx, "why", e...))
	}
	left := func(queue string) (n int) {
		for state := sluice.StateScheduled; state <= sluice.StateWaiting; state++ {
			for _, err := range s.queue(queue).All(ctx, state) {
				require.NoError(t, err)
				n++
			}
		}
		return n
	}
	all := []string{"cancel", "--match", "mail*", "--all", "--state", "due,scheduled,waiting,dead", "--group", "acme"}
	var dry resultJSON
	s.json(exitOK, &dry, append(all, "--dry-run")...)
	require.Equal(t, 6, dry.Matched)
	require.Contains(t, dry.Lots, lotJSON{Queue: "mail", State: "dead", Matched: 1})
	require.Equal(t, exitNotConfirmed, s.run(append(all, "--confirm", "5")...).code)
	require.Equal(t, 6, left("mail"))
	require.Contains(t, s.ok(append(all, "--confirm", "6")...), "cancelled 6 of 6")
	require.Equal(t, []int{3, 3, 6}, []int{left("mail"), left("mail:high"), left("sms")})

	for _, wrong := range [][]string{
		{"cancel"}, {"cancel", "--match", "mail*"}, {"cancel", "mail", "--match", "mail*", "--all", "--state", "due"}, {"cancel", "--match", "[", "--all", "--state", "due"},
		{"cancel", "mail", "--all", "--state", "due,gone"}, {"revive", "mail", "--all", "--worker", "a"}, {"cancel", "mail", "--all", "--state", "waiting", "--newest"},
		{"ls", "mail", "--match", "x"}, {"ls"}, {"ls", "--match", "*", "--after", "x"}, {"ls", "mail", "--state", "done", "--kind", "a"},
	} {
		require.Equal(t, exitUsage, s.run(wrong...).code, wrong)
	}
	require.Equal(t, exitNotFound, s.run("ls", "--match", "nothing*").code)
}

// TestLs_KindNewestAndSeveralLists.
func TestLs_KindNewestAndSeveralLists(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	q := s.queue("orders")
	for i := range 5 {
		_, err := q.Enqueue(ctx, sluice.Task{ID: strconv.Itoa(i), Kind: []string{"mail", "sms"}[i%2], Payload: make([]byte, i*10_000)}) // the last two are larger than what is read for a kind
		require.NoError(t, err)
		e, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Bury(ctx, "why", e...))
	}
	listed := func(args ...string) (ids []string) {
		var j tasksJSON
		s.json(exitOK, &j, append([]string{"ls", "orders", "--state", "dead"}, args...)...)
		for _, t := range j.Tasks {
			require.Nil(s, t.Payload)
			ids = append(ids, t.ID)
		}
		return ids
	}
	require.Equal(t, []string{"4", "3", "2", "1", "0"}, listed("--newest"))
	require.Equal(t, []string{"4", "3"}, listed("--newest", "--limit", "2"))
	require.Equal(t, []string{"0", "2", "4"}, listed("--kind", "mail"))
	require.Equal(t, []string{"4", "2"}, listed("--kind", "mail", "--newest", "--limit", "2"))
	require.Empty(t, listed("--kind", "none"))
	var lists struct{ Lists []tasksJSON }
	s.json(exitOK, &lists, "ls", "--match", "*", "--state", "dead,due")
	require.Len(t, lists.Lists, 2)
	require.Contains(t, s.ok("ls", "--match", "*", "--state", "dead,due"), "orders, dead:")
	require.Contains(t, s.ok("drop", "orders", "--all", "--kind", "mail", "--newest", "--limit", "1", "--yes"), "dropped 1 of 1")
	require.Equal(t, []string{"3", "2", "1", "0"}, listed("--newest"), "the newest of that kind is gone")
}

// TestLs_OfAWorker: by its label, its process or its ID.
func TestLs_OfAWorker(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	s.staff(q)
	var workers workersJSON
	s.json(exitOK, &workers, "workers", "orders")
	for _, called := range []string{"PACK", workers.Queues[0].Workers[0].ID, ":" + strconv.Itoa(workers.Queues[0].Workers[0].PID)} {
		var j tasksJSON
		s.json(exitOK, &j, "ls", "orders", "--state", "leased", "--worker", called)
		require.Len(t, j.Tasks, 1, called)
	}
}
