package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// process is a client that runs, or ran.
type process struct {
	settings
	slot  int
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // what it says; closed when it has ended
	ended chan struct{}
	err   error // with which it ended, once it has

	mu    sync.Mutex // guards what follows
	death time.Duration
	stops []span
}

// startProcess starts a client, which is this program with settings in its
// environment. It ends with this program: its standard input does.
func startProcess(dir string, slot int, s settings) (*process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.Records = filepath.Join(dir, s.Process+".rec")
	env, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	complaints, err := os.Create(filepath.Join(dir, s.Process+".err"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = complaints.Close() }() // the child has it
	p := &process{settings: s, slot: slot, cmd: exec.Command(path), lines: make(chan string, 10), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), clientEnv+"="+string(env))
	p.cmd.Stderr = complaints
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.listen(out)
	return p, nil
}

// listen reads what the client says until it has ended.
func (p *process) listen(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		p.lines <- lines.Text()
	}
	p.err = p.cmd.Wait()
	close(p.ended)
	close(p.lines)
}

// kill ends it with SIGKILL.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	p.death = monotonic()
}

// stop stops it for a while.
func (p *process) stop(d time.Duration) error {
	after := monotonic()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(d) // the fault
	p.mu.Lock()
	p.stops = append(p.stops, span{after, monotonic()})
	p.mu.Unlock()
	return p.cmd.Process.Signal(syscall.SIGCONT)
}

// tell says a word to it, and waits for the one that it answers with.
func (p *process) tell(word, answer string, patience time.Duration) error {
	_, _ = fmt.Fprintln(p.stdin, word)
	select {
	case line, ok := <-p.lines:
		switch {
		case !ok:
			return fmt.Errorf("%s has ended: %w (see its .err file)", p.Process, p.err)
		case line != answer:
			return fmt.Errorf("%s says %q instead of %q", p.Process, line, answer)
		}
		return nil
	case <-time.After(patience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it leaves its stacks in its .err file
		<-p.ended
		return fmt.Errorf("%s did not say %q within %v: stuck (see its .err file)", p.Process, answer, patience)
	}
}
