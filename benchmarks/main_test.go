package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain makes the test program a child where it is started as one.
func TestMain(m *testing.M) {
	if spec, ok := os.LookupEnv(childEnv); ok {
		os.Exit(childMain(spec))
	}
	os.Exit(m.Run())
}

// TestScenarios runs every scenario with everybody, too short to measure
// anything. Sluice and the floor have to come to a figure; others may fail, as
// they do now and then.
func TestScenarios(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true" {
		t.Skip("no redis-server on this machine: install it to run this test (Debian: redis-server)")
	}
	var out, log bytes.Buffer
	status := parentMain([]string{"-quick", "-seconds", "0.1"}, &out, &log)
	require.Zero(t, status, "%s\n%s", &out, &log)
	for _, s := range scenarios() {
		require.Contains(t, out.String(), "\n"+s.name+": ")
	}
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "│ "+sluiceName) || strings.HasPrefix(line, "│ "+floorName) {
			require.NotContains(t, strings.Split(line, "│")[2], "-", "no figure: %s\n%s", line, &log)
		}
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for args, status := range map[string]int{
		"-h":            0,
		"-no-such":      2,
		"no-such":       2,
		"-rounds -1":    2,
		"-seconds -1":   2,
		"storms -quick": 2,
	} {
		var out, log bytes.Buffer
		require.Equal(t, status, parentMain(strings.Fields(args), &out, &log), args)
		require.NotEmpty(t, log.String())
		require.Empty(t, out.String())
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	chosen, err := choose([]string{"storm", "hot"})
	require.NoError(t, err)
	var names []string
	for _, s := range chosen {
		names = append(names, s.name)
	}
	require.Equal(t, []string{"storm-2ms", "storm-20ms", "hot"}, names)
}

func TestGuard(t *testing.T) {
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

func TestOvertaken(t *testing.T) {
	t.Parallel()
	require.Zero(t, overtaken(nil))
	require.Zero(t, overtaken([]int64{1, 2, 3}))
	require.Equal(t, 1.0, overtaken([]int64{3, 2, 1}))
}

func TestMedian(t *testing.T) {
	t.Parallel()
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 1.5, median([]float64{2, 1}))
}
