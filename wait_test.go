package sluice_test

import (
	"context"
	"fmt"
	"runtime"
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

// The scripts tell the client that has joined the line last of a task that is due, and take it out; up to four of a batch. Of one that is due
// later they tell one client, which stays in line as the watchman; and it is told of an earlier one.
func TestQueue_TellsClientsInLine(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, line := b.Context(), "{"+b.Key+"}:line"
		told := make(chan string, 100)
		listen := func(client string) {
			pubsub := b.RDB.Subscribe(ctx, "{"+b.Key+"}:wake:"+client)
			_, err := pubsub.Receive(ctx)
			require.NoError(b, err)
			b.Cleanup(func() { _ = pubsub.Close() })
			go func() {
				for m := range pubsub.Channel() {
					told <- client + " " + m.Payload
				}
			}()
		}
		join := func(clients ...string) {
			for i, c := range clients {
				require.NoError(b, b.RDB.ZAdd(ctx, line, redis.Z{Score: float64(time.Now().UnixMicro() + int64(i)), Member: c}).Err())
			}
		}
		left := func() []string { return b.RDB.ZRange(ctx, line, 0, -1).Val() }
		for _, c := range []string{"a", "b", "c", "d", "e", "f"} {
			listen(c)
		}
		join("a", "b", "c", "dead")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "1"})
		require.Equal(b, "c 0 1", <-told, "the last that lives")
		require.Equal(b, []string{"a", "b"}, left())
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "2"})
		require.Equal(b, []string{"a", "b"}, left(), "it is not the head")
		b.ClaimOne(time.Hour)
		require.Equal(b, "b 0 2", <-told, "the claim has left one")
		b.ClaimOne(time.Hour)
		require.Equal(b, []string{"a"}, left(), "nothing is left")
		require.Empty(b, told)

		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "3", Delay: time.Minute})
		var off int
		_, err := fmt.Sscanf(<-told, "a %d 1", &off)
		require.NoError(b, err)
		require.InDelta(b, time.Minute.Microseconds(), off, 30e6)
		join("b", "c", "d", "e", "f")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "4", Delay: 20 * time.Second})
		_, err = fmt.Sscanf(<-told, "a %d 1", &off)
		require.NoError(b, err, "the watchman")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "5", Delay: 40 * time.Second})
		require.Empty(b, told)
		require.Equal(b, []string{"a", "b", "c", "d", "e", "f"}, left())

		tasks := make([]sluice.Task, 10)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint("batch", i)
		}
		_, err = b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		require.ElementsMatch(b, []string{"f 0 10", "e 0 10", "d 0 10", "c 0 10"}, []string{<-told, <-told, <-told, <-told})
		require.Equal(b, []string{"a", "b"}, left())
		require.Empty(b, told)
	})
}

// TestQueue_StatsCountClientsThatWait: at all shards. The callers of a client count once.
func TestQueue_StatsCountClientsThatWait(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		waiting := func(want int) func() bool { return func() bool { return b.Stats().Waiting == want } }
		require.Zero(b, b.Stats().Waiting)
		ctx, stop := context.WithCancel(b.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer stop()
		for range 3 {
			all.Go(func() { _ = b.Q.Wait(ctx) })
		}
		b.Eventually(waiting(2))
		stop()
		b.Eventually(waiting(0))
	}, sluice.WithShards(2))
}

// herd is many clients that wait for the tasks of one queue.
type herd struct {
	asked   atomic.Int64   // Waits that returned
	claimed chan time.Time // when each task was
	deaf    atomic.Int64   // so many of the next callers that are told do not claim, and die
	all     sync.WaitGroup
	stop    context.CancelFunc
}

// startHerd starts clients, each with a caller that waits and claims.
func startHerd(t *testing.T, m *miniredis.Miniredis, n int, opts ...sluice.QueueOption) *herd {
	h := &herd{claimed: make(chan time.Time, 10_000)}
	ctx, stop := context.WithCancel(t.Context())
	h.stop = func() {
		stop()
		h.all.Wait()
		time.Sleep(time.Minute) // so that what lingers has ended
	}
	for range n {
		rdb := systest.BubbleClient(t, systest.BubbleDialer(m))
		q, err := sluice.NewQueue(rdb, "q", opts...)
		require.NoError(t, err)
		h.all.Go(func() {
			defer func() { _ = rdb.Close() }()
			for q.Wait(ctx) == nil {
				h.asked.Add(1)
				if h.deaf.Add(-1) >= 0 {
					return
				}
				es, err := q.Claim(ctx, 1, time.Minute)
				if err != nil {
					return
				}
				for _, e := range es {
					h.claimed <- time.Now()
					_ = q.Dequeue(ctx, e)
				}
			}
		})
		time.Sleep(time.Second / time.Duration(n)) // they do not poll together
	}
	time.Sleep(time.Second)
	return h
}

// Of many clients that wait, one asks for a task: that which is told when it is enqueued, or the watchman when it is due.
func TestQueue_OneClientAsksForATask(t *testing.T) {
	for name, delay := range map[string]time.Duration{"due at once": 0, "due later": 300 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				scripts := countScripts(t, m)
				h := startHerd(t, m, 60)
				q, err := sluice.NewQueue(rdb, "q")
				require.NoError(t, err)
				time.Sleep(10 * time.Second)
				scripts.Store(0)
				time.Sleep(10 * time.Second)
				idle := scripts.Swap(0) / 10
				require.InDelta(t, 60, idle, 3, "a look in each poll interval")
				const tasks = 400
				for i := range tasks {
					due := time.Now().Add(delay)
					_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i), Delay: delay})
					require.NoError(t, err)
					time.Sleep(25370 * time.Microsecond) // not when clients look
					if len(h.claimed) > 0 && delay == 0 {
						require.WithinDuration(t, due, <-h.claimed, time.Millisecond)
					}
				}
				time.Sleep(delay)
				sent := scripts.Load() - idle*int64(tasks*25370+int(delay.Microseconds()))/1e6
				t.Log(float64(sent)/tasks, float64(h.asked.Load())/tasks)
				require.Less(t, float64(sent)/tasks, 4.2, "an enqueue, a claim, a finish, and a look of the caller that waits again")
				require.Less(t, float64(h.asked.Load())/tasks, 1.2)
				h.stop()
			})
		})
	}
}

// If much is due, all clients ask, so that all get to work at once.
func TestQueue_AllAskForManyTasks(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		h := startHerd(t, m, 30)
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		tasks := make([]sluice.Task, 100)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err = q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		time.Sleep(500 * time.Microsecond) // the tasks of a batch are a microsecond apart
		require.Len(t, h.claimed, len(tasks), "without a pause")
		h.stop()
	})
}

// A task of which processes were told that died before they claimed it is found by another client in a poll interval.
func TestQueue_OthersAskIfTheFirstDie(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		h := startHerd(t, m, 30)
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		h.deaf.Store(15)
		start := time.Now()
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		require.LessOrEqual(t, (<-h.claimed).Sub(start), time.Second)
		h.stop()
	})
}

// Clients that are in line and never claim, as those of a host that is gone, make a task late by a poll interval each, and only one.
func TestQueue_ClientsThatNeverClaimAreMadeUpFor(t *testing.T) {
	for _, live := range []int{1, 5} {
		t.Run(fmt.Sprint(live), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				h := startHerd(t, m, live)
				const deaf = 10
				for i := range deaf {
					ghost := rdb.Subscribe(t.Context(), fmt.Sprint("{Queue:q}:wake:ghost", i))
					_, err := ghost.Receive(t.Context())
					require.NoError(t, err)
					defer func() { _ = ghost.Close() }()
					_, err = m.ZAdd("{Queue:q}:line", float64(time.Now().UnixMicro()), fmt.Sprint("ghost", i))
					require.NoError(t, err)
				}
				q, err := sluice.NewQueue(rdb, "q")
				require.NoError(t, err)
				slow := 0
				for i := range 100 {
					start := time.Now()
					_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i)})
					require.NoError(t, err)
					late := (<-h.claimed).Sub(start)
					require.LessOrEqual(t, late, time.Second+time.Millisecond)
					if late > 10*time.Millisecond {
						slow++
					}
					time.Sleep(300 * time.Millisecond)
				}
				require.LessOrEqual(t, slow, deaf)
				h.stop()
			})
		})
	}
}

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
		before := m.CurrentConnectionCount()
		scripts.Store(0)
		time.Sleep(10 * time.Second)
		require.LessOrEqual(t, int(scripts.Load()), 10*4, "three for 299 queues, and now and then one more")
		require.LessOrEqual(t, m.CurrentConnectionCount(), before)
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

// hanging is a hook that keeps pipelines of scripts back for a minute once it is armed. A new connection
// is set up by a pipeline too.
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

// What the Queues of a client share is forgotten with them.
func TestQueue_WhatIsSharedIsCollected(t *testing.T) {
	make100 := func() {
		for range 100 {
			rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			for range 2 {
				_, err := sluice.NewQueue(rdb, "q")
				require.NoError(t, err)
			}
			require.NoError(t, rdb.Close())
		}
	}
	make100()
	require.Eventually(t, func() bool {
		runtime.GC()
		return sluice.Clients() < 50 // other tests have some
	}, 30*time.Second, 10*time.Millisecond)
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

// A task costs a lone loop its enqueue, a claim, a finish, and a look that has it join the line again: to be told costs no script.
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
			require.LessOrEqual(t, int(scripts.Load()-before), 4*100+15, "and a look a second")
		}
		h.stop()
	})
}

// TestQueue_LineLastsAsLongAsClientsWait: however rarely they look, and be it at one queue or at several.
func TestQueue_LineLastsAsLongAsClientsWait(t *testing.T) {
	for _, queues := range []int{1, 2} {
		t.Run(fmt.Sprint(queues), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				ctx, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for i := range queues {
					q, err := sluice.NewQueue(rdb, fmt.Sprint("q", i), sluice.WithPollInterval(time.Minute))
					require.NoError(t, err)
					all.Go(func() { _ = q.Wait(ctx) })
				}
				for at := range 3600 {
					time.Sleep(time.Second)
					require.True(t, m.Exists("{Queue:q0}:line"), "after %d s", at)
				}
				stop()
				all.Wait()
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestQueue_WhoDoesNotClaimPassesOn: after 20 ms the next client in line is told, whatever the poll interval.
func TestQueue_WhoDoesNotClaimPassesOn(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		const clients = 3
		told := make(chan time.Time, clients)
		for range clients {
			client := systest.BubbleClient(t, systest.BubbleDialer(m))
			defer func() { require.NoError(t, client.Close()) }()
			q, err := sluice.NewQueue(client, "q", sluice.WithPollInterval(time.Hour))
			require.NoError(t, err)
			go func() { // which ends before the test does
				_ = q.Wait(t.Context())
				told <- time.Now()
			}()
		}
		time.Sleep(10 * time.Second)
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		start := time.Now()
		_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		for i := range clients {
			require.WithinDuration(t, start.Add(time.Duration(i)*20*time.Millisecond), <-told, time.Millisecond)
		}
		time.Sleep(time.Minute)
	})
}
