//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// programEnv makes this test binary run the program with its flags.
const programEnv = "FENCING_PROGRAM"

func TestMain(m *testing.M) {
	_, program := os.LookupEnv(programEnv)
	if _, child := os.LookupEnv(childEnv); program || child {
		main()
	}
	redistest.Main(m)
}

func command(t *testing.T, args ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd = exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), programEnv+"=", "TMPDIR="+dir)
	return cmd, dir
}

// TestFencing_RefusesTheStoppedHolder runs the program. It also shows that A was stopped: with
// automatic renewal, B would never get the lock otherwise.
func TestFencing_RefusesTheStoppedHolder(t *testing.T) {
	t.Parallel()
	story := regexp.MustCompile(`^Without a fence .*
  A has the lock, with fence (\d{16})\. .*
  A is stopped, .*
  B has the lock, with fence (\d{16}), and writes: "1 to 12"
  A goes on and writes: accepted
  WRONG: the row says "1 to 11", .*
With one, .*
  A has the lock, with fence (\d{16})\. .*
  A is stopped, .*
  B has the lock, with fence (\d{16}), and writes: "1 to 12"
  A goes on and writes: refused, .*
  RIGHT: the row says "1 to 12", .*
$`)
	run := func(t *testing.T, args ...string) {
		cmd, dir := command(t, args...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Regexp(t, story, string(out))
		last := 0
		for _, text := range story.FindStringSubmatch(string(out))[1:] {
			fence, err := strconv.Atoi(text)
			require.NoError(t, err)
			require.Greater(t, fence, last)
			last = fence
		}
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, "files are left")
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		run(t)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		run(t, "-redis", s.Addr)
		require.Empty(t, s.Client(t).Keys(t.Context(), "*").Val(), "keys are left")
	})
}

// TestFencing_LeavesNoProcessBehind ends the program while A is stopped. A ends too, and with it
// the pipe that is its standard error.
func TestFencing_LeavesNoProcessBehind(t *testing.T) {
	t.Parallel()
	for _, signal := range []os.Signal{os.Interrupt, os.Kill} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			cmd, dir := command(t)
			stderr, theirs, err := os.Pipe()
			require.NoError(t, err)
			defer stderr.Close()
			cmd.Stderr = theirs
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			require.NoError(t, theirs.Close())
			var printed []byte
			for part := make([]byte, 512); !bytes.Contains(printed, []byte("A is stopped")); {
				n, err := out.Read(part)
				require.NoError(t, err)
				printed = append(printed, part[:n]...)
			}
			require.NoError(t, cmd.Process.Signal(signal))
			require.Error(t, cmd.Wait())
			require.NoError(t, stderr.SetReadDeadline(time.Now().Add(5*time.Second)))
			_, err = bytes.NewBuffer(nil).ReadFrom(stderr)
			require.NoError(t, err, "A lives")
			if signal == os.Interrupt {
				left, err := os.ReadDir(dir)
				require.NoError(t, err)
				require.Empty(t, left, "files are left")
			}
		})
	}
}
