package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// start runs redis-server on a free port. It keeps its files in dir or, if dir is "", in a
// temporary folder that stop removes.
func start(dir string, settings []string, env ...string) (*Server, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, err
	}
	temp := ""
	if dir == "" {
		var err error
		if temp, err = os.MkdirTemp("", "redistest"); err != nil {
			return nil, err
		}
		dir = temp
	}
	var err error
	for range 5 { // another process may take the port between finding and using it
		var s *Server
		if s, err = startOnce(dir, settings, env...); err == nil {
			s.temp = temp
			return s, nil
		}
	}
	if temp != "" {
		_ = os.RemoveAll(temp)
	}
	return nil, err
}

func startOnce(dir string, settings []string, env ...string) (*Server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	return startAt(addr, dir, settings, env...)
}

// freeAddr returns a loopback address that no process listens on.
func freeAddr() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// serverShell starts redis-server, prints its process ID, and kills it when the shell's
// standard input ends. The kernel closes that input when this process dies, even by
// SIGKILL, so no server outlives its test.
const serverShell = `redis-server "$@" >redis.log 2>&1 & echo $!; read -r _; kill -9 $!; wait`

// startAt runs redis-server on an address and waits until it replies.
func startAt(addr, dir string, settings []string, env ...string) (*Server, error) {
	_, port, _ := net.SplitHostPort(addr)
	defaults := []string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"}
	if len(settings) > 0 && settings[0] == sentinelConf {
		defaults = nil // the file has them
	}
	cmd := exec.Command("sh", slices.Concat([]string{"-c", serverShell, "sh"}, defaults, settings)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
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
	s := &Server{Name: "redis", Addr: addr, dir: dir, env: env, settings: settings, stdin: stdin, ended: make(chan struct{})}
	s.pid, err = readPID(stdout)
	go func() { _ = cmd.Wait(); close(s.ended) }()
	if err == nil {
		err = s.awaitReady()
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// ignoreTerminal puts a command into a process group of its own, so that Ctrl-C reaches
// this process only, which then ends the others in order.
func ignoreTerminal(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func readPID(r io.Reader) (int, error) {
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line))
}

// awaitReady waits until the server replies, for at most 10 s.
func (s *Server) awaitReady() error {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	deadline := time.Now().Add(10 * time.Second)
	for {
		info, err := rdb.Info(context.Background(), "server").Result()
		switch {
		case err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r", s.pid)):
			return nil
		case err == nil:
			return errors.New("another server answers on the port")
		case time.Now().After(deadline):
			log, _ := os.ReadFile(s.dir + "/redis.log")
			return fmt.Errorf("not ready: %w\n%s", err, log)
		}
		time.Sleep(5 * time.Millisecond) // a process that starts sends no event to wait for
	}
}

// stop ends the server, or all servers of a deployment, and waits for that.
func (s *Server) stop() {
	processes := s.group
	if processes == nil {
		processes = []*Server{s}
	}
	for _, p := range processes { // all at once: each takes a moment
		_ = p.stdin.Close()
	}
	for _, p := range processes {
		<-p.ended
	}
	if s.temp != "" {
		_ = os.RemoveAll(s.temp)
	}
}
