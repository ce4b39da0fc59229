package virtualtime

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestLocker_PollsAreJittered: a waiter without notifications polls after a half to a
// whole retry interval, evenly spread, so that waiters that came together part.
func TestLocker_PollsAreJittered(t *testing.T) {
	faultyBubble(t, func(n network) {
		const interval = 4 * time.Second
		l, done := n.taught(sluice.WithRetryInterval(interval))
		defer done()
		require.NoError(n, n.clean.Set(n.Context(), "Lock:a", "foreign", 2*time.Hour).Err())
		ctx, cancel := context.WithTimeout(n.Context(), 90*time.Minute)
		defer cancel()
		_, err := l.Lock(ctx, "a")
		require.ErrorIs(n, err, sluice.ErrLocked)
		gaps := n.log.gaps()[2:] // the first try, and the polls before and after subscribing
		require.Greater(n, len(gaps), 1500)
		var quarters [4]int
		for _, gap := range gaps {
			require.GreaterOrEqual(n, gap, interval/2)
			require.LessOrEqual(n, gap, interval)
			quarters[min(int((gap-interval/2)/(interval/8)), 3)]++
		}
		for _, count := range quarters {
			require.InDelta(n, len(gaps)/4, count, float64(len(gaps))/20)
		}
	})
}

// TestLocker_LateNotificationIsHarmless: a notification that comes after its waiter has
// polled does no harm.
func TestLocker_LateNotificationIsHarmless(t *testing.T) {
	faultyBubble(t, func(n network) {
		l, done := n.taught(sluice.WithRetryInterval(time.Second), sluice.WithTTL(time.Hour))
		defer done()
		holder, done := systest.BubbleLocker(n.T, n.clean, sluice.WithTTL(time.Hour))
		defer done()
		k, err := holder.Lock(n.Context(), "a")
		require.NoError(n, err)
		var released time.Time
		time.AfterFunc(time.Minute+300*time.Millisecond, func() {
			released = time.Now()
			n.faults.Delay(5 * time.Second) // of what is read now
			require.NoError(n, k.Unlock(n.Context()))
			time.Sleep(time.Nanosecond)
			n.faults.Delay(0)
		})
		got, err := l.Lock(n.Context(), "a")
		require.NoError(n, err)
		late := time.Since(released)
		require.Positive(n, late, "it was notified in time")
		require.LessOrEqual(n, late, time.Second)
		second := make(chan error)
		go func() { _, err := l.Lock(n.Context(), "a"); second <- err }()
		time.Sleep(time.Minute) // the notification comes
		require.True(n, got.Valid())
		require.NoError(n, got.Unlock(n.Context()))
		require.NoError(n, <-second)
	})
}

// TestLocker_QuietSubscriptionCostsOneInterval: a subscription that went quiet costs one
// interval. It is then asked, and replaced when it has not answered for two seconds; after
// that notifications come again.
func TestLocker_QuietSubscriptionCostsOneInterval(t *testing.T) {
	faultyBubble(t, func(n network) {
		l, done := n.taught(sluice.WithTTL(time.Hour))
		defer done()
		holder, done := systest.BubbleLocker(n.T, n.clean, sluice.WithTTL(time.Hour))
		defer done()
		// wait returns how late a waiter gets a lock that another Locker has released.
		wait := func(interval time.Duration) time.Duration {
			k, err := holder.Lock(n.Context(), "a")
			require.NoError(n, err)
			var released time.Time
			time.AfterFunc(3333*time.Millisecond, func() {
				released = time.Now()
				require.NoError(n, k.Unlock(n.Context()))
			})
			got, err := l.Lock(n.Context(), "a", sluice.WithRetryInterval(interval))
			require.NoError(n, err)
			late := time.Since(released)
			require.NoError(n, got.Unlock(n.Context()))
			return late
		}
		require.Less(n, wait(time.Hour), 10*time.Millisecond)
		n.faults.HalfOpen()
		late := wait(10 * time.Second) // its first poll is 5 s off at the least, and the release 3.3 s
		require.Greater(n, late, time.Second, "the fault did not strike")
		require.LessOrEqual(n, late, 10*time.Second)
		time.Sleep(2100 * time.Millisecond)
		require.Less(n, wait(time.Hour), 10*time.Millisecond, "it was not replaced")
	})
}

// TestLocker_RetriesForTenSeconds: a server that cannot serve just now is asked again, at
// most half a second apart, for ten seconds or until the context ends.
func TestLocker_RetriesForTenSeconds(t *testing.T) {
	faultyBubble(t, func(n network) {
		l, done := n.taught()
		defer done()
		n.m.SetError("LOADING Redis is loading the dataset in memory")
		_, err := l.TryLock(n.Context(), "a")
		require.ErrorContains(n, err, "LOADING")
		require.NotErrorIs(n, err, sluice.ErrLocked)
		took := time.Since(n.log.start)
		require.Greater(n, took, 10*time.Second)
		require.LessOrEqual(n, took, 10*time.Second+502*time.Millisecond)
		gaps := n.log.gaps()
		require.LessOrEqual(n, slices.Max(gaps), 502*time.Millisecond)
		require.Less(n, len(gaps), 120, "it is asked all the time")

		ctx, cancel := context.WithTimeout(n.Context(), 3*time.Second)
		defer cancel()
		n.log.begin()
		_, err = l.TryLock(ctx, "a")
		require.ErrorIs(n, err, context.DeadlineExceeded)
		require.Equal(n, 3*time.Second, time.Since(n.log.start))

		time.AfterFunc(7*time.Second, func() { n.m.SetError("") })
		n.log.begin()
		k, err := l.TryLock(n.Context(), "a")
		require.NoError(n, err)
		require.LessOrEqual(n, time.Since(n.log.start), 7*time.Second+502*time.Millisecond)
		require.NoError(n, k.Unlock(n.Context()))
	})
}

// TestLocker_JanitorReleasesInTime: what a caller has left behind is released at once, and that is
// the end of it if it was there. Otherwise it may come yet, and is released again half a second
// after the first answer, and then after pauses of which each is twice as long, until one is longer
// than the TTL. Without an answer it is tried every 250ms for as long as the key may live, and two
// minutes at least.
func TestLocker_JanitorReleasesInTime(t *testing.T) {
	faultyBubble(t, func(n network) {
		l, done := n.taught(sluice.WithTTL(30 * time.Second))
		defer done()
		abandon := func() {
			ctx, cancel := context.WithTimeout(n.Context(), time.Second)
			defer cancel()
			n.log.begin()
			_, err := l.TryLock(ctx, "a")
			require.ErrorIs(n, err, sluice.ErrUnknown)
		}
		n.faults.Delay(1500 * time.Millisecond) // beyond the context
		abandon()
		time.Sleep(10 * time.Minute)
		n.faults.Delay(0)
		require.False(n, n.m.Exists("Lock:a"))
		require.Len(n, n.log.times(), 3, "the acquisition, its release, and the release when the reply has come")

		n.faults.HoldRequest(1)
		n.faults.Delay(1500 * time.Millisecond)
		abandon() // its second attempt, too
		n.faults.Delay(0)
		time.Sleep(10 * time.Minute)
		gaps := n.log.gaps()
		require.Equal(n, []time.Duration{
			time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second,
		}, gaps[len(gaps)-6:], "after the first, which is beside the release of the second attempt")
		require.Equal(n, 1, n.faults.Deliver())
		n.m.Del("Lock:a")

		n.faults.Delay(1500 * time.Millisecond)
		time.AfterFunc(time.Second, func() { n.m.SetError("ERR out of order") })
		abandon()
		n.faults.Delay(0)
		time.Sleep(time.Hour)
		n.m.SetError("")
		sent := n.log.times()
		require.InDelta(n, 2*time.Minute, sent[len(sent)-1], float64(2*time.Second))
		for _, gap := range n.log.gaps()[4:] {
			require.InDelta(n, 250*time.Millisecond, gap, float64(time.Millisecond))
		}
	})
}

// TestLocker_CallsEndSoonAfterTheirContexts: calls end 15ms after their context, and Close
// after a second, when nothing is answered. The bubble sees to it that no goroutine is
// left.
func TestLocker_CallsEndSoonAfterTheirContexts(t *testing.T) {
	faultyBubble(t, func(n network) {
		l, _ := n.taught(sluice.WithAutoRenew())
		q, err := sluice.NewQueue(n.faulty, "q")
		require.NoError(n, err)
		held, err := l.Lock(n.Context(), "held")
		require.NoError(n, err)
		n.faults.StallRequests()
		e := sluice.Entry{ID: "a", Score: 1}
		for name, op := range map[string]func(ctx context.Context) error{
			"lock":      func(ctx context.Context) error { _, err := l.Lock(ctx, "a"); return err },
			"try lock":  func(ctx context.Context) error { _, err := l.TryLock(ctx, "b"); return err },
			"extend":    func(ctx context.Context) error { return held.Extend(ctx, time.Minute) },
			"ttl":       func(ctx context.Context) error { _, err := held.TTL(ctx); return err },
			"lock all":  func(ctx context.Context) error { _, err := l.LockAll(ctx, []string{"c", "d"}); return err },
			"adopt":     func(ctx context.Context) error { _, err := l.Adopt(ctx, "held", held.Token()); return err },
			"permit":    func(ctx context.Context) error { _, err := l.Lock(ctx, "p", sluice.WithPermits(3)); return err },
			"inspect":   func(ctx context.Context) error { _, err := l.Inspect(ctx, "a"); return err },
			"enqueue":   func(ctx context.Context) error { _, err := q.Enqueue(ctx, sluice.Task{ID: "a"}); return err },
			"claim":     func(ctx context.Context) error { _, err := q.Claim(ctx, 1, time.Minute); return err },
			"dequeue":   func(ctx context.Context) error { return q.Dequeue(ctx, e) },
			"heartbeat": func(ctx context.Context) error { return q.Extend(ctx, e, time.Minute) },
			"wait":      q.Wait,
			"stats":     func(ctx context.Context) error { _, err := q.Stats(ctx); return err },
		} {
			ctx, cancel := context.WithTimeout(n.Context(), time.Second)
			start := time.Now()
			require.ErrorIs(n, op(ctx), context.DeadlineExceeded, name)
			require.LessOrEqual(n, time.Since(start), time.Second+15*time.Millisecond, name)
			cancel()
		}
		start := time.Now()
		require.ErrorIs(n, l.Close(), sluice.ErrUnknown)
		require.LessOrEqual(n, time.Since(start), 2*time.Second)
		require.False(n, held.Valid())
		n.faults.Resume()
		time.Sleep(time.Minute) // the client's own timeouts, and what lingers
	})
}

// TestLock_DeadlineCountsFromTheSend: what takes long to be answered is not held for
// longer.
func TestLock_DeadlineCountsFromTheSend(t *testing.T) {
	faultyBubble(t, func(n network) {
		l, done := n.taught(sluice.WithTTL(10 * time.Second))
		defer done()
		n.faults.Delay(700 * time.Millisecond)
		defer n.faults.Delay(0)
		start := time.Now()
		k, err := l.Lock(n.Context(), "a")
		require.NoError(n, err)
		require.Equal(n, 10*time.Second-102*time.Millisecond, k.Deadline().Sub(start))
		start = time.Now()
		require.NoError(n, k.Extend(n.Context(), 20*time.Second))
		require.Equal(n, 700*time.Millisecond, time.Since(start))
		require.Equal(n, 20*time.Second-202*time.Millisecond, k.Deadline().Sub(start))
		require.NoError(n, k.Unlock(n.Context()))

		renewed, err := l.Lock(n.Context(), "b", sluice.WithAutoRenew())
		require.NoError(n, err)
		sent := time.Now().Add(10 * time.Second / 3)
		time.Sleep(6500 * time.Millisecond) // from go-redis 9.23 on pipelines have connections of their own, which shake hands first
		require.Equal(n, 10*time.Second-102*time.Millisecond, renewed.Deadline().Sub(sent))
		require.NoError(n, renewed.Unlock(n.Context()))
	})
}
