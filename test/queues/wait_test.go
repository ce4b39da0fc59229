package queues

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// countScripts counts the scripts that the server is sent. It is called before there are clients.
func countScripts(t *testing.T, m *miniredis.Miniredis) *atomic.Int64 {
	t.Helper()
	first, err := m.Dial() // which starts the server
	require.NoError(t, err)
	require.NoError(t, first.Close())
	var n atomic.Int64
	m.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if command == "EVALSHA" || command == "EVAL" {
			n.Add(1)
		}
		return false
	})
	return &n
}

// The Queues of one client share a pub/sub connection, and are looked at together. One that
// fails costs the others nothing.
func TestQueue_ShareOneConnectionAndOneLook(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		scripts := countScripts(t, m)
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		ended := make(chan string, 300)
		for i := range 300 {
			q, err := sluice.NewQueue(rdb, fmt.Sprint(i))
			require.NoError(t, err)
			all.Go(func() {
				_ = q.Wait(ctx)
				ended <- fmt.Sprint(i)
			})
			time.Sleep(7 * time.Millisecond) // they begin to wait at different times
		}
		require.Len(t, m.PubSubChannels("*:wake:*"), 300)
		time.Sleep(10*time.Second + time.Second/2)
		require.NoError(t, m.Set("Queue:7", "of another type"))
		require.Equal(t, "7", <-ended)
		scripts.Store(0)
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, int(scripts.Load()), 10*4, "three for 299 queues, and now and then one more")
		require.LessOrEqual(t, m.CurrentConnectionCount(), 3, "one that subscribes, and two where two looks meet")
		_, err := m.ZAdd("Queue:123", 1, "foreign")
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, "123", <-ended)
		stop()
		all.Wait()
		time.Sleep(time.Minute)
		require.Empty(t, m.PubSubChannels("*"))
		time.Sleep(time.Minute)
		require.LessOrEqual(t, int(scripts.Load()), 12*4+300, "and each line was left")
	})
}

// hanging is a hook that keeps pipelines of scripts back for a minute once it is armed. A new
// connection is set up by a pipeline too.
type hanging struct {
	interfere
	armed atomic.Bool
}

func (h *hanging) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.armed.Load() && cmds[0].Name() == "evalsha" {
			time.Sleep(time.Minute)
		}
		return next(ctx, cmds)
	}
}

// An idle look that hangs, with the connection that it was sent on, is given up after a second.
// Each queue then looks for itself.
func TestQueue_ALookThatHangsIsBounded(t *testing.T) {
	for _, queues := range []int{1, 2} { // one is looked at by another way than several
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				var hook hanging
				rdb.(*redis.Client).AddHook(&hook)
				var all sync.WaitGroup
				for i := range queues {
					q, err := sluice.NewQueue(rdb, fmt.Sprint(i))
					require.NoError(t, err)
					all.Go(func() { require.NoError(t, q.Wait(t.Context())) })
				}
				time.Sleep(5*time.Second + time.Second/2)
				hook.armed.Store(true)
				for i := range queues {
					_, err := m.ZAdd(fmt.Sprint("Queue:", i), 1, "foreign")
					require.NoError(t, err)
				}
				start := time.Now()
				all.Wait()
				require.LessOrEqual(t, time.Since(start), 2*time.Second, "a poll interval, and a second")
				require.Greater(t, time.Since(start), time.Second, "the look has hung")
				time.Sleep(3 * time.Minute) // so that what lingers has ended
			})
		})
	}
}

// Of the callers on one Queue one is told of a task, in the order in which they came. If that
// one does not claim, the next is told.
func TestQueue_TellsOneCallerATask(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		var all sync.WaitGroup
		told := make(chan int, 10)
		for i := range 4 {
			all.Go(func() {
				require.NoError(t, q.Wait(t.Context()))
				told <- i
			})
			time.Sleep(time.Second)
		}
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 0, <-told)
		require.Empty(t, told)
		_, err = q.Claim(t.Context(), 1, 30*time.Minute)
		require.NoError(t, err)
		time.Sleep(29 * time.Minute)
		require.Empty(t, told, "it was claimed")
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, 1, <-told, "when the lease has ended")
		for i := range 2 {
			time.Sleep(time.Second)
			require.Equal(t, 2+i, <-told, "it is not claimed")
		}
		all.Wait()
		time.Sleep(time.Minute)
	})
}

// interfere is a hook that calls a function when a script has been answered, before the caller
// has the answer.
type interfere struct{ then atomic.Pointer[func()] }

func (i *interfere) DialHook(next redis.DialHook) redis.DialHook { return next }

func (i *interfere) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (i *interfere) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if then := i.then.Swap(nil); then != nil {
			(*then)()
		}
		return err
	}
}

// What is announced while a claim is under way counts, though the claim has found nothing.
func TestQueue_WaitKnowsWhatCameDuringAClaim(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		hooked := systest.BubbleClient(t, systest.BubbleDialer(m))
		defer func() { _ = hooked.Close() }()
		var hook interfere
		hooked.(*redis.Client).AddHook(&hook)
		q, err := sluice.NewQueue(hooked, "q", sluice.WithPollInterval(time.Hour))
		require.NoError(t, err)
		other, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		_, err = q.Claim(t.Context(), 1, time.Minute) // the server has the script
		require.NoError(t, err)
		for i := range 3 { // the subscription is there, was there, and was never there
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if i < 2 {
				require.ErrorIs(t, q.Wait(ctx), context.DeadlineExceeded)
				time.Sleep(time.Duration(i) * 10 * time.Second)
			}
			cancel()
			enqueue := func() {
				_, err := other.Enqueue(t.Context(), sluice.Task{ID: "a"})
				require.NoError(t, err)
				time.Sleep(time.Millisecond) // it is announced
			}
			hook.then.Store(&enqueue)
			es, err := q.Claim(t.Context(), 1, time.Minute)
			require.NoError(t, err)
			require.Empty(t, es)
			start := time.Now()
			require.NoError(t, q.Wait(t.Context()))
			require.Zero(t, time.Since(start))
			_, err = q.Pop(t.Context(), 1)
			require.NoError(t, err)
			time.Sleep(time.Minute) // so that what lingers has ended
		}
	})
}

// A task costs a lone loop its enqueue, a claim, a finish, and a look that has it join the line
// again: to be told costs no script.
func TestQueue_AWakeUpCostsNoScript(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		scripts := countScripts(t, m)
		h := startHerd(t, m, 1)
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		for _, delay := range []time.Duration{0, 30 * time.Millisecond} {
			before := scripts.Load()
			for i := range 100 {
				due := time.Now().Add(delay)
				_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), Delay: delay})
				require.NoError(t, err)
				time.Sleep(100 * time.Millisecond)
				require.Len(t, h.claimed, 1)
				require.WithinDuration(t, due, <-h.claimed, 10*time.Microsecond)
			}
			require.LessOrEqual(t, int(scripts.Load()-before), 4*100+40, "and some looks: the first after one that has joined the line is at any time")
		}
		h.stop()
	})
}
