package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestImport_AnAppMovesFromAsynqWithItsTasksInFlight: 10,000 tasks that are pending, scheduled,
// retried and archived; the importer is killed again and again. Each task is done once, by a server
// of asynq or by a Worker.
func TestImport_AnAppMovesFromAsynqWithItsTasksInFlight(t *testing.T) {
	t.Parallel()
	redistest.NotShort(t)
	a := newAsynqStage(t)
	ctx := t.Context()
	const tasks = 10_000
	var mu sync.Mutex // guards what follows
	done, failed := map[string]int{}, map[string]int{}
	all := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(done)
	}
	// work fails the first attempt of a third of the kinds.
	work := func(kind, id string) error {
		mu.Lock()
		defer mu.Unlock()
		if (kind == "retried" || kind == "archived") && failed[id] == 0 {
			failed[id]++
			return errors.New("the first attempt fails")
		}
		done[id]++
		return nil
	}
	for i := range tasks {
		id := asynq.TaskID(fmt.Sprint("task-", i))
		switch i % 5 {
		case 0:
			a.enqueue("retried", "p", id)
		case 1:
			a.enqueue("archived", "p", id, asynq.MaxRetry(0))
		case 2:
			a.enqueue("scheduled", "p", id, asynq.ProcessIn(time.Hour))
		case 3:
			a.enqueue("scheduled", "p", id, asynq.ProcessIn(time.Duration(i%7)*time.Second))
		default:
			a.enqueue("pending", "p", id)
		}
	}
	a.serve(asynq.Config{Concurrency: 8, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }},
		func(ctx context.Context, task *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			return work(task.Type(), id)
		}, func() {
			require.Eventually(t, func() bool { return all() > tasks/10 }, time.Minute, time.Millisecond)
			a.pauseBoth("mails")
		})
	before := all()
	info, err := a.inspector.GetQueueInfo("default")
	require.NoError(t, err)
	require.Zero(t, info.Active)
	require.Positive(t, info.Retry*info.Archived*info.Scheduled*info.Pending, "%+v", info)

	kills := 0
	for {
		ids := a.rdb.ZCard(ctx, "Queue:mails").Val()
		tool := exec.CommandContext(ctx, os.Args[0], "import", "--from-asynq", "default", "--to", "mails", "--yes")
		tool.Env = append(os.Environ(), mainChild+"=1", "SLUICE_URL="+a.env["SLUICE_URL"])
		require.NoError(t, tool.Start())
		ended := make(chan error, 1)
		go func() { ended <- tool.Wait() }()                                                  // it ends with the process
		for kills < 8 && len(ended) == 0 && a.rdb.ZCard(ctx, "Queue:mails").Val() < ids+300 { // at least a step further than the one before
			time.Sleep(time.Millisecond) // a child of the system's is not in a bubble
		}
		if kills < 8 && len(ended) == 0 {
			require.NoError(t, tool.Process.Kill())
			kills++
		}
		if err := <-ended; err == nil {
			break
		}
	}
	require.Positive(t, kills)
	require.Equal(t, before, all(), "none is done while both are paused")

	q := a.queue("mails")
	stats, err := q.Stats(ctx)
	require.NoError(t, err)
	require.EqualValues(t, info.Archived, stats.Dead)
	require.EqualValues(t, tasks-before, stats.Due+stats.Scheduled+stats.Dead)
	a.ok("revive", "mails", "--all", "--yes")
	a.ok("run", "mails", "--all", "--state", "scheduled", "--yes")
	a.ok("resume", "mails")
	working, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	worker := &sluice.Worker{Queue: q, Handler: func(_ context.Context, e sluice.Entry) error { return work(e.Kind, e.ID) }}
	go func() { ended <- worker.Run(working) }() // it ends with working
	require.Eventually(t, func() bool { return all() == tasks }, time.Minute, 10*time.Millisecond)
	stop()
	<-ended
	for id, n := range done {
		require.Equal(t, 1, n, id)
	}
	require.Empty(t, a.rdb.Keys(ctx, "asynq:{default}:t:*").Val())
	t.Logf("%d done by asynq, %d by the Worker, %d kills", before, tasks-before, kills)
}
