package systest

import (
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// inModule finds the functions of this module in a stack, and the packages that they
// are in: "" for the root, "/internal/waitqueue" and the like.
var inModule = regexp.MustCompile(`github\.com/sluice-go/sluice(/[\w/]+|_test)?\.`)

// Goroutines returns the stacks of the goroutines that run the library's code, and of
// those that the library has started. Goroutines that run nothing but tests are not
// among them.
func Goroutines() (stacks []string) {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		// A test within the library's package may wait for its turn.
		if inLibrary(stack) && !strings.Contains(stack, "testing.(*T).Parallel(") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

func inLibrary(stack string) bool {
	for _, match := range inModule.FindAllStringSubmatch(stack, -1) {
		pkg := match[1]
		if strings.HasSuffix(pkg, "_test") || strings.HasPrefix(pkg, "/internal/systest") || strings.HasPrefix(pkg, "/internal/redistest") || strings.HasPrefix(pkg, "/test/") {
			continue
		}
		return true
	}
	return false
}

// RequireNoGoroutines waits until none of the library's goroutines is left. Some go on for five
// seconds when they have nothing to do, and then for what is left of a pause.
func RequireNoGoroutines(t *testing.T) {
	t.Helper()
	var left []string
	require.Eventually(t, func() bool {
		left = Goroutines()
		return len(left) == 0
	}, 20*time.Second, 50*time.Millisecond, "%s", &left) // a look costs a busy machine milliseconds
}
