package main

import (
	"testing"

	"github.com/stretchr/testify/require"
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
