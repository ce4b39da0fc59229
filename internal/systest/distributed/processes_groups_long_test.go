//go:build long

package distributed

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestGroups_OverProcessesAtLength: 200 groups of 50 tasks are done at the rate that they have
// alone while a group of 50,000 is there, too, which is done to its end.
func TestGroups_OverProcessesAtLength(t *testing.T) {
	smallOnes := func(_ sluice.Stats, done int) bool { return done == 200*50 }
	alone := newGroupTrial(t, 1)
	before := alone.run(groupTasks("small", 200, 50), smallOnes)
	beside := newGroupTrial(t, 1)
	took := beside.run(append(groupTasks("large", 1, 50_000), groupTasks("small", 200, 50)...), smallOnes)
	t.Logf("200 groups of 50: %v alone, %v beside one of 50,000: %.2f of the rate", before, took, before.Seconds()/took.Seconds())
	for _, g := range []*groupTrial{alone, beside} {
		g.mostAtOnce(1)
		g.requireOrder()
	}
	require.Greater(t, before.Seconds()/took.Seconds(), 0.8)

	whole := newGroupTrial(t, 1)
	t.Log(whole.run(groupTasks("large", 1, 50_000), allDone))
	whole.mostAtOnce(1)
	whole.requireOrder()
}
