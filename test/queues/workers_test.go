package queues

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest"
)

// nothing is a handler.
func nothing(context.Context, sluice.Entry) error { return nil }

// workersOf returns the Workers of a queue.
func workersOf(b systest.QueueTest) []sluice.WorkerInfo {
	b.Helper()
	workers, err := b.Q.Workers(b.Context())
	require.NoError(b, err)
	return workers
}

// TestQueue_WorkersAreThoseThatRun: each says who it is and, of a task that it has, that it has it.
// At the end it is gone.
func TestQueue_WorkersAreThoseThatRun(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		require.Empty(b, workersOf(b))
		ctx, s := b.Context(), func() sluice.Stats {
			s, err := b.Q.Stats(b.Context())
			require.NoError(b, err)
			return s
		}
		require.Zero(b, s().Workers)
		began, goOn := make(chan struct{}), make(chan struct{})
		w := &sluice.Worker{Queue: b.Q, Label: "mail ✉ 1", Concurrency: 7, Handler: func(context.Context, sluice.Entry) error {
			close(began)
			<-goOn
			return nil
		}}
		stop := working(b, w)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		<-began
		b.Eventually(func() bool { return len(workersOf(b)) == 1 })
		info := workersOf(b)[0]
		require.Equal(b, info.ID, b.Get("a").Worker)
		require.Len(b, info.ID, 8)
		host, err := os.Hostname()
		require.NoError(b, err)
		require.WithinDuration(b, time.Now(), info.Started, time.Minute)
		require.WithinDuration(b, time.Now(), info.Seen, time.Minute)
		require.Equal(b, sluice.WorkerInfo{
			ID: info.ID, Label: "mail ✉ 1", Host: host, Version: info.Version, PID: os.Getpid(), Concurrency: 7, Running: info.Running, Started: info.Started, Seen: info.Seen,
		}, info)
		require.Equal(b, 1, s().Workers)
		require.Equal(b, info.Seen, s().WorkerSeen)
		listed, err := b.Q.List(ctx, sluice.StateLeased, sluice.TaskInfo{}, 1)
		require.NoError(b, err)
		require.Equal(b, info.ID, listed[0].Worker)
		close(goOn)
		stop()
		require.Empty(b, workersOf(b))
		require.Zero(b, s().Workers)
		require.False(b, s().WorkerSeen.Before(info.Seen), "that one has worked is known")
		require.Less(b, b.RDB.PTTL(ctx, "{"+b.Key+"}:workers").Val(), 46*time.Second)
	})
}

// TestQueue_WorkersThatHaveDiedAreLeftOut: within 45 s of their last word, on the server's clock;
// one whose word was lost says it again.
func TestQueue_WorkersThatHaveDiedAreLeftOut(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		own := systest.BubbleClient(t, systest.BubbleDialer(m))
		defer func() { require.NoError(t, own.Close()) }()
		var dead atomic.Bool // no word of it arrives any more
		own.AddHook(dropping(&dead))
		q, err := sluice.NewQueue(own, "q")
		require.NoError(t, err)
		seen, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		count := func() int {
			workers, err := seen.Workers(t.Context())
			require.NoError(t, err)
			stats, err := seen.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, len(workers), stats.Workers)
			return len(workers)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- (&sluice.Worker{Queue: q, Handler: nothing}).Run(ctx) }()
		for range 150 { // longer than a worker is known without a word of it
			time.Sleep(time.Second)
			require.Equal(t, 1, count())
		}
		dead.Store(true)
		time.Sleep(29 * time.Second)
		require.Equal(t, 1, count(), "its last word may be older than it")
		time.Sleep(17 * time.Second)
		require.Zero(t, count())
		dead.Store(false)
		time.Sleep(16 * time.Second)
		require.Equal(t, 1, count(), "it was taken for dead, and is not")
		dead.Store(true)
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, 1, count(), "its last word was lost")
		time.Sleep(46 * time.Second)
		require.Zero(t, count())
		require.False(t, m.Exists("{Queue:q}:workers"))
		require.True(t, m.Exists("{Queue:q}:counts"), "an idle queue is known for a day")
		time.Sleep(24 * time.Hour)
		require.Empty(t, m.Keys())
	})
}

// TestQueue_WorkersThatHaveDiedAreSweptByOthers: what they have said is of no use to anyone, and
// does not pile up.
func TestQueue_WorkersThatHaveDiedAreSweptByOthers(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		own := systest.BubbleClient(t, systest.BubbleDialer(m))
		defer func() { require.NoError(t, own.Close()) }()
		var dead atomic.Bool
		own.AddHook(dropping(&dead))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		for _, client := range []redis.UniversalClient{own, rdb} {
			q, err := sluice.NewQueue(client, "q")
			require.NoError(t, err)
			go func() { ended <- (&sluice.Worker{Queue: q, Handler: nothing}).Run(ctx) }()
		}
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		time.Sleep(time.Minute)
		dead.Store(true)
		least := 2
		for range 70 {
			time.Sleep(time.Second)
			workers, err := q.Workers(t.Context())
			require.NoError(t, err)
			stats, err := q.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, len(workers), stats.Workers)
			least = min(least, len(workers))
			for _, w := range workers {
				require.Less(t, time.Since(w.Seen), 45*time.Second)
			}
		}
		require.Equal(t, 1, least)
		members, err := m.ZMembers("{Queue:q}:workers")
		require.NoError(t, err)
		require.Len(t, members, 1)
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
		time.Sleep(time.Minute) // the library's goroutines end
	})
}

// TestQueue_WorkersOfAClockThatWasAhead for a moment, in which one died: it is known for some hours
// at most, however far the clock was ahead.
func TestQueue_WorkersOfAClockThatWasAhead(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		own := systest.BubbleClient(t, systest.BubbleDialer(m))
		defer func() { require.NoError(t, own.Close()) }()
		var dead atomic.Bool
		own.AddHook(dropping(&dead))
		q, err := sluice.NewQueue(own, "q")
		require.NoError(t, err)
		seen, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		m.SetTime(time.Now().Add(30 * 24 * time.Hour))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		go func() { ended <- (&sluice.Worker{Queue: q, Handler: nothing}).Run(ctx) }()
		time.Sleep(5 * time.Second)
		dead.Store(true)
		stop()
		require.NoError(t, <-ended)
		m.SetTime(time.Now()) // it stands still; without a time of its own it would end what has a TTL
		count := func() int {
			workers, err := seen.Workers(t.Context())
			require.NoError(t, err)
			stats, err := seen.Stats(t.Context())
			require.NoError(t, err)
			require.Equal(t, len(workers), stats.Workers)
			return len(workers)
		}
		require.Zero(t, count())
		ctx, stop = context.WithCancel(t.Context())
		go func() { ended <- (&sluice.Worker{Queue: seen, Handler: nothing}).Run(ctx) }()
		for range 20 {
			time.Sleep(time.Second)
			m.SetTime(time.Now())
		}
		members, err := m.ZMembers("{Queue:q}:workers")
		require.NoError(t, err)
		require.Len(t, members, 1, "that of the dead one is of no use to anyone")
		require.Equal(t, 1, count())
		stop()
		require.NoError(t, <-ended)
		time.Sleep(time.Minute) // the library's goroutines end
	})
}

// dropping is a hook that does not send what Workers say of themselves while it drops.
type dropper struct{ drops *atomic.Bool }

func dropping(drops *atomic.Bool) redis.Hook { return dropper{drops} }

func (d dropper) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (d dropper) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (d dropper) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if d.drops.Load() && systest.SaysThatAWorkerLives(cmds[0]) {
			for _, cmd := range cmds {
				cmd.SetErr(context.DeadlineExceeded)
			}
			return context.DeadlineExceeded
		}
		return next(ctx, cmds)
	}
}

// TestQueue_WorkersAfterManyRestarts: a thousand Runs, of which each says who it is, leave nothing.
func TestQueue_WorkersAfterManyRestarts(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		w, most := &sluice.Worker{Queue: q, Handler: nothing}, 0
		for range 250 {
			ctx, stop := context.WithTimeout(t.Context(), 1100*time.Millisecond)
			require.NoError(t, w.Run(ctx))
			stop()
			members, err := m.ZMembers("{Queue:q}:workers")
			if err == nil {
				most = max(most, len(members))
			}
		}
		require.Zero(t, most)
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		require.Empty(t, m.Keys())
	})
}

// TestQueue_WorkersSayHowManyHandlersRun: and how many of these are stuck.
func TestQueue_WorkersSayHowManyHandlersRun(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		hangs := make(chan struct{})
		w := &sluice.Worker{Queue: q, Timeout: 20 * time.Second, Grace: time.Second, Handler: func(_ context.Context, e sluice.Entry) error {
			if e.ID != "quick" {
				<-hangs
			}
			return nil
		}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		_, err = q.EnqueueBatch(t.Context(), []sluice.Task{{ID: "a"}, {ID: "b"}, {ID: "quick"}, {ID: "c", Delay: 10 * time.Second}})
		require.NoError(t, err)
		running := func() (running, stuck int) {
			time.Sleep(16 * time.Second)
			workers, err := q.Workers(t.Context())
			require.NoError(t, err)
			require.Len(t, workers, 1)
			return workers[0].Running, workers[0].Stuck
		}
		n, stuck := running()
		require.Equal(t, []int{3, 0}, []int{n, stuck})
		_, _ = running()
		n, stuck = running()
		require.Equal(t, []int{3, 3}, []int{n, stuck})
		close(hangs)
		n, stuck = running()
		require.Equal(t, []int{0, 0}, []int{n, stuck})
		stop()
		require.NoError(t, <-ended)
		time.Sleep(time.Minute) // the library's goroutines end
	})
}

// TestQueue_WorkersThatPollSeldomSaySeldomThatTheyLive: where each command costs money, say. They
// count for as long.
func TestQueue_WorkersThatPollSeldomSaySeldomThatTheyLive(t *testing.T) {
	for _, poll := range []time.Duration{10 * time.Minute, 100 * 365 * 24 * time.Hour} {
		t.Run(poll.String(), func(t *testing.T) {
			systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
				var said atomic.Int64
				rdb.AddHook(sayings{&said})
				q, err := sluice.NewQueue(rdb, "q", sluice.WithPollInterval(poll))
				require.NoError(t, err)
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- (&sluice.Worker{Queue: q, Handler: nothing}).Run(ctx) }()
				every := min(poll, time.Hour)
				time.Sleep(2 * time.Second)
				began := time.Now()
				for range 30 {
					time.Sleep(every / 3)
					workers, err := q.Workers(t.Context())
					require.NoError(t, err)
					require.Len(t, workers, 1)
					require.LessOrEqual(t, time.Since(workers[0].Seen), every+time.Second)
					require.False(t, workers[0].Seen.After(time.Now()))
					ttl := m.TTL("{Queue:q}:workers")
					require.Greater(t, ttl, 2*every-time.Second)
					require.LessOrEqual(t, ttl, 3*every)
				}
				require.LessOrEqual(t, said.Load(), int64(time.Since(began)*4/every/3)+2)
				stop()
				require.NoError(t, <-ended)
				time.Sleep(time.Minute) // the library's goroutines end
			})
		})
	}
}

// TestPool_SaysWhichWorkersRun: each of its Workers is one of its queue, and the queues of one
// client share a pipeline.
func TestPool_SaysWhichWorkersRun(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, m *miniredis.Miniredis, rdb redis.UniversalClient) {
		var pipelines atomic.Int64
		rdb.AddHook(sayings{&pipelines})
		p := &sluice.Pool{Concurrency: 3}
		var queues []*sluice.Queue
		for range 50 {
			q, err := sluice.NewQueue(rdb, strings.Repeat("q", len(queues)+1))
			require.NoError(t, err)
			queues = append(queues, q)
			p.Workers = append(p.Workers, &sluice.Worker{Queue: q, Handler: nothing, Concurrency: len(queues)})
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(time.Minute)
		for i, q := range queues {
			workers, err := q.Workers(t.Context())
			require.NoError(t, err)
			require.Len(t, workers, 1)
			require.Equal(t, min(i+1, 3), workers[0].Concurrency)
		}
		require.NoError(t, p.SetConcurrency(5))
		time.Sleep(16 * time.Second)
		workers, err := queues[9].Workers(t.Context())
		require.NoError(t, err)
		require.Equal(t, 5, workers[0].Concurrency)
		require.InDelta(t, 6, pipelines.Load(), 1, "in 76 seconds")
		stop()
		require.NoError(t, <-ended)
		for _, q := range queues {
			workers, err := q.Workers(t.Context())
			require.NoError(t, err)
			require.Empty(t, workers)
		}
		time.Sleep(time.Minute) // the library's goroutines end
	})
}

// sayings counts the pipelines with which Workers say that they live.
type sayings struct{ n *atomic.Int64 }

func (s sayings) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s sayings) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (s sayings) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if systest.SaysThatAWorkerLives(cmds[0]) {
			s.n.Add(1)
		}
		return next(ctx, cmds)
	}
}

// TestQueue_WorkersOfAnyText: what is not the library's is left out, and a worker that is there
// twice counts once, as it was last.
func TestQueue_WorkersOfAnyText(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		now, key := b.Now(), "{"+b.Key+"}:workers"
		for i, text := range []string{
			"", "x", "{}", `{"id":""}`, `{"id":"a","running":1}`, `{"id":"b","label":"` + strings.Repeat("l", 2000) + `\u001b"}`, `{"id":"a","running":2}`,
			`{"id":7}`, `[1]`, "\xff", `{"id":"c","pid":"x"}`,
		} {
			require.NoError(b, b.RDB.ZAdd(b.Context(), key, redis.Z{Score: now + 60 + float64(i)/1e3, Member: text}).Err())
		}
		workers := workersOf(b)
		require.Len(b, workers, 2)
		require.Equal(b, "b", workers[0].ID)
		require.Equal(b, "a", workers[1].ID)
		require.Equal(b, 2, workers[1].Running)
		require.NoError(b, b.RDB.Del(b.Context(), key).Err())
		require.NoError(b, b.RDB.Set(b.Context(), key, "x", 0).Err())
		_, err := b.Q.Workers(b.Context())
		require.ErrorIs(b, err, sluice.ErrCorrupt)
		stop := working(b, &sluice.Worker{Queue: b.Q, Handler: nothing})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		b.Eventually(func() bool { n, err := b.RDB.Exists(b.Context(), b.Key).Result(); return err == nil && n == 0 })
		stop()
	})
}

func TestWorker_LabelIsChecked(t *testing.T) {
	q, err := sluice.NewQueue(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "q")
	require.NoError(t, err)
	for _, label := range []string{strings.Repeat("x", 65), "a\nb", "\xff"} {
		w := &sluice.Worker{Queue: q, Handler: nothing, Label: label}
		require.ErrorIs(t, w.Run(t.Context()), sluice.ErrInvalid)
	}
}
