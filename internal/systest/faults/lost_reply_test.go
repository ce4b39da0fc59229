package faults

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// scriptsRun is how many scripts a real server has run.
func scriptsRun(t *testing.T, rdb redis.UniversalClient) (n int) {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=(\d+).*failed_calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.Atoi(m[1])
		failed, _ := strconv.Atoi(m[2])
		n += calls - failed
	}
	return n
}

// TestLostReply_OfEveryOperation loses the reply, or the request, of each operation in
// turn. Each row says what the operation may return then; what it must never do is in the
// checks. runs is how often the script may run when the reply is lost: once, or twice where
// its header says that it may.
func TestLostReply_OfEveryOperation(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{false, true} {
		s := *redistest.Start(t)
		s.AutoPipeline = auto
		rdb := s.Client(t)
		faulty, faults := s.Faulty(t)
		l := systest.NewLocker(t, faulty)
		name := fmt.Sprintf("n%v", auto)
		key := "Lock:" + name
		q, err := sluice.NewQueue(faulty, name)
		require.NoError(t, err)
		clean, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)

		var k *sluice.Lock
		var e sluice.Entry
		free := func() {
			_ = l.Close()                    // it releases nothing after that
			l = systest.NewLocker(t, faulty) // one that knows of no holder
			require.NoError(t, rdb.Del(t.Context(), key).Err())
		}
		lock := func() {
			free()
			k, err = l.Lock(t.Context(), name)
			require.NoError(t, err)
		}
		permit := func() {
			free()
			var err error
			k, err = l.Lock(t.Context(), name, sluice.WithPermits(2))
			require.NoError(t, err)
		}
		claim := func() {
			require.NoError(t, clean.Purge(t.Context()))
			_, err := clean.Enqueue(t.Context(), sluice.Task{ID: "a", Payload: []byte("p")})
			require.NoError(t, err)
			es, err := clean.Claim(t.Context(), 1, time.Minute)
			require.NoError(t, err)
			require.Len(t, es, 1)
			e = es[0]
		}
		stored := func() sluice.Entry {
			e, err := clean.Get(t.Context(), "a")
			if !errors.Is(err, sluice.ErrNotFound) {
				require.NoError(t, err)
			}
			return e
		}
		unknownOr := func(err error, right bool) {
			t.Helper()
			if err == nil {
				require.True(t, right)
				return
			}
			require.ErrorIs(t, err, sluice.ErrUnknown)
			require.NotErrorIs(t, err, sluice.ErrStale)
			require.NotErrorIs(t, err, sluice.ErrNotHeld)
		}

		for _, op := range []struct {
			name    string
			prepare func()
			run     func(ctx context.Context) error
			check   func(err error, reply bool)
			runs    int
		}{
			{"try lock", free,
				func(ctx context.Context) (err error) { k, err = l.TryLock(ctx, name); return err },
				func(err error, _ bool) {
					require.NoError(t, err)
					require.Equal(t, k.Token(), rdb.Get(t.Context(), key).Val())
				}, 2},
			{"fenced lock", free,
				func(ctx context.Context) (err error) {
					before := k.Fence()
					k, err = l.Lock(ctx, name, sluice.WithFencing())
					require.Greater(t, k.Fence(), before)
					return err
				},
				func(err error, _ bool) {
					require.NoError(t, err)
					require.Equal(t, k.Token(), rdb.Get(t.Context(), key).Val())
					// The repeat found the block of the first: one of 10ms, by microseconds.
					last, err := rdb.Get(t.Context(), "{"+key+"}:fence").Int64()
					require.NoError(t, err)
					require.Equal(t, k.Fence()+9999, last)
				}, 2},
			{"unlock", lock, func(ctx context.Context) error { return k.Unlock(ctx) },
				func(err error, _ bool) {
					require.NoError(t, err)
					require.Zero(t, rdb.Exists(t.Context(), key).Val())
				}, 2},
			{"extend lock", lock, func(ctx context.Context) error { return k.Extend(ctx, time.Hour) },
				func(err error, _ bool) {
					require.NoError(t, err)
					require.InDelta(t, 3600, rdb.TTL(t.Context(), key).Val().Seconds(), 9)
					require.Less(t, time.Until(k.Deadline()), rdb.PTTL(t.Context(), key).Val())
				}, 2},
			{"adopt", lock, func(ctx context.Context) error {
				_, err := l.Adopt(ctx, name, k.Token(), sluice.WithTTL(time.Hour))
				return err
			},
				func(err error, _ bool) {
					require.NoError(t, err)
					require.InDelta(t, 3600, rdb.TTL(t.Context(), key).Val().Seconds(), 9)
				}, 2},
			{"adopt fenced", lock, func(ctx context.Context) error {
				adopted, err := l.Adopt(ctx, name, k.Token(), sluice.WithFencing())
				require.Greater(t, adopted.Fence(), k.Fence())
				return err
			}, func(err error, _ bool) { require.NoError(t, err) }, 2},
			{"permit", free, func(ctx context.Context) (err error) { k, err = l.Lock(ctx, name, sluice.WithPermits(2)); return err },
				func(err error, _ bool) {
					require.NoError(t, err)
					require.EqualValues(t, 2, rdb.ZCard(t.Context(), key).Val())
				}, 2},
			{"extend permit", permit, func(ctx context.Context) error { return k.Extend(ctx, time.Hour) },
				func(err error, _ bool) { require.NoError(t, err) }, 2},
			{"unlock permit", permit, func(ctx context.Context) error { return k.Unlock(ctx) },
				func(err error, _ bool) {
					require.NoError(t, err)
					require.Zero(t, rdb.Exists(t.Context(), key).Val())
				}, 2},
			{"ttl", lock, func(ctx context.Context) error { _, err := k.TTL(ctx); return err },
				func(err error, _ bool) { require.NoError(t, err) }, 2},
			{"inspect", lock, func(ctx context.Context) error { _, err := l.Inspect(ctx, name); return err },
				func(err error, _ bool) { require.NoError(t, err) }, 2},
			{"force unlock", lock, func(ctx context.Context) error { _, err := l.ForceUnlock(ctx, name); return err },
				func(err error, _ bool) { require.ErrorIs(t, err, sluice.ErrUnknown) }, 1},
			{"enqueue", func() { require.NoError(t, clean.Purge(t.Context())) },
				func(ctx context.Context) error { _, err := q.Enqueue(ctx, sluice.Task{ID: "a"}); return err },
				func(err error, reply bool) {
					require.ErrorIs(t, err, sluice.ErrUnknown)
					require.Equal(t, reply, stored().ID == "a")
				}, 1},
			{"claim", func() {
				claim()
				require.NoError(t, clean.Release(t.Context(), e))
			}, func(ctx context.Context) error { _, err := q.Claim(ctx, 1, time.Minute); return err },
				func(err error, reply bool) {
					require.ErrorIs(t, err, sluice.ErrUnknown)
					require.Equal(t, reply, stored().Attempt == 1)
				}, 1},
			{"pop", func() {
				claim()
				require.NoError(t, clean.Release(t.Context(), e))
			}, func(ctx context.Context) error { _, err := q.Pop(ctx, 1); return err },
				func(err error, reply bool) {
					require.ErrorIs(t, err, sluice.ErrUnknown)
					require.Equal(t, reply, stored().ID == "")
				}, 1},
			{"dequeue", claim, func(ctx context.Context) error { return q.Dequeue(ctx, e) },
				func(err error, reply bool) {
					unknownOr(err, !reply)
					require.Empty(t, stored().ID)
				}, 2},
			{"extend task", claim, func(ctx context.Context) error { return q.Extend(ctx, e, time.Hour) },
				func(err error, _ bool) {
					require.NoError(t, err)
					require.Greater(t, time.Until(stored().Time()), 50*time.Minute)
				}, 2},
			{"keep alive", claim, func(ctx context.Context) error {
				return q.KeepAlive(ctx, e, time.Hour, func(ctx context.Context) error { return ctx.Err() })
			},
				func(err error, _ bool) {
					require.NoError(t, err)
					require.Greater(t, time.Until(stored().Time()), 50*time.Minute)
				}, 2},
			{"retry", claim, func(ctx context.Context) error { return q.Retry(ctx, e, time.Hour) },
				func(err error, _ bool) {
					unknownOr(err, true)
					require.Greater(t, time.Until(stored().Time()), 50*time.Minute)
				}, 2},
			{"release", claim, func(ctx context.Context) error { return q.Release(ctx, e) },
				func(err error, _ bool) {
					unknownOr(err, true)
					require.Zero(t, stored().Attempt)
				}, 2},
			{"bury", claim, func(ctx context.Context) error { return q.Bury(ctx, e, "why") },
				func(err error, _ bool) {
					unknownOr(err, true)
					letters, err := clean.Dead(t.Context(), sluice.Entry{}, 9)
					require.NoError(t, err)
					require.Len(t, letters, 1)
				}, 2},
			{"dead", claim, func(ctx context.Context) error { _, err := q.Dead(ctx, sluice.Entry{}, 1); return err },
				func(err error, _ bool) { require.NoError(t, err) }, 2},
			{"revive", func() {
				claim()
				require.NoError(t, clean.Bury(t.Context(), e, ""))
			}, func(ctx context.Context) error { _, err := q.Revive(ctx, "a"); return err },
				func(err error, reply bool) {
					require.ErrorIs(t, err, sluice.ErrUnknown)
					s, err := clean.Stats(t.Context())
					require.NoError(t, err)
					require.Equal(t, reply, s.Due == 1)
				}, 1},
			{"cancel", claim, func(ctx context.Context) error { _, err := q.Cancel(ctx, "a"); return err },
				func(err error, reply bool) {
					require.ErrorIs(t, err, sluice.ErrUnknown)
					require.Equal(t, reply, stored().ID == "")
				}, 1},
			{"reschedule", claim, func(ctx context.Context) error { _, err := q.Reschedule(ctx, "a", 0); return err },
				func(err error, _ bool) { require.ErrorIs(t, err, sluice.ErrUnknown) }, 1},
			{"get", claim, func(ctx context.Context) error { _, err := q.Get(ctx, "a"); return err },
				func(err error, _ bool) { require.NoError(t, err) }, 2},
			{"stats", claim, func(ctx context.Context) error { _, err := q.Stats(ctx); return err },
				func(err error, _ bool) { require.NoError(t, err) }, 2},
			{"purge", claim, q.Purge,
				func(err error, reply bool) {
					require.ErrorIs(t, err, sluice.ErrUnknown)
					require.Equal(t, reply, stored().ID == "")
				}, 1},
		} {
			op.prepare()
			_ = op.run(t.Context()) // so that the server knows the script
			for _, reply := range []bool{true, false} {
				t.Logf("%s, reply %v, autopipeline %v", op.name, reply, auto)
				op.prepare()
				require.NoError(t, faulty.Ping(t.Context()).Err())
				before, written := scriptsRun(t, rdb), faults.Scripts()
				if reply {
					faults.DropReply(1)
				} else {
					faults.DropRequest(1)
				}
				err := op.run(t.Context())
				ran := scriptsRun(t, rdb) - before
				compare := require.Equal
				if slices.Contains([]string{"try lock", "fenced lock", "permit"}, op.name) {
					compare = require.LessOrEqual // the first token is released beside the second attempt
				}
				compare(t, op.runs, faults.Scripts()-written, "attempts of %s", op.name)
				if reply {
					compare(t, op.runs, ran, "runs of %s", op.name)
				} else {
					compare(t, op.runs-1, ran, "runs of %s", op.name)
				}
				op.check(err, reply)
			}
		}
	}
}

// TestLostReply_OfTheFirstTryLeavesNothing: the caller gets the lock all the same, and
// nothing is left of the acquisition that was abandoned.
func TestLostReply_OfTheFirstTryLeavesNothing(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		faulty, faults := s.Faulty(t)
		l := systest.NewLocker(t, faulty, sluice.WithTTL(time.Minute))
		systest.Warm(t, l, name)
		for _, fault := range []func(int){faults.DropReply, faults.DropRequest, faults.HoldRequest} {
			fault(1)
			k, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
			faults.Deliver()
			require.Equal(t, k.Token(), rdb.Get(t.Context(), "Lock:"+name).Val())
			require.NoError(t, k.Unlock(t.Context()))
		}
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
			10*time.Second, 5*time.Millisecond, "an acquisition stayed behind")
	})
}

// TestLostReply_KeepsAStaleReceiptStale: a repeat does not make a stale receipt good.
func TestLostReply_KeepsAStaleReceiptStale(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		faulty, faults := s.Faulty(t)
		b := systest.NewQueueTest(t, faulty, redistest.Name(t))
		q := b.Q
		b.Enqueue(sluice.Added, sluice.Task{ID: "a"})
		es := b.Claim(1, time.Minute)
		b.EndLeaseSoon(es[0])
		require.NoError(t, q.Wait(t.Context()))
		newer, err := q.Claim(t.Context(), 1, time.Minute)
		require.NoError(t, err)
		for i, op := range []func() error{
			func() error { return q.Dequeue(t.Context(), es...) },
			func() error { return q.Retry(t.Context(), es[0], 0) },
			func() error { return q.Release(t.Context(), es[0]) },
			func() error { return q.Bury(t.Context(), es[0], "") },
			func() error { return q.Extend(t.Context(), es[0], time.Hour) }, // it would not have used the receipt up
		} {
			faults.DropReply(1)
			want := sluice.ErrUnknown
			if i == 4 {
				want = sluice.ErrStale
			}
			require.ErrorIs(t, op(), want)
			e, err := q.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, sluice.Leased, e.State)
			e.State = sluice.Absent    // as Claim returns it
			newer[0].Due = time.Time{} // Get does not know it
			require.Equal(t, newer[0], e)
		}
	})
}
