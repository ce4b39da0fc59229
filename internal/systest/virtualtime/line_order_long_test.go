//go:build long

package virtualtime

import (
	"testing"
	"time"
)

// TestLine_OvertakesNoProcessAnywhere is TestLine_OvertakesNoProcess for all combinations.
func TestLine_OvertakesNoProcessAnywhere(t *testing.T) {
	for kind := range lockKinds {
		for _, trip := range []time.Duration{200 * time.Microsecond, 4 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond} {
			for _, section := range []time.Duration{0, time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond} {
				for _, others := range []int{1, 4, 20} {
					beside{kind, trip, section, others}.overtakesNone(t)
				}
			}
		}
	}
}
