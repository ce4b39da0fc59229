package distributed

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

const (
	// lineRetry is the retry interval of those in line. A process that is not woken polls once in
	// half of it at most.
	lineRetry = 4 * time.Second
	// lineTTL is for how long a lock stays held that was not released because its server had
	// failed.
	lineTTL = time.Second
)

// standing is a process that waits in line for a lock, has it for a moment, and waits again.
type standing struct {
	rdb   redis.UniversalClient
	turns atomic.Int64
}

// TestFailover_TheLineGoesOn: after a failover each process that waits in line has its turn within
// the bound of a lost message, and each is soon woken by releases again: its subscription is on the
// new primary.
func TestFailover_TheLineGoesOn(t *testing.T) {
	t.Parallel()
	for kind, start := range map[string]func(t *testing.T) failing{
		"sentinel": behindSentinel,
		"cluster":  func(t *testing.T) failing { f, _ := onCluster(t); return f },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			lineGoesOn(t, start(t), 1, killed)
		})
	}
}

// lineGoesOn is TestFailover_TheLineGoesOn with n failovers, in the ways of kinds by turns.
func lineGoesOn(t *testing.T, f failing, n int, kinds ...string) {
	t.Helper()
	lag, tag := systest.Lag(t), f.tags[0]
	processes := stand(t, f, tag+redistest.Name(t))
	awaitWoken(t, processes)
	var served, woken []time.Duration
	for i := range n {
		old, kind := f.serving(t, tag), kinds[i%len(kinds)]
		failOver(t, f, tag, old, kind)
		if kind == hung {
			old.Resume(t)
		}
		for _, p := range processes {
			require.Eventually(t, func() bool { // its client has heard of the new one
				return p.rdb.Set(systest.Within(t, time.Second), tag+"heard", i, time.Minute).Err() == nil
			}, 30*time.Second, 20*time.Millisecond, kind)
		}
		begun := time.Now()
		awaitTurns(t, processes, 1, lineTTL+lineRetry+2*time.Second+10*lag())
		served = append(served, time.Since(begun))
		awaitWoken(t, processes)
		woken = append(woken, time.Since(begun))
		if kind == killed {
			old.Up(t)
		}
		f.servers.AwaitWhole(t)
	}
	t.Logf("%d failovers: all of the line were served after p50 %v, max %v; all were woken again after p50 %v, max %v", n,
		half(served), slices.Max(served), half(woken), slices.Max(woken))
}

// stand starts five processes that stand in line for a lock: as many as poll once in a retry
// interval. They end with the test.
func stand(t *testing.T, f failing, name string) (processes []*standing) {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for range 5 {
		p := &standing{rdb: f.servers.Client(t)}
		l := systest.NewLocker(t, p.rdb, sluice.WithTTL(lineTTL), sluice.WithRetryInterval(lineRetry))
		processes = append(processes, p)
		running.Go(func() { // it ends with ctx; the test's cleanup waits for it
			for ctx.Err() == nil {
				k, err := l.Lock(ctx, name)
				if err != nil {
					time.Sleep(10 * time.Millisecond) // no caller hammers a server that is down
					continue
				}
				p.turns.Add(1)
				time.Sleep(5 * time.Millisecond) // the work
				_ = k.Unlock(ctx)
			}
		})
	}
	t.Cleanup(func() { stop(); running.Wait() })
	return processes
}

// failOver has the primary of a tag fail, and waits until another has taken its place.
func failOver(t *testing.T, f failing, tag string, old *redistest.Server, kind string) {
	t.Helper()
	switch kind {
	case killed:
		old.Down()
	case hung:
		old.Pause(t)
	}
	var again time.Time
	require.Eventually(t, func() bool {
		if kind == asked && time.Now().After(again) {
			_ = f.promote(old) // it may refuse for a while
			again = time.Now().Add(5 * time.Second)
		}
		now := f.primary(tag)
		return now != nil && now != old
	}, time.Minute, 20*time.Millisecond, "no replica was promoted: %s", kind)
}

// awaitTurns waits until each process has had so many turns, which must be within that time.
func awaitTurns(t *testing.T, processes []*standing, turns int64, within time.Duration) {
	t.Helper()
	require.Eventually(t, hadTurns(processes, turns), within, 5*time.Millisecond, "not every process had %d turns within %v", turns, within)
}

// hadTurns returns a function that says whether each process has had so many turns since.
func hadTurns(processes []*standing, turns int64) func() bool {
	before := make([]int64, len(processes))
	for i, p := range processes {
		before[i] = p.turns.Load()
	}
	return func() bool {
		for i, p := range processes {
			if p.turns.Load() < before[i]+turns {
				return false
			}
		}
		return true
	}
}

// awaitWoken waits until each process has several turns in a time in which it would poll once.
func awaitWoken(t *testing.T, processes []*standing) {
	t.Helper()
	const each = 5
	for end := time.Now().Add(time.Minute); ; {
		had := hadTurns(processes, each)
		for begun := time.Now(); time.Since(begun) < lineRetry/2; {
			if had() {
				return
			}
			time.Sleep(5 * time.Millisecond) // the others run
		}
		require.True(t, time.Now().Before(end), "a process was never woken again")
	}
}
