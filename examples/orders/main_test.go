package main

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/sluicetest"
)

// fixture is a shop with a running worker. It notes the reminders.
type fixture struct {
	*Shop
	redis    *sluicetest.Redis
	reminded []string
}

// open runs a test on a shop, in a bubble.
func open(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{redis: sluicetest.New(t)}
		// No notification is lost here, so no poll is needed. Those of a day would take seconds.
		queue, err := sluice.NewQueue(f.redis.Client(), "orders", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		locker, err := sluice.NewLocker(f.redis.Client(), sluice.WithRetryInterval(time.Hour))
		require.NoError(t, err)
		f.Shop = &Shop{Queue: queue, Locker: locker, PayIn: 15 * time.Minute, Remember: func(order string) { f.reminded = append(f.reminded, order) }}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Work(ctx) }()
		test(t, f)
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, locker.Close())
	})
}

func TestShop_CancelsWhatIsNotPaid(t *testing.T) {
	open(t, func(t *testing.T, f *fixture) {
		require.NoError(t, f.Order(t.Context(), "a"))
		require.InDelta(t, 15*time.Minute, f.redis.RequireEnqueued("orders", "cancel:a").Due.Sub(f.redis.Now()), float64(time.Millisecond))
		require.Len(t, f.redis.Scheduled("orders"), 2)

		f.redis.Advance(14 * time.Minute)
		require.Equal(t, []string{"a"}, f.reminded)
		require.Equal(t, "unpaid", f.State("a"))
		f.redis.Advance(time.Minute + time.Second)
		require.Equal(t, "canceled", f.State("a"))
		require.ErrorIs(t, f.Pay(t.Context(), "a"), errLate)
		f.redis.RequireEmpty("orders")
	})
}

func TestShop_LeavesWhatIsPaid(t *testing.T) {
	open(t, func(t *testing.T, f *fixture) {
		require.NoError(t, f.Order(t.Context(), "a"))
		f.redis.Advance(5 * time.Minute)
		require.NoError(t, f.Pay(t.Context(), "a"))
		f.redis.RequireEmpty("orders")
		f.redis.Advance(24 * time.Hour)
		require.Empty(t, f.reminded)
		require.Equal(t, "paid", f.State("a"))
	})
}

// TestShop_WaitsForAnOrderThatIsBeingStored: the task is due, and the order not yet stored.
func TestShop_WaitsForAnOrderThatIsBeingStored(t *testing.T) {
	open(t, func(t *testing.T, f *fixture) {
		lock, err := f.Locker.Lock(t.Context(), "a", sluice.WithAutoRenew())
		require.NoError(t, err)
		_, err = f.Queue.Enqueue(t.Context(), sluice.Task{ID: "cancel:a", Payload: []byte("a")})
		require.NoError(t, err)
		f.redis.Advance(time.Hour)
		require.Equal(t, "cancel:a", f.redis.Leased("orders")[0].ID)
		f.set("a", "unpaid")
		require.NoError(t, lock.Unlock(t.Context()))
		f.redis.Advance(time.Second)
		require.Equal(t, "canceled", f.State("a"))
	})
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), 3*time.Second, &out))
	require.Equal(t, "please pay order-2\norder-1 is paid and order-2 is canceled\n", out.String())
}
