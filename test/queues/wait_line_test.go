package queues

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// The scripts tell the client that has joined the line last of a task that is due, and take it out;
// up to four of a batch. Of one that is due later they tell one client, which stays in line as the
// watchman; and it is told of an earlier one.
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
		claim := func() {
			es, err := b.Q.Claim(ctx, 1, time.Hour)
			require.NoError(b, err)
			require.Len(b, es, 1)
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
		claim()
		require.ElementsMatch(b, []string{"a 0 2", "b 0 2"}, []string{<-told, <-told}, "the claim has left one: two are told")
		join("a")
		claim()
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

// TestQueue_StatsCountClientsThatWait. The callers of a client count once.
func TestQueue_StatsCountClientsThatWait(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		waiting := func(want int) func() bool { return func() bool { return waitingFor(b) == want } }
		require.Zero(b, waitingFor(b))
		ctx, stop := context.WithCancel(b.Context())
		var all sync.WaitGroup
		defer all.Wait()
		defer stop()
		for range 3 {
			all.Go(func() { _ = b.Q.Wait(ctx) })
		}
		b.Eventually(waiting(1))
		stop()
		b.Eventually(waiting(0))
	})
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

// Of many clients that wait, one asks for a task: that which is told when it is enqueued, or the
// watchman when it is due.
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
				const tasks = 100
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

// A task of which processes were told that died before they claimed it is found by another client
// in a poll interval.
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

// Clients that are in line and never claim, as those of a host that is gone, make a task late by a
// poll interval each, and only one.
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

// TestQueue_LineLastsAsLongAsClientsWait: however rarely they look, and be it at one queue or at
// several.
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

// TestQueue_WhoDoesNotClaimPassesOn: after 20 ms the next client in line is told, whatever the poll
// interval.
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

// TestQueue_WorkersOfOneClientShareAPlace: a task costs its enqueue, a claim and a finish, however
// many workers one client has.
func TestQueue_WorkersOfOneClientShareAPlace(t *testing.T) {
	for _, concurrency := range []int{1, 16} {
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				scripts := countScripts(t, m)
				shared := systest.BubbleClient(t, systest.BubbleDialer(m))
				var handled atomic.Int64
				var stops []func() error
				for range 30 {
					q, err := sluice.NewQueue(shared, "q")
					require.NoError(t, err)
					stops = append(stops, systest.StartWorker(t, &sluice.Worker{Queue: q, Concurrency: concurrency, Handler: func(context.Context, sluice.Entry) error {
						handled.Add(1)
						time.Sleep(3 * time.Millisecond)
						return nil
					}}))
				}
				q, err := sluice.NewQueue(rdb, "q")
				require.NoError(t, err)
				time.Sleep(10 * time.Second)
				members, err := m.ZMembers("{Queue:q}:line")
				require.NoError(t, err)
				require.Len(t, members, 1)
				const tasks = 150
				before := scripts.Load()
				for i := range tasks {
					_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprint(i)})
					require.NoError(t, err)
					time.Sleep(25370 * time.Microsecond)
				}
				require.EqualValues(t, tasks, handled.Load())
				require.Less(t, float64(scripts.Load()-before)/tasks, 3.5)
				for _, stop := range stops {
					require.NoError(t, stop())
				}
				time.Sleep(time.Minute)
				require.NoError(t, shared.Close())
				time.Sleep(time.Minute)
			})
		})
	}
}

// TestWorker_WithRoomSendsItsClaimsOnly: that knows of the next task by the last claim. It is not
// told of it, does not look, and does not leave the line.
func TestWorker_WithRoomSendsItsClaimsOnly(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		scripts := countScripts(t, m)
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		const n = 1000
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: fmt.Sprint(i), Delay: time.Second + time.Duration(i)*100*time.Microsecond}
		}
		_, err = q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		messages := rdb.PSubscribe(t.Context(), "{Queue:q}:wake:*")
		_, err = messages.Receive(t.Context())
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		var late, handled atomic.Int64
		w := &sluice.Worker{Queue: q, Concurrency: 64, Handler: func(_ context.Context, e sluice.Entry) error {
			late.Add(int64(time.Since(e.Due)))
			time.Sleep(time.Millisecond)
			handled.Add(1)
			return nil
		}}
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(999 * time.Millisecond)
		scripts.Store(0)
		time.Sleep(time.Second)
		require.EqualValues(t, n, handled.Load())
		require.LessOrEqual(t, scripts.Load(), int64(2*n+n/100), "a claim and a finish for each")
		require.Less(t, late.Load()/n, int64(10*time.Microsecond))
		require.Empty(t, messages.Channel())
		require.NoError(t, messages.Close())
		stop()
		require.NoError(t, <-ended)
		time.Sleep(time.Minute)
	})
}

// waitingFor returns how many clients are in line.
func waitingFor(b systest.QueueTest) int {
	b.Helper()
	s, err := b.Q.Stats(b.Context())
	require.NoError(b, err)
	return s.Waiting
}
