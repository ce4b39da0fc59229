package distributed

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestExclusion_BetweenProcesses has four processes contend for a few names in all ways.
// Meanwhile the test kills a process every now and then and stops the server for a moment;
// requests are late and replies lost. No two handles of a name may be valid at a time, by
// what their Valid says, and their fences rise.
func TestExclusion_BetweenProcesses(t *testing.T) {
	exclude(t, 4000*systest.Scale(), 6)
}

// exclude runs processes until they have taken so many locks, and so many of them were
// killed, and checks the history of all.
func exclude(t *testing.T, acquisitions, kills int) {
	t.Helper()
	// Not parallel: it takes all that the machine has.
	const processes = 4
	s := redistest.Start(t)
	h := &history{index: map[[2]uint64]int{}}
	var readers sync.WaitGroup
	var started uint32
	var failed atomic.Pointer[error] // of a process that was not killed
	begin := func() *systest.Child {
		started++
		p := systest.StartChild(t, "contender", s.Addr, started)
		readers.Go(func() {
			h.add(p.Stdout)
			if err := p.Wait(); err != nil && err.Error() != "signal: killed" {
				failed.Store(&err)
			}
		})
		return p
	}
	var running []*systest.Child
	for range processes {
		running = append(running, begin())
	}
	start, killed, last, before := time.Now(), 0, time.Now(), 0 // last: when more were recorded than before
	for {
		recorded := h.recorded()
		if recorded[held] > before {
			last, before = time.Now(), recorded[held]
		}
		if recorded[held] >= acquisitions && killed >= kills &&
			recorded[ctxEnded] >= acquisitions/100 && recorded[expired] >= acquisitions/1000 {
			break
		}
		require.Nil(t, failed.Load(), "a process has failed")
		require.Less(t, time.Since(last), time.Minute, "none goes on: %v", recorded)
		require.Less(t, time.Since(start), 10*time.Minute+time.Duration(acquisitions)*time.Millisecond, "too slow: %v", recorded)
		time.Sleep(150*time.Millisecond + rand.N(250*time.Millisecond)) // they work
		i := rand.IntN(processes)
		require.NoError(t, running[i].Process.Kill())
		killed++
		running[i] = begin()
		if rand.IntN(4) == 0 {
			s.Pause(t)
			time.Sleep(rand.N(60 * time.Millisecond)) // the outage
			s.Resume(t)
		}
	}
	took := time.Since(start)
	for _, p := range running {
		require.NoError(t, p.Stdin.Close())
	}
	readers.Wait()
	require.Nil(t, failed.Load(), "a process has failed")
	wrong := h.check()
	t.Logf("%d acquisitions in %v, %d handed over, %d renewals, %d kills, %d contexts ended, %d expired, %d busy, %d lost",
		len(h.records), took.Round(time.Millisecond), h.handed, h.renewed, killed, h.counts[ctxEnded], h.counts[expired], h.counts[busy], h.counts[lost])
	require.Empty(t, wrong[:min(len(wrong), 10)], "%d in all", len(wrong))
	require.GreaterOrEqual(t, h.handed, acquisitions/10, "hardly ever handed over")
	require.GreaterOrEqual(t, h.renewed, acquisitions/200, "hardly ever renewed")
	require.GreaterOrEqual(t, h.fenced, acquisitions/5, "hardly any fences")
}
