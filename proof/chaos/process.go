package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-go/sluice/internal/redistest"
)

// process is a client process that runs, or has run.
type process struct {
	settings
	slot  int
	child *redistest.Child
	lines chan string // what it prints; closed when it has ended
	ended chan struct{}
	err   error // its exit status, once it has ended

	mu    sync.Mutex // guards what follows
	death time.Duration
	gone  time.Duration // since when it does nothing any more, to the others; 0 if it goes on
	stops []span
}

// startProcess starts a client: this program with the settings in its environment.
func startProcess(dir string, slot int, s settings) (*process, error) {
	s.Records = filepath.Join(dir, s.Process+".rec")
	env, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	stderr, err := os.Create(filepath.Join(dir, s.Process+".err"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stderr.Close() }() // the child has its own descriptor
	child, err := redistest.StartChild(context.Background(), stderr, clientEnv+"="+string(env))
	if err != nil {
		return nil, err
	}
	p := &process{settings: s, slot: slot, child: child, lines: make(chan string, 10), ended: make(chan struct{})}
	go p.listen()
	return p, nil
}

// listen reads what the client prints until it has ended.
func (p *process) listen() {
	for lines := bufio.NewScanner(p.child.Stdout); lines.Scan(); {
		p.lines <- lines.Text()
	}
	p.err = p.child.Wait()
	close(p.ended)
	close(p.lines)
}

// kill ends the process with SIGKILL.
func (p *process) kill() {
	_ = p.child.Process.Kill()
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	p.death = cmp.Or(p.death, monotonic())
}

// stop stops the process for a while.
func (p *process) stop(d time.Duration) error {
	after := monotonic()
	if err := p.child.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(d) // the fault
	p.mu.Lock()
	p.stops = append(p.stops, span{after, monotonic()})
	p.mu.Unlock()
	return p.child.Process.Signal(syscall.SIGCONT)
}

// send sends a word to the process, and waits for the word that it answers with.
func (p *process) send(word, answer string, limit time.Duration) error {
	_, _ = fmt.Fprintln(p.child.Stdin, word)
	select {
	case line, ok := <-p.lines:
		switch {
		case !ok:
			return fmt.Errorf("%s has ended: %w (see its .err file)", p.Process, p.err)
		case line != answer:
			return fmt.Errorf("%s printed %q instead of %q", p.Process, line, answer)
		}
		return nil
	case <-time.After(limit):
		_ = p.child.Process.Signal(syscall.SIGQUIT) // it prints its stacks into its .err file
		<-p.ended
		return fmt.Errorf("%s did not print %q within %v: stuck (see its .err file)", p.Process, answer, limit)
	}
}
