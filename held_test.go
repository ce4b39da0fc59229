package sluice_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// goroutines are the stacks of those that run the library's code, and of those
// that it has started.
func goroutines() (stacks []string) {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		if strings.Contains(stack, "github.com/sluice-go/sluice/internal/") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// TestHeldLocks holds ten thousand locks with auto-renewal: none is lost, and it
// takes a goroutine and a pipeline now and then. In full:
//
//	go test -run TestHeldLocks -v . -held 1m
func TestHeldLocks(t *testing.T) {
	// Not parallel: it measures.
	const n = 10_000
	ttl := 3 * time.Second
	if *heldFor >= time.Minute {
		ttl = 15 * time.Second
	}
	ctx, s := t.Context(), redistest.Start(t)
	rdb := s.Client(t)
	var pipelines, commands atomic.Int64
	rdb.AddHook(countPipelines{&pipelines, &commands})
	l := newLocker(t, rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew())
	before := len(goroutines()) // of tests before
	locks := make([]*sluice.Lock, n)
	var taking sync.WaitGroup
	for part := range 20 {
		taking.Go(func() {
			for i := part; i < n; i += 20 {
				var err error
				if locks[i], err = l.Lock(ctx, fmt.Sprint("held ", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	taking.Wait()
	require.False(t, t.Failed())
	// Half of them are used as they usually are.
	for _, k := range locks[:n/2] {
		require.NoError(t, k.Context().Err())
	}
	scripts := scriptsRun(t, rdb)
	pipelines.Store(0)
	commands.Store(0)
	start, most := time.Now(), 0
	for time.Since(start) < *heldFor {
		time.Sleep(10 * time.Millisecond)             // they are held
		if time.Since(start) > 500*time.Millisecond { // those that took them stay for a moment
			most = max(most, len(goroutines())-before)
		}
	}
	took := time.Since(start).Seconds()
	sent, renewals := pipelines.Load(), commands.Load()
	scripts = scriptsRun(t, rdb) - scripts
	valid := 0
	for _, k := range locks {
		if k.Valid() && (k.Context().Err() == nil) {
			valid++
		}
	}
	require.Equal(t, n, valid, "locks were lost")
	require.Equal(t, int64(n), rdb.DBSize(ctx).Val())
	t.Logf("%d locks of %v for %.1fs: %d goroutines at the most; per second, %.1f pipelines with %.0f commands, %.0f scripts run",
		n, ttl, took, most, float64(sent)/took, float64(renewals)/took, float64(scripts)/took)
	require.LessOrEqual(t, most, 3)
	least := took*n/(ttl.Seconds()/3) - n // one each may be yet to come
	require.GreaterOrEqual(t, float64(renewals), least)
	require.LessOrEqual(t, float64(renewals), 1.5*(least+2*n), "renewed more often than needed")
	require.LessOrEqual(t, sent, renewals/100, "pipelines of a few")
	require.NoError(t, l.UnlockAll(ctx))
	require.Zero(t, rdb.DBSize(ctx).Val())
}

// renewals watches what a client sends: no extension may be sent, or be under way,
// for a token whose Unlock has returned.
type renewals struct {
	digest string // of the script that extends

	mu       sync.Mutex
	released map[string]bool
	sent     int
	after    int // of tokens that had been released when it was sent, or answered
}

func (r *renewals) look(cmds []redis.Cmder, answered bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cmd := range cmds {
		args := cmd.Args()
		script, _ := args[1].(string)
		if script != r.digest && !strings.HasPrefix(script, "-- Gives a lock") {
			continue
		}
		if !answered {
			r.sent++
		}
		for _, arg := range args[3:] {
			if token, ok := arg.(string); ok && r.released[token] {
				r.after++
			}
		}
	}
}

func (r *renewals) release(token string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released[token] = true
}

func (r *renewals) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *renewals) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if len(cmd.Args()) < 4 {
			return next(ctx, cmd)
		}
		return r.watch([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (r *renewals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if len(cmds[0].Args()) < 4 { // a handshake
			return next(ctx, cmds)
		}
		return r.watch(cmds, func() error { return next(ctx, cmds) })
	}
}

// watch looks at renewals before they are sent and after they were answered. One that
// takes longer than a round is given, on a machine that has others to run, may end
// after Unlock.
func (r *renewals) watch(cmds []redis.Cmder, send func() error) error {
	r.look(cmds, false)
	start := time.Now()
	err := send()
	if time.Since(start) < 20*time.Millisecond {
		r.look(cmds, true)
	}
	return err
}

// TestRenewalsEndWithUnlock releases locks at about the time at which they are
// renewed: once Unlock has returned, no renewal is sent or under way. In full:
//
//	go test -race -run TestRenewalsEndWithUnlock -v . -cycles 100000
func TestRenewalsEndWithUnlock(t *testing.T) {
	t.Parallel()
	const ttl, together = 8 * time.Millisecond, 16
	digests, err := os.ReadFile("lua/digests.txt")
	require.NoError(t, err)
	r := &renewals{released: map[string]bool{}}
	r.digest = regexp.MustCompile(`(?m)^(\w+)  extend$`).FindStringSubmatch(string(digests))[1]
	s := redistest.Redis(t)
	rdb := s.Client(t)
	rdb.AddHook(r)
	l := newLocker(t, rdb, sluice.WithTTL(ttl), sluice.WithAutoRenew())
	var lost atomic.Int64
	var all sync.WaitGroup
	for i := range together {
		name := fmt.Sprint(redistest.Name(t), i) // a token is released once only where nobody waits
		all.Go(func() {
			for range *cycles / together {
				k, err := l.Lock(t.Context(), name)
				if err != nil {
					lost.Add(1)
					continue
				}
				time.Sleep(ttl/3 - time.Millisecond + rand.N(2*time.Millisecond)) // until its renewal is about due
				if k.Unlock(t.Context()) != nil {
					lost.Add(1)
				}
				r.release(k.Token())
			}
		})
	}
	all.Wait()
	time.Sleep(ttl) // the next renewals would be due
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("%d locks, %d renewals, %d locks lost, %d renewals after Unlock", *cycles, r.sent, lost.Load(), r.after)
	require.Zero(t, r.after)
	require.GreaterOrEqual(t, r.sent, *cycles/10, "hardly a renewal")
	require.Less(t, int(lost.Load()), *cycles/2)
}
