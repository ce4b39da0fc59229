package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// hours is a bubble with several processes, each on connections of its own, and
// faults that strike them at random for hours.
type hours struct {
	*testing.T
	m         *miniredis.Miniredis
	clean     redis.UniversalClient
	rng       *rand.Rand // of the faults
	end       time.Time
	processes []redis.UniversalClient
	faults    []*redistest.Faults
	struck    map[string]int
}

// hoursOfFaults runs a test in a bubble with a seed of its own, SLUICE_TEST_SEED if
// that is set; SLUICE_TEST_SCALE makes it longer than half an hour. Goroutines are not scheduled by the
// seed, so that the same one gives the same faults, but not the same run.
func hoursOfFaults(t *testing.T, processes int, test func(h *hours)) {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("SLUICE_TEST_SEED"), 10, 64)
	if err != nil {
		seed = rand.Uint64()
	}
	t.Logf("SLUICE_TEST_SEED=%d", seed)
	bubble(t, func(t *testing.T, m *miniredis.Miniredis, clean redis.UniversalClient) {
		h := &hours{T: t, m: m, clean: clean, rng: rand.New(rand.NewPCG(seed, 0)), struck: map[string]int{},
			end: time.Now().Add(30 * time.Minute * time.Duration(scale()))}
		for range processes {
			f := redistest.NewFaults(dialer(m))
			rdb := bubbleClient(t, f.Dial)
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

func (h *hours) pause(most time.Duration) { time.Sleep(time.Duration(h.rng.Int64N(int64(most)))) }

// believers are locks by what their holders think.
type believers struct {
	h        *hours
	mu       sync.Mutex
	all      map[*sluice.Lock]bool
	fence    int64
	taken    int
	lost     int
	overtime int // TTLs that ran out
}

// TestHoursOfFaults: whatever strikes the processes, a lock whose Valid says yes is
// the one that the server has, no other says yes, its fence is the highest, and
// whoever wants one gets it.
func TestHoursOfFaults(t *testing.T) {
	hoursOfFaults(t, 3, func(h *hours) {
		b := &believers{h: h, all: map[*sluice.Lock]bool{}}
		var all sync.WaitGroup
		for _, rdb := range h.processes {
			l, done := bubbleLocker(h.T, rdb, sluice.WithRetryInterval(2*time.Second))
			defer func() { time.Sleep(time.Minute); done() }()
			warm(h.T, l, "warm")
			for range 4 {
				all.Go(func() {
					for time.Now().Before(h.end) {
						b.contend(l)
					}
				})
			}
		}
		h.strike()
		all.Wait()
		h.Logf("%d locks taken, %d lost, %d beyond their TTL, struck by %v", b.taken, b.lost, b.overtime, h.struck)
		require.Greater(h, b.taken, 100)
		require.Positive(h, b.lost)
		require.Positive(h, b.overtime)
	})
}

// contend takes the lock once, and holds it for a while.
func (b *believers) contend(l *sluice.Locker) {
	ttl := time.Second + rand.N(4*time.Second)
	opts := []sluice.LockOption{sluice.WithTTL(ttl)}
	if rand.IntN(2) == 0 {
		opts = append(opts, sluice.WithAutoRenew())
	}
	if rand.IntN(2) == 0 {
		opts = append(opts, sluice.WithFencing())
	}
	patience := 30 * time.Minute
	if rand.IntN(4) == 0 {
		patience = rand.N(10 * time.Second)
	}
	ctx, cancel := context.WithTimeout(b.h.Context(), patience)
	defer cancel()
	k, err := l.Lock(ctx, "a", opts...)
	switch {
	case err == nil:
		b.hold(ctx, k, rand.N(4*ttl))
	case ctx.Err() != nil:
		require.Less(b.h, patience, time.Minute, "nobody gets the lock any more")
	default: // a lost reply, a server that is loading for long, no connection
		require.NotErrorIs(b.h, err, sluice.ErrLocked)
	}
	time.Sleep(rand.N(5 * time.Second))
}

func (b *believers) hold(ctx context.Context, k *sluice.Lock, d time.Duration) {
	b.count(&b.taken, func() { b.all[k] = true })
	began, ended := time.Now(), k.Context()
	for time.Since(began) < d && b.check(k) {
		time.Sleep(rand.N(min(d, 300*time.Millisecond)))
		if rand.IntN(20) == 0 {
			_ = k.Extend(ctx, time.Second+rand.N(4*time.Second))
		}
	}
	if !k.Valid() {
		<-ended.Done()
		require.ErrorIs(b.h, context.Cause(ended), sluice.ErrLost)
		b.count(&b.overtime, func() {})
	}
	if k.Unlock(b.h.Context()) != nil {
		b.count(&b.lost, func() {})
	}
	require.False(b.h, k.Valid())
	b.count(new(int), func() { delete(b.all, k) })
}

func (b *believers) count(n *int, with func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*n++
	with()
}

// check compares k, if its holder believes in it, with the server, with the other
// locks and with the last fence that was seen. It takes no time; so if k is valid
// after it, it was all the while.
func (b *believers) check(k *sluice.Lock) bool {
	server, err := b.h.clean.Get(b.h.Context(), "Lock:a").Result()
	if err != nil && !k.Valid() {
		return false // or the server is loading
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	others := 0
	for other := range b.all {
		if other != k && other.Valid() {
			others++
		}
	}
	fence := b.fence
	if !k.Valid() {
		return false
	}
	if err == nil || errors.Is(err, redis.Nil) {
		require.Equal(b.h, k.Token(), server, "valid, and not the server's")
	}
	require.Zero(b.h, others, "two are valid")
	if k.Fence() != 0 {
		require.GreaterOrEqual(b.h, k.Fence(), fence)
		b.fence = k.Fence()
	}
	return true
}

// TestHoursOfTasks: whatever strikes the processes, every task that Redis has taken
// is done, none early, and none by two handlers at once whose contexts are alive.
func TestHoursOfTasks(t *testing.T) {
	hoursOfFaults(t, 3, func(h *hours) {
		w := &work{h: h, due: map[string]time.Time{}, doing: map[string]context.Context{}, done: map[string]int{}}
		var all sync.WaitGroup
		ctx, stop := context.WithCancel(h.Context())
		defer stop()
		for i, rdb := range h.processes {
			q, err := sluice.NewQueue(rdb, "q", sluice.WithMaxAttempts(0))
			require.NoError(h, err)
			if i == 0 {
				teach(h.T, q)
			}
			all.Go(func() {
				worker := &sluice.Worker{Queue: q, Concurrency: 5, Lease: 3 * time.Second, Backoff: at(time.Second), Handler: w.handle}
				require.NoError(h, worker.Run(ctx))
			})
			all.Go(func() {
				for i := 0; time.Now().Before(h.end); i++ {
					w.enqueue(q, fmt.Sprintf("%p %d", q, i))
					time.Sleep(rand.N(10 * time.Second))
				}
			})
		}
		h.strike()
		time.Sleep(2 * time.Minute) // leases, pauses and delays
		stop()
		all.Wait()
		size, err := h.clean.ZCard(h.Context(), "Queue:q").Result()
		require.NoError(h, err)
		require.Zero(h, size)
		require.Zero(h, h.clean.HLen(h.Context(), "{Queue:q}:tasks").Val())
		again := 0
		for _, id := range w.taken {
			require.Positive(h, w.done[id], "a task was lost")
			again += w.done[id] - 1
		}
		h.Logf("%d tasks, and %d of which nobody knows; %d failed, %d leases lost, %d done again; struck by %v",
			len(w.taken), w.unknown, w.failed, w.lost, again, h.struck)
		require.Greater(h, len(w.taken), 200)
		require.Positive(h, w.lost)
		time.Sleep(time.Minute) // what lingers
	})
}

// work is what is known of tasks.
type work struct {
	h                     *hours
	mu                    sync.Mutex
	due                   map[string]time.Time // at the earliest
	taken                 []string             // those that Redis has acknowledged
	doing                 map[string]context.Context
	done                  map[string]int
	unknown, failed, lost int
}

func (w *work) enqueue(q *sluice.Queue, id string) {
	task := sluice.Task{ID: id, Payload: []byte("p"), Delay: rand.N(time.Minute)}
	due := time.Now().Add(task.Delay)
	w.mu.Lock()
	w.due[id] = due
	w.mu.Unlock()
	_, err := q.Enqueue(w.h.Context(), task)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.unknown++
		return
	}
	w.taken = append(w.taken, id)
}

// begin checks that a task may be handed out now.
func (w *work) begin(ctx context.Context, id string) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if early := w.due[id].Sub(now); early > 2*time.Microsecond { // what the server counts, and doubles round
		w.h.Errorf("handed out %v early", early)
	}
	if before := w.doing[id]; before != nil && before.Err() == nil {
		w.h.Error("handed out twice at once")
	}
	w.doing[id] = ctx
}

func (w *work) handle(ctx context.Context, e sluice.Entry) error {
	w.begin(ctx, e.ID)
	sleep := rand.N(5 * time.Second)
	if rand.IntN(20) == 0 {
		sleep *= 10
	}
	select {
	case <-time.After(sleep):
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() != nil {
		if !errors.Is(context.Cause(ctx), sluice.ErrLost) {
			w.h.Error(context.Cause(ctx))
		}
		w.lost++
		return nil
	}
	if rand.IntN(10) == 0 {
		w.failed++
		return errors.New("again")
	}
	w.done[e.ID]++
	return nil
}
