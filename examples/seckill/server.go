package main

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// server is the Redis server of a sale: the one that the flag names, or a miniredis within this
// process, which children reach by its loopback address.
type server struct {
	addr     string
	embedded *miniredis.Miniredis // nil for a server that the flag names
}

func openServer(ctx context.Context, addr string) (*server, error) {
	if addr != "" {
		return &server{addr: addr}, ping(ctx, addr)
	}
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // keys expire in real time, not only when a test says so
	if err := m.Start(); err != nil {
		return nil, err
	}
	return &server{addr: m.Addr(), embedded: m}, nil
}

// ping reports a wrong address at once, instead of within the sale.
func ping(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	rdb := connect(addr)
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("redis at %s: %w", addr, err)
	}
	return nil
}

// connect makes a client whose calls end with their context.
func connect(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
}

// setStock says what is for sale.
func (s *server) setStock(ctx context.Context, run string, units int) error {
	rdb := connect(s.addr)
	defer rdb.Close()
	q, err := openQueue(rdb, run)
	if err != nil {
		return err
	}
	return q.SetStock(ctx, item, int64(units))
}

// clean removes everything of a run from the server, also after a run that failed. A lock that
// is still held ends with its TTL.
func (s *server) clean(run string) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	rdb := connect(s.addr)
	defer rdb.Close()
	if q, err := openQueue(rdb, run); err == nil {
		_ = q.Purge(ctx)
		_ = q.DeleteStock(ctx, item)
	}
}

func (s *server) close() {
	if s.embedded != nil {
		s.embedded.Close()
	}
}
