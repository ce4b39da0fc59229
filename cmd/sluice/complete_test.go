package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestComplete_OffersQueuesIDsAndStates as a shell asks for them.
func TestComplete_OffersQueuesIDsAndStates(t *testing.T) {
	s := newStage(t)
	s.fill(s.queue("orders"))
	s.fill(s.queue("mails"))
	require.Contains(t, s.ok("__complete", "ls", ""), "mails\norders\n")
	require.NotContains(t, s.ok("__complete", "ls", "or"), "mails")
	got := s.ok("__complete", "cancel", "orders", "d")
	require.Contains(t, got, "dead-1\n")
	require.Contains(t, got, "due-1\n")
	require.NotContains(t, got, "leased-1")
	require.Contains(t, s.ok("__complete", "ls", "orders", "--state", ""), "scheduled\n")
	require.NotContains(t, s.ok("__complete", "pause", "orders", ""), "due-1")
	s.env["SLUICE_URL"] = "redis://127.0.0.1:1"
	require.NotContains(t, s.ok("__complete", "ls", ""), "orders")
}

// TestComplete_OffersNothingThatAShellRuns: bash expands the words that it is offered.
func TestComplete_OffersNothingThatAShellRuns(t *testing.T) {
	s := newStage(t)
	for _, text := range append([]string{"$(touch${IFS}x)", "`id`", "${HOME}", "a;b", "a b", "*", "-rf", "~root"}, hostile...) {
		q := s.queue("q" + text)
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: "t" + text})
		require.NoError(t, err)
		_, err = s.queue("plain").Enqueue(t.Context(), sluice.Task{ID: "t" + text})
		require.NoError(t, err)
	}
	require.Equal(t, []string{"plain", "q-rf"}, strings.Split(strings.TrimSpace(s.ok("__complete", "ls", "")), "\n")[:2])
	for _, got := range []string{s.ok("__complete", "ls", "q"), s.ok("__complete", "get", "plain", "t")} {
		names, _, _ := strings.Cut(got, "\n:")
		require.NotRegexp(t, "[$`;*~ \"'\\\\]", names)
	}
}

// TestErrors_NoTypoLeadsToWhatDestroys anything.
func TestErrors_NoTypoLeadsToWhatDestroys(t *testing.T) {
	s := shell{t: t}
	for _, typo := range []string{"purg", "drops", "cancl", "unlok", "delete-all"} {
		got := s.run(typo)
		require.Equal(t, exitUsage, got.code)
		for _, name := range destructive {
			require.NotContains(t, got.err, name+"?", typo)
		}
	}
}

// TestVersion_JSON names the Go that has built it.
func TestVersion_JSON(t *testing.T) {
	var v versionJSON
	shell{t: t}.json(exitOK, &v, "version")
	require.NotEmpty(t, v.Version)
	require.Contains(t, v.Go, "go1.")
}

// TestChange_RateCatchesUpOnNothing: after a pause of the server's it goes on as slowly as before.
func TestChange_RateCatchesUpOnNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		act := action{many: func(_ context.Context, _ *sluice.Queue, _ sluice.State, ids ...string) (map[outcome]int, error) {
			if at = append(at, time.Now()); len(at) == 3 {
				time.Sleep(time.Minute)
			}
			return map[outcome]int{outcomeDone: len(ids)}, nil
		}}
		l := &lot{state: sluice.StateDead}
		for range 100 {
			l.ids.add("x")
		}
		a := &app{progress: "never"}
		require.NoError(t, a.carryOut(t.Context(), act, &bulk{lots: []*lot{l}, total: 100}, 10, &tally{by: map[outcome]int{}}))
		require.Len(t, at, 100)
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), 100*time.Millisecond, i)
		}
	})
}
