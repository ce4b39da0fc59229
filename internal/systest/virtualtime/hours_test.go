package virtualtime

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// hours is a bubble with several processes, each on connections of its own, and
// faults that strike them at random for hours.
type hours struct {
	*testing.T
	m         *miniredis.Miniredis
	clean     redis.UniversalClient
	rng       *rand.Rand // of the faults
	length    time.Duration
	end       time.Time
	processes []redis.UniversalClient
	faults    []*redistest.Faults
	struck    map[string]int
}

// hoursOfFaults runs a test in a bubble for so long, with a seed of its own, or with
// SLUICE_TEST_SEED if that is set. Goroutines are not scheduled by the seed, so that the
// same one gives the same faults, and not the same run.
func hoursOfFaults(t *testing.T, processes int, length time.Duration, test func(h *hours)) {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("SLUICE_TEST_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("SLUICE_TEST_SEED=%d", seed)
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, clean redis.UniversalClient) {
		h := &hours{T: t, m: m, clean: clean, rng: rand.New(rand.NewPCG(seed, 0)), struck: map[string]int{},
			length: length, end: time.Now().Add(length)}
		for range processes {
			f := redistest.NewFaults(systest.BubbleDialer(m))
			rdb := systest.BubbleClient(t, f.Dial)
			defer func() { require.NoError(t, rdb.Close()) }()
			h.processes, h.faults = append(h.processes, rdb), append(h.faults, f)
		}
		test(h)
	})
}

// strike has faults strike until the end.
func (h *hours) strike() {
	kinds := []struct {
		name   string
		strike func(f *redistest.Faults)
	}{
		{"reply lost", func(f *redistest.Faults) { f.DropReply(1 + h.rng.IntN(5)) }},
		{"request lost", func(f *redistest.Faults) { f.DropRequest(1 + h.rng.IntN(5)) }},
		{"request late", func(f *redistest.Faults) {
			f.HoldRequest(1)
			h.pause(20 * time.Second)
			f.Deliver()
		}},
		{"replies stalled", func(f *redistest.Faults) { f.Stall(); h.pause(12 * time.Second) }},
		{"requests stalled", func(f *redistest.Faults) { f.StallRequests(); h.pause(12 * time.Second) }},
		{"replies slow", func(f *redistest.Faults) {
			f.Delay(time.Duration(h.rng.Int64N(int64(time.Second))))
			h.pause(20 * time.Second)
		}},
		{"subscription quiet", (*redistest.Faults).HalfOpen},
		{"connections dead", (*redistest.Faults).Cut},
		{"server loading", func(*redistest.Faults) { h.m.SetError("LOADING for a while"); h.pause(8 * time.Second) }},
	}
	var order []int // of the faults: each before any comes again
	for time.Now().Before(h.end) {
		h.pause(20 * time.Second)
		if len(order) == 0 {
			order = h.rng.Perm(len(kinds))
		}
		kind, f := kinds[order[0]], h.faults[h.rng.IntN(len(h.faults))]
		order = order[1:]
		kind.strike(f)
		h.struck[kind.name]++
		f.Delay(0)
		f.Resume()
		h.m.SetError("")
	}
	require.Len(h, h.struck, len(kinds), "not every fault has struck")
}

// long says whether the test takes so long that whatever is rare must have happened.
func (h *hours) long() bool { return h.length >= 30*time.Minute }

func (h *hours) pause(most time.Duration) { time.Sleep(time.Duration(h.rng.Int64N(int64(most)))) }
