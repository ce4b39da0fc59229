package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// asynqStage is a stage with asynq on the same server.
type asynqStage struct {
	stage
	opt       asynq.RedisClientOpt
	client    *asynq.Client
	inspector *asynq.Inspector
}

func newAsynqStage(t *testing.T) asynqStage {
	t.Helper()
	s := newStage(t)
	opt := asynq.RedisClientOpt{Addr: s.server.Addr}
	a := asynqStage{stage: s, opt: opt, client: asynq.NewClient(opt), inspector: asynq.NewInspector(opt)}
	t.Cleanup(func() {
		_ = a.client.Close()
		_ = a.inspector.Close()
	})
	return a
}

func (a asynqStage) enqueue(kind, payload string, opts ...asynq.Option) *asynq.TaskInfo {
	a.Helper()
	info, err := a.client.Enqueue(asynq.NewTask(kind, []byte(payload)), opts...)
	require.NoError(a, err)
	return info
}

// serve has a server of asynq work until work returns, and shuts it down.
func (a asynqStage) serve(config asynq.Config, h asynq.HandlerFunc, work func()) {
	a.Helper()
	config.LogLevel, config.DelayedTaskCheckInterval, config.TaskCheckInterval = asynq.FatalLevel, 100*time.Millisecond, 5*time.Millisecond
	server := asynq.NewServer(a.opt, config)
	require.NoError(a, server.Start(h))
	work()
	server.Shutdown()
}

// pauseBoth pauses asynq's queue default, and one of Sluice.
func (a asynqStage) pauseBoth(queue string) *sluice.Queue {
	a.Helper()
	require.NoError(a, a.inspector.PauseQueue("default"))
	a.ok("pause", queue)
	return a.queue(queue)
}

// TestImport_AsynqsTasksAsTheyAre: each property that has a counterpart is there, and those that
// have none are counted.
func TestImport_AsynqsTasksAsTheyAre(t *testing.T) {
	a := newAsynqStage(t)
	ctx, deadline, later := t.Context(), time.Now().Add(2*time.Hour).Truncate(time.Second), time.Now().Add(time.Hour).Truncate(time.Second)
	first := a.enqueue("a", "first")
	_, err := a.client.Enqueue(asynq.NewTaskWithHeaders("b", []byte{0, 255}, map[string]string{"k": "v", "é": ""}), asynq.TaskID("b"), asynq.Deadline(deadline))
	require.NoError(t, err)
	a.enqueue("c", "later", asynq.TaskID("c"), asynq.ProcessAt(later), asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Retention(time.Hour), asynq.Group("g"))
	unique := a.enqueue("d", "once", asynq.TaskID("d"), asynq.Unique(time.Hour))
	a.enqueue("failing", "x", asynq.TaskID("e"), asynq.MaxRetry(1), asynq.Queue("failing"))
	a.enqueue("failing", "x", asynq.TaskID("f"), asynq.Queue("failing"))
	a.serve(asynq.Config{Queues: map[string]int{"failing": 1}, RetryDelayFunc: func(n int, _ error, task *asynq.Task) time.Duration {
		return time.Hour
	}}, func(context.Context, *asynq.Task) error { return errors.New("refused") }, func() {
		require.Eventually(t, func() bool {
			tasks, err := a.inspector.ListRetryTasks("failing")
			return err == nil && len(tasks) == 2
		}, 10*time.Second, 10*time.Millisecond)
		require.NoError(t, a.inspector.RunTask("failing", "e"))
		require.Eventually(t, func() bool {
			tasks, err := a.inspector.ListArchivedTasks("failing")
			return err == nil && len(tasks) == 1
		}, 10*time.Second, 10*time.Millisecond)
	})
	require.NoError(t, a.inspector.ArchiveTask("default", unique.ID))

	q := a.pauseBoth("mails")
	require.NoError(t, a.inspector.PauseQueue("failing"))
	var j asynqJSON
	a.json(exitOK, &j, "import", "--from-asynq", "default", "--to", "mails", "--dry-run")
	require.Equal(t, []any{4, 0, map[string]int{"done": 4}}, []any{j.Matched, j.Done, j.Outcomes})
	require.Contains(t, a.ok("import", "--from-asynq", "default", "--to", "mails", "--confirm", "4"), "4 tasks imported of 4")
	j = asynqJSON{}
	a.json(exitOK, &j, "import", "--from-asynq", "failing", "--to", "mails", "--yes")
	require.Equal(t, []any{2, map[string]int{"MaxRetry": 1}}, []any{j.Done, j.Dropped})

	get := func(id string) sluice.TaskInfo {
		info, err := q.Get(ctx, id)
		require.NoError(t, err)
		return info
	}
	got := get(first.ID)
	require.Equal(t, []any{"a", "first", sluice.StateDue, 0}, []any{got.Kind, string(got.Payload), got.State, got.Attempt})
	require.WithinDuration(t, time.Now(), got.Due, 30*time.Second)
	got = get("b")
	require.Equal(t, []any{"b", "\x00\xff", map[string]string{"k": "v", "é": ""}, true}, []any{got.Kind, string(got.Payload), got.Header, got.Expires.Equal(deadline)})
	got = get("c")
	require.Equal(t, []any{sluice.StateScheduled, true}, []any{got.State, got.Due.Equal(later)})
	got = get("d")
	require.Equal(t, []any{sluice.StateDead, "archived in asynq", 0}, []any{got.State, got.Reason, got.Attempt})
	require.WithinDuration(t, time.Now(), got.DiedAt, 30*time.Second)
	got = get("e")
	require.Equal(t, []any{sluice.StateDead, "refused", 1}, []any{got.State, got.Reason, got.Attempt})
	got = get("f")
	require.Equal(t, []any{sluice.StateScheduled, "refused", 1}, []any{got.State, got.Reason, got.Attempt})
	require.WithinDuration(t, time.Now().Add(time.Hour), got.Due, 30*time.Second)
	require.WithinDuration(t, time.Now(), got.FailedAt, 30*time.Second)

	a.enqueue("d", "once", asynq.Unique(time.Hour)) // the lock of the one that has left is gone
	keys := a.rdb.Keys(ctx, "asynq:{default}:*").Val()
	require.Len(t, keys, 4, "pending, paused, a task and its lock: %q", keys)
}

// TestImport_AsynqsPropertiesThatAreLostAreTold.
func TestImport_AsynqsPropertiesThatAreLostAreTold(t *testing.T) {
	a := newAsynqStage(t)
	a.enqueue("a", "", asynq.ProcessIn(time.Hour), asynq.MaxRetry(3), asynq.Timeout(time.Minute), asynq.Retention(time.Hour), asynq.Group("g"))
	a.enqueue("b", "", asynq.Unique(time.Hour), asynq.MaxRetry(3))
	a.enqueue("c", "")
	var j asynqJSON
	a.json(exitOK, &j, "import", "--from-asynq", "default", "--dry-run")
	require.Equal(t, map[string]int{"MaxRetry": 2, "Timeout": 1, "Retention": 1, "Group": 1, "Unique": 1}, j.Dropped)
	require.Equal(t, map[string]int64{"pending": 2, "scheduled": 1, "retry": 0, "archived": 0, "active": 0, "completed": 0}, j.Left)
	require.Contains(t, a.ok("import", "--from-asynq", "default", "--dry-run"), "not taken over: MaxRetry of 2 tasks")
}

// TestImport_AsynqWhatStaysAndWhy: what cannot be moved is in asynq afterwards, is told, and is no
// success.
func TestImport_AsynqWhatStaysAndWhy(t *testing.T) {
	a := newAsynqStage(t)
	ctx := t.Context()
	for _, id := range []string{"free", "taken", "done", "garbage", "newer"} {
		a.enqueue("k", "p", asynq.TaskID(id))
	}
	a.enqueue("k", strings.Repeat("x", 1<<20+1), asynq.TaskID("large"))
	a.enqueue("k", "p", asynq.TaskID("grouped"), asynq.Group("g"))
	yes := []string{"import", "--from-asynq", "default", "--to", "mails", "--yes"}
	refused := func(why string) {
		got := a.run(yes...)
		require.Equal(t, exitNotConfirmed, got.code, got.err)
		require.Contains(t, got.err, why)
	}
	refused("the queue of asynq hands tasks out")
	require.NoError(t, a.inspector.PauseQueue("default"))
	refused("the queue mails hands tasks out")
	a.ok("pause", "mails", "--for", "1h")
	refused("without --for")
	q := a.queue("mails", sluice.WithRetention(time.Hour))
	require.NoError(t, q.Resume(ctx))
	a.finish(q, "done", "")
	a.ok("pause", "mails")
	_, err := q.Enqueue(ctx, sluice.Task{ID: "taken", Payload: []byte("another")})
	require.NoError(t, err)
	require.NoError(t, a.rdb.HSet(ctx, "asynq:{default}:t:garbage", "msg", "\xff").Err())
	message := a.rdb.HGet(ctx, "asynq:{default}:t:newer", "msg").Val()
	require.NoError(t, a.rdb.HSet(ctx, "asynq:{default}:t:newer", "msg", message+"\x80\x01\x01").Err()) // field 16 is 1
	require.Equal(t, exitNotConfirmed, a.run("import", "--from-asynq", "default", "--to", "mails").code)
	require.Equal(t, exitNotConfirmed, a.run("import", "--from-asynq", "default", "--to", "mails", "--confirm", "5").code)

	var j asynqJSON
	a.json(exitFailed, &j, yes...)
	require.Equal(t, map[string]int{"done": 1, string(outcomeKept): 1, string(outcomeWasDone): 1, string(outcomeAlien): 2, string(outcomeRefused): 1}, j.Outcomes)
	require.Equal(t, []any{int64(5), int64(1)}, []any{j.Left["pending"], j.Left["aggregating"]})
	require.Contains(t, strings.Join(j.Refused, "\n"), "large: ")
	for _, id := range []string{"taken", "done", "garbage", "newer", "large", "grouped"} {
		require.EqualValues(t, 1, a.rdb.Exists(ctx, "asynq:{default}:t:"+id).Val(), id)
	}
	got, err := q.Get(ctx, "taken")
	require.NoError(t, err)
	require.Equal(t, "another", string(got.Payload))
	require.Equal(t, exitNotFound, a.run("import", "--from-asynq", "typo", "--yes").code)
	for _, wrong := range []string{"import --from-asynq default file", "import", "import - --state retry", "import --from-asynq default --state due", "import --from-asynq default --from-url http://x"} {
		require.Equal(t, exitUsage, a.run(strings.Fields(wrong)...).code, wrong)
	}
}

// TestImport_AsynqsActiveTasksStay: a worker has them, and what is chosen by --state leaves the
// others.
func TestImport_AsynqsActiveTasksStay(t *testing.T) {
	a := newAsynqStage(t)
	begun, end := make(chan struct{}), make(chan struct{})
	a.enqueue("slow", "p", asynq.TaskID("slow"))
	a.serve(asynq.Config{Concurrency: 1}, func(context.Context, *asynq.Task) error {
		close(begun)
		<-end
		return nil
	}, func() {
		defer close(end)
		<-begun
		a.enqueue("k", "p", asynq.TaskID("pending"))
		a.enqueue("k", "p", asynq.TaskID("later"), asynq.ProcessIn(time.Hour))
		a.pauseBoth("mails")
		got := a.run("import", "--from-asynq", "default", "--to", "mails", "--yes", "--state", "scheduled")
		require.Equal(t, exitFailed, got.code)
		require.Contains(t, got.out, "1 task imported of 1")
		require.Contains(t, got.err, "active 1")
		require.NotContains(t, got.err, "pending")
		got = a.run("import", "--from-asynq", "default", "--to", "mails", "--yes")
		require.Equal(t, exitFailed, got.code)
		require.Contains(t, got.out, "1 task imported of 1")
	})
	require.Contains(t, a.ok("import", "--from-asynq", "default", "--to", "mails", "--yes"), "0 tasks imported of 0", "it has ended in asynq")
}

// breaking ends the connection with the call of a command, after it was carried out or before.
type breaking struct {
	mu     sync.Mutex // guards at
	at     int
	before bool
}

var errBroken = errors.New("broken by the test")

func (b *breaking) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *breaking) isNow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.at--
	return b.at < 0
}

func (b *breaking) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		now := b.isNow()
		if now && b.before {
			return errBroken
		}
		if err := next(ctx, cmd); err != nil || !now {
			return err
		}
		cmd.SetErr(errBroken)
		return errBroken
	}
}

func (b *breaking) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if now := b.isNow(); now && b.before {
			return errBroken
		} else if err := next(ctx, cmds); err != nil || !now {
			return err
		}
		return errBroken
	}
}

// TestImport_AsynqEndsAtEachCommand: an import that ends before or after any of its commands is
// repeated, and each task is in one of the two then, once.
func TestImport_AsynqEndsAtEachCommand(t *testing.T) {
	t.Parallel()
	a := newAsynqStage(t)
	ctx := t.Context()
	q := a.queue("mails")
	a.enqueue("k", "p", asynq.TaskID("first")) // asynq knows a queue from its first task on
	a.pauseBoth("mails")
	a.ok("import", "--from-asynq", "default", "--to", "mails", "--yes")
	inBoth := 0
	for at := 0; ; at++ {
		interrupted := false
		for _, before := range []bool{true, false} {
			require.NoError(t, q.Purge(ctx))
			a.ok("pause", "mails")
			const n = 300 // two steps
			for i := range n {
				a.enqueue("k", "p", asynq.TaskID(fmt.Sprint(at, before, i)), asynq.ProcessIn(time.Duration(i%2)*time.Hour))
			}
			rdb := redis.NewClient(&redis.Options{Addr: a.server.Addr, MaxRetries: -1})
			rdb.AddHook(&breaking{at: at, before: before})
			var out, errOut strings.Builder
			tool := &app{in: strings.NewReader(""), out: &output{Writer: &out}, errOut: &errOut, rdb: rdb, lookupEnv: func(string) (string, bool) { return "", false }}
			code := tool.run(ctx, []string{"import", "--from-asynq", "default", "--to", "mails", "--yes"})
			interrupted = interrupted || code != exitOK
			counts, err := a.inspector.GetQueueInfo("default")
			require.NoError(t, err)
			stats, err := q.Stats(ctx)
			require.NoError(t, err)
			there := int(stats.Due + stats.Scheduled)
			require.GreaterOrEqual(t, counts.Pending+counts.Scheduled+there, n, "lost at %d: %s", at, errOut.String())
			inBoth += counts.Pending + counts.Scheduled + there - n
			a.ok("import", "--from-asynq", "default", "--to", "mails", "--yes")
			stats, err = q.Stats(ctx)
			require.NoError(t, err)
			require.EqualValues(t, n, stats.Due+stats.Scheduled)
			require.Empty(t, a.rdb.Keys(ctx, "asynq:{default}:t:*").Val())
		}
		if !interrupted {
			break
		}
	}
	require.Positive(t, inBoth, "none was interrupted between the two")
}

// atLeave calls a function before the first command that takes tasks out of asynq.
type atLeave struct {
	breaking
	call func()
}

func (h *atLeave) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "eval" && strings.Contains(fmt.Sprint(cmd.Args()[1]), "LREM") && h.call != nil {
			h.call()
			h.call = nil
		}
		return next(ctx, cmd)
	}
}

func (h *atLeave) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestImport_AsynqChangesMeanwhile: what asynq keeps is not in the queue, also if it is resumed
// between the two.
func TestImport_AsynqChangesMeanwhile(t *testing.T) {
	a := newAsynqStage(t)
	ctx := t.Context()
	q := a.queue("mails")
	for _, id := range []string{"a", "b"} {
		a.enqueue("k", "p", asynq.TaskID(id), asynq.ProcessIn(time.Hour))
	}
	a.pauseBoth("mails")
	run := func(call func()) (code int, told string) {
		rdb := redis.NewClient(&redis.Options{Addr: a.server.Addr})
		rdb.AddHook(&atLeave{call: call})
		var out, errOut strings.Builder
		tool := &app{in: strings.NewReader(""), out: &output{Writer: &out}, errOut: &errOut, rdb: rdb, lookupEnv: func(string) (string, bool) { return "", false }}
		code = tool.run(ctx, []string{"import", "--from-asynq", "default", "--to", "mails", "--yes"})
		return code, out.String() + errOut.String()
	}
	code, told := run(func() { require.NoError(t, a.inspector.UnpauseQueue("default")) })
	require.Equal(t, exitFailed, code)
	require.Contains(t, told, "was resumed meanwhile")
	requireIn := func(asynq int, here int64) {
		info, err := a.inspector.GetQueueInfo("default")
		require.NoError(t, err)
		stats, err := q.Stats(ctx)
		require.NoError(t, err)
		require.Equal(t, []any{asynq, here}, []any{info.Size, stats.Scheduled + stats.Due}, told)
	}
	requireIn(2, 0)

	require.NoError(t, a.inspector.PauseQueue("default"))
	code, told = run(func() { require.NoError(t, a.inspector.UpdateTaskPayload("default", "a", []byte("another"))) })
	require.Equal(t, exitFailed, code)
	require.Contains(t, told, "1 task imported of 2")
	requireIn(1, 1)
	code, told = run(nil)
	require.Equal(t, exitOK, code, told)
	requireIn(0, 2)
	got, err := q.Get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "another", string(got.Payload))
}

// TestImport_AsynqOnAnotherServer, as a user with the rights that docs/from-asynq.md names.
func TestImport_AsynqOnAnotherServer(t *testing.T) {
	a, s := newAsynqStage(t), newStage(t)
	page, err := os.ReadFile("../../docs/from-asynq.md")
	require.NoError(t, err)
	rule := regexp.MustCompile("`(~asynq:[^`]*)`").FindStringSubmatch(string(page))
	require.Len(t, rule, 2)
	a.enqueue("k", "p")
	a.enqueue("k", "p", asynq.Unique(time.Hour), asynq.ProcessIn(time.Hour))
	a.enqueue("k", "p", asynq.Group("g"))
	require.NoError(t, a.inspector.PauseQueue("default"))
	s.ok("pause", "default")
	for _, word := range append(strings.Fields(rule[1]), "") { // without one after the other; without none at last
		a.become("importer", slices.DeleteFunc(strings.Fields(rule[1]), func(w string) bool { return w == word }))
		s.env["SLUICE_FROM_PASSWORD"] = "secret-importer"
		got := s.run("import", "--from-asynq", "default", "--from-url", "redis://importer@"+a.server.Addr, "--yes")
		if word != "" {
			require.Equal(t, exitDenied, got.code, "%s: %s%s", word, got.out, got.err)
			continue
		}
		require.Equal(t, exitFailed, got.code, got.err)
		require.Contains(t, got.out, "2 tasks imported of 2")
		require.Contains(t, got.err, "aggregating 1")
	}
	stats, err := s.queue("default").Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Due+stats.Scheduled)
}
