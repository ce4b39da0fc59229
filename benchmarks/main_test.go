package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// TestMain runs the test program as a child process if it was started as one.
func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(childEnv); ok {
		os.Exit(childMain(spec))
	}
	os.Exit(m.Run())
}

// TestScenarios_AllRun runs every scenario with all contenders, too briefly to measure
// anything, several at the same time. Sluice and the floor must give a figure; the peers may
// fail, as they sometimes do.
func TestScenarios_AllRun(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true" {
		t.Skip("no redis-server on this machine: install it to run this test (Debian: redis-server)")
	}
	const groups = 6
	for group := range groups {
		t.Run(strconv.Itoa(group), func(t *testing.T) {
			t.Parallel()
			var names []string
			for i, s := range scenarios() {
				if i%groups == group {
					names = append(names, s.name)
				}
			}
			requireAllRun(t, names)
		})
	}
}

// requireAllRun runs scenarios for a moment, and those again for longer in which the machine was
// too busy for a figure.
func requireAllRun(t *testing.T, names []string) {
	without := runScenarios(t, "0.1", names)
	if len(without) > 0 {
		require.Empty(t, runScenarios(t, "3", without), "no figure")
	}
}

// runScenarios returns the names of those in which Sluice or the floor has no figure.
func runScenarios(t *testing.T, seconds string, names []string) (without []string) {
	var out, log bytes.Buffer
	file, folder := filepath.Join(t.TempDir(), "report.json"), filepath.Join(t.TempDir(), "new", "plots")
	status := parentMain(append([]string{"-quick", "-seconds", seconds, "-json", file, "-plot", folder}, names...), &out, &log)
	require.Zero(t, status, "%s\n%s", &out, &log)
	if os.Getenv("CI") == "true" {
		require.NotContains(t, out.String(), errNotHere.Error(), "install PostgreSQL, etcd, Node and BullMQ")
	}
	for _, name := range names {
		require.Contains(t, out.String(), "\n"+name+": ")
	}
	found := readReport(t, file)
	require.Len(t, found.Scenarios, len(names))
	for _, o := range found.Scenarios {
		if !o.hasFigures() {
			without = append(without, o.Name)
			continue
		}
		if o.Name == "single" {
			floor := o.Contenders[1]
			require.Equal(t, floorName, floor.Name)
			require.InDelta(t, 4, floor.Extra[commandsPerOp], 0.1, "SET, EVALSHA, GET, DEL")
		}
		if !o.isDrawn() {
			continue
		}
		for _, c := range o.scenarioColumns() {
			require.Contains(t, o.Contenders[0].Extra, c, o.Name)
		}
		requireXML(t, filepath.Join(folder, o.Name+".svg"))
		if o.Contenders[0].Wait != nil {
			requireXML(t, filepath.Join(folder, o.Name+"-wait.svg"))
		}
	}
	return without
}

// hasFigures says whether Sluice and the floor have what may be asked of them. A herd that is
// measured so briefly may send less than when it was idle, and then has none.
func (o outcome) hasFigures() bool { return strings.HasPrefix(o.Name, "herd-") || o.isDrawn() }

// isDrawn says whether Sluice and the floor have figures.
func (o outcome) isDrawn() bool {
	return !slices.ContainsFunc(o.Contenders, func(c standing) bool {
		return (strings.HasPrefix(c.Name, sluiceName) || strings.HasPrefix(c.Name, floorName)) && len(c.Values) == 0
	})
}

// scenarioColumns returns the titles of the columns that a scenario adds to the usual ones.
func (o outcome) scenarioColumns() (titles []string) {
	for _, s := range scenarios() {
		for _, c := range s.columns {
			if s.name == o.Name {
				titles = append(titles, c.title)
			}
		}
	}
	return titles
}

// TestSlowLog_FindsTheSlowest finds a slow command among quick ones, and leaves the server's
// settings as they were.
func TestSlowLog_FindsTheSlowest(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	before, err := rdb.ConfigGet(t.Context(), "slowlog-*").Result()
	require.NoError(t, err)
	log, err := openSlowLog(t.Context(), s.Addr)
	require.NoError(t, err)
	require.NoError(t, rdb.Eval(t.Context(), `for i = 1, 20000 do redis.call('TIME') end return 1`, nil).Err())
	slowest, err := log.slowest(t.Context())
	require.NoError(t, err)
	require.Greater(t, slowest, slowThreshold)
	require.NoError(t, log.close(t.Context()))
	after, err := rdb.ConfigGet(t.Context(), "slowlog-*").Result()
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// TestUsage_ServerTimeCountsScriptsOnce: the commands within a script count in its time.
func TestUsage_ServerTimeCountsScriptsOnce(t *testing.T) {
	t.Parallel()
	require.Equal(t, 5.0, usage{scripts: 1, scriptTime: 5, commands: 3, commandTime: 8}.serverTime())
	require.Equal(t, 8.0, usage{commands: 3, commandTime: 8}.serverTime())
}

func TestArrivals_MeasureFromDueToHandler(t *testing.T) {
	t.Parallel()
	a := newArrivals(10, 3, 0)
	a.due[0].Store(time.Now().Add(-time.Hour).UnixNano())
	a.sent = 1
	for _, id := range []int{9, 10, 10, 13} { // only 10 is one of its own and new
		a.arrive(id)
	}
	require.Equal(t, int64(1), a.arrived.Load())
	require.Len(t, a.lateness(), 1)
	require.GreaterOrEqual(t, a.lateness()[0], time.Hour)
}

// TestLedger_TellsOfEachTask: one that is not run, or run again, is a failure of its contender.
func TestLedger_TellsOfEachTask(t *testing.T) {
	t.Parallel()
	l := newLedger(2)
	l.enter(0)
	require.NoError(t, l.twice())
	l.enter(0)
	require.EqualError(t, l.twice(), "RUN TWICE: 1 of 2")
	a := newArrivals(0, 1, 0)
	a.arrive(0)
	a.arrive(0)
	a.sent = 1
	require.EqualError(t, a.produce(t.Context(), nil, 0, 0), "RUN TWICE: 1 of 1")
}

// TestQueues_TellOfLostTasks: each contender's queue knows what it has; a task that is missing is a
// failure.
func TestQueues_TellOfLostTasks(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	for _, e := range enterQueues(sluiceName, asynqName, batchesName, floorName) {
		q, err := e.openQueue(setup{Addr: s.Addr, Queue: uniqueName("queue")})
		require.NoError(t, err, e.name)
		require.NoError(t, q.Fill(t.Context(), 3, nil, atOnce), e.name)
		require.NoError(t, requireAll(t.Context(), q, 3), e.name)
		require.EqualError(t, requireAll(t.Context(), q, 4), "TASKS LOST: 3 of 4 are in the queue", e.name)
		require.NoError(t, q.Close(), e.name)
	}
}

func readReport(t *testing.T, file string) (r report) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &r))
	return r
}

func requireXML(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Less(t, len(b), 30_000, file)
	require.NoError(t, xml.Unmarshal(b, new(struct{})), file)
}

// TestReport_KeepsValuesAndFailures reports one contender with values and one with failures
// only.
func TestReport_KeepsValuesAndFailures(t *testing.T) {
	t.Parallel()
	s := scenario{
		name: "some", measure: duration, entries: enter(sluiceName, "redsync"),
		columns: []column{{"turns", slices.Max[[]float64], whole}},
	}
	waits := newWaits()
	require.NoError(t, waits.RecordValue(int64(time.Second)))
	file := filepath.Join(t.TempDir(), "report.json")
	r := report{Scenarios: []outcome{s.outcome([][]result{
		{{value: 300, waits: waits}, {value: 100, extra: map[string]float64{"turns": 7}}},
		{{failures: failures{2, "no"}, notes: "slept"}, {failures: failures{1, "never"}, notes: "slept"}},
	})}}
	require.NoError(t, r.writeJSON(file))
	read := readReport(t, file).Scenarios[0].Contenders
	second := time.Duration(waits.Max())
	require.Equal(t, []standing{
		{
			Name: sluiceName, Settings: "defaults", Values: []float64{300, 100}, Median: 200, Min: 100, Max: 300, Ratio: 1,
			Wait: &wait{second, second, second}, Extra: map[string]float64{"turns": 7},
		},
		{Name: "redsync", Settings: redsyncSettings, Values: []float64{}, Failures: failures{3, "no"}, Notes: []string{"slept"}},
	}, read)
}

// TestScenario_FailsWithAnyOfSluice: a peer may fail, and Sluice in no way of using it.
func TestScenario_FailsWithAnyOfSluice(t *testing.T) {
	t.Parallel()
	s := scenario{name: "some", entries: enterQueues(sluiceName, loopName, asynqName)}
	fine, failed := []result{{value: 1}}, []result{{value: 1}, {failures: failures{1, "no"}}}
	require.NoError(t, s.sluiceFailure([][]result{fine, fine, failed}))
	require.EqualError(t, s.sluiceFailure([][]result{fine, failed, fine}), "some: Sluice, own loop failed: no")
}

// TestScenario_SaysWhyAPeerIsNotMeasured: what a machine lacks is no failure of the contender.
func TestScenario_SaysWhyAPeerIsNotMeasured(t *testing.T) {
	t.Parallel()
	missing := fmt.Errorf("%w: there is no such server", errNotHere)
	s := scenario{name: "some", measure: tasksPerSecond, entries: []entrant{{
		name: riverName, openQueue: func(setup) (queue, error) { return nil, missing },
	}}}
	r := s.oneTurn(t.Context(), turn{entrant: s.entries[0]})
	require.Equal(t, result{notes: missing.Error()}, r)
	var out bytes.Buffer
	s.outcome([][]result{{r}}).print(&out)
	require.Contains(t, out.String(), "0; not measured: there is no such server")
}

// TestReport_IsShownAgain: the tables of an earlier run, and its charts, from its JSON.
func TestReport_IsShownAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, s := filepath.Join(dir, "report.json"), hot(1)
	results := make([][]result, len(s.entries))
	for i := range results {
		results[i] = []result{{value: float64(100 + i)}}
	}
	earlier := report{Machine: machine{CPU: "some processor", Rounds: 7}, Scenarios: []outcome{s.outcome(results)}}
	require.NoError(t, earlier.writeJSON(file))
	var out, log bytes.Buffer
	require.Zero(t, parentMain([]string{"-from", file, "-plot", dir, "hot", "single"}, &out, &log), log.String())
	require.Contains(t, out.String(), "some processor")
	require.Contains(t, out.String(), "rounds: 7")
	require.Regexp(t, `Sluice +│ +100/s`, out.String())
	require.Contains(t, out.String(), "rueidislock")
	out.Reset()
	require.Zero(t, parentMain([]string{"-from", file, "-contenders", "Sluice,reds", "hot"}, &out, &log), log.String())
	require.Contains(t, out.String(), "redsync")
	require.NotContains(t, out.String(), "rueidislock")
	requireXML(t, filepath.Join(dir, "hot.svg"))
	require.NoFileExists(t, filepath.Join(dir, "single.svg"))
	require.Equal(t, 1, parentMain([]string{"-from", filepath.Join(dir, "missing")}, &out, &log))
}

func TestChart_UsesALogarithmicScaleForLargeRatios(t *testing.T) {
	t.Parallel()
	of := func(values ...float64) scale {
		var c chart
		for _, v := range values {
			c.bars = append(c.bars, bar{value: v, least: v / 2, most: v})
		}
		return c.scale()
	}
	require.Zero(t, of(1, 20))
	require.Equal(t, scale{0.1}, of(1, 21))
	require.Equal(t, 3.0, scale{0.1}.at(100))
	require.Equal(t, 100.0, scale{}.at(100))
}

// TestReport_ChecksOutputsFirst: a file that cannot be written is an error before anything is
// measured.
func TestReport_ChecksOutputsFirst(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for flag, within := range map[string]string{"-json": file + "/report.json", "-plot": file + "/plots"} {
		var out, log bytes.Buffer
		require.Equal(t, 1, parentMain([]string{flag, within}, &out, &log))
		require.Contains(t, log.String(), flag+": ")
		require.Empty(t, out.String())
	}
}

func TestParse_RejectsBadArguments(t *testing.T) {
	t.Parallel()
	for args, status := range map[string]int{
		"-h":                 0,
		"-no-such":           2,
		"no-such":            2,
		"-rounds -1":         2,
		"-seconds -1":        2,
		"storms -quick":      2,
		"-contenders sluice": 2,
	} {
		var out, log bytes.Buffer
		require.Equal(t, status, parentMain(strings.Fields(args), &out, &log), args)
		require.NotEmpty(t, log.String())
		require.Empty(t, out.String())
	}
}

func TestChoose_AcceptsPrefixes(t *testing.T) {
	t.Parallel()
	chosen, err := choose([]string{"unlock-all", "hot", "names-1000"})
	require.NoError(t, err)
	var names []string
	for _, s := range chosen {
		names = append(names, s.name)
	}
	require.Equal(t, []string{"unlock-all-50000", "unlock-all-50000-hung", "hot", "names-1000"}, names)
}

func TestGuard_FindsOverlaps(t *testing.T) {
	t.Parallel()
	g, file, remove, err := newSharedGuard()
	require.NoError(t, err)
	defer remove()
	same, err := openSharedGuard(file)
	require.NoError(t, err)
	g.enter()
	g.leave()
	same.enter()
	require.NoError(t, same.check())
	g.enter()
	require.ErrorContains(t, same.check(), "NOT EXCLUSIVE: 1 of 3")
}

// TestGuard_LetsPermitsOverlap: so many sections may overlap, and no more.
func TestGuard_LetsPermitsOverlap(t *testing.T) {
	t.Parallel()
	var g guard
	g.permits.Store(2)
	g.enter()
	g.enter()
	require.NoError(t, g.check())
	g.enter()
	require.ErrorContains(t, g.check(), "NOT EXCLUSIVE: 1 of 3")
}

// TestCommandCounter_CountsHoweverWritesAreCut counts commands with an argument that looks like
// one.
func TestCommandCounter_CountsHoweverWritesAreCut(t *testing.T) {
	t.Parallel()
	sent := []byte("*1\r\n$4\r\nPING\r\n" + "*2\r\n$3\r\nGET\r\n$6\r\n*1\r\n$0\r\n" + "*2\r\n$3\r\nGET\r\n$0\r\n\r\n")
	for size := 1; size <= len(sent); size++ {
		var c commandCounter
		var commands int64
		for part := range slices.Chunk(sent, size) {
			commands += c.count(part)
		}
		require.Equal(t, int64(3), commands, "in parts of %d", size)
	}
}

// TestSetup_CountsWhatClientsSend: a script is one command, whatever it runs.
func TestSetup_CountsWhatClientsSend(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var sent atomic.Int64
	rdb := setup{Addr: s.Addr, Pool: 1, sent: &sent}.newClient()
	t.Cleanup(func() { _ = rdb.Close() })
	require.NoError(t, rdb.Ping(t.Context()).Err()) // connects
	before := sent.Load()
	require.NoError(t, rdb.Eval(t.Context(), `for i = 1, 10 do redis.call('TIME') end return 1`, nil).Err())
	require.Equal(t, int64(1), sent.Load()-before)
}

// TestFleet_SumsUpClients: 3 clients of 2 goroutines had 9 sections in 3 s, so a caller behind all
// others waits 2 s.
func TestFleet_SumsUpClients(t *testing.T) {
	t.Parallel()
	waits := waitsOf([]time.Duration{3 * time.Second}).Export()
	r := fleet{clients: 3, waiters: 2}.result([]answer{
		{Tally: tally{Turns: []int64{1, 2}, Sent: 10}, Waits: waits},
		{Tally: tally{Turns: []int64{6}, Sent: 17}, Waits: waits},
	}, 3*time.Second)
	require.Equal(t, 3.0, r.value)
	require.InDelta(t, 1.5, r.extra[p99ToIdeal], 0.02)
	delete(r.extra, p99ToIdeal)
	require.Equal(t, map[string]float64{
		sentPerSection: 3, idealTurn: float64(2 * time.Second), leastToMean: 1.0 / 3, mostToMean: 2,
	}, r.extra)
	require.Empty(t, fleet{clients: 3, waiters: 2}.result([]answer{{Tally: tally{Turns: []int64{0}}, Waits: waits}}, time.Second).extra)
}

// TestFleet_IsNotMeasuredWithoutRoom: what a machine cannot hold is no failure of the contender.
func TestFleet_IsNotMeasuredWithoutRoom(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxclients", "50")
	require.ErrorIs(t, fleet{clients: 4}.fits(t.Context(), s.Addr), errNotHere)
	require.ErrorIs(t, fleet{clients: 1 << 30}.fits(t.Context(), s.Addr), errNotHere)
	require.NoError(t, fleet{clients: 4}.fits(t.Context(), redistest.Start(t).Addr))
}

// TestAway_IsARoundTripAway, and not two: the server of "1 ms away" answers after 1 ms.
func TestAway_IsARoundTripAway(t *testing.T) {
	for _, want := range []time.Duration{time.Millisecond, 20 * time.Millisecond} {
		addr, stop, err := away(redistest.Start(t).Addr, want)
		require.NoError(t, err)
		t.Cleanup(stop)
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = rdb.Close() })
		shortest := time.Hour
		for range 100 {
			began := time.Now()
			require.NoError(t, rdb.Ping(t.Context()).Err())
			shortest = min(shortest, time.Since(began))
		}
		require.GreaterOrEqual(t, shortest, want)
		require.Less(t, shortest, want+want/20+500*time.Microsecond)
	}
}

func TestOvertaken_CountsPairs(t *testing.T) {
	t.Parallel()
	require.Zero(t, overtaken(nil))
	require.Zero(t, overtaken([]int64{1, 2, 3}))
	require.Equal(t, 1.0, overtaken([]int64{3, 2, 1}))
}

func TestMedian_OfEvenAndOddNumbers(t *testing.T) {
	t.Parallel()
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 1.5, median([]float64{2, 1}))
}

func TestShort_RoundsToThreeDigits(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1.23ms", short(1234567))
	require.Equal(t, "-101ms", short(-101334749))
}
