package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/report"
)

// TestWorkers_OneThatRuns is listed with the task that it has, and is told of when it has ended.
func TestWorkers_OneThatRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	q := s.queue("orders")
	begun := make(chan struct{})
	w := &sluice.Worker{Queue: q, Label: "packer", Concurrency: 4, Handler: func(ctx context.Context, _ sluice.Entry) error {
		close(begun)
		<-ctx.Done()
		return ctx.Err()
	}}
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "slow"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	// It ends with ctx; the test waits for it.
	go func() { ended <- w.Run(ctx) }()
	<-begun
	var found workersJSON
	require.Eventually(t, func() bool {
		found = workersJSON{}
		s.json(exitOK, &found, "workers")
		return len(found.Queues) == 1 && len(found.Queues[0].Workers) == 1
	}, 10*time.Second, 50*time.Millisecond)
	host, err := os.Hostname()
	require.NoError(t, err)
	got := found.Queues[0].Workers[0]
	require.Equal(t, []any{"packer", host, os.Getpid(), 4}, []any{got.Label, got.Host, got.PID, got.Concurrency})
	require.NotNil(t, found.Queues[0].WorkerSeen)
	process := host + ":" + strconv.Itoa(os.Getpid())
	require.Contains(t, s.ok("workers", "orders"), process)
	require.Contains(t, s.ok("ls", "orders", "--state", "leased"), "packer at "+process)
	require.Contains(t, s.ok("get", "orders", "slow"), "packer at "+process)
	var task taskJSON
	s.json(exitOK, &task, "get", "orders", "slow")
	require.Equal(t, &holderJSON{ID: got.ID, Lives: true, Label: "packer", Host: host, PID: os.Getpid()}, task.LeasedBy)
	require.NotNil(t, task.LeasedSince)

	stop()
	<-ended
	require.Contains(t, s.ok("workers", "orders"), "orders: no Worker is running; the last one was seen 2")
	require.Contains(t, s.ok("queues"), "NO WORKER for ")
}

// TestGet_SaysWhoHadATaskUntilItsLeaseEnded, and so does ls by that worker.
func TestGet_SaysWhoHadATaskUntilItsLeaseEnded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	q := s.queue("orders")
	for _, id := range []string{"a", "b", "c"} {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: id})
		require.NoError(t, err)
	}
	_, err := q.Claim(t.Context(), 2, 5*time.Second)
	require.NoError(t, err)
	field := s.rdb.HGet(t.Context(), "{Queue:orders}:state", "a").Val()
	require.True(t, strings.HasSuffix(field, "/"), field) // no Worker's
	require.NoError(t, s.rdb.HSet(t.Context(), "{Queue:orders}:state", "a", field+"pod7").Err())
	require.Contains(t, s.ok("get", "orders", "a"), "by          a worker that is gone (pod7)")
	require.Eventually(t, func() bool {
		stats, err := q.Stats(t.Context())
		return err == nil && stats.Leased == 0
	}, 30*time.Second, 20*time.Millisecond)
	got := s.ok("get", "orders", "a")
	require.Contains(t, got, "last leased ")
	require.Contains(t, got, ", by a worker that is gone (pod7) until the lease ended")
	require.Contains(t, s.ok("get", "orders", "b"), ", by a Claim until the lease ended")
	require.NotContains(t, s.ok("get", "orders", "c"), "last leased")
	var task taskJSON
	s.json(exitOK, &task, "get", "orders", "a")
	require.Equal(t, &holderJSON{ID: "pod7"}, task.LastLeasedBy)
	require.NotNil(t, task.LastLeased)
	require.Nil(t, task.LeasedBy)
	var j tasksJSON
	s.json(exitOK, &j, "ls", "orders", "--state", "due", "--worker", "pod7")
	require.Len(t, j.Tasks, 1)
	exported := s.ok("export", "orders", "--state", "due,leased", "--worker", "pod7")
	require.Equal(t, 1, strings.Count(exported, "\n"), exported)
	require.Contains(t, exported, `"id":"a"`)
	require.Equal(t, exitUsage, s.run("export", "orders", "--worker", "pod7").code, "others have none")
	require.Equal(t, exitUsage, s.run("export", "orders", "--state", "due,dead", "--worker", "pod7").code)
}

// TestWorkers_WithoutAQueue says that there is none.
func TestWorkers_WithoutAQueue(t *testing.T) {
	s := newStage(t)
	got := s.run("workers")
	require.Equal(t, answer{"", "No queue has a key that begins with Queue: at " + s.server.Addr + ". A queue that is empty has none a day later.\n", exitOK}, got)
}

// TestQueues_OneThatIsIdleKeepsItsCounts, and is listed for them.
func TestQueues_OneThatIsIdleKeepsItsCounts(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.NoError(t, err)
	entries, err := q.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.NoError(t, q.Retry(t.Context(), 0, "no", entries[0]))
	_, err = q.Cancel(t.Context(), "a")
	require.NoError(t, err)
	var found report.Queues
	s.json(exitOK, &found, "queues")
	require.Len(t, found.Queues, 1)
	require.Equal(t, report.Queue{Name: "orders", Retried: 1}, found.Queues[0])
}

// TestTop_PrintsTheWorstFirst where it is no terminal, too.
func TestTop_PrintsTheWorstFirst(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, name := range []string{"a-idle", "z-unattended"} {
		task := sluice.Task{ID: "a"}
		if name == "a-idle" {
			task.Delay = time.Hour
		}
		_, err := s.queue(name).Enqueue(t.Context(), task)
		require.NoError(t, err)
	}
	got := s.ok("top", "--frames", "1")
	require.Less(t, strings.Index(got, "z-unattended"), strings.Index(got, "a-idle"), got)
	var found report.Queues
	s.json(exitOK, &found, "top", "--frames", "1")
	require.Equal(t, "z-unattended", found.Queues[0].Name)
}

// TestLs_Older lists what is due, leased or dead for longer, or has failed longer ago, and reads no
// more pages than that needs.
func TestLs_Older(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	q := s.queue("orders")
	now := s.rdb.Time(ctx).Val()
	var tasks []sluice.Task
	for i := range 1000 {
		age := time.Duration(i%2) * time.Hour // every other one
		tasks = append(tasks, sluice.Task{ID: fmt.Sprint("task-", i), At: now.Add(-age - time.Second)})
	}
	_, err := q.EnqueueBatch(ctx, tasks)
	require.NoError(t, err)
	calls := func(args ...string) (ids []string, scripts int) {
		require.NoError(t, s.rdb.ConfigResetStat(ctx).Err())
		var found tasksJSON
		s.json(exitOK, &found, append([]string{"ls", "orders"}, args...)...)
		for _, e := range found.Tasks {
			ids = append(ids, e.ID)
		}
		_, after, _ := strings.Cut(s.rdb.Info(ctx, "commandstats").Val(), "cmdstat_evalsha:calls=")
		text, _, _ := strings.Cut(after, ",")
		scripts, err := strconv.Atoi(text)
		require.NoError(t, err)
		return ids, scripts
	}
	ids, scripts := calls("--until", "30m", "--limit", "1000")
	require.Len(t, ids, 500)
	require.Equal(t, 3, scripts, "it ends at the first that is too new")
	ids, scripts = calls("--until", "2h")
	require.Empty(t, ids)
	require.Equal(t, 1, scripts)

	entries, err := q.Claim(ctx, 3, time.Hour) // task-1, task-101 and so on
	require.NoError(t, err)
	s.backdate(q, entries[0].ID, 10*time.Minute)
	ids, _ = calls("--state", "leased", "--until", "5m")
	require.Equal(t, []string{entries[0].ID}, ids)
	require.NoError(t, q.Retry(ctx, time.Hour, "too slow", entries[1]))
	time.Sleep(2 * time.Millisecond) // then it is older than one
	ids, _ = calls("--state", "scheduled", "--until", "1ms", "--reason", "slow")
	require.Equal(t, []string{entries[1].ID}, ids)
	ids, _ = calls("--state", "scheduled", "--until", "5m")
	require.Empty(t, ids)
	require.NoError(t, q.Bury(ctx, "poison", entries[2]))
	require.NoError(t, s.rdb.ZAdd(ctx, "{Queue:orders}:dead", redis.Z{Score: float64(now.Add(-time.Hour).Unix()), Member: "old"}).Err())
	ids, _ = calls("--state", "dead", "--until", "30m")
	require.Equal(t, []string{"old"}, ids)
}

// backdate has a lease seem to have been for so long.
func (s stage) backdate(q *sluice.Queue, id string, by time.Duration) {
	s.Helper()
	key := "{Queue:" + q.Name() + "}:state"
	state := s.rdb.HGet(s.Context(), key, id).Val()
	begin, claimant, _ := strings.Cut(state, "::")
	lasts, worker, found := strings.Cut(claimant, "/")
	require.True(s, found, state)
	seconds, err := strconv.ParseFloat(lasts, 64)
	require.NoError(s, err)
	require.NoError(s, s.rdb.HSet(s.Context(), key, id, fmt.Sprintf("%s::%g/%s", begin, seconds+by.Seconds(), worker)).Err())
}

// TestAliases_OfAsynq do the same, and words that are no command or state name what is like them.
func TestAliases_OfAsynq(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	s.ok("archive", "orders", "due-1")
	require.Equal(t, "dead", s.stateOf(q, "due-1"))
	s.ok("retry", "orders", "dead-1")
	require.Equal(t, "due", s.stateOf(q, "dead-1"))
	s.ok("delete", "orders", "dead-1")
	require.Equal(t, "absent", s.stateOf(q, "dead-1"))
	require.Equal(t, s.ok("get", "orders", "dead-2", "--json"), s.ok("inspect", "orders", "dead-2", "--json"))
	s.ok("servers")
	for line, want := range map[string]string{
		"worker": "did you mean workers?", "queue ls": "did you mean queues?", "task ls": "did you mean ls?", "task ls --queue=orders": "did you mean ls?", "server ls": "did you mean serve or workers?", "reviv": "did you mean revive?",
		"ls orders --state active": "did you mean leased?", "ls orders --state archived": "did you mean dead?", "ls orders --state pending": "did you mean due?",
		"ls orders --state retry": "did you mean scheduled?", "ls orders --state schedulled": "did you mean scheduled?", "cancel orders --all --state failed": "did you mean dead?",
	} {
		got := s.run(strings.Fields(line)...)
		require.Equal(t, exitUsage, got.code, line)
		require.Contains(t, got.err, want, line)
	}
	require.NotContains(t, s.run("frobnicate").err, "did you mean")
	require.NotContains(t, s.run("cancel", "orders", "--all").err, "did you mean")
}

// TestReason_ChoosesAmongRetries too: those that fail with an error can be taken away.
func TestReason_ChoosesAmongRetries(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	s.staff(q)
	var result resultJSON
	s.json(exitOK, &result, "bury", "orders", "--all", "--state", "scheduled", "--reason", "timeout", "--yes")
	require.Equal(t, 1, result.Done)
	require.Equal(t, "dead", s.stateOf(q, "retried-1"))
	require.Equal(t, "scheduled", s.stateOf(q, "later-1"))
}
