package sluicetest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/sluice-go/sluice/internal/keyspace"
)

// Redis is a Redis server in this process, with a clock that the test moves. It ends with the test.
//
// Its methods end the test by t.FailNow if something is wrong. So call them from the test's
// goroutine, except Client, NewClient, Now and Prefix, which may be called from any.
type Redis struct {
	*server
	prefix string // of the queues that assertions look at
}

// server is what all views of a Redis share.
type server struct {
	t      testing.TB
	redis  *miniredis.Miniredis
	client *redis.Client
	bubble bool // the test runs in one

	mu    sync.Mutex    // guards what follows, and orders the server's times
	ahead time.Duration // of the real clock; 0 in a bubble
}

// connections is how many connections a client has at most. A call that waits for one takes a timer
// from a pool that all bubbles of a process share, which ends the process.
const connections = 1000

// idle is for how long goroutines of the library stay when they have nothing to do.
const idle = 30 * time.Second

// New starts a Redis that is empty. It ends, and its clients are closed, when the test and its
// subtests have ended. In a bubble, call it with the bubble's t. New takes no port, and does no
// I/O.
//
// In a bubble, the goroutines of the library that end when they have been idle do so before the
// test ends. Outside of one they end by themselves some seconds later.
func New(t testing.TB) *Redis {
	t.Helper()
	s := &server{t: t, redis: miniredis.NewMiniRedis(), bubble: inBubble()}
	s.redis.ClockTTL(true)
	s.tick()
	s.client = s.newClient()
	t.Cleanup(func() {
		if s.bubble {
			time.Sleep(idle) // time stands still when the bubble's function and its cleanups have returned
		}
		_ = s.client.Close()
		s.redis.Close()
	})
	return &Redis{server: s, prefix: "Queue:"}
}

// inBubble reports whether the caller runs in a bubble. In one, Wait waits for goroutines that are
// about to start, or panics because another one waits; elsewhere it panics and says so.
func inBubble() (bubble bool) {
	defer func() {
		if p := recover(); p != nil {
			bubble = !strings.Contains(fmt.Sprint(p), "not in a bubble")
		}
	}()
	synctest.Wait()
	return true
}

// Client returns a client of the server, which is closed when the test ends. It returns the same
// each time.
func (r *Redis) Client() *redis.Client { return r.client }

// NewClient returns another client of the server, as another process has one. It is closed when the
// test ends.
func (r *Redis) NewClient() *redis.Client {
	rdb := r.newClient()
	r.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// newClient returns a client whose connections are pipes: real sockets, and looking up names, do
// not work in a bubble. On a busy machine a reply may take more than go-redis's three seconds.
func (s *server) newClient() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:6379", // is not dialled
		Dialer:                   func(context.Context, string, string) (net.Conn, error) { return s.dial() },
		PoolSize:                 connections,
		ReadTimeout:              time.Minute,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// Now returns the server's time. In a bubble it is time.Now.
func (r *Redis) Now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now()
}

// now returns the server's time. The mutex is held.
func (s *server) now() time.Time { return time.Now().Add(s.ahead) }

// Advance moves the time forward by d, 0 or more. In a bubble everything happens that is due within
// d, at its time; Advance returns when all goroutines of the bubble wait for something that is due
// later. No two calls may overlap there. Outside a bubble it moves the server's clock, notifies
// those that wait for locks and tasks, and returns at once: see the package's documentation for
// what does not follow.
func (r *Redis) Advance(d time.Duration) {
	r.t.Helper()
	if d < 0 {
		r.t.Fatalf("sluicetest: Advance(%v): time does not go back", d)
	}
	if r.bubble {
		time.Sleep(d)
		synctest.Wait()
		return
	}
	r.mu.Lock()
	r.ahead += d
	r.redis.SetTime(r.now())
	r.mu.Unlock()
	for _, channel := range r.redis.PubSubChannels("*" + keyspace.Wake + ":*") {
		r.redis.Publish(channel, "") // means: something may be due or free, look at once
	}
}

// tick gives the server the time. Outside a bubble it is called before each command that a client
// sends, so that the server's clock runs; within, the server reads the bubble's clock by itself.
func (s *server) tick() {
	if s.bubble {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.redis.SetTime(s.now())
}
