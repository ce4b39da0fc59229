package distributed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestQueue_ClaimsNothingEarly: 10,000 tasks with random delays, one loop of Wait and
// Claim. The time of a claim is the server's own: its score less the lease.
func TestQueue_ClaimsNothingEarly(t *testing.T) {
	redistest.NotShort(t)
	// Not parallel: it measures.
	const n, lease = 10_000, time.Hour
	ctx, s := t.Context(), redistest.Redis(t)
	rdb, name := s.Client(t), redistest.Name(t)
	q, err := sluice.NewQueue(rdb, name)
	require.NoError(t, err)
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Delay: rand.N(3 * time.Second)}
	}
	_, err = q.EnqueueBatch(ctx, tasks)
	require.NoError(t, err)
	due := map[string]float64{}
	for _, z := range rdb.ZRangeWithScores(ctx, "Queue:"+name, 0, -1).Val() {
		due[z.Member.(string)] = z.Score
	}
	require.Len(t, due, n)
	begin := float64(s.Now(t, rdb).UnixMicro()) / 1e6
	var late []float64
	for taken := 0; taken < n; {
		require.NoError(t, q.Wait(ctx))
		es, err := q.Claim(ctx, 100, lease)
		require.NoError(t, err)
		taken += len(es)
		for _, e := range es {
			at := e.Score - lease.Seconds()
			require.GreaterOrEqual(t, at, due[e.ID]-1e-6, "early") // a microsecond: doubles round
			if due[e.ID] > begin {                                 // those before were late when the loop began
				late = append(late, at-due[e.ID])
			}
		}
		require.NoError(t, q.Dequeue(ctx, es...))
	}
	slices.Sort(late)
	t.Logf("%d tasks, lateness in ms: min %.3f, p50 %.3f, p99 %.3f, max %.3f", len(late),
		late[0]*1e3, late[len(late)/2]*1e3, late[len(late)*99/100]*1e3, late[len(late)-1]*1e3)
}

// TestQueue_IdleProcessSendsACommandASecond counts what an idle process sends, as the
// server sees it.
func TestQueue_IdleProcessSendsACommandASecond(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	q := systest.NewQueue(t, rdb)
	for range 10 {
		go func() { _ = q.Wait(t.Context()) }()
	}
	// What counts nothing: this test's own, what the script itself calls, and what sets a
	// connection up.
	uncounted := []string{"info", "time", "zrange", "zscore", "zcard", "pttl", "hello", "client|setinfo"}
	calls := func() (n int) {
		info := rdb.Info(t.Context(), "commandstats").Val()
		for line := range strings.Lines(info) {
			var c int
			name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
			if ok && !slices.Contains(uncounted, name) {
				_, err := fmt.Sscanf(rest, "%d", &c)
				require.NoError(t, err)
				n += c
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return systest.Listeners(t.Context(), rdb, "Queue:"+q.Name()) == 1 }, 20*time.Second, time.Millisecond)
	time.Sleep(time.Second) // until all have looked, once each: then there are only polls
	begun, before := time.Now(), calls()
	time.Sleep(4 * time.Second) // it polls, at a rate by the real clock of a real process
	sent, seconds := calls()-before, int(time.Since(begun).Seconds())
	t.Logf("%d commands in %d s", sent, seconds)
	require.LessOrEqual(t, sent, seconds+1) // one at each end
	require.GreaterOrEqual(t, sent, seconds-2, "it did not poll at all")
}
