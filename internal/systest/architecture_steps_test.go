package systest_test

import (
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

// TestArchitecture_StepsAreInTheirFiles: what a step of a lock's or a task's way names as
// `Type.name` or `package.Name` is declared in one of the files that the step ends with.
func TestArchitecture_StepsAreInTheirFiles(t *testing.T) {
	t.Parallel()
	step := regexp.MustCompile(`^(?:\| (.+\|.+) \||\d+\. (.+\.)) (` + "`[^`]+`" + `.*?)(?: \|)?$`)
	name := regexp.MustCompile("`(\\w+\\.\\w+)`")
	file := regexp.MustCompile("`([^`]+)`( of the root)?")
	for title, folder := range map[string]string{"What a lock goes through": "internal/locks", "What a task goes through": "internal/queues"} {
		steps := 0
		for line := range strings.Lines(chapter(t, title)) {
			match := step.FindStringSubmatch(strings.TrimSpace(line))
			if match == nil {
				continue
			}
			steps++
			there := map[string]bool{}
			for _, f := range file.FindAllStringSubmatch(match[3], -1) {
				where := f[1]
				if f[2] == "" && !strings.Contains(where, "/") {
					where = path.Join(folder, where)
				}
				declared(t, path.Join(systest.Root(t), where), there)
			}
			for _, n := range name.FindAllStringSubmatch(match[1]+match[2], -1) {
				if !strings.HasSuffix(n[1], ".lua") {
					require.True(t, there[n[1]], "%s is not in %s", n[1], match[3])
				}
			}
		}
		require.GreaterOrEqual(t, steps, 9, title)
		require.LessOrEqual(t, steps, 12, title)
	}
}
