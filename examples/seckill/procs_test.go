package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSale_SurvivesAKilledProcess kills one of two processes in the middle of each of the sales.
func TestSale_SurvivesAKilledProcess(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "seckill")
	if runtime.GOOS == "windows" {
		exe += ".exe"
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", exe, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)

	cmd := exec.CommandContext(within(t, time.Minute), exe, "-procs", "2", "-buyers", "120", "-stock", "40")
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	victim := regexp.MustCompile(`process 2 of 2: pid (\d+)`)
	pid, kills, deaths := 0, 0, 0
	var text strings.Builder
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		line := lines.Text()
		text.WriteString(line + "\n")
		if m := victim.FindStringSubmatch(line); m != nil {
			pid, err = strconv.Atoi(m[1])
			require.NoError(t, err)
		}
		deaths += strings.Count(line, "process 2 of 2 died")
		if strings.Contains(line, "by Task.Take: ") { // the next sale
			pid, kills = 0, 0
		}
		if strings.Contains(line, " of 40 paid, ") && pid != 0 && kills == 0 {
			kills++
			process, err := os.FindProcess(pid)
			require.NoError(t, err)
			require.NoError(t, process.Kill())
		}
	}
	require.NoError(t, cmd.Wait(), "%s", text.String())
	require.Equal(t, 2, deaths, "%s", text.String())
	require.Contains(t, text.String(), "by Task.Take: 40 units paid of 40, oversold by 0")
	require.Contains(t, text.String(), "by a lock: 40 units paid of 40, oversold by 0")
}

func TestParse_RejectsBadFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args string
		want string // in the error's text; empty for no error
	}{
		{"", ""},
		{"-redis localhost:6379 -buyers 2000 -stock 100 -procs 4 -seed 7", ""},
		{"-buyers 100 -stock 90", ""},
		{"-buyers 100 -stock 91", "too few"},
		{"-stock 0", "-stock"},
		{"-procs 0", "-procs"},
		{"-procs 65", "-procs"},
		{"extra", "no arguments"},
		{"-nosuch", "not defined"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			t.Parallel()
			var printed strings.Builder
			_, err := parse(strings.Fields(tc.args), &printed)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.Contains(t, printed.String(), tc.want)
		})
	}
}

func TestShare_ServesEveryBuyerOnce(t *testing.T) {
	t.Parallel()
	c := config{Buyers: 105}
	seen := map[int]int{}
	for p := range 4 {
		for _, b := range c.share(p, 4) {
			seen[b.customer]++
		}
	}
	require.Len(t, seen, c.customers())
	require.Equal(t, 2, seen[9-1], "the tenth buyer is the ninth's customer")
}
