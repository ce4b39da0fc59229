package distributed

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// groupedLease is short, so that the tasks of a killed process come back within the test.
const groupedLease = 2 * time.Second

var _ = systest.Role("grouped", workGrouped)

// openGate is the key without which the tasks of the group "gated" do not end.
const openGate = "open"

// workGrouped is the role "grouped": a worker whose handlers fail at random, one time in 20. It
// prints when each begins and ends, and how. Its settings are "ADDR QUEUE".
func workGrouped(settings string) {
	addr, name, _ := strings.Cut(settings, " ")
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(-1))
	if err != nil {
		panic(err)
	}
	report := func(what, id string, at time.Time) { fmt.Println(what, at.UnixMicro(), id) }
	w := &sluice.Worker{
		Queue: q, Concurrency: 16, Lease: groupedLease, Logger: slog.New(slog.DiscardHandler),
		Backoff: func(int, error) time.Duration { return 10 * time.Millisecond },
		Handler: func(ctx context.Context, e sluice.Entry) error {
			report("begin", e.ID, time.Now())
			time.Sleep(time.Millisecond + rand.N(time.Millisecond))
			for strings.HasPrefix(e.ID, "gated") && ctx.Err() == nil && rdb.Exists(ctx, openGate).Val() == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			at := time.Now() // when its lease was valid, if it is now
			switch {
			case !sluice.LeaseValid(ctx):
				report("lapsed", e.ID, at)
			case rand.N(20) == 0:
				report("failed", e.ID, at)
				return errors.New("no luck")
			default:
				report("done", e.ID, at)
			}
			return nil
		},
	}
	systest.ExitWithStdin()
	_ = w.Run(context.Background())
}

// attempt is a call of a handler.
type attempt struct {
	id          string
	begin, end  int64 // in microseconds
	lapsed, won bool  // the lease had ended; the task was done
}

func (a attempt) group() string { g, _, _ := strings.Cut(a.id, "-"); return g }

// groupTrial is a queue with groups, on which processes work that are killed and stopped.
type groupTrial struct {
	t        *testing.T
	s        *redistest.Server
	q        *sluice.Queue
	readers  sync.WaitGroup
	begun    atomic.Int64
	mu       sync.Mutex // guards what follows
	attempts []attempt
}

// start begins a process, and reads what it prints until it has ended.
func (g *groupTrial) start() *systest.Child {
	c := systest.StartChild(g.t, "grouped", g.s.Addr, g.q.Name())
	g.readers.Go(func() {
		open := map[string]int64{}
		for lines := bufio.NewScanner(c.Stdout); lines.Scan(); {
			what, rest, _ := strings.Cut(lines.Text(), " ")
			text, id, whole := strings.Cut(rest, " ")
			at, err := strconv.ParseInt(text, 10, 64)
			if !whole || err != nil {
				continue // it was killed while it printed
			}
			if what == "begin" {
				open[id] = at
				g.begun.Add(1)
				continue
			}
			g.add(attempt{id, open[id], at, what == "lapsed", what == "done"})
			delete(open, id)
		}
		for id, begin := range open { // it was killed
			g.add(attempt{id: id, begin: begin, end: time.Now().UnixMicro()})
		}
	})
	return c
}

func (g *groupTrial) add(a attempt) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attempts = append(g.attempts, a)
}

// strike kills a process and has another one begin, or stops one for longer than a lease.
func (g *groupTrial) strike(workers []*systest.Child, round int) {
	i := round % len(workers)
	if round%5 == 4 {
		require.NoError(g.t, workers[i].Process.Signal(syscall.SIGSTOP))
		time.Sleep(groupedLease * 3 / 2) // its leases run out
		require.NoError(g.t, workers[i].Process.Signal(syscall.SIGCONT))
		return
	}
	require.NoError(g.t, workers[i].Process.Kill())
	workers[i] = g.start()
}

// run enqueues the tasks, and has four processes work until those that count are done, which are
// struck each half second. It returns how long that took.
func (g *groupTrial) run(ts []sluice.Task, until func(s sluice.Stats, done int) bool) time.Duration {
	g.enqueue(ts)
	return g.work(g.startFour(), until)
}

func (g *groupTrial) enqueue(ts []sluice.Task) {
	_, err := g.q.EnqueueBatch(g.t.Context(), ts)
	require.NoError(g.t, err)
}

func (g *groupTrial) startFour() []*systest.Child {
	return []*systest.Child{g.start(), g.start(), g.start(), g.start()}
}

// work has the processes, which it strikes, work until those tasks that count are done, and ends
// them.
func (g *groupTrial) work(workers []*systest.Child, until func(s sluice.Stats, done int) bool) time.Duration {
	began := time.Now()
	for round := 0; ; {
		s, err := g.q.Stats(g.t.Context())
		require.NoError(g.t, err)
		if until(s, g.smallDone()) {
			break
		}
		time.Sleep(50 * time.Millisecond)
		if time.Since(began) > time.Duration(round+1)*500*time.Millisecond {
			g.strike(workers, round)
			round++
		}
	}
	took := time.Since(began)
	require.NoError(g.t, g.q.Purge(g.t.Context()))
	for _, w := range workers {
		_ = w.Stdin.Close() // it ends
	}
	g.readers.Wait()
	return took
}

// smallDone returns how many tasks of small groups were done.
func (g *groupTrial) smallDone() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	ids := map[string]bool{}
	for _, a := range g.attempts {
		if a.won && strings.HasPrefix(a.id, "small") {
			ids[a.id] = true
		}
	}
	return len(ids)
}

// mostAtOnce returns how many of one group were handled at a time at the most, and requires that
// these are never more than may be, except handlers that had lost their leases.
func (g *groupTrial) mostAtOnce(perGroup int) (most int) {
	type step struct {
		at int64
		by int
	}
	steps, lapsed := map[string][]step{}, 0
	for _, a := range g.attempts {
		if a.lapsed {
			lapsed++
			continue
		}
		steps[a.group()] = append(steps[a.group()], step{a.begin, 1}, step{a.end, -1})
	}
	for group, of := range steps {
		slices.SortFunc(of, func(a, b step) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
		n := 0
		for _, s := range of {
			n += s.by
			most = max(most, n)
			require.LessOrEqual(g.t, n, perGroup, group)
		}
	}
	g.t.Logf("%d attempts, %d of them had lost their leases; %d of a group at once", len(g.attempts), lapsed, most)
	return most
}

// requireOrder requires that no task of a group began before those ahead of it had been done.
func (g *groupTrial) requireOrder() {
	slices.SortFunc(g.attempts, func(a, b attempt) int { return cmp.Compare(a.begin, b.begin) })
	begun := map[string]string{} // the last one, of each group
	for _, a := range g.attempts {
		if !a.lapsed {
			require.GreaterOrEqual(g.t, a.id, begun[a.group()])
			begun[a.group()] = a.id
		}
	}
}

func newGroupTrial(t *testing.T, perGroup int) *groupTrial {
	redistest.NotShort(t)
	s := redistest.Start(t)
	q, err := sluice.NewQueue(s.Client(t), "groups")
	require.NoError(t, err)
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{PerGroup: perGroup}))
	return &groupTrial{t: t, s: s, q: q}
}

// groupTasks returns n tasks of each of so many groups, whose IDs are in order.
func groupTasks(name string, groups, n int) (ts []sluice.Task) {
	for i := range n {
		for group := range groups {
			name := fmt.Sprint(name, group)
			ts = append(ts, sluice.Task{ID: fmt.Sprintf("%s-%06d", name, i), Group: name})
		}
	}
	return ts
}

func allDone(s sluice.Stats, _ int) bool { return s.Due+s.Scheduled+s.Leased+s.GroupWaiting == 0 }

// TestGroups_OverProcesses: an order over processes that are killed and stopped, whose handlers
// fail: never two of a group at once, none before those ahead of it.
func TestGroups_OverProcesses(t *testing.T) {
	g := newGroupTrial(t, 1)
	g.run(append(groupTasks("large", 1, 500), groupTasks("small", 50, 20)...), allDone)
	g.mostAtOnce(1)
	g.requireOrder()
	require.Equal(t, 50*20, g.smallDone())
}

// TestGroups_SomeAtOnceOverProcesses: as many as Limits.PerGroup says: all of these while none ends,
// and never more under strikes.
func TestGroups_SomeAtOnceOverProcesses(t *testing.T) {
	for _, perGroup := range []int{3, 10} {
		g := newGroupTrial(t, perGroup)
		g.enqueue(groupTasks("gated", 1, 2*perGroup))
		workers := g.startFour()
		require.Eventually(t, func() bool { return g.begun.Load() == int64(perGroup) }, time.Minute, 10*time.Millisecond)
		require.NoError(t, g.s.Client(t).Set(t.Context(), openGate, "", 0).Err())
		g.enqueue(groupTasks("small", 3, 200*perGroup))
		g.work(workers, allDone)
		require.Equal(t, perGroup, g.mostAtOnce(perGroup))
	}
}
