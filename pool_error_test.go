package sluice_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestPool_AWorkersErrorEndsIt, and the error says whose.
func TestPool_AWorkersErrorEndsIt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		enqueueMany(b, 0, 1)
		other := systest.NewQueueTest(b.T, b.RDB, redistest.Name(b.T)+"-other")
		wrong := b.On(b.RDB, sluice.WithShards(4))
		var runs atomic.Int64
		handler := func(context.Context, sluice.Entry) error { runs.Add(1); return nil }
		p := &sluice.Pool{Workers: []*sluice.Worker{{Queue: other.Q, Handler: handler}, {Queue: wrong, Handler: handler}}}
		err := p.Run(b.Context())
		require.ErrorIs(b, err, sluice.ErrInvalid)
		require.ErrorContains(b, err, "run "+b.Key[len("Queue:"):]+":")
		require.Zero(b, runs.Load())
		require.ErrorIs(b, p.Check(b.Context()), sluice.ErrInvalid)
		require.NoError(b, (&sluice.Pool{Workers: p.Workers[:1]}).Check(b.Context()))

		// And while it runs: a queue that is idle gets another number.
		soon := systest.NewQueueTest(b.T, b.RDB, redistest.Name(b.T)+"-soon", sluice.WithPollInterval(20*time.Millisecond))
		p.Workers[1] = &sluice.Worker{Queue: soon.Q, Handler: handler}
		ended := make(chan error, 1)
		go func() { ended <- p.Run(b.Context()) }()
		b.Eventually(func() bool { return waitingFor(soon) > 0 })
		_, err = soon.On(b.RDB, sluice.WithShards(4)).Enqueue(b.Context(), sluice.Task{ID: "a"})
		require.NoError(b, err)
		err = <-ended
		require.ErrorIs(b, err, sluice.ErrInvalid)
		require.ErrorContains(b, err, "run "+soon.Key[len("Queue:"):]+":")
	})
}

// TestPool_TellsWhoseErrorEndedItAndWhatIsLeft, both.
func TestPool_TellsWhoseErrorEndedItAndWhatIsLeft(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		release := make(chan struct{})
		stuck, soon := poolQueues(t, rdb, 1, 1)[0], systest.NewQueueTest(t, rdb, "soon")
		handler := func(context.Context, sluice.Entry) error { <-release; return nil }
		p := &sluice.Pool{Grace: time.Second, Workers: []*sluice.Worker{{Queue: stuck, Handler: handler}, {Queue: soon.Q, Handler: handler}}}
		ended := make(chan error, 1)
		go func() { ended <- p.Run(context.Background()) }()
		time.Sleep(time.Second)
		_, err := soon.On(rdb, sluice.WithShards(4)).Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		err = <-ended
		var left *sluice.UnfinishedError
		require.ErrorAs(t, err, &left)
		require.Equal(t, sluice.UnfinishedError{Running: 1}, *left)
		require.ErrorIs(t, err, sluice.ErrInvalid)
		require.ErrorContains(t, err, "run soon:")
		close(release)
		time.Sleep(time.Minute)
	})
}
