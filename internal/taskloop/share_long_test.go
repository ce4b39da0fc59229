//go:build long

package taskloop

import "testing"

// TestShare_FollowsAllWeights, those of fifty queues too.
func TestShare_FollowsAllWeights(t *testing.T) {
	fifty := make([]int, 50)
	for i := range fifty {
		fifty[i] = 1 + i%5
	}
	compareShares(t, [][]int{{6, 1}, {40, 1}, {1, 1, 1}, {6, 3, 1, 6, 3, 1}, fifty}, 1, 2, 7, 64, 1000)
}
