package queues

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/systest"
)

// foreignAdd adds a task as a producer in another language does: by a bare ZADD.
func foreignAdd(b systest.QueueTest, id string, score float64) {
	b.Helper()
	require.NoError(b, b.RDB.ZAdd(b.Context(), b.Key, redis.Z{Score: score, Member: id}).Err())
}

// A foreign ZADD on a leased ID is an update that waits, like any other.
func TestQueue_AForeignAddWaitsForTheHolder(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
		e := b.ClaimOne(time.Minute)
		for range 2 { // before and after a claim has looked at it
			foreignAdd(b, "a", b.Now()-5)
			peeked, err := b.Q.Peek(ctx, 1)
			require.NoError(b, err)
			require.Empty(b, peeked, "shown while it is leased")
			read, err := b.Q.Get(ctx, "a")
			require.NoError(b, err)
			require.Equal(b, sluice.StateLeased, read.State)
			require.Equal(b, systest.LeasedInfo(e, time.Minute), read)
			popped, err := b.Q.Pop(ctx, 1)
			require.NoError(b, err)
			require.Empty(b, popped, "handed out twice at once")
			require.Empty(b, b.Claim(1, time.Minute), "handed out twice at once")
			require.Zero(b, b.Stats().Due)
		}
		require.NoError(b, b.Q.Extend(ctx, e, time.Minute))
		foreignAdd(b, "a", b.Now()-5)
		require.NoError(b, b.Q.Dequeue(ctx, e), "its receipt is good")
		next := b.ClaimOne(time.Minute)
		require.Equal(b, 1, next.Attempt)
		require.Equal(b, "p", string(next.Payload))

		foreignAdd(b, "a", b.Now()+3600)
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", Payload: []byte("ours")})
		require.NoError(b, b.Q.Dequeue(ctx, next))
		require.Equal(b, "ours", string(b.ClaimOne(time.Minute).Payload), "the last version counts")
	})
}

func TestQueue_AForeignAddTakesOverWhenTheLeaseHasEnded(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		e := b.ClaimOne(time.Minute)
		b.EndLeaseSoon(e)
		foreignAdd(b, "a", b.Now()+0.001)
		var next []sluice.Entry
		b.Eventually(func() bool { next = b.Claim(1, time.Minute); return len(next) == 1 })
		require.Equal(b, 1, next[0].Attempt, "it is a new version")
		require.ErrorIs(b, b.Q.Dequeue(b.Context(), e), sluice.ErrStale)
	})
}

// A receipt of an earlier version is good for none of those that replace it at the same time.
func TestQueue_NoVersionAtTheSameTimeHasAnEarlierReceipt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		at := time.Unix(int64(b.Now())-10, 0)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", At: at})
		var seen []sluice.Entry
		for i := range 5 {
			peeked, err := b.Q.Peek(b.Context(), 1)
			require.NoError(b, err)
			seen = append(seen, peeked...)
			b.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "a", At: at, Payload: []byte{byte(i)}})
			for _, e := range seen {
				require.ErrorIs(b, b.Q.Dequeue(b.Context(), e), sluice.ErrStale)
			}
		}
		require.Less(b, b.Get("a").Score, float64(at.Unix())+0.001)
	})
}

// A receipt from before the claim takes nothing from the holder, also when a foreign
// producer has put the old score back.
func TestQueue_AForeignAddRevivesNoReceipt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		for _, score := range []float64{0, 1000.5, 1.6e9 + 0.25} {
			foreignAdd(b, "a", score)
			peeked, err := b.Q.Peek(b.Context(), 1)
			require.NoError(b, err)
			e := b.ClaimOne(time.Minute)
			foreignAdd(b, "a", score)
			require.ErrorIs(b, b.Q.Dequeue(b.Context(), peeked...), sluice.ErrStale)
			require.NoError(b, b.Q.Dequeue(b.Context(), e), "it is the holder's")
			require.NoError(b, b.Q.Dequeue(b.Context(), b.ClaimOne(time.Minute)), "the version that waited")
		}
	})
}

// Extend is for what was claimed: it takes no task from its holder, and makes none due early.
func TestQueue_ExtendClaimsNothing(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		e := b.ClaimOne(time.Minute)
		require.NoError(b, b.Q.Extend(ctx, e, 2*time.Minute))
		require.NoError(b, b.Q.Extend(ctx, e, 4*time.Minute), "its receipt is good for the whole attempt")
		require.NoError(b, b.Q.Dequeue(ctx, e))

		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Delay: time.Hour})
		scheduled := b.Get("a")
		require.ErrorIs(b, b.Q.Extend(ctx, scheduled.Entry, time.Millisecond), sluice.ErrStale)
		require.Equal(b, scheduled, b.Get("a"))
	})
}

// A foreign ZREM leaves nothing that a task of the library gets.
func TestQueue_EnqueueStartsCleanAfterAForeignRemove(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("old")})
		e := b.ClaimOne(time.Minute)
		require.NoError(b, b.RDB.ZRem(ctx, b.Key, "a").Err())
		require.ErrorIs(b, b.Q.Extend(ctx, e, time.Hour), sluice.ErrStale)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
		next := b.ClaimOne(time.Minute)
		require.Equal(b, 1, next.Attempt)
		require.Empty(b, next.Payload)
		require.ErrorIs(b, b.Q.Dequeue(ctx, e), sluice.ErrStale)
		require.NoError(b, b.Q.Dequeue(ctx, next))
		b.RequireClean()
	})
}

func TestQueue_CancelReturnsTheState(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		pubsub := b.RDB.Subscribe(ctx, "{"+b.Key+"}:canceled")
		defer func() { _ = pubsub.Close() }()
		_, err := pubsub.Receive(ctx)
		require.NoError(b, err)
		prepare := map[sluice.State]func(){
			sluice.StateAbsent:    func() {},
			sluice.StateScheduled: func() { b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Delay: time.Hour}) },
			sluice.StateDue:       func() { b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"}) },
			sluice.StateLeased: func() {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
				b.ClaimOne(time.Minute)
			},
			sluice.StateDead: func() {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
				b.Bury(b.ClaimOne(time.Minute), "")
			},
		}
		for want, prepare := range prepare {
			prepare()
			e, err := b.Q.Get(ctx, "a")
			if want == sluice.StateAbsent {
				require.ErrorIs(b, err, sluice.ErrNotFound)
			}
			require.Equal(b, want, e.State)
			was, err := b.Q.Cancel(ctx, "a")
			require.NoError(b, err)
			require.Equal(b, want, was, was.String())
			b.RequireClean()
		}
		message, err := pubsub.ReceiveMessage(ctx)
		require.NoError(b, err)
		require.Equal(b, "a", message.Payload, "the holder can be told")
	})
}

// A version that is due at the very time of the one it replaces has another receipt.
func TestQueue_AReplacedVersionHasAnotherReceipt(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", At: at})
		peeked, err := b.Q.Peek(ctx, 1)
		require.NoError(b, err)
		b.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "a", At: at, Payload: []byte("v2")})
		require.ErrorIs(b, b.Q.Dequeue(ctx, peeked...), sluice.ErrStale)

		// A waiting version that is due when the lease ends.
		e := b.ClaimOne(time.Minute)
		b.Enqueue(sluice.OutcomeDeferred, sluice.Task{ID: "a", At: store.TimeOf(e.Score), Payload: []byte("v3")})
		require.NoError(b, b.Q.Release(ctx, e))
		require.ErrorIs(b, b.Q.Dequeue(ctx, e), sluice.ErrStale)
		require.Equal(b, "v3", string(b.Get("a").Payload))
	})
}

// Two deliveries that end with their leases, without a word from the holder, do not count.
func TestQueue_UnseenDeliveriesDoNotCount(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
		for _, attempt := range []int{1, 1, 1, 2} {
			e := b.ClaimOne(time.Minute)
			require.Equal(b, attempt, e.Attempt)
			require.Equal(b, "p", string(e.Payload))
			b.EndLeaseUnseen(e)
		}
		require.Empty(b, b.Claim(1, time.Minute))
		require.Equal(b, int64(1), b.Stats().Dead)
		require.Equal(b, 2, b.Dead(1)[0].Attempt)
	}, sluice.WithMaxAttempts(2))
}

// A bad head is passed in large steps, and Peek reads on in pages that end where they end,
// whatever has gone meanwhile.
func TestQueue_ReadsPastManyBadHeads(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	s := redistest.Start(t)
	rdb := s.Client(t)
	const bad = 20_000
	for name, field := range map[string]string{"malformed": "garbage", "attempts used up": "25::"} {
		q := systest.NewQueueTest(t, rdb, name).Q
		for i := 0; i < bad; i += 1000 {
			scores, fields := make([]redis.Z, 1000), make([]any, 0, 2000)
			for j := range scores {
				id := fmt.Sprintf("bad-%d", i+j)
				scores[j] = redis.Z{Score: 1, Member: id}
				fields = append(fields, id, field)
			}
			require.NoError(t, rdb.ZAdd(t.Context(), "Queue:"+name, scores...).Err())
			require.NoError(t, rdb.HSet(t.Context(), "{Queue:"+name+"}:state", fields...).Err())
		}
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: "good"})
		require.NoError(t, err)
		scripts := func(f func() ([]sluice.Entry, error)) int {
			before := redistest.Calls(t, rdb, "eval", "evalsha")
			entries, err := f()
			require.NoError(t, err)
			require.Equal(t, []string{"good"}, systest.IDs(entries))
			return redistest.Calls(t, rdb, "eval", "evalsha") - before
		}
		if name == "malformed" { // Peek shows the others
			require.LessOrEqual(t, scripts(func() ([]sluice.Entry, error) { return q.Peek(t.Context(), 1) }), 25)
		}
		require.LessOrEqual(t, scripts(func() ([]sluice.Entry, error) { return q.Claim(t.Context(), 1, time.Minute) }), 25)
		letters, err := q.List(t.Context(), sluice.StateDead, sluice.TaskInfo{}, bad+1)
		require.NoError(t, err)
		require.Len(t, letters, bad)
		require.Equal(t, name, letters[0].Reason)
	}
}

// What ends or extends a claim neither reads nor writes payloads: it works while the key of
// the payloads is not even a hash.
func TestQueue_SettlesWithoutThePayloads(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, tasks := b.Context(), "{"+b.Key+"}:tasks"
		payload := []byte(":::p")
		for _, id := range []string{"a", "b", "c", "d"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Payload: payload})
		}
		es := b.Claim(10, time.Minute)
		require.Len(b, es, 4)
		require.NoError(b, b.RDB.Rename(ctx, tasks, tasks+":aside").Err())
		require.NoError(b, b.RDB.Set(ctx, tasks, "foreign", 0).Err())
		require.NoError(b, b.Q.Extend(ctx, es[0], time.Hour))
		require.NoError(b, b.Q.Retry(ctx, 0, "failed", es[1]))
		require.NoError(b, b.Q.Release(ctx, es[2]))
		b.Bury(es[3], "why")
		require.NoError(b, b.RDB.Rename(ctx, tasks+":aside", tasks).Err())
		for _, e := range es {
			require.Equal(b, payload, b.Get(e.ID).Payload)
		}
		b.Revive(1, "d")
		require.Len(b, b.Claim(10, time.Minute), 3)
	})
}

// After the enqueue of a task, its payload is not written again: the append-only file
// stays small.
func TestQueue_WritesAPayloadOnce(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--appendonly", "yes", "--auto-aof-rewrite-percentage", "0")
	b := systest.NewQueueTest(t, s.Client(t), "q")
	logged := func() (size int) {
		b.Eventually(func() bool {
			info := b.RDB.Info(t.Context(), "persistence").Val()
			size, _ = strconv.Atoi(regexp.MustCompile(`aof_current_size:(\d+)`).FindStringSubmatch(info)[1])
			return regexp.MustCompile(`aof_buffer_length:0\b`).MatchString(info)
		})
		return size
	}
	payload := make([]byte, 1<<20)
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: payload})
	before := logged()
	require.Greater(t, before, len(payload))
	for range 3 {
		e := b.ClaimOne(time.Minute)
		require.NoError(t, b.Q.Extend(t.Context(), e, time.Hour))
		require.NoError(t, b.Q.Retry(t.Context(), 0, "failed", e))
		e = b.ClaimOne(time.Minute)
		_, err := b.Q.Reschedule(t.Context(), "a", 0)
		require.NoError(t, err)
		require.NoError(t, b.Q.Release(t.Context(), e))
		b.Bury(b.ClaimOne(time.Minute), "why")
		b.Revive(1, "a")
	}
	require.NoError(t, b.Q.Dequeue(t.Context(), b.ClaimOne(time.Minute)))
	require.Less(t, logged()-before, 20_000)
	b.RequireClean()
}

// A page ends where a megabyte of payloads was read. No task is missed or returned twice.
func TestQueue_PagesOfAnySizeMissNothing(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		sizes := []int{0, 10, 300_000, 1, 1 << 20, 0, 1<<20 - 1, 700_000, 64 << 10}
		var tasks []sluice.Task
		for i := range 18 {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprintf("%02d", i), Payload: make([]byte, sizes[i%len(sizes)])})
		}
		_, err := b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		b.Eventually(func() bool { return b.Stats().Due == int64(len(tasks)) })
		complete := func(es []sluice.Entry, err error) {
			b.Helper()
			require.NoError(b, err)
			require.Equal(b, len(tasks), len(es))
			for i, e := range es {
				require.Equal(b, tasks[i].ID, e.ID)
				require.Equal(b, len(tasks[i].Payload), len(e.Payload))
			}
		}
		complete(b.Q.Peek(ctx, 100))
		complete(b.Q.Claim(ctx, 100, 10*time.Minute))
		require.NoError(b, b.Q.Purge(ctx))
		_, err = b.Q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		b.Eventually(func() bool { return b.Stats().Due == int64(len(tasks)) })
		complete(b.Q.Pop(ctx, 100))
		b.RequireClean()
	})
}

// A payload that a foreign consumer's ZREM has left is not the next version's, alone or in
// a batch.
func TestQueue_EnqueueDropsALeftPayload(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		for _, began := range []bool{false, true} {
			for _, batch := range [][]sluice.Task{{{ID: "a"}}, {{ID: "a"}, {ID: "b"}}} {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
				if began {
					b.ClaimOne(time.Minute)
				}
				require.NoError(b, b.RDB.ZRem(ctx, b.Key, "a").Err())
				outcomes, err := b.Q.EnqueueBatch(ctx, batch)
				require.NoError(b, err)
				require.Equal(b, sluice.OutcomeAdded, outcomes[0])
				b.Eventually(func() bool { return b.Stats().Due == int64(len(batch)) })
				es := b.Claim(10, time.Minute)
				require.Len(b, es, len(batch))
				require.Empty(b, es[0].Payload)
				require.Equal(b, 1, es[0].Attempt)
				require.NoError(b, b.Q.Dequeue(ctx, es...))
				b.RequireClean()
			}
		}
	})
}

// The tasks of a batch keep their order without being due late: the last one of many is due
// when its own script has run.
func TestQueue_ABatchIsDueAtOnce(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		tasks := make([]sluice.Task, b.Sized(20_000))
		for i := range tasks {
			tasks[i].ID = fmt.Sprintf("%05d", i)
		}
		_, err := b.Q.EnqueueBatch(b.Context(), tasks)
		require.NoError(b, err)
		require.Less(b, b.Get(tasks[len(tasks)-1].ID).Score, b.Now()+0.001)
		ids, err := b.RDB.ZRange(b.Context(), b.Key, 0, -1).Result()
		require.NoError(b, err)
		require.Len(b, ids, len(tasks))
		require.True(b, slices.IsSorted(ids), "a batch keeps its order")
	})
}

// Peek goes on behind the last entry that it has read: entries of one score are sorted by
// the bytes of their IDs, and what has gone meanwhile makes it miss nothing.
func TestQueue_PeekMissesNothingThatStays(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		b, other, ctx := systest.NewQueueTest(t, s.Client(t), redistest.Name(t)), s.Client(t), t.Context()
		var want []string
		for i := range 700 {
			id := fmt.Sprintf("%c%03d", 'z'-rune(i%7), i)
			want = append(want, id)
			foreignAdd(b, id, 1)
		}
		slices.Sort(want)
		peeked, err := b.Q.Peek(ctx, 1000)
		require.NoError(b, err)
		require.Equal(b, want, systest.IDs(peeked))

		// While it reads, the entries of the first page go, some before each page.
		going := want[:250]
		b.RDB.AddHook(beforeScripts(func() {
			some := going[:min(40, len(going))]
			going = going[len(some):]
			for _, id := range some {
				require.NoError(b, other.ZRem(ctx, b.Key, id).Err())
			}
		}))
		for range 4 { // of two pages or three
			peeked, err := b.Q.Peek(ctx, 1000)
			require.NoError(b, err)
			ids := systest.IDs(peeked)
			require.True(b, slices.IsSorted(ids))
			require.Equal(b, want[250:], ids[len(ids)-450:])
		}
		require.Empty(b, going)
	})
}

// beforeScripts is a hook that is called before each script is sent.
type beforeScripts func()

func (beforeScripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f beforeScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			f()
		}
		return next(ctx, cmd)
	}
}

func (beforeScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestDuplicates_String(t *testing.T) {
	t.Parallel()
	require.Equal(t, "[replace keep earliest latest keepdue once unknown unknown]",
		fmt.Sprint([]sluice.Duplicates{
			sluice.DuplicatesReplace, sluice.DuplicatesKeep, sluice.DuplicatesEarliest, sluice.DuplicatesLatest, sluice.DuplicatesKeepDue, sluice.DuplicatesOnce, sluice.DuplicatesOnce + 1, 0,
		}))
}
