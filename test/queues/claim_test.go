package queues

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// lateReplies delays the replies to scripts that take tasks out, and to pipelines: what is left of
// the lists, one after the other.
type lateReplies struct {
	mu        sync.Mutex // guards what follows
	scripts   []time.Duration
	pipelines []time.Duration
	lease     string // of claims whose replies take five seconds; empty for none
}

func (h *lateReplies) delay(of *[]time.Duration) {
	h.mu.Lock()
	var d time.Duration
	if len(*of) > 0 {
		d, *of = (*of)[0], (*of)[1:]
	}
	h.mu.Unlock()
	time.Sleep(d)
}

func (h *lateReplies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lateReplies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") {
			h.delay(&h.scripts)
		}
		if h.lease != "" && slices.Contains(cmd.Args(), any(h.lease)) {
			time.Sleep(5 * time.Second)
		}
		return err
	}
}

func (h *lateReplies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		h.delay(&h.pipelines)
		return err
	}
}

// refusal is the error of a handler.
type refusal struct{}

func (refusal) Error() string { return "card refused" }

// TestClaim_ALeaseThatHangsHoldsNoOther: calls that wait for the same script to return are sent
// together, those of each lease apart.
func TestClaim_ALeaseThatHangsHoldsNoOther(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		b := systest.NewQueueTest(t, rdb, "q")
		for i := range 5 {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: fmt.Sprint(i)})
		}
		b.Claim(1, time.Hour)
		rdb.AddHook(&lateReplies{scripts: slices.Repeat([]time.Duration{20 * time.Millisecond}, 2), lease: "100.000000"})
		var all sync.WaitGroup
		claim := func(lease, longest time.Duration) {
			all.Go(func() {
				began := time.Now()
				if es, err := b.Q.Claim(b.Context(), 1, lease); err != nil || len(es) != 1 || time.Since(began) > longest {
					t.Errorf("%v: %v, %v after %v", lease, es, err, time.Since(began))
				}
			})
		}
		claim(50*time.Second, time.Second)
		claim(50*time.Second, time.Second)
		synctest.Wait()
		claim(100*time.Second, time.Minute)
		claim(200*time.Second, 100*time.Millisecond)
		all.Wait()
		time.Sleep(time.Minute)
	})
}

func TestQueue_KeepAliveKeepsATaskWhileItsFunctionRuns(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		const lease = 1500 * time.Millisecond
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		e := b.ClaimOne(time.Minute)
		type key struct{}
		err := b.Q.KeepAlive(context.WithValue(b.Context(), key{}, 1), e, lease, func(ctx context.Context) error {
			require.Equal(b, 1, ctx.Value(key{}))
			require.Never(b, func() bool { // during the work
				es, err := b.Q.Claim(b.Context(), 1, time.Minute)
				// On a busy machine an extension may be late: the task is lost.
				return ctx.Err() == nil && (err != nil || len(es) > 0)
			}, 2*lease, 5*time.Millisecond)
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
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
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

// TestQueue_KeepAliveCountsFromTheSend: a renewal whose reply was late gives the function no longer than
// the server gave the lease.
func TestQueue_KeepAliveCountsFromTheSend(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		const lease = 3 * time.Second
		faults := redistest.NewFaults(systest.BubbleDialer(m))
		slow := systest.BubbleClient(t, faults.Dial)
		defer slow.Close()
		q, err := sluice.NewQueue(slow, "q")
		require.NoError(t, err)
		b := systest.NewQueueTest(t, rdb, "q")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		e := b.ClaimOne(lease)
		began, ended := time.Now(), make(chan time.Time, 1)
		go func() {
			_ = q.KeepAlive(t.Context(), e, lease, func(ctx context.Context) error {
				<-ctx.Done()
				ended <- time.Now()
				return nil
			})
		}()
		time.Sleep(10 * time.Second)
		faults.Delay(200 * time.Millisecond)
		time.Sleep(3*time.Second + 50*time.Millisecond) // not at a whole second, at which the lease is renewed
		ends := b.Get("a").LeaseEnds
		m.SetError("LOADING for long")
		at := <-ended
		require.Greater(t, at.Sub(began), 13*time.Second)
		require.Less(t, at, ends)
		m.SetError("")
		time.Sleep(time.Minute)
	})
}

// TestWorker_ALoneOneKeepsUpWithAProducer: it leaves and joins the line while tasks come, and what
// it is told crosses what it asks. No task waits for its next look.
func TestWorker_ALoneOneKeepsUpWithAProducer(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	s := redistest.Redis(t)
	name := redistest.Name(t)
	q, err := sluice.NewQueue(s.Client(t), name, sluice.WithPollInterval(time.Hour))
	require.NoError(t, err)
	producer, err := sluice.NewQueue(s.Client(t), name)
	require.NoError(t, err)
	const tasks = 4000
	var handled atomic.Int64
	systest.StartWorker(t, &sluice.Worker{Queue: q, Concurrency: 16, Handler: func(context.Context, sluice.Entry) error {
		handled.Add(1)
		return nil
	}})
	for i := range tasks {
		_, err := producer.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return handled.Load() == tasks }, time.Minute, time.Millisecond)
}
