package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// childLease is short enough for a test to see that tasks come back, and long enough not
// to be extended by handlers of up to 50ms.
const childLease = 1500 * time.Millisecond

// The role "worker" is a process that works until it is killed. Its settings are the
// server's address and the name of a queue. The effect of a task is a count in a hash.
var _ = systest.Role("worker", func(settings string) {
	systest.ExitWithStdin()
	addr, name, _ := strings.Cut(settings, " ")
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(-1))
	if err != nil {
		panic(err)
	}
	w := &sluice.Worker{Queue: q, Concurrency: 8, Lease: childLease, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(rand.N(50 * time.Millisecond)) // the work: most kills come in the midst of some
		return rdb.HIncrBy(ctx, "effects", e.ID, 1).Err()
	}}
	_ = w.Run(context.Background())
})

// Worker processes are killed by SIGKILL, one after the other. Every task is finished by
// exactly one receipt, and none is handed out again before its lease has ended.
func TestWorker_KilledProcessesLoseNothing(t *testing.T) {
	t.Parallel()
	killWorkers(t, 3, 1000*systest.Scale(), 300*time.Millisecond, 3*time.Second)
}

// killWorkers runs worker processes on n tasks that become due within spread, and kills
// one of them every period.
func killWorkers(t *testing.T, processes, n int, period, spread time.Duration) {
	// "everysec" may write what was finished after its reply.
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t), sluice.WithMaxAttempts(-1))
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Delay: rand.N(spread)}
	}
	_, err := b.Q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)

	spawn := func() *systest.Child {
		return systest.StartChild(t, "worker", s.Addr, strings.TrimPrefix(b.Key, "Queue:"))
	}
	var workers []*systest.Child
	for range processes {
		workers = append(workers, spawn())
	}
	kills := 0
	for stats := b.Stats(); stats.Due+stats.Scheduled+stats.Leased > 0; stats = b.Stats() {
		time.Sleep(period) // between two crashes
		victim := rand.N(processes)
		workers[victim].Kill()
		workers[victim] = spawn()
		kills++
		require.Less(t, kills, 600)
	}
	effects := b.RDB.HGetAll(t.Context(), "effects").Val()
	require.Len(t, effects, n, "tasks were lost")
	require.Zero(t, b.Stats().Dead)
	twice := 0
	for _, times := range effects {
		if times != "1" {
			twice++
		}
	}
	late := checkLog(t, s.Log(t), b.Key, n)
	slices.Sort(late)
	require.NotEmpty(t, late, "no process was killed at work")
	t.Logf("%d processes, %d tasks, %d kills, %d tasks worked on again (%d with their effect twice), taken p50 %.1f ms, max %.1f ms after their lease ended",
		processes, n, kills, len(late), twice, late[len(late)/2]*1e3, late[len(late)-1]*1e3)
}

// checkLog reads what the server has written: every task was removed with a receipt
// exactly once, and never handed out before its last lease had ended. It returns how long
// after that each redelivery came, in seconds.
func checkLog(t *testing.T, commands [][]string, key string, n int) (late []float64) {
	t.Helper()
	h := history{t: t, key: key, removed: map[string]int{}, attempts: map[string]int{}, ends: map[string]float64{}}
	var open [][]string
	inside := false // of a transaction
	for _, c := range commands {
		switch name := strings.ToUpper(c[0]); name {
		case "MULTI":
			inside, open = true, nil
		case "EXEC":
			inside = false
			h.add(open)
		default:
			c[0] = name
			if inside {
				open = append(open, c)
			} else {
				h.add([][]string{c})
			}
		}
	}
	require.Len(t, h.removed, n)
	for id, times := range h.removed {
		require.Equal(t, 1, times, "task %s was finished by two receipts", id)
	}
	return h.late
}

// history is what became of the tasks of a queue.
type history struct {
	t        *testing.T
	key      string
	removed  map[string]int     // how often
	attempts map[string]int     // the highest so far, with those not counted
	ends     map[string]float64 // the last score: the end of a lease, or when the task is due
	late     []float64          // by how much redeliveries came after the lease before
}

// add adds the writes of one script.
func (h *history) add(commands [][]string) {
	scores, fields, gone := map[string]float64{}, map[string]string{}, map[string]bool{}
	for _, c := range commands {
		switch {
		case c[0] == "ZADD" && c[1] == h.key:
			for i := 2; i < len(c); i += 2 {
				scores[c[i+1]], _ = strconv.ParseFloat(c[i], 64)
			}
		case c[0] == "HSET" && c[1] == "{"+h.key+"}:state":
			for i := 2; i < len(c); i += 2 {
				fields[c[i]] = c[i+1]
			}
		case c[0] == "ZREM" && c[1] == h.key:
			for _, id := range c[2:] {
				gone[id] = true
			}
		}
	}
	for id := range gone {
		if _, back := scores[id]; !back {
			h.removed[id]++
		}
	}
	for id, score := range scores {
		first, _, _ := strings.Cut(fields[id], ":")
		counted, unseen, _ := strings.Cut(first, "+")
		attempt, _ := strconv.Atoi(counted)
		more, _ := strconv.Atoi(unseen)
		if attempt += more; attempt > h.attempts[id] {
			if h.attempts[id] > 0 {
				require.GreaterOrEqual(h.t, score-childLease.Seconds(), h.ends[id]-2e-6, "task %s was handed out early", id)
				h.late = append(h.late, score-childLease.Seconds()-h.ends[id])
			}
			h.attempts[id] = attempt
		}
		h.ends[id] = score
	}
}
