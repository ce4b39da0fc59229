package redistest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Child is another process: this same program, or one that StartProgram was given.
type Child struct {
	// Stdin is the child's standard input. The child must end when its input ends:
	// the kernel closes it when this process dies, even by SIGKILL, so no child
	// outlives its parent.
	Stdin io.WriteCloser
	// Stdout is what the child prints.
	Stdout *bufio.Reader
	// Process is for signals.
	Process *os.Process

	wait func() error
	cmd  *exec.Cmd
}

// nested is set in the environment of every child.
const nested = "REDISTEST_IS_A_CHILD"

// StartChild starts this program again, with env ("KEY=VALUE" entries) added to its
// environment. The program's main function, or its TestMain, recognises a child by such
// an entry. The child's standard error goes to stderr. Ctrl-C does not reach the child.
// If ctx ends, the child is killed.
//
// A child must not start children: StartChild then returns an error. Otherwise a program
// that does not recognise that it is a child would start itself without end.
func StartChild(ctx context.Context, stderr io.Writer, env ...string) (*Child, error) {
	if os.Getenv(nested) != "" {
		return nil, errors.New("a child process must not start children")
	}
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = append(append(os.Environ(), nested+"=1"), env...)
	return startChild(cmd, stderr)
}

// StartProgram is StartChild for another program, which must end when its input ends.
func StartProgram(ctx context.Context, stderr io.Writer, path string, args ...string) (*Child, error) {
	return startChild(exec.CommandContext(ctx, path, args...), stderr)
}

func startChild(cmd *exec.Cmd, stderr io.Writer) (*Child, error) {
	cmd.Stderr = stderr
	ignoreTerminal(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Child{
		Stdin: stdin, Stdout: bufio.NewReader(stdout),
		Process: cmd.Process, wait: sync.OnceValue(cmd.Wait), cmd: cmd,
	}, nil
}

// Kill ends the child with SIGKILL, and waits for that.
func (c *Child) Kill() {
	_ = c.Process.Kill()
	_ = c.wait()
}

// Wait waits until the child has ended, and returns its exit status as an error. What
// the child printed must have been read before; Wait closes Stdout.
func (c *Child) Wait() error { return c.wait() }

// CPU returns what the child has used of the processors. Call it when the child has ended.
func (c *Child) CPU() time.Duration {
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
}

// Close ends the child's input, waits until the child has ended, and returns its exit
// status as an error.
func (c *Child) Close() error {
	_ = c.Stdin.Close()
	return c.wait()
}
