package model_test

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/proof/model"
)

var full = flag.Bool("full", false, "walk the larger protocols too: takes some minutes, and 4 GB of memory")

func TestLockWalk_HoldsTheInvariants(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		walk model.LockWalk
		full bool
	}{
		{"two processes, twice", model.LockWalk{Callers: []int{0, 1}, Rounds: 2, TTL: 2}, false},
		{"three processes", model.LockWalk{Callers: []int{0, 1, 2}, Rounds: 1, TTL: 2}, false},
		{"a wait queue of two and another process", model.LockWalk{Callers: []int{0, 0, 1}, Rounds: 1, TTL: 2}, false},
		{"a wait queue of two, one fault", model.LockWalk{Callers: []int{0, 0}, Rounds: 1, TTL: 2, Faults: 1}, false},
		{"a wait queue of two, one fault, extending", model.LockWalk{Callers: []int{0, 0}, Rounds: 1, TTL: 2, Faults: 1, Extend: true}, true},
		{"two processes, one fault", model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 2, Faults: 1, Extend: true}, false},
		{"two processes, two faults", model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 2, Faults: 2}, true},
		{"two processes, twice, one fault", model.LockWalk{Callers: []int{0, 1}, Rounds: 2, TTL: 2, Faults: 1}, true},
		{"a wait queue of two and another process, one fault", model.LockWalk{Callers: []int{0, 0, 1}, Rounds: 1, TTL: 2, Faults: 1}, true},
	} {
		if test.full && !*full {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			report := test.walk.Walk()
			t.Log(report, time.Since(start).Round(time.Millisecond))
			require.Empty(t, report.Violation)
		})
	}
}

// TestLockWalk_FindsEveryMistake breaks the protocol in one place each time.
func TestLockWalk_FindsEveryMistake(t *testing.T) {
	t.Parallel()
	noFaults := model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 2}
	oneFault := model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 2, Faults: 1}
	extending := model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 3, Extend: true}
	shared := model.LockWalk{Callers: []int{0, 0, 1}, Rounds: 1, TTL: 3}
	sharedOneFault := model.LockWalk{Callers: []int{0, 0}, Rounds: 1, TTL: 2, Faults: 1}
	threeProcesses := model.LockWalk{Callers: []int{0, 1, 2}, Rounds: 1, TTL: 2}
	for mistake, w := range map[string]model.LockWalk{
		model.ReleaseWithoutCompare:   threeProcesses,
		model.HandOverPastTheDeadline: shared,
		model.HandOverOfAShortKey:     shared,
		model.NoPollAfterSubscribing:  noFaults,
		model.ReleaseNotPublished:     noFaults,
		model.ExtendThatShortens:      extending,
		model.ReleaseNotRetried:       oneFault,
		model.OwnTokenIgnored:         oneFault,
		model.TokenKeptAfterALoss:     oneFault,
		model.DeadlineFromTheReply:    oneFault,
		model.LateLockNotReleased:     oneFault,
		model.LateLockReleasedOnce:    oneFault,
		model.LateReplyAccepted:       oneFault,
		model.NextNotPromoted:         sharedOneFault,
		model.TokenReused:             {Callers: []int{0, 1}, Rounds: 2, TTL: 2, Faults: 1},
		model.OldHandleStillReleases:  shared,
	} {
		t.Run(mistake, func(t *testing.T) {
			w.Mistake = mistake
			report := w.Walk()
			t.Log(report)
			require.NotEmpty(t, report.Violation)
		})
	}
}
