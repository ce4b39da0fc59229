//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// mainChild in its environment makes this program the tool itself.
const mainChild = "SLUICE_TEST_MAIN"

// onTerminal starts a program on a terminal, and returns that and a function that returns all that
// was shown, once the program has ended.
func onTerminal(t *testing.T, url, program string, args ...string) (cmd *exec.Cmd, terminal *os.File, shown func() string, soFar *systest.Buffer) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), mainChild+"=1", "TERM=xterm-256color", "SLUICE_URL="+url)
	terminal, err := pty.Start(cmd)
	require.NoError(t, err)
	t.Cleanup(func() { _ = terminal.Close() })
	all := &systest.Buffer{}
	read := make(chan struct{})
	go func() { // it ends with the terminal's other side
		defer close(read)
		_, _ = io.Copy(all, terminal)
	}()
	return cmd, terminal, func() string {
		<-read
		return all.String()
	}, all
}

// TestTerminal_IsNotAsked: a command neither asks the terminal for its colours, which shows in what is
// captured and takes seconds where nothing answers, nor reads what is typed for the shell.
func TestTerminal_IsNotAsked(t *testing.T) {
	s := newStage(t)
	s.fill(s.queue("orders"))
	for _, command := range []string{"version", "queues", "ls orders", "help", "acl"} {
		cmd, terminal, shown, _ := onTerminal(t, s.env["SLUICE_URL"], "sh", "-c", os.Args[0]+" "+command+`; read -r line; echo "got $line"`)
		_, err := terminal.WriteString("the next line\n")
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, cmd.Wait())
		require.Less(t, time.Since(began), 3*time.Second)
		text := shown()
		require.Contains(t, text, "got the next line")
		require.NotContains(t, text, "\x1b")
	}
}

// TestTerminal_TablesFit, unless they are asked for whole.
func TestTerminal_TablesFit(t *testing.T) {
	s := newStage(t)
	name := "a" + strings.Repeat("x", 300) + "z"
	s.fill(s.queue(name))
	for command, isCut := range map[string]bool{"queues": true, "queues --wide": false, "queues | cat": false} {
		cmd, terminal, shown, _ := onTerminal(t, s.env["SLUICE_URL"], "sh", "-c", "read -r line; "+os.Args[0]+" "+command)
		require.NoError(t, pty.Setsize(terminal, &pty.Winsize{Rows: 40, Cols: 130}))
		_, err := terminal.WriteString("go on\n")
		require.NoError(t, err)
		require.NoError(t, cmd.Wait())
		text := shown()
		require.Equal(t, !isCut, strings.Contains(text, name), "%s: %s", command, text)
		if isCut {
			require.Regexp(t, `ax+…x+z +\d`, text)
			for line := range strings.SplitSeq(text, "\n") {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSpace(line)), 130)
			}
		}
	}
}

// TestOutput_OnAFullDisk is an error, whatever the command, and not the server's; what was done is
// done.
func TestOutput_OnAFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if os.IsNotExist(err) {
		t.Skip("this system has no /dev/full")
	}
	require.NoError(t, err)
	defer full.Close()
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	l, err := sluice.NewLocker(s.rdb)
	require.NoError(t, err)
	_, err = l.Lock(t.Context(), "row")
	require.NoError(t, err)
	for _, command := range []string{
		"queues", "queues --json", "workers", "workers --json", "ls orders --state dead --payload", "ls orders --json", "get orders due-1", "get orders due-1 --json",
		"locks", "locks --json", "lock row", "lock row --json", "pause orders --json", "limit orders --running 3 --json", "limit orders", "resume orders", "stock orders --json",
		"cancel orders due-1 --json", "drop orders --all --yes --json", "unlock row --force --json", "purge orders --confirm orders --json", "top --frames 1", "acl", "version", "help",
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], strings.Fields(command)...)
		cmd.Env = append(os.Environ(), mainChild+"=1", "SLUICE_URL="+s.env["SLUICE_URL"])
		var told bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &told
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Run(), &exit, command)
		require.Equal(t, exitFailed, exit.ExitCode(), "%s: %s", command, told.String())
		require.Contains(t, told.String(), "no space left on device", command)
	}
	require.Equal(t, "absent", s.stateOf(q, "due-1"))
}

// TestServe_OnAPortInUse is no error of the server's.
func TestServe_OnAPortInUse(t *testing.T) {
	s := newStage(t)
	got := s.run("serve", "--addr", s.server.Addr)
	require.Equal(t, exitFailed, got.code, got.err)
	require.Contains(t, got.err, "--addr")
}

// TestConnect_RefusesTLSWithoutTLS: a setting that were ignored would leave secrets in the open.
func TestConnect_RefusesTLSWithoutTLS(t *testing.T) {
	s := newStage(t)
	for _, flag := range []string{"--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name"} {
		got := s.run("queues", flag, "x")
		require.Equal(t, exitUsage, got.code, got.err)
		require.Contains(t, got.err, "rediss")
	}
}

// TestTerminal_ASignalEndsAQuestion, and the reading of IDs: nothing is done then.
func TestTerminal_ASignalEndsAQuestion(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	s.fill(q)
	for _, args := range [][]string{{"purge", "orders"}, {"cancel", "orders", "--all", "--state", "due"}, {"cancel", "orders", "-"}} {
		asks := map[string]string{"-": "Ctrl-D", "orders": "to go on: ", "due": "to go on: "}[args[len(args)-1]]
		for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			cmd, _, shown, soFar := onTerminal(t, s.env["SLUICE_URL"], os.Args[0], args...)
			require.Eventually(t, func() bool { return strings.Contains(soFar.String(), asks) }, time.Minute, 10*time.Millisecond)
			require.NoError(t, cmd.Process.Signal(sig))
			late := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
			defer late.Stop()
			var exit *exec.ExitError
			require.ErrorAs(t, cmd.Wait(), &exit)
			require.Equal(t, exitNotConfirmed, exit.ExitCode(), "%v %v: %s", args, sig, shown())
		}
	}
	require.Equal(t, "due", s.stateOf(q, "due-1"))
}
