package model_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/proof/model"
)

func TestQueueWalk_HoldsTheInvariants(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		walk model.QueueWalk
		full bool
	}{
		{"two workers", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 2}, false},
		{"two workers, one fault", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 1, Faults: 1}, false},
		{"keep", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 1, Policy: sluice.DuplicatesKeep}, false},
		{"earliest", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 1, Policy: sluice.DuplicatesEarliest}, false},
		{"latest", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 1, Policy: sluice.DuplicatesLatest}, false},
		{"keep the due time", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 1, Policy: sluice.DuplicatesKeepDue}, false},
		{"once", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 2, Policy: sluice.DuplicatesOnce}, false},
		{"once, one fault", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 1, Faults: 1, Policy: sluice.DuplicatesOnce}, false},
		{"once, two faults", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 1, Faults: 2, Policy: sluice.DuplicatesOnce}, true},
		{"two workers, a foreign producer", model.QueueWalk{Workers: 2, Enqueues: 1, Claims: 1, Leaps: 2, Foreign: 2}, false},
		{"two workers, twice", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 2, Leaps: 2}, true},
		{"two workers, two faults", model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 1, Leaps: 1, Faults: 2}, true},
		{"three workers", model.QueueWalk{Workers: 3, Enqueues: 2, Claims: 1, Leaps: 1}, true},
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

// TestQueueWalk_FindsEveryMistake breaks the protocol in one place each time.
func TestQueueWalk_FindsEveryMistake(t *testing.T) {
	t.Parallel()
	for _, mistake := range []string{
		model.FinishWithoutReceipt, model.ExtendWithoutReceipt, model.DroppedVersion, model.DroppedByRetry,
		model.DroppedByExtend, model.ReplacesWhatIsLeased, model.ClaimTwice, model.LeaseFromTheReply,
		model.CountsReleases, model.NewVersionKeepsCount, model.EarlyVersion, model.ClaimIgnoresTheLease,
		model.ForeignAddEndsTheLease, model.ForgetsWhatIsDone, model.OnceWaitsBehindTheLease,
	} {
		t.Run(mistake, func(t *testing.T) {
			walk := model.QueueWalk{Workers: 2, Enqueues: 2, Claims: 2, Leaps: 2, Faults: 1, Mistake: mistake}
			switch mistake {
			case model.ForeignAddEndsTheLease:
				walk.Foreign, walk.Faults = 1, 0
			case model.ForgetsWhatIsDone, model.OnceWaitsBehindTheLease:
				walk.Policy = sluice.DuplicatesOnce
			}
			report := walk.Walk()
			t.Log(report)
			require.NotEmpty(t, report.Violation)
		})
	}
}
