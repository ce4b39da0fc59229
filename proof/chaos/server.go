package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/redistest"
)

const (
	// tickKey gets a new expiry every few milliseconds; these entries date the others in
	// the log. A full server still accepts PEXPIREAT.
	tickKey   = "chaos:tick"
	tickBase  = 40_000_000_000_000 // ms: far enough in the future
	tickEvery = 3 * time.Millisecond
)

// server is the redis-server that faults strike. Its append-only file is the log.
type server struct {
	*redistest.Server
	replica *replica // nil in some tests
	clock   *clockFile
	rdb     *redis.Client // direct, not through the proxies
	dir     string
	floor   int    // the length of the log that is on the disk for certain
	policy  string // of fsync

	mu       sync.Mutex // guards what follows
	ticks    map[time.Duration]time.Duration
	restarts []restart
	times    serverClock
	offset   time.Duration // of its clock
}

// restart is a kill -9, and what it did to the log.
type restart struct {
	killed span          // when the process was killed
	up     time.Duration // when the server replied again
	whole  int           // where the log goes on
	tail   string        // the file with the part that was cut off; "" for none
	found  *found        // by its replica; nil if that was loading
	// postponed says that the policy was "everysec": see findGaps.
	postponed bool
}

// startServer starts a server with these shims; one must be the clock's.
func startServer(dir string, shims ...string) (*server, error) {
	s := &server{dir: dir, ticks: map[time.Duration]time.Duration{}, policy: "everysec"}
	var err error
	if s.clock, err = newClockFile(filepath.Join(dir, "clock")); err != nil {
		return nil, err
	}
	s.times = newServerClock()
	s.Server, err = redistest.StartIn(dir, []string{"LD_PRELOAD=" + strings.Join(shims, ":"), "CHAOS_CLOCK=" + s.clock.file.Name()},
		"--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0",
		"--aof-load-truncated", "yes", "--maxmemory-policy", "noeviction", "--repl-diskless-sync-delay", "0", "--logfile", "server.log")
	if err != nil {
		return nil, err
	}
	s.rdb = redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, ReadTimeout: 10 * time.Second, ContextTimeoutEnabled: true})
	if err := s.rdb.Set(context.Background(), tickKey, "", 0).Err(); err != nil {
		return nil, err
	}
	log, err := os.ReadFile(s.LogFile())
	s.floor = len(log)
	return s, err
}

// tick writes ticks until ctx ends.
func (s *server) tick(ctx context.Context) {
	for ctx.Err() == nil {
		sent := monotonic().Truncate(time.Microsecond)
		err := s.rdb.PExpireAt(ctx, tickKey, time.UnixMilli(tickBase+sent.Microseconds())).Err()
		if err == nil {
			s.mu.Lock()
			s.ticks[sent] = monotonic()
			s.mu.Unlock()
		}
		time.Sleep(tickEvery) // the interval of ticks
	}
}

// tickOf returns when a tick was sent. It returns false for other commands.
func tickOf(command []string) (sent time.Duration, ok bool) {
	if len(command) != 3 || command[1] != tickKey {
		return 0, false
	}
	ms, err := strconv.ParseInt(command[2], 10, 64)
	return time.Duration(ms-tickBase) * time.Microsecond, err == nil
}

// setClock sets the server's clock to the real time plus offset.
func (s *server) setClock(offset time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := monotonic()
	err := s.clock.set(offset)
	s.times.jumps = append(s.times.jumps, jump{span{after, monotonic()}, offset})
	s.offset = offset
	return err
}

// kill ends the process with SIGKILL and cuts up to cut bytes off the end of the log, like a
// power cut before they reach the disk. It returns how many it has cut off.
func (s *server) kill(cut int) (lost int, err error) {
	r := restart{killed: span{after: monotonic()}, postponed: s.policy == "everysec"}
	s.Down()
	r.killed.before = monotonic()
	if s.replica != nil {
		r.found = s.replica.look()
	}
	log, err := os.ReadFile(s.LogFile())
	if err != nil {
		return 0, err
	}
	var end int
	if r.whole, end, err = tear(log, max(len(log)-cut, s.floor)); err != nil {
		return 0, fmt.Errorf("%s: %w", s.LogFile(), err)
	}
	s.floor = r.whole // the server will load this much
	if r.whole < len(log) {
		r.tail = filepath.Join(s.dir, fmt.Sprintf("lost-%d.aof", len(s.restarts)))
		if err := os.WriteFile(r.tail, log[r.whole:], 0o600); err != nil {
			return 0, err
		}
		if err := os.Truncate(s.LogFile(), int64(end)); err != nil {
			return 0, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restarts = append(s.restarts, r)
	return len(log) - r.whole, nil
}

// tear returns the length of the complete part of a log that is cut at a byte, and where to
// truncate the file: at that byte, mostly within a record, except within a transaction. There
// Redis 7.0 cuts off the incomplete record and leaves the MULTI before it, so everything
// written later belongs to a transaction without an end, and is lost at the next start. In
// production the operator cuts it off (redis-check-aof --fix).
func tear(log []byte, at int) (whole, end int, err error) {
	inTransaction := false
	whole, err = redistest.ReadLog(log[:at], func(command []string, _ int) {
		inTransaction = command[0] == "MULTI" || inTransaction && command[0] != "EXEC"
	})
	if inTransaction {
		return whole, whole, err
	}
	return whole, at, err
}

// up starts the server again with an fsync policy.
func (s *server) up(policy string) error {
	if err := s.Restart("--appendfsync", policy); err != nil {
		return err
	}
	s.policy = policy
	for redis.HasErrorPrefix(s.rdb.Ping(context.Background()).Err(), "LOADING") {
		time.Sleep(time.Millisecond) // the server reads its log
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restarts[len(s.restarts)-1].up = monotonic()
	return nil
}

// setPolicy changes the fsync policy.
func (s *server) setPolicy(policy string) error {
	s.policy = policy
	return s.rdb.ConfigSet(context.Background(), "appendfsync", policy).Err()
}

// time returns the time of the server's clock; 0 if it does not answer.
func (s *server) time() time.Duration {
	now, err := s.rdb.Time(context.Background()).Result()
	if err != nil {
		return 0
	}
	return time.Duration(now.UnixNano())
}

// clear undoes everything that a fault may have left.
func (s *server) clear(ctx context.Context) error {
	return errors.Join(s.Signal(syscall.SIGCONT), s.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
}

// randomCut returns how many bytes a power cut loses, for a number from 0 to 1: a part of the last
// record, some records, or up to 256 kB.
func randomCut(pick float64) int { return 1 + int(math.Exp2(5+13*pick)) }
