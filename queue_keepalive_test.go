package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

func TestQueue_KeepAliveKeepsATaskWhileItsFunctionRuns(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		const lease = 1500 * time.Millisecond
		b.Enqueue(sluice.Added, sluice.Task{ID: "a"})
		e := b.ClaimOne(time.Minute)
		type key struct{}
		err := b.Q.KeepAlive(context.WithValue(b.Context(), key{}, 1), e, lease, func(ctx context.Context) error {
			require.Equal(b, 1, ctx.Value(key{}))
			for start := time.Now(); time.Since(start) < 2*lease; time.Sleep(5 * time.Millisecond) { // the work
				es := b.Claim(1, time.Minute)
				if ctx.Err() != nil { // on a busy machine an extension may be late: the task is lost
					break
				}
				require.Empty(b, es)
			}
			return refusal{}
		})
		require.ErrorIs(b, err, refusal{})
		if !errors.Is(err, sluice.ErrLost) {
			require.Equal(b, refusal{}, err)
			require.NoError(b, b.Q.Dequeue(b.Context(), e), "the receipt is the same")
		}
	})
}

// The function's context ends with ErrCanceled when the task is cancelled.
func TestQueue_KeepAliveEndsWhenTheTaskIsCancelled(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.Added, sluice.Task{ID: "a"})
		e := b.ClaimOne(time.Minute)
		err := b.Q.KeepAlive(b.Context(), e, 3*time.Second, func(ctx context.Context) error {
			require.NoError(b, b.Q.Purge(ctx))
			<-ctx.Done()
			require.Equal(b, sluice.ErrCanceled, context.Cause(ctx))
			return nil
		})
		require.ErrorIs(b, err, sluice.ErrCanceled)
		called := false
		err = b.Q.KeepAlive(b.Context(), e, 3*time.Second, func(context.Context) error { called = true; return nil })
		require.ErrorIs(b, err, sluice.ErrStale)
		require.False(b, called)
	})
}

// When Redis does not answer, the function's context ends before the lease can. Many calls
// share pipelines, and leave nothing behind.
func TestQueue_KeepAliveEndsBeforeTheLease(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		const lease, n = 3 * time.Second, 20
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		for i := range n {
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i)})
			require.NoError(t, err)
		}
		es, err := q.Claim(t.Context(), n, time.Minute)
		require.NoError(t, err)
		require.Len(t, es, n)
		pipelines := &systest.Pipelines{}
		rdb.AddHook(pipelines)
		start := time.Now()
		var all sync.WaitGroup
		for _, e := range es {
			all.Go(func() {
				err := q.KeepAlive(t.Context(), e, lease, func(ctx context.Context) error {
					<-ctx.Done()
					require.Less(t, time.Since(start), time.Minute+lease)
					return context.Cause(ctx)
				})
				require.ErrorIs(t, err, sluice.ErrLost)
			})
		}
		time.Sleep(time.Minute)
		require.GreaterOrEqual(t, pipelines.Commands.Load(), int64(n*59))
		require.LessOrEqual(t, pipelines.Sent.Load(), int64(100), "one for all, each second")
		m.SetError("LOADING for long")
		all.Wait()
		require.Greater(t, time.Since(start), time.Minute+lease/2, "too early")
		m.SetError("")
		nothing := func(context.Context) error { return nil }
		require.NoError(t, q.KeepAlive(t.Context(), es[0], time.Hour, nothing), "no other caller has taken it")
		time.Sleep(time.Minute) // the bubble fails if a goroutine is left
	})
}

// The loop of ExampleQueue_Claim goes round a few times a second while Claim fails and Wait
// works: the dead letters' key is of another type, which Wait does not look at.
func TestExampleQueue_Claim_PausesWhenClaimFails(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		require.NoError(t, m.Set("{Queue:q}:dead", "of another type"))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		before, worked := m.CommandCount(), 0
		work := func(context.Context, sluice.Entry) error { worked++; return nil }
		consume(ctx, q, work)
		require.Zero(t, worked)
		require.LessOrEqual(t, m.CommandCount()-before, 20*5*10, "five rounds a second of ten commands at most")
		m.Del("{Queue:q}:dead")
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		consume(ctx, q, work)
		require.Equal(t, 1, worked)
		time.Sleep(time.Minute)
	})
}
