package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redistest"
)

// startServer runs a redis-server on a free port, in a folder of its own and without
// persistence, for as many connections as a fleet has. stop ends it and removes the folder.
func startServer() (addr string, stop func(), err error) {
	s, err := redistest.StartIn("", nil, "--maxclients", "20000")
	if errors.Is(err, exec.ErrNotFound) {
		return "", nil, errors.New("there is no redis-server program on this machine: install Redis, or name a server with -redis")
	}
	if err != nil {
		return "", nil, fmt.Errorf("redis-server: %w", err)
	}
	return s.Addr, s.Down, nil
}

// describeServer returns the server's name and version.
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
