package systest

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/stretchr/testify/require"
)

// childEnv makes the test binary a child process. It holds the child's role and the
// role's settings.
const childEnv = "SLUICE_TEST_CHILD"

// roles are what a child process may be.
var roles = map[string]func(settings string){}

// Role registers what a child process of that role does. Call it before the tests
// run, as the value of a package variable or in init. A role has to end when its
// standard input does, as it does when the test dies in whatever way: it reads its
// orders from there, or calls ExitWithStdin.
func Role(name string, run func(settings string)) struct{} {
	if roles[name] != nil {
		panic("a second role of the name " + name)
	}
	roles[name] = run
	return struct{}{}
}

func runRole(env string) {
	role, settings, _ := strings.Cut(env, " ")
	roles[role](settings)
}

// ExitWithStdin ends this child process when its standard input ends.
func ExitWithStdin() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}

// Child is a running child process of a test.
type Child struct {
	*redistest.Child
	t *testing.T
}

// StartChild starts a child process with a role that Role registered, and settings
// that are joined by spaces. It is killed at the latest when the test ends.
func StartChild(t *testing.T, role string, settings ...any) *Child {
	t.Helper()
	redistest.NotShort(t)
	require.Contains(t, roles, role)
	spec := childEnv + "=" + strings.TrimSuffix(fmt.Sprintln(append([]any{role}, settings...)...), "\n")
	started, err := redistest.StartChild(context.WithoutCancel(t.Context()), os.Stderr, spec)
	return newChild(t, started, err)
}

// StartProgram starts another program, which has to end when its standard input does. It is killed
// at the latest when the test ends.
func StartProgram(t *testing.T, path string, args ...string) *Child {
	t.Helper()
	redistest.NotShort(t)
	started, err := redistest.StartProgram(context.WithoutCancel(t.Context()), os.Stderr, path, args...)
	return newChild(t, started, err)
}

func newChild(t *testing.T, started *redistest.Child, err error) *Child {
	t.Helper()
	require.NoError(t, err)
	c := &Child{Child: started, t: t}
	t.Cleanup(c.Kill)
	return c
}

// Tell writes a line to the child.
func (c *Child) Tell(line string) {
	c.t.Helper()
	_, err := fmt.Fprintln(c.Stdin, line)
	require.NoError(c.t, err)
}

// Answer reads a line that the child prints, and scans it word by word.
func (c *Child) Answer(words ...any) {
	c.t.Helper()
	line, err := c.Stdout.ReadString('\n')
	require.NoError(c.t, err, "the child has ended")
	_, err = fmt.Sscan(line, words...)
	require.NoError(c.t, err, line)
}

// Duration is a time.Duration among the settings of a role: fmt.Sscan reads it from a
// word like "1.5s".
type Duration time.Duration

// Scan implements fmt.Scanner.
func (d *Duration) Scan(state fmt.ScanState, _ rune) error {
	word, err := state.Token(true, nil)
	if err != nil {
		return err
	}
	parsed, err := time.ParseDuration(string(word))
	*d = Duration(parsed)
	return err
}
