package redistest_test

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

const childEnv = "REDISTEST_CHILD"

// TestMain makes the test program a child process that prints its greeting and then
// every line that it reads.
func TestMain(m *testing.M) {
	if greeting, ok := os.LookupEnv(childEnv); ok {
		fmt.Println(greeting)
		_, _ = io.Copy(os.Stdout, os.Stdin)
		return
	}
	redistest.Main(m)
}

func startEcho(t *testing.T) *redistest.Child {
	c, err := redistest.StartChild(t.Context(), os.Stderr, childEnv+"=hello")
	require.NoError(t, err)
	greeting, err := c.Stdout.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", greeting)
	return c
}

func TestStartChild_EndsWithItsInput(t *testing.T) {
	t.Parallel()
	c := startEcho(t)
	_, err := io.WriteString(c.Stdin, "words\n")
	require.NoError(t, err)
	line, err := c.Stdout.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "words\n", line)
	require.NoError(t, c.Close())
}

func TestChild_KillEndsIt(t *testing.T) {
	t.Parallel()
	c := startEcho(t)
	c.Kill()
	require.ErrorContains(t, c.Wait(), "killed")
}

func TestStartChild_RefusesInAChild(t *testing.T) {
	t.Setenv("REDISTEST_IS_A_CHILD", "1")
	_, err := redistest.StartChild(t.Context(), os.Stderr)
	require.ErrorContains(t, err, "must not start children")
}
