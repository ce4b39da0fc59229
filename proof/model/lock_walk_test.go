package model_test

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/proof/model"
)

var full = flag.Bool("full", false, "walk the larger protocols too: some minutes, and 4 GB of memory")

func TestLockWalk(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		walk model.LockWalk
		full bool
	}{
		{"two processes, twice", model.LockWalk{Callers: []int{0, 1}, Rounds: 2, TTL: 2}, false},
		{"three processes", model.LockWalk{Callers: []int{0, 1, 2}, Rounds: 1, TTL: 2}, false},
		{"a line of two and another process", model.LockWalk{Callers: []int{0, 0, 1}, Rounds: 1, TTL: 2}, false},
		{"a line of two, one fault", model.LockWalk{Callers: []int{0, 0}, Rounds: 1, TTL: 2, Faults: 1}, false},
		{"a line of two, one fault, extending", model.LockWalk{Callers: []int{0, 0}, Rounds: 1, TTL: 2, Faults: 1, Extend: true}, true},
		{"two processes, one fault", model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 2, Faults: 1, Extend: true}, false},
		{"two processes, two faults", model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 2, Faults: 2}, true},
		{"two processes, twice, one fault", model.LockWalk{Callers: []int{0, 1}, Rounds: 2, TTL: 2, Faults: 1}, true},
		{"a line of two and another process, one fault", model.LockWalk{Callers: []int{0, 0, 1}, Rounds: 1, TTL: 2, Faults: 1}, true},
	} {
		if test.full && !*full {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			report := test.walk.Walk()
			t.Log(report, time.Since(start).Round(time.Millisecond))
			require.Empty(t, report.Wrong)
		})
	}
}

// TestLockWalkFindsMistakes: a walk is worth the mistakes that it finds.
func TestLockWalkFindsMistakes(t *testing.T) {
	t.Parallel()
	calm := model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 2}
	apart := model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 2, Faults: 1}
	extending := model.LockWalk{Callers: []int{0, 1}, Rounds: 1, TTL: 3, Extend: true}
	together := model.LockWalk{Callers: []int{0, 0, 1}, Rounds: 1, TTL: 3}
	unlucky := model.LockWalk{Callers: []int{0, 0}, Rounds: 1, TTL: 2, Faults: 1}
	three := model.LockWalk{Callers: []int{0, 1, 2}, Rounds: 1, TTL: 2}
	for mistake, w := range map[string]model.LockWalk{
		model.ReleaseWithoutCompare:  three,
		model.HandOffPastTheDeadline: together,
		model.HandOffUncovered:       together,
		model.NoLookAfterSubscribing: calm,
		model.ReleaseTellsNobody:     calm,
		model.ExtendThatShortens:     extending,
		model.ReleaseOnce:            apart,
		model.BlindToItsOwnToken:     apart,
		model.DeadlineFromTheReply:   apart,
		model.LateLockIsKept:         apart,
		model.CleanedOnce:            apart,
		model.LateReplyIsTaken:       apart,
		model.NextIsNotTold:          unlucky,
		model.TokenIsUsedAgain:       {Callers: []int{0, 1}, Rounds: 2, TTL: 2, Faults: 1},
		model.OldHandleStillReleases: together,
	} {
		t.Run(mistake, func(t *testing.T) {
			w.Mistake = mistake
			report := w.Walk()
			t.Log(report)
			require.NotEmpty(t, report.Wrong)
		})
	}
}
