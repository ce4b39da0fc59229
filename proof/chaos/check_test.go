package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkCase is a scenario, and a part of the violation that the checker must report; "" for
// none.
type checkCase struct {
	scenario  *scenario
	violation string
}

// TestCheck_ReportsEveryViolation also checks that correct scenarios pass.
func TestCheck_ReportsEveryViolation(t *testing.T) {
	t.Parallel()
	for _, cases := range []map[string]checkCase{lockCases, taskCases, mixedCases, tickCases, replicaCases, lineCases, queueLineCases, limitCases, stockCases, groupCases, onceCases, livenessCases} {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				violations, _ := check(&c.scenario.evidence)
				if c.violation == "" {
					require.Empty(t, violations)
					return
				}
				require.Contains(t, strings.Join(violations, "\n"), c.violation)
			})
		}
	}
}
