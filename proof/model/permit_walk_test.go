package model_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/proof/model"
)

func TestPermitWalk_HoldsTheInvariants(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		walk model.PermitWalk
		full bool
	}{
		{"three clients", model.PermitWalk{Clients: 3, Permits: 2, Rounds: 1, TTL: 2}, false},
		{"three clients, one fault", model.PermitWalk{Clients: 3, Permits: 2, Rounds: 1, TTL: 2, Faults: 1}, true},
		{"two clients of one permit, twice, one fault", model.PermitWalk{Clients: 2, Permits: 1, Rounds: 2, TTL: 2, Faults: 1}, false},
		{"three clients, twice", model.PermitWalk{Clients: 3, Permits: 2, Rounds: 2, TTL: 2}, true},
		{"three clients, two faults", model.PermitWalk{Clients: 3, Permits: 2, Rounds: 1, TTL: 2, Faults: 2}, true},
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

// TestPermitWalk_FindsEveryMistake breaks the protocol in one place each time.
func TestPermitWalk_FindsEveryMistake(t *testing.T) {
	t.Parallel()
	three := model.PermitWalk{Clients: 3, Permits: 2, Rounds: 1, TTL: 2}
	oneFault := model.PermitWalk{Clients: 3, Permits: 2, Rounds: 1, TTL: 2, Faults: 1}
	for mistake, w := range map[string]model.PermitWalk{
		model.ReleaseWithoutCompare:  {Clients: 3, Permits: 1, Rounds: 1, TTL: 2},
		model.NoPollAfterSubscribing: three,
		model.ReleaseNotPublished:    three,
		model.OwnTokenIgnored:        oneFault,
		model.DeadlineFromTheReply:   three,
		model.LateLockNotReleased:    three,
		model.LateReplyAccepted:      three,
		model.FenceNotSaved:          three,
	} {
		t.Run(mistake, func(t *testing.T) {
			w.Mistake = mistake
			report := w.Walk()
			t.Log(report)
			require.NotEmpty(t, report.Violation)
		})
	}
}
