package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// startServer runs a redis-server on a free port, in a folder of its own and
// without persistence. stop ends it and removes the folder. A shell stands
// between: it kills the server when its standard input ends, as it does when
// this process dies in whatever way.
func startServer(ctx context.Context) (addr string, stop func(), err error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return "", nil, errors.New("there is no redis-server program on this machine: install Redis, or name a server with -redis")
	}
	dir, err := os.MkdirTemp("", "benchmarks")
	if err != nil {
		return "", nil, err
	}
	for range 5 { // the port may be taken between finding and using it
		var end func()
		if addr, end, err = startOnce(ctx, dir); err == nil {
			return addr, func() { end(); _ = os.RemoveAll(dir) }, nil
		}
	}
	_ = os.RemoveAll(dir)
	return "", nil, err
}

func startOnce(ctx context.Context, dir string) (addr string, end func(), err error) {
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command("sh",
		"-c", `redis-server "$@" >redis.log 2>&1 & echo $!; read -r _; kill -9 $!; wait`, "sh",
		"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	cmd.Dir = dir
	keepFromInterrupts(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	end = func() { _ = stdin.Close(); _ = cmd.Wait() }
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err == nil {
		addr = net.JoinHostPort("127.0.0.1", port)
		err = awaitReady(ctx, addr, strings.TrimSpace(line))
	}
	if err != nil {
		end()
		said, _ := os.ReadFile(filepath.Join(dir, "redis.log"))
		return "", nil, fmt.Errorf("redis-server: %w\n%s", err, said)
	}
	return addr, end, nil
}

func freePort() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = listener.Close() }()
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port), nil
}

// awaitReady waits until the server with that process id answers.
func awaitReady(ctx context.Context, addr, pid string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	defer func() { _ = rdb.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		info, err := rdb.Info(ctx, "server").Result()
		switch {
		case err == nil && strings.Contains(info, "process_id:"+pid+"\r"):
			return nil
		case err == nil:
			return errors.New("another server answers on the port")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// describeServer is the server's version.
func describeServer(ctx context.Context, addr string) (string, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	info, err := rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return "", fmt.Errorf("%s: %w", addr, err)
	}
	server := info["Server"]
	if v := server["valkey_version"]; v != "" {
		return "Valkey " + v, nil
	}
	return "Redis " + server["redis_version"], nil
}
