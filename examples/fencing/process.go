//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
)

const childEnv = "FENCING_CHILD"

// guardScript starts A and sends it the signals whose names it reads. When its input ends, which
// the kernel closes when B dies, it kills A, which cannot end by itself while it is stopped. It
// closes its own copy of A's output, so that B sees when A has died.
const guardScript = `"$0" & exec >&-; while read -r s; do kill -s "$s" $!; done; kill -s KILL $! 2>/dev/null; wait`

// process is A, as seen by B.
type process struct {
	cmd    *exec.Cmd // of guardScript
	orders io.WriteCloser
	lines  *bufio.Scanner
}

// start starts A.
func (e assignment) start(ctx context.Context) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "sh", "-c", guardScript, exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches B only, which ends the others
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.Cancel = orders.Close
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{cmd: cmd, orders: orders, lines: bufio.NewScanner(out)}, cmd.Start()
}

// signal sends A a signal, STOP or CONT.
func (p *process) signal(name string) error {
	_, err := io.WriteString(p.orders, name+"\n")
	return err
}

// line waits for the next line that A prints.
func (p *process) line() (string, error) {
	if !p.lines.Scan() {
		return "", errors.Join(errors.New("process A has died"), p.lines.Err())
	}
	return p.lines.Text(), nil
}

// end ends A, even if it is stopped, and waits for that.
func (p *process) end() {
	_ = p.orders.Close()
	_ = p.cmd.Wait()
}
