package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

func TestServerClock(t *testing.T) {
	t.Parallel()
	c := serverClock{ahead: 1000, jumps: []jump{{span{100, 102}, time.Hour}, {span{200, 202}, 0}}}
	earliest, latest := c.at(span{10, 20})
	require.Equal(t, [2]time.Duration{1010, 1020}, [2]time.Duration{earliest, latest})
	earliest, latest = c.at(span{90, 110})
	require.Equal(t, [2]time.Duration{1090, 1110 + time.Hour}, [2]time.Duration{earliest, latest})
	earliest, latest = c.at(span{210, 220})
	require.Equal(t, [2]time.Duration{1210, 1220}, [2]time.Duration{earliest, latest})

	require.Equal(t, time.Duration(50), c.reaches(1050, 0))
	require.Equal(t, time.Duration(102), c.reaches(1150, 0), "the setting ends it")
	require.Equal(t, time.Duration(150), c.reaches(1150+time.Hour, 110))
	require.Equal(t, time.Duration(250)+time.Hour, c.reaches(1250+time.Hour, 110), "it was set back before")

	for to, set := range map[time.Duration]bool{150: true, 90: false} {
		_, was := c.setAhead(0, to)
		require.Equal(t, set, was)
	}
	_, was := c.setAhead(150+settle, 250+settle)
	require.False(t, was, "set back")
}

// TestDating: what lies between two ticks happened between them.
func TestDating(t *testing.T) {
	t.Parallel()
	tick := func(us int) string {
		value := fmt.Sprint(tickBase + us)
		return fmt.Sprintf("*3\r\n$9\r\nPEXPIREAT\r\n$10\r\n%s\r\n$%d\r\n%s\r\n", tickKey, len(value), value)
	}
	const set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"
	d := &dating{seen: map[time.Duration]bool{}}
	require.NoError(t, d.add([]byte(tick(100)+set+"*1\r\n$5\r\nMULTI\r\n"+set+set+"*1\r\n$4\r\nEXEC\r\n"+tick(200)+set+tick(300)), false))
	us := time.Microsecond
	require.NoError(t, d.date(map[time.Duration]time.Duration{100 * us: 150 * us, 300 * us: 350 * us}, 900*us))
	require.Len(t, d.log, 6)
	require.Equal(t, span{100 * us, 350 * us}, d.log[1].span, "the tick at 200 was not answered")
	require.Len(t, d.log[2].commands, 2)
	require.Equal(t, span{200 * us, 350 * us}, d.log[4].span)
	require.Error(t, d.date(map[time.Duration]time.Duration{300 * us: 150 * us}, 900*us), "answered before it was sent")
	require.Equal(t, []span{{400 * us, 500 * us}}, findGaps(
		map[time.Duration]time.Duration{100 * us: 150 * us, 400 * us: 410 * us}, d.seen, []restart{{killed: span{450 * us, 460 * us}, up: 500 * us}}))
}

// TestTear: a log is never truncated within a transaction of which something is left.
func TestTear(t *testing.T) {
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

func TestLastRecords(t *testing.T) {
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

func TestPieces(t *testing.T) {
	t.Parallel()
	var history []porcupine.Operation
	for i := range int64(maxPiece) {
		history = append(history,
			porcupine.Operation{Input: turn{int(i) + 1, true}, Call: 10 * i, Return: 10*i + 2},
			porcupine.Operation{Input: turn{int(i) + 1, false}, Call: 10*i + 4, Return: 10*i + 6})
	}
	all := pieces(history)
	total := 0
	for _, piece := range all {
		require.LessOrEqual(t, len(piece), maxPiece)
		require.True(t, porcupine.CheckOperations(ownership, piece))
		total += len(piece)
	}
	require.Equal(t, len(history), total)
	history[3].Return = 10 * maxPiece // somebody gives it up any time later
	require.Greater(t, len(pieces(history)[0]), maxPiece)
}

// TestShim sets the clock of a live server.
func TestShim(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("no redis-server on this machine: install it to run this test (Debian: redis-server)")
	}
	dir := t.TempDir()
	shim, err := compileShim(dir)
	require.NoError(t, err)
	folder := filepath.Join(dir, "server")
	require.NoError(t, os.Mkdir(folder, 0o700))
	s, err := startServer(folder, shim)
	require.NoError(t, err)
	t.Cleanup(s.Down)
	for _, offset := range []time.Duration{time.Hour, -time.Hour, 0} {
		require.NoError(t, s.setClock(offset))
		now, err := s.rdb.Time(t.Context()).Result()
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(offset), now, time.Minute)
	}
	_, err = s.kill(randomCut(rand.New(rand.NewPCG(1, 2))))
	require.NoError(t, err)
	require.NoError(t, s.up("always"))
	require.NoError(t, s.rdb.Ping(t.Context()).Err())
}

func TestChosen(t *testing.T) {
	t.Parallel()
	some, err := chosen("reset,full")
	require.NoError(t, err)
	require.Len(t, some, 2)
	_, err = chosen("rest")
	require.Error(t, err)
}
