package sluice_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// What is published says how many clients wait, how many tasks are due, and how far off the
// head is. A claim that leaves a head and may have no room for it publishes that, if clients
// wait.
func TestQueue_AnnouncesItsHead(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		subscribe := func(channel string) *redis.PubSub {
			pubsub := b.RDB.Subscribe(ctx, "{"+b.Key+"}"+channel)
			_, err := pubsub.Receive(ctx)
			require.NoError(b, err)
			return pubsub
		}
		wake := subscribe(":wake")
		defer func() { _ = wake.Close() }()
		announced := func() (clients, due, off int) {
			message, err := wake.ReceiveMessage(ctx)
			require.NoError(b, err)
			_, err = fmt.Sscanf(message.Payload, "%d %d %d", &clients, &due, &off)
			require.NoError(b, err, message.Payload)
			return clients, due, off
		}
		require3 := func(wantClients, wantDue, most int, why string) {
			clients, due, off := announced()
			require.Equal(b, []int{wantClients, wantDue}, []int{clients, due}, why)
			require.GreaterOrEqual(b, off, 0)
			require.LessOrEqual(b, off, most, why)
			require.Greater(b, off, most-60_000_000, why)
		}
		b.Enqueue(sluice.Added, sluice.Task{ID: "later", Delay: 20 * time.Minute})
		require3(0, 1, 20*60_000_000, "a new head that is due later")
		b.Enqueue(sluice.Added, sluice.Task{ID: "a"})
		require3(0, 1, 0, "one task")
		for i := range 2 {
			b.ClaimOne(time.Hour)
			b.Enqueue(sluice.Added, sluice.Task{ID: fmt.Sprint("b", i), At: time.Unix(2, 0)})
			require3(0, 1, 0, "nothing was published by the claim")
		}

		b.ClaimOne(time.Hour)
		idle := subscribe(":idle")
		defer func() { _ = idle.Close() }()
		_, err := b.Q.EnqueueBatch(ctx, []sluice.Task{{ID: "c", At: time.Unix(1, 0)}, {ID: "d", At: time.Unix(3, 0)}, {ID: "e", Delay: time.Hour}})
		require.NoError(b, err)
		require3(1, 2, 0, "two of three, and one client")
		claim := func() string {
			es, err := b.Q.Claim(ctx, 1, time.Hour)
			require.NoError(b, err)
			require.Len(b, es, 1)
			return es[0].ID
		}
		require.Equal(b, "c", claim())
		require3(1, 1, 0, "the claim has left one")
		require.Equal(b, "d", claim())
		b.Enqueue(sluice.Added, sluice.Task{ID: "f"})
		require3(1, 1, 0, "nothing was published by a claim that left no head for the next second")
	})
}
