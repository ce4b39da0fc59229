package distributed

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

const (
	// turns is how many each process has to have in a phase, beside three others.
	turns = 25
	// phaseLimit is the most that a phase may take. If no message at all comes through, each
	// process looks once in a retry interval of 100 ms, and finds the lock free about every fourth
	// time: 10 s, and as much again on a busy machine.
	phaseLimit = 20 * time.Second
	// longestWait is the most that a caller or a task waits: for the TTL of a killed holder, and
	// for its turn or a poll.
	longestWait = 3 * time.Second
)

// kinds are the client's, with what they promise.
var kinds = []struct {
	kind   string
	atOnce int // how many turns may overlap on one name
	fences fences
}{
	{"plain", 1, noFences},
	{"loop", 1, noFences}, // plain, without pauses
	{"fenced", 1, fencesRise},
	{"permits", 2, fencesDiffer},
	{"lockall", 1, noFences},
	{"tasks", 1, noFences}, // of one ID
	{"work", 1, noFences},  // likewise
	{"limits", 2, noFences},
	{"retention", 1, noFences}, // like work
}

type fences int

const (
	noFences     fences = iota
	fencesDiffer        // turns overlap, so the order of their beginnings is not that of their grants
	fencesRise
)

// TestBuilds_ShareLocksAndAQueue has two processes of the build before and two of now contend for
// the same names, or handle the tasks of one queue. In the middle, one of each build kills itself
// while it holds what it has taken, and is started again; and so on, SLUICE_TEST_SCALE times. No
// turns overlap that exclude each other, fences rise over both builds, each process has its turns,
// none waits for long, and no task is lost.
//
// Turns also have to follow each other across the builds, in both directions: so each build lets go
// what the other one waits for. Of the kind "loop", each process asks for the lock again as soon as
// it has let go: a release tells a process of the build before that the lock is free, and does not
// keep it, so that such a process waits longer.
func TestBuilds_ShareLocksAndAQueue(t *testing.T) {
	redistest.NotShort(t)
	s := redistest.Redis(t)
	programs := buildClients(t, sourceBefore(t))
	for _, k := range kinds {
		t.Run(k.kind, func(t *testing.T) {
			t.Parallel()
			lag := systest.Lag(t)
			c := newBuildCrew(t, s.Addr, k.kind, programs)
			c.work()
			for range systest.Scale() {
				for _, build := range []string{"before", "now"} {
					c.restart(build)
					c.work()
				}
			}
			c.rest(s.Client(t))
			c.end()
			c.check(k.atOnce, k.fences)
			if c.handlesOnce() {
				c.checkTasks()
			}
			if k.kind == "retention" {
				c.checkRetention(s.Client(t))
			}
			require.Less(t, c.longest, longestWait+20*lag(), "a caller waited for so long")
		})
	}
}

// buildClients compiles the client of both builds, whose names are the keys.
func buildClients(t *testing.T, sourceBefore string) map[string]string {
	t.Helper()
	return map[string]string{"before": compile(t, sourceBefore, client), "now": compile(t, systest.Root(t), client, "-tags", "now")}
}

// report is what the client prints; see there.
type report struct {
	Enqueued    string
	IsSure      bool
	Names       []string
	From, Until int64
	Fence       int64
	Wait        time.Duration

	build string
}

// buildProcess is a running client.
type buildProcess struct {
	*systest.Child
	build string
	turns int           // guarded by crew.mu
	ended chan struct{} // closed when all that it printed was read
}

// buildCrew is the processes that share a name, and what they reported.
type buildCrew struct {
	t                *testing.T
	addr, kind, name string
	programs         map[string]string // by build
	running          []*buildProcess

	mu       sync.Mutex       // guards what follows, and the turns of each process
	turns    map[int64]report // the last report of each turn, by From
	enqueued map[string]bool  // the IDs of tasks, and whether an enqueue has succeeded
	longest  time.Duration
}

// newBuildCrew returns two processes of each build.
func newBuildCrew(t *testing.T, addr, kind string, programs map[string]string) *buildCrew {
	t.Helper()
	c := &buildCrew{t: t, addr: addr, kind: kind, name: redistest.Name(t), programs: programs, turns: map[int64]report{}, enqueued: map[string]bool{}}
	for _, build := range []string{"before", "now", "before", "now"} {
		c.running = append(c.running, c.start(build))
	}
	return c
}

// handlesOnce says whether its processes are Workers, on tasks each of which is enqueued once.
func (c *buildCrew) handlesOnce() bool { return c.kind == "work" || c.kind == "retention" }

// start starts a process of a build.
func (c *buildCrew) start(build string) *buildProcess {
	args := []string{"-addr", c.addr, "-name", c.name, "-for", "1h"}
	if c.kind == "loop" {
		args = append(args, "-kind", "plain", "-callers", "1", "-hold", "10ms", "-pause", "1ns")
	} else {
		args = append(args, "-kind", c.kind)
	}
	p := &buildProcess{
		Child: systest.StartProgram(c.t, c.programs[build], args...),
		build: build, ended: make(chan struct{}),
	}
	go c.read(p) // it ends with the process, which is killed at the latest when the test ends; end and restart wait for it
	return p
}

// read notes what a process reports, until that has ended.
func (c *buildCrew) read(p *buildProcess) {
	defer close(p.ended)
	for lines := json.NewDecoder(p.Stdout); ; {
		r := report{build: p.build}
		if lines.Decode(&r) != nil {
			return
		}
		c.mu.Lock()
		c.longest = max(c.longest, r.Wait)
		if r.Enqueued != "" {
			c.enqueued[r.Enqueued] = c.enqueued[r.Enqueued] || r.IsSure
		}
		if len(r.Names) > 0 {
			if _, known := c.turns[r.From]; !known {
				p.turns++
			}
			c.turns[r.From] = r
		}
		c.mu.Unlock()
	}
}

// work waits until each process has had its turns, from now on.
func (c *buildCrew) work() {
	c.t.Helper()
	begun, before := time.Now(), c.count()
	defer func() {
		c.t.Logf("turns of each process: %v, and %v after %v", before, c.count(), time.Since(begun).Round(time.Millisecond))
	}()
	enough := func() bool {
		now, all := c.count(), 0
		for i := range now {
			all += now[i] - before[i]
			if now[i]-before[i] < turns && c.kind != "limits" && !c.handlesOnce() {
				return c.hasEnded()
			}
		}
		return all >= turns*len(now) || c.hasEnded() // of workers those that had the last tasks have the next
	}
	require.Eventually(c.t, enough, phaseLimit, 10*time.Millisecond, "a process was left out")
	require.False(c.t, c.hasEnded(), "a process has failed")
}

// count returns how many turns each of the running processes has had.
func (c *buildCrew) count() (turns []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.running {
		turns = append(turns, p.turns)
	}
	return turns
}

// hasEnded reports whether a process has, which should be running.
func (c *buildCrew) hasEnded() bool {
	return slices.ContainsFunc(c.running, func(p *buildProcess) bool {
		select {
		case <-p.ended:
			return true
		default:
			return false
		}
	})
}

// restart has that process of a build kill itself in a turn which has had the most, and starts
// another one.
func (c *buildCrew) restart(build string) {
	c.t.Helper()
	place, counts := -1, c.count()
	for i, p := range c.running {
		if p.build == build && (place < 0 || counts[i] > counts[place]) {
			place = i
		}
	}
	p := c.running[place]
	p.Tell("die")
	patience := phaseLimit
	if c.kind == "limits" { // the Workers that had the last tasks have the next, and it may have none
		patience = time.Second
	}
	select {
	case <-p.ended:
		require.EqualError(c.t, p.Wait(), "signal: killed")
	case <-time.After(patience):
		require.Equal(c.t, "limits", c.kind, "it had no turn in which to kill itself")
		p.Kill()
	}
	c.running[place] = c.start(p.build)
}

// rest has the processes enqueue no more, and waits until the queue is empty.
func (c *buildCrew) rest(rdb redis.UniversalClient) {
	c.t.Helper()
	for _, p := range c.running {
		p.Tell("rest")
	}
	q, err := sluice.NewQueue(rdb, c.name)
	require.NoError(c.t, err)
	require.Eventually(c.t, func() bool {
		stats, err := q.Stats(c.t.Context())
		require.NoError(c.t, err)
		return stats.Due+stats.Scheduled+stats.Leased == 0 || c.kind == "tasks" || c.hasEnded()
	}, phaseLimit, 10*time.Millisecond, "a task is left")
	require.False(c.t, c.hasEnded(), "a process has failed")
}

// checkTasks checks that each task was handled, and that few were twice: those of the killed
// processes, and of leases that a busy machine was too slow for.
func (c *buildCrew) checkTasks() {
	c.t.Helper()
	handled, again, builds := map[string]int{}, 0, map[string]int{}
	for _, r := range c.turns {
		builds[r.build]++
		if handled[r.Names[0]]++; handled[r.Names[0]] > 1 {
			again++
		}
	}
	for id, isSure := range c.enqueued {
		if isSure {
			require.Positive(c.t, handled[c.name+"."+id], "%s was lost", id)
		}
	}
	for name := range handled {
		require.Contains(c.t, c.enqueued, strings.TrimPrefix(name, c.name+"."))
	}
	c.t.Logf("%d tasks, handled by %v, %d again", len(c.enqueued), builds, again)
	require.Greater(c.t, min(builds["before"], builds["now"]), 2*turns)
	require.Greater(c.t, len(c.enqueued), 4*turns)
	require.Less(c.t, again, 10*systest.Scale())
}

// checkRetention checks that what the build of now has finished is remembered, and what the one
// before has, is not.
func (c *buildCrew) checkRetention(rdb redis.UniversalClient) {
	c.t.Helper()
	q, err := sluice.NewQueue(rdb, c.name)
	require.NoError(c.t, err)
	by := map[string][]string{} // the builds that a task was handled by
	for _, r := range c.turns {
		by[r.Names[0]] = append(by[r.Names[0]], r.build)
	}
	kept := 0
	for name, builds := range by {
		info, err := q.Get(c.t.Context(), strings.TrimPrefix(name, c.name+"."))
		if len(builds) > 1 {
			continue // killed, or too slow: either may have finished it
		}
		if builds[0] == "before" {
			require.ErrorIs(c.t, err, sluice.ErrNotFound, name)
			continue
		}
		require.NoError(c.t, err, name)
		require.Equal(c.t, sluice.StateDone, info.State)
		kept++
	}
	require.Greater(c.t, kept, turns)
}

// end ends all processes, in order.
func (c *buildCrew) end() {
	c.t.Helper()
	for _, p := range c.running {
		require.NoError(c.t, p.Stdin.Close())
	}
	for _, p := range c.running {
		<-p.ended
		require.NoError(c.t, p.Wait(), "a process of the build %s", p.build)
	}
}

// check checks the turns of all processes. These have ended.
func (c *buildCrew) check(atOnce int, f fences) {
	c.t.Helper()
	byName := map[string][]report{}
	for _, r := range c.turns {
		for _, name := range r.Names {
			byName[name] = append(byName[name], r)
		}
	}
	followed := map[[2]string]int{} // how often a turn of the one build was followed by one of the other
	for name, turns := range byName {
		slices.SortFunc(turns, func(a, b report) int { return cmp.Compare(a.From, b.From) })
		var spans []systest.Span
		for i, r := range turns {
			spans = append(spans, systest.Span{From: r.From, Until: r.Until + 1}) // it was valid at Until, too
			if i > 0 {
				followed[[2]string{turns[i-1].build, r.build}]++
			}
		}
		require.LessOrEqual(c.t, systest.AtOnce(spans), atOnce, "turns on %s", name)
		requireFences(c.t, turns, f)
	}
	c.t.Logf("%d turns, which followed each other as %v, longest wait %v", len(c.turns), followed, c.longest)
	if c.handlesOnce() || c.kind == "limits" { // each name has one turn, or the Workers that had the last have the next
		return
	}
	least := len(c.turns) / 10 // they stand in one line
	if c.kind == "tasks" {
		least = turns / 5
	}
	require.GreaterOrEqual(c.t, followed[[2]string{"before", "now"}], least)
	require.GreaterOrEqual(c.t, followed[[2]string{"now", "before"}], least)
}

// requireFences checks the fences of turns on one name, in the order of their beginnings.
func requireFences(t *testing.T, turns []report, f fences) {
	t.Helper()
	seen, last := map[int64]bool{}, int64(0)
	for _, r := range turns {
		if f == noFences {
			require.Zero(t, r.Fence)
			continue
		}
		require.Positive(t, r.Fence)
		require.False(t, seen[r.Fence], "fence %d twice", r.Fence)
		seen[r.Fence] = true
		if f == fencesRise {
			require.Greater(t, r.Fence, last, "a fence of the build %s", r.build)
			last = r.Fence
		}
	}
}
