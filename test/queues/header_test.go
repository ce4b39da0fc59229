package queues

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/systest"
)

func storedPayload(b systest.QueueTest, id string) string {
	return b.RDB.HGet(b.Context(), "{"+b.Key+"}:tasks", id).Val()
}

// TestHeader_StaysWithItsTask, and so does the kind, whatever is done to that.
func TestHeader_StaysWithItsTask(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		kind, header, payload := "email", map[string]string{"traceparent": "00-ab-cd-01", "\x00": ""}, []byte("p\xff")
		is := func(e sluice.Entry) sluice.Entry {
			b.Helper()
			require.Equal(b, "a", e.ID)
			require.Equal(b, kind, e.Kind)
			require.Equal(b, header, e.Header)
			require.Equal(b, payload, e.Payload)
			return e
		}
		one := func(es []sluice.Entry, err error) sluice.Entry {
			b.Helper()
			require.NoError(b, err)
			require.Len(b, es, 1)
			return is(es[0])
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Kind: kind, Header: header, Payload: payload, Delay: time.Hour})
		is(b.Get("a").Entry)
		_, err := b.Q.Reschedule(ctx, "a", 0)
		require.NoError(b, err)
		one(b.Q.Peek(ctx, 1))
		e := is(b.ClaimOne(time.Minute))
		require.NoError(b, b.Q.Extend(ctx, e, time.Hour))
		is(b.Get("a").Entry)
		require.NoError(b, b.Q.Retry(ctx, 0, "failed", e))
		require.NoError(b, b.Q.Release(ctx, is(b.ClaimOne(time.Minute))))
		b.Bury(is(b.ClaimOne(time.Minute)), "reason")
		is(b.Get("a").Entry)
		b.Revive(1, "a")
		b.EndLeaseUnseen(is(b.ClaimOne(time.Minute)))
		e = is(b.ClaimOne(time.Minute))

		// A version that waits has a kind and a header of its own.
		kind, header = strings.Repeat("k", 256), map[string]string{"next": strings.Repeat("v", 300)}
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Kind: kind, Header: header, Payload: payload})
		require.NoError(b, b.Q.Dequeue(ctx, e))
		one(b.Q.Pop(ctx, 1))
		b.RequireClean()
	})
}

// TestHeader_EachHasItsOwn, however many tasks are sent and handed out together.
func TestHeader_EachHasItsOwn(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		n := b.Sized(1000)
		task := func(i int) sluice.Task {
			task := sluice.Task{ID: fmt.Sprint(i), Payload: []byte(fmt.Sprint("payload of ", i))}
			if i%2 == 0 {
				task.Header = map[string]string{"id": task.ID}
			}
			return task
		}
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i] = task(n + i)
		}
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		inParallel(n, func(i int) {
			if _, err := b.Q.Enqueue(b.Context(), task(i)); err != nil {
				b.Error(err)
			}
		})
		want := map[string]map[string]string{}
		for i := range 2 * n {
			want[fmt.Sprint(i)] = task(i).Header
		}
		got := map[string]map[string]string{}
		for _, e := range b.Claim(n, time.Minute) {
			require.Equal(b, "payload of "+e.ID, string(e.Payload))
			got[e.ID] = e.Header
		}
		headers := make(chan sluice.Entry, n)
		stop := systest.StartWorker(b.T, &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
			headers <- e
			return nil
		}})
		for range n {
			e := <-headers
			got[e.ID] = e.Header
		}
		require.NoError(b, stop())
		require.Equal(b, want, got)
	})
}

// TestHeader_NoBytesIfThereIsNone: a task without a header is stored as its payload, which foreign
// consumers read.
func TestHeader_NoBytesIfThereIsNone(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		const magic = "\xffSLU\x01"
		frame := magic + "\x04\x01k\x01vp"
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "none", Payload: []byte("p")})
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "empty", Payload: []byte("p"), Header: map[string]string{}})
		require.Equal(b, "p", storedPayload(b, "none"))
		require.Equal(b, "p", storedPayload(b, "empty"))
		require.Nil(b, b.Get("empty").Header)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "header alone", Header: map[string]string{"k": "v"}})
		require.Equal(b, magic+"\x04\x01k\x01v", storedPayload(b, "header alone"), "the format that is promised to other versions")
		require.Nil(b, b.Get("header alone").Payload)

		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "kind alone", Kind: "email", Payload: []byte("p")})
		require.Equal(b, magic+"\x12\x0bsluice-kind\x05emailp", storedPayload(b, "kind alone"), "likewise")
		require.Nil(b, b.Get("kind alone").Header)
		require.Equal(b, "email", b.Get("kind alone").Kind)

		// A payload that looks like a frame stays a payload.
		for _, payload := range []string{magic, frame, magic + "\x00" + frame} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "like a frame", Payload: []byte(payload)})
			e := b.Get("like a frame")
			require.Nil(b, e.Header)
			require.Equal(b, payload, string(e.Payload))
			require.NoError(b, b.Q.Purge(b.Context()))
		}
		// So does one of a foreign producer that is not a whole frame.
		foreignAdd(b, "foreign", b.Now()-1)
		require.NoError(b, b.RDB.HSet(b.Context(), "{"+b.Key+"}:tasks", "foreign", frame[:8]).Err())
		e := b.ClaimOne(time.Minute)
		require.Nil(b, e.Header)
		require.Equal(b, frame[:8], string(e.Payload))
	})
}

func TestHeader_LimitsAreInvalid(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		pairs := func(n int) map[string]string {
			header := map[string]string{}
			for i := range n {
				header[fmt.Sprint(i)] = ""
			}
			return header
		}
		key := strings.Repeat("k", 256)
		for name, task := range map[string]sluice.Task{
			"65 pairs":                     {Header: pairs(65)},
			"empty key":                    {Header: map[string]string{"": "s3cret"}},
			"long key":                     {Header: map[string]string{key + "k": "s3cret"}},
			"a kind as a header":           {Header: map[string]string{"sluice-kind": "s3cret"}},
			"long kind":                    {Kind: key + "k"},
			"64 pairs and a kind":          {Header: pairs(64), Kind: "k"},
			"kind and payload, too large":  {Kind: "k", Payload: make([]byte, 1<<20)},
			"value of more than a payload": {Header: map[string]string{"k": strings.Repeat("s3cret", 1<<18)}},
			"together more than a payload": {Header: map[string]string{"k": strings.Repeat("x", 1<<19)}, Payload: make([]byte, 1<<19)},
		} {
			task.ID = "bad"
			_, err := b.Q.Enqueue(b.Context(), task)
			require.ErrorIs(b, err, sluice.ErrInvalid, name)
			require.NotContains(b, err.Error(), "s3cret")
			_, err = b.Q.EnqueueBatch(b.Context(), []sluice.Task{{ID: "good"}, task})
			require.ErrorIs(b, err, sluice.ErrInvalid, name)
		}
		b.RequireClean()
		for _, task := range []sluice.Task{
			{ID: "a", Header: pairs(64)},
			{ID: "d", Header: pairs(63), Kind: key},
			{ID: "e", Kind: key, Payload: make([]byte, 1<<20-256)},
			{ID: "b", Header: map[string]string{key: strings.Repeat("x", 1<<20-256)}},
			{ID: "c", Header: map[string]string{"k": "v"}, Payload: make([]byte, 1<<20-2)},
		} {
			b.Enqueue(sluice.OutcomeAdded, task)
			require.Equal(b, task.Header, b.Get(task.ID).Header)
			require.Equal(b, task.Kind, b.Get(task.ID).Kind)
		}
	})
}

// TestPeriodic_ATaskWithAnOccurrencesHeaderIsNone: a handler that hands its header on, to continue
// a trace, has enqueued a task like any other.
func TestPeriodic_ATaskWithAnOccurrencesHeaderIsNone(t *testing.T) {
	systest.Bubble(t, func(t *testing.T, _ *miniredis.Miniredis, rdb redis.UniversalClient) {
		q, err := sluice.NewQueue(rdb, "q")
		require.NoError(t, err)
		handled := make(chan map[string]string, 10)
		w := &sluice.Worker{
			Queue: q, Periodic: []sluice.Periodic{{ID: "sweep", Schedule: sluice.Every(time.Hour), Header: map[string]string{"trace": "1"}}},
			Handler: func(ctx context.Context, e sluice.Entry) error {
				if e.ID == "child" {
					handled <- e.Header
					return nil
				}
				_, err := q.Enqueue(ctx, sluice.Task{ID: "child", Header: e.Header})
				return err
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		time.Sleep(time.Hour + time.Second) // in a bubble
		synctest.Wait()
		require.Len(t, handled, 1)
		require.Equal(t, "1", (<-handled)["trace"])
		_, err = q.Get(t.Context(), "child")
		require.ErrorIs(t, err, sluice.ErrNotFound)
		stop()
		require.NoError(t, <-ended)
		time.Sleep(time.Minute) // the library's goroutines end
	})
}

// TestEntry_SaysWhenTheTaskBecameDue: whatever hands it out, and whether the server handles it as
// a plain task or not.
func TestEntry_SaysWhenTheTaskBecameDue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, at := b.Context(), time.UnixMicro(1_700_000_000_123_457)
		var tasks []sluice.Task
		for i := range 6 {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint(i), At: at.Add(time.Duration(i) * time.Second)})
		}
		_, err := b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		due := func(es []sluice.Entry, from int) {
			b.Helper()
			for i, e := range es {
				require.Equal(b, fmt.Sprint(from+i), e.ID)
				require.True(b, e.Due.Equal(tasks[from+i].At), "%s: %s", e.ID, e.Due)
			}
		}
		peeked, err := b.Q.Peek(ctx, 10)
		require.NoError(b, err)
		require.Len(b, peeked, 6)
		due(peeked, 0)
		due([]sluice.Entry{b.Get("5").Entry}, 5)
		popped, err := b.Q.Pop(ctx, 1)
		require.NoError(b, err)
		require.Len(b, popped, 1)
		due(popped, 0)
		claimed := b.Claim(2, time.Hour)
		require.Len(b, claimed, 2)
		due(claimed, 1)
		require.Zero(b, b.Get("1").Due, "of a leased task that is not known")
		require.NoError(b, b.RDB.HSet(ctx, "{"+b.Key+"}:state", "3", "2:1.5:").Err()) // a lease that was over long ago: not a plain task
		claimed = b.Claim(10, time.Hour)
		require.Len(b, claimed, 3)
		for _, e := range claimed {
			require.True(b, e.Due.Equal(tasks[e.ID[0]-'0'].At), "%s: %s", e.ID, e.Due)
		}
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "later", Delay: time.Hour})
		later := b.Get("later")
		require.Equal(b, store.TimeOf(later.Score), later.Due)
		b.Bury(claimed[0], "why")
		letter := b.Get(claimed[0].ID)
		require.Zero(b, letter.Due)
		require.Equal(b, "why", letter.Reason)
		require.Equal(b, b.Dead(1)[0].Score, letter.Score)
	})
}

// TestEntry_DueIsTheEndOfALeaseThatRanOut, for the one who claims the task next.
func TestEntry_DueIsTheEndOfALeaseThatRanOut(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		first := b.ClaimOne(2 * time.Second)
		var next []sluice.Entry
		require.Eventually(b, func() bool {
			next = b.Claim(1, time.Minute)
			return len(next) > 0
		}, time.Minute, 5*time.Millisecond)
		require.Equal(b, store.TimeOf(first.Score), next[0].Due)
	})
}

// TestWorker_HandlerLearnsWhenTheTaskBecameDue.
func TestWorker_HandlerLearnsWhenTheTaskBecameDue(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		at := time.UnixMicro(1_700_000_000_123_457)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", At: at})
		ctx, stop := context.WithCancel(b.Context())
		defer stop()
		var due time.Time
		w := &sluice.Worker{Queue: b.Q, Handler: func(_ context.Context, e sluice.Entry) error {
			due = e.Due
			stop()
			return nil
		}}
		require.NoError(b, w.Run(ctx))
		require.True(b, due.Equal(at), due)
	})
}

// TestQueue_DeadIsListedInPages: every letter once, in order, also those that died at the same
// time, those whose scores are none of the library's, and behind one that is gone.
func TestQueue_DeadIsListedInPages(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, dead := b.Context(), "{"+b.Key+"}:dead"
		var want []string
		for i, score := range []float64{-1e300, -5.25, 0, 0, 1.5e-7, 1_700_000_000.1234567, 1_700_000_000.1234567, 1_700_000_000.1234569, 1e300} {
			want = append(want, fmt.Sprint("l", i))
			require.NoError(b, b.RDB.ZAdd(ctx, dead, redis.Z{Score: score, Member: want[i]}).Err())
		}
		require.NoError(b, b.RDB.Do(ctx, "ZADD", dead, "-inf", "before", "+inf", "behind", "+inf", "behind2").Err())
		want = append(append([]string{"before"}, want...), "behind", "behind2")
		for size := 1; size < 5; size++ {
			var all []string
			for after, left := (sluice.TaskInfo{}), true; left; {
				page, err := b.Q.List(ctx, sluice.StateDead, after, size)
				require.NoError(b, err)
				for _, e := range page {
					require.Equal(b, sluice.StateDead, e.State)
				}
				all = append(all, systest.IDs(page)...)
				require.LessOrEqual(b, len(all), len(want), all)
				if left = len(page) == size; left {
					after = page[size-1]
				}
			}
			require.Equal(b, want, all)
		}
		require.NoError(b, b.RDB.ZRem(ctx, dead, "l5").Err())
		rest, err := b.Q.List(ctx, sluice.StateDead, sluice.TaskInfo{Entry: sluice.Entry{ID: "l5", Score: 1_700_000_000.1234567}}, 2)
		require.NoError(b, err)
		require.Equal(b, []string{"l6", "l7"}, systest.IDs(rest))
	})
}
