package sluice_test

import (
	"os"
	"strconv"
)

// scale is by how much the long tests are made longer than in CI: the number in
// SLUICE_TEST_SCALE. The sizes that the documentation speaks of are those of
//
//	SLUICE_TEST_SCALE=100 go test -timeout 2h -run 'TestDeferredWhileHandled|TestKilledWorkers|TestLateness' -v .
func scale() int {
	n, err := strconv.Atoi(os.Getenv("SLUICE_TEST_SCALE"))
	if err != nil || n < 1 {
		return 1
	}
	return n
}
