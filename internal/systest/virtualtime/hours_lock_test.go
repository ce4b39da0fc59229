package virtualtime

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// believers are handles by what Valid says.
type believers struct {
	h        *hours
	mu       sync.Mutex
	all      map[*sluice.Lock]bool
	fence    int64
	taken    int
	lost     int
	overtime int // TTLs that ran out
}

// TestHours_OfLocksUnderFaults: whatever strikes the processes, a handle that is
// valid is the one that the server has, no other is valid, its fence is the highest, and
// every caller gets the lock in the end.
func TestHours_OfLocksUnderFaults(t *testing.T) {
	locksUnderFaults(t, 6*time.Minute)
}

func locksUnderFaults(t *testing.T, length time.Duration) {
	t.Helper()
	hoursOfFaults(t, 3, length, func(h *hours) {
		b := &believers{h: h, all: map[*sluice.Lock]bool{}}
		var all sync.WaitGroup
		for _, rdb := range h.processes {
			l, done := systest.BubbleLocker(h.T, rdb, sluice.WithRetryInterval(2*time.Second))
			defer func() { time.Sleep(time.Minute); done() }()
			systest.Warm(h.T, l, "warm")
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
		require.Greater(h, b.taken, int(3*h.length.Minutes()))
		if h.long() {
			require.Positive(h, b.lost)
			require.Positive(h, b.overtime)
		}
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
	wait := 30 * time.Minute
	if rand.IntN(4) == 0 {
		wait = rand.N(10 * time.Second)
	}
	ctx, cancel := context.WithTimeout(b.h.Context(), wait)
	defer cancel()
	k, err := l.Lock(ctx, "a", opts...)
	switch {
	case err == nil:
		b.hold(ctx, k, rand.N(4*ttl))
	case ctx.Err() != nil:
		require.Less(b.h, wait, time.Minute, "no caller gets the lock any more")
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
