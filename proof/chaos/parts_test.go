package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

func TestServerClock_MapsTimesAcrossJumps(t *testing.T) {
	t.Parallel()
	c := serverClock{ahead: 1000, jumps: []jump{{span{100, 102}, time.Hour}, {span{200, 202}, 0}}}
	earliest, latest := c.at(span{10, 20})
	require.Equal(t, [2]time.Duration{1010, 1020}, [2]time.Duration{earliest, latest})
	earliest, latest = c.at(span{90, 110})
	require.Equal(t, [2]time.Duration{1090, 1110 + time.Hour}, [2]time.Duration{earliest, latest})
	earliest, latest = c.at(span{210, 220})
	require.Equal(t, [2]time.Duration{1210, 1220}, [2]time.Duration{earliest, latest})

	require.Equal(t, span{50, 50}, c.reaches(1050, 0))
	require.Equal(t, span{102, 102}, c.reaches(1150, 0), "the jump ends it")
	require.Equal(t, span{101, 102}, c.reaches(1101, 0), "before the jump, or by it")
	require.Equal(t, span{150, 150}, c.reaches(1150+time.Hour, 110))
	require.Equal(t, span{201, 201 + time.Hour}, c.reaches(1201+time.Hour, 110), "perhaps it was set back before")
	require.Equal(t, span{250 + time.Hour, 250 + time.Hour}, c.reaches(1250+time.Hour, 110), "it was set back before")

	require.Equal(t, time.Duration(1090), c.highest(90))
	require.Equal(t, 1150+time.Hour, c.highest(150))
	require.Equal(t, 1202+time.Hour, c.highest(300), "before it was set back")

	for to, set := range map[time.Duration]bool{150: true, 90: false} {
		_, was := c.setAhead(0, to)
		require.Equal(t, set, was)
	}
	_, was := c.setAhead(150+settle, 250+settle)
	require.False(t, was, "set back")
}

// TestDating_UsesTheTicksAround: an entry between two ticks happened between them.
func TestDating_UsesTheTicksAround(t *testing.T) {
	t.Parallel()
	tick := func(us int) string {
		value := fmt.Sprint(tickBase + int64(us))
		return fmt.Sprintf("*3\r\n$9\r\nPEXPIREAT\r\n$10\r\n%s\r\n$%d\r\n%s\r\n", tickKey, len(value), value)
	}
	const set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"
	d := &dating{seen: map[time.Duration]bool{}}
	require.NoError(t, d.add([]byte(tick(100)+set+"*1\r\n$5\r\nMULTI\r\n"+set+set+"*1\r\n$4\r\nEXEC\r\n"+tick(200)+set+tick(300)), false))
	us := time.Microsecond
	require.NoError(t, d.date(map[time.Duration]time.Duration{100 * us: 150 * us, 300 * us: 350 * us}, 900*us))
	require.Len(t, d.log, 6)
	require.Equal(t, span{100 * us, 350 * us}, d.log[1].span, "the tick at 200 got no reply")
	require.Len(t, d.log[2].commands, 2)
	require.Equal(t, span{200 * us, 350 * us}, d.log[4].span)
	require.Error(t, d.date(map[time.Duration]time.Duration{300 * us: 150 * us}, 900*us), "a reply before the request")
	require.Equal(t, []span{{300 * us, 500 * us}}, findGaps(
		map[time.Duration]time.Duration{100 * us: 150 * us, 400 * us: 410 * us}, d.seen, []restart{{killed: span{450 * us, 460 * us}, up: 500 * us}}))
}

// TestFindGaps_AssumesAGapUnderEverysec: even if no tick was lost, "everysec" may have lost the
// writes after the last tick.
func TestFindGaps_AssumesAGapUnderEverysec(t *testing.T) {
	t.Parallel()
	ticks, seen := map[time.Duration]time.Duration{100: 110, 900: 910}, map[time.Duration]bool{100: true, 900: true}
	r := restart{killed: span{450, 460}, up: 500}
	require.Empty(t, findGaps(ticks, seen, []restart{r}))
	r.postponed = true
	require.Equal(t, []span{{100, 500}}, findGaps(ticks, seen, []restart{r}))
	ticks[455], seen[455] = 520, true // sent before the end of the kill, and carried out after it
	require.Equal(t, []span{{100, 500}}, findGaps(ticks, seen, []restart{r}))
}

// TestTear_LeavesNoPartOfATransaction truncates a log at every byte.
func TestTear_LeavesNoPartOfATransaction(t *testing.T) {
	t.Parallel()
	log := []byte("*1\r\n$4\r\nPING\r\n*1\r\n$5\r\nMULTI\r\n*2\r\n$3\r\nDEL\r\n$1\r\na\r\n*1\r\n$4\r\nEXEC\r\n")
	for at := range len(log) + 1 {
		whole, end, err := tear(log, at)
		require.NoError(t, err)
		require.LessOrEqual(t, whole, end)
		require.LessOrEqual(t, end, at)
		require.NotContains(t, string(log[whole:end]), "MULTI\r\n")
	}
}

func TestLastRecords_KeepsTheLastOfEachOperation(t *testing.T) {
	t.Parallel()
	got := lastRecords("p", bufio.NewScanner(strings.NewReader(`{"n":1,"op":"hold","c":5}
{"n":2,"op":"take","c":6}
{"n":1,"op":"hold","c":5,"r":9,"res":"ok"}
{"n":3,"op":"ta`)))
	require.Equal(t, []record{
		{Process: "p", Seq: 1, Op: opHold, Call: 5, Return: 9, Result: done},
		{Process: "p", Seq: 2, Op: opTake, Call: 6},
	}, got)
}

func TestPieces_CutsWhereTheLockIsFree(t *testing.T) {
	t.Parallel()
	var history []porcupine.Operation
	for i := range int64(maxPiece) {
		history = append(history,
			porcupine.Operation{Input: transition{int(i) + 1, true}, Call: 10 * i, Return: 10*i + 2},
			porcupine.Operation{Input: transition{int(i) + 1, false}, Call: 10*i + 4, Return: 10*i + 6})
	}
	all := pieces(history)
	total := 0
	for _, piece := range all {
		require.LessOrEqual(t, len(piece), maxPiece)
		require.True(t, porcupine.CheckOperations(ownership, piece))
		total += len(piece)
	}
	require.Equal(t, len(history), total)
	history[3].Return = 10 * maxPiece // this release may come any time later
	require.Greater(t, len(pieces(history)[0]), maxPiece)
}

// startTestServer starts a server with shims for one test.
func startTestServer(t *testing.T, names ...string) *server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("no redis-server on this machine: install it to run this test (Debian: redis-server)")
	}
	dir := t.TempDir()
	var shims []string
	for _, name := range names {
		shim, err := compileShim(dir, name)
		require.NoError(t, err)
		shims = append(shims, shim)
	}
	folder := filepath.Join(dir, "server")
	require.NoError(t, os.Mkdir(folder, 0o700))
	s, err := startServer(folder, shims...)
	require.NoError(t, err)
	t.Cleanup(s.Down)
	return s
}

func TestShim_SetsTheClockOfALiveServer(t *testing.T) {
	t.Parallel()
	s := startTestServer(t, "clock")
	for _, offset := range []time.Duration{time.Hour, -time.Hour, 0} {
		require.NoError(t, s.setClock(offset))
		now, err := s.rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(offset), now, time.Minute)
	}
	_, err := s.kill(randomCut(0.4))
	require.NoError(t, err)
	require.NoError(t, s.up("always"))
	require.NoError(t, s.rdb.Ping(t.Context()).Err())
}

// TestFindGaps_FindsWhatASlowDiskCosts: while an fsync lasts, "everysec" acknowledges writes
// that a kill -9 of the server then loses, and "no" does not. findGaps finds the loss.
//
//	go test -C proof -run SlowDisk -v ./chaos
func TestFindGaps_FindsWhatASlowDiskCosts(t *testing.T) {
	t.Parallel()
	for policy, tries := range map[string]int{"everysec": 8, "no": 2} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			s := startTestServer(t, "clock", "disk")
			lost := 0
			for try := 0; try < tries && lost == 0; try++ { // the kill may come between two syncs
				require.NoError(t, s.rdb.ConfigSet(t.Context(), "appendfsync", policy).Err())
				lost = killUnderSync(t, s, 1700*time.Millisecond+time.Duration(try)*150*time.Millisecond)
			}
			t.Logf("%s: kill -9 lost %d of %d acknowledged writes", policy, lost, len(s.ticks))
			require.Equal(t, policy == "everysec", lost > 0)
		})
	}
}

// killUnderSync kills a server after a while, and returns how many acknowledged ticks that
// lost.
func killUnderSync(t *testing.T, s *server, after time.Duration) (lost int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), after)
	defer cancel()
	s.tick(ctx)
	_, err := s.kill(0)
	require.NoError(t, err)
	require.NoError(t, s.up("no"))
	_, seen, err := readLog(s, monotonic())
	require.NoError(t, err)
	for sent := range s.ticks {
		if !seen[sent] {
			lost++
		}
	}
	s.restarts[0].postponed = false
	require.Equal(t, lost > 0, len(findGaps(s.ticks, seen, s.restarts)) > 0)
	return lost
}

func TestChosen_FindsFaultsByName(t *testing.T) {
	t.Parallel()
	some, err := chosen(faults, "reset,full")
	require.NoError(t, err)
	require.Len(t, some, 2)
	_, err = chosen(faults, "rest")
	require.Error(t, err)
}
