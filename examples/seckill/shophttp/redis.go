package shophttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// redisServer is the Redis server of a sale: a redis-server of its own, with an append-only file
// and on a Unix socket, or one that the caller has named, which is not touched.
type redisServer struct {
	addr  string
	dir   string // empty for a foreign one
	stdin io.Closer
	cmd   *exec.Cmd
}

// untilKilled runs redis-server until the shell's standard input ends, which the kernel sees to
// even if this process is killed.
const untilKilled = `redis-server "$@" >redis.log 2>&1 & read -r _; kill -9 $!; wait`

func openRedis(ctx context.Context, addr, dir string) (*redisServer, error) {
	if addr != "" {
		s := &redisServer{addr: addr}
		return s, s.awaitReady(ctx)
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, errors.New("there is no redis-server program on this machine: install Redis, or name a server with -redis")
	}
	s := &redisServer{addr: filepath.Join(dir, "redis.sock"), dir: dir}
	return s, s.up(ctx)
}

func (s *redisServer) up(ctx context.Context) error {
	s.cmd = exec.Command("sh", "-c", untilKilled, "sh", "--port", "0", "--unixsocket", s.addr,
		"--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--dir", s.dir)
	s.cmd.Dir = s.dir
	stdin, err := s.cmd.StdinPipe()
	if err == nil {
		s.stdin, err = stdin, s.cmd.Start()
	}
	if err != nil {
		return err
	}
	return s.awaitReady(ctx)
}

// awaitReady waits until the server replies, for at most 10 s. One that loads its file says that it
// does.
func (s *redisServer) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rdb := connect(s.addr)
	defer rdb.Close()
	for {
		err := rdb.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		pause(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			if s.dir == "" {
				return fmt.Errorf("redis: %w", err)
			}
			log, _ := os.ReadFile(filepath.Join(s.dir, "redis.log"))
			return fmt.Errorf("redis: %w\n%s", err, log)
		}
	}
}

// down kills the server as kill -9 does. What it has acknowledged is in its append-only file.
func (s *redisServer) down() {
	if s.stdin != nil {
		_ = s.stdin.Close()
		_ = s.cmd.Wait()
	}
}

// setup has the commands that are not counted: they set up connections, or come from commands
// itself.
var setup = []string{"auth", "client", "command", "hello", "info", "ping", "script", "select"}

// commands returns how many commands the server has run since its start, with those within scripts.
func (s *redisServer) commands(ctx context.Context) (total int64, err error) {
	rdb := connect(s.addr)
	defer rdb.Close()
	stats, err := rdb.InfoMap(ctx, "commandstats").Result()
	for key, text := range stats["Commandstats"] {
		var calls int64
		name, _, _ := strings.Cut(strings.TrimPrefix(key, "cmdstat_"), "|")
		if _, err := fmt.Sscanf(text, "calls=%d", &calls); err == nil && !slices.Contains(setup, name) {
			total += calls
		}
	}
	return total, err
}
