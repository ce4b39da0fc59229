package sluice_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// bundle is a queue and what its tests need.
type bundle struct {
	*testing.T
	q   *sluice.Queue
	rdb redis.UniversalClient
	key string
}

// eachQueue runs a test with a queue of its own on every backend.
func eachQueue(t *testing.T, test func(b bundle), opts ...sluice.QueueOption) {
	t.Helper()
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, name := s.Client(t), redistest.Name(t)
		q, err := sluice.NewQueue(rdb, name, opts...)
		require.NoError(t, err)
		test(bundle{T: t, q: q, rdb: rdb, key: "Queue:" + name})
	})
}

func (b bundle) enqueue(want sluice.Outcome, task sluice.Task) {
	b.Helper()
	outcome, err := b.q.Enqueue(b.Context(), task)
	require.NoError(b, err)
	require.Equal(b, want, outcome)
}

func (b bundle) claim(n int, lease time.Duration) []sluice.Entry {
	b.Helper()
	entries, err := b.q.Claim(b.Context(), n, lease)
	require.NoError(b, err)
	return entries
}

// claimOne claims the one task that is due.
func (b bundle) claimOne(lease time.Duration) sluice.Entry {
	b.Helper()
	entries := b.claim(10, lease)
	require.Len(b, entries, 1)
	return entries[0]
}

func (b bundle) get(id string) sluice.Entry {
	b.Helper()
	e, err := b.q.Get(b.Context(), id)
	require.NoError(b, err)
	return e
}

func (b bundle) stats() sluice.Stats {
	b.Helper()
	s, err := b.q.Stats(b.Context())
	require.NoError(b, err)
	return s
}

// eventually retries f, for what the server's clock brings about.
func (b bundle) eventually(f func() bool) {
	b.Helper()
	for deadline := time.Now().Add(3 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		require.True(b, time.Now().Before(deadline), "it never came about")
	}
}

// crash lets a lease run out, soon, by making it short.
func (b bundle) crash(e sluice.Entry) {
	b.Helper()
	_, err := b.q.Extend(b.Context(), e, 20*time.Millisecond)
	require.NoError(b, err)
}

// requireClean checks that nothing of a queue is left.
func (b bundle) requireClean() {
	b.Helper()
	require.Zero(b, b.rdb.Exists(b.Context(), b.key, "{"+b.key+"}:tasks", "{"+b.key+"}:dead").Val())
}

func ids(entries []sluice.Entry) (out []string) {
	for _, e := range entries {
		out = append(out, e.ID)
	}
	return out
}

func TestTaskGoesThrough(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("x\x00:y"), Delay: 100 * time.Millisecond})
		require.Empty(b, b.claim(1, time.Second), "early")
		e := b.get("a")
		require.Equal(b, []byte("x\x00:y"), e.Payload)
		require.Zero(b, e.Attempt)

		require.NoError(b, b.q.Wait(ctx))
		claimed := b.claimOne(time.Minute)
		require.Equal(b, "a", claimed.ID)
		require.Equal(b, []byte("x\x00:y"), claimed.Payload)
		require.Equal(b, 1, claimed.Attempt)
		require.WithinDuration(b, e.Time().Add(time.Minute), claimed.Time(), 2*time.Second)
		require.Empty(b, b.claim(1, time.Second), "handed out twice")
		require.Equal(b, claimed, b.get("a"))

		require.NoError(b, b.q.Dequeue(ctx, claimed))
		require.ErrorIs(b, b.q.Dequeue(ctx, claimed), sluice.ErrStale)
		_, err := b.q.Get(ctx, "a")
		require.ErrorIs(b, err, sluice.ErrNotFound)
		b.requireClean()
	})
}

func TestLeaseRunsOut(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		b.enqueue(sluice.Added, sluice.Task{ID: "a"})
		first := b.claimOne(80 * time.Millisecond)
		require.NoError(b, b.q.Wait(ctx))
		second := b.claimOne(time.Minute)
		require.Equal(b, 2, second.Attempt)
		require.GreaterOrEqual(b, second.Score-60, first.Score, "taken before the lease had ended")

		// Whatever the first holder says now changes nothing.
		require.ErrorIs(b, b.q.Dequeue(ctx, first), sluice.ErrStale)
		require.ErrorIs(b, b.q.Retry(ctx, first, 0), sluice.ErrStale)
		require.ErrorIs(b, b.q.Release(ctx, first), sluice.ErrStale)
		_, err := b.q.Extend(ctx, first, time.Second)
		require.ErrorIs(b, err, sluice.ErrStale)
		require.Equal(b, second, b.get("a"))
	})
}

func TestExtendRetryRelease(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p")})
		e := b.claimOne(time.Second)

		extended, err := b.q.Extend(ctx, e, time.Minute)
		require.NoError(b, err)
		require.InDelta(b, e.Score+59, extended.Score, 1)
		require.Equal(b, extended, b.get("a"))
		require.ErrorIs(b, b.q.Dequeue(ctx, e), sluice.ErrStale, "the old receipt is used up")

		require.NoError(b, b.q.Retry(ctx, extended, 50*time.Millisecond))
		require.Empty(b, b.claim(1, time.Second))
		require.NoError(b, b.q.Wait(ctx))
		again := b.claimOne(time.Minute)
		require.Equal(b, 2, again.Attempt, "a retry is an attempt")
		require.Equal(b, []byte("p"), again.Payload)

		require.NoError(b, b.q.Release(ctx, again))
		released := b.claimOne(time.Minute)
		require.Equal(b, 2, released.Attempt, "a release is none")
		require.NoError(b, b.q.Dequeue(ctx, released))

		b.enqueue(sluice.Added, sluice.Task{ID: "plain"})
		require.NoError(b, b.q.Release(ctx, b.claimOne(time.Minute)))
		require.Zero(b, b.rdb.HLen(ctx, "{"+b.key+"}:tasks").Val(), "a plain task that was never begun needs no field")
	})
}

func TestPopAndPeek(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		b.enqueue(sluice.Added, sluice.Task{ID: "later", Delay: time.Hour})
		_, err := b.q.EnqueueBatch(ctx, []sluice.Task{{ID: "z"}, {ID: "y", Payload: []byte("p")}, {ID: "x"}})
		require.NoError(b, err)
		require.NoError(b, b.q.Wait(ctx))

		peeked, err := b.q.Peek(ctx, 2)
		require.NoError(b, err)
		require.Equal(b, []string{"z", "y"}, ids(peeked), "a batch keeps its order")
		require.NoError(b, b.q.Dequeue(ctx, peeked[0]))

		popped, err := b.q.Pop(ctx, 9)
		require.NoError(b, err)
		require.Equal(b, []string{"y", "x"}, ids(popped))
		require.Equal(b, []byte("p"), popped[0].Payload)
		require.ErrorIs(b, b.q.Dequeue(ctx, peeked[1]), sluice.ErrStale)
		empty, err := b.q.Pop(ctx, 9)
		require.NoError(b, err)
		require.Empty(b, empty)
		require.Equal(b, int64(1), b.rdb.ZCard(ctx, b.key).Val())
		require.Zero(b, b.rdb.HLen(ctx, "{"+b.key+"}:tasks").Val())
	})
}

func TestDuplicates(t *testing.T) {
	const sooner, base, later = time.Hour, 2 * time.Hour, 3 * time.Hour
	for _, test := range []struct {
		policy    sluice.Duplicates
		delay     time.Duration
		want      sluice.Outcome
		wantDelay time.Duration
	}{
		{sluice.Replace, sooner, sluice.Updated, sooner},
		{sluice.Replace, later, sluice.Updated, later},
		{sluice.Keep, sooner, sluice.Kept, base},
		{sluice.Keep, later, sluice.Kept, base},
		{sluice.Earliest, sooner, sluice.Updated, sooner},
		{sluice.Earliest, later, sluice.Kept, base},
		{sluice.Latest, sooner, sluice.Kept, base},
		{sluice.Latest, later, sluice.Updated, later},
	} {
		t.Run(fmt.Sprintf("%d/%v", test.policy, test.delay), func(t *testing.T) {
			eachQueue(t, func(b bundle) {
				now := time.Now()
				b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("old"), Delay: base})
				b.enqueue(test.want, sluice.Task{ID: "a", Payload: []byte("new"), Delay: test.delay})
				b.enqueue(sluice.Added, sluice.Task{ID: "plain", Delay: base})
				b.enqueue(test.want, sluice.Task{ID: "plain", Delay: test.delay})
				outcomes, err := b.q.EnqueueBatch(b.Context(), []sluice.Task{{ID: "both", Delay: base}, {ID: "both", Delay: test.delay}})
				require.NoError(b, err)
				require.Equal(b, []sluice.Outcome{sluice.Added, test.want}, outcomes)
				for _, id := range []string{"a", "plain", "both"} {
					require.WithinDuration(b, now.Add(test.wantDelay), b.get(id).Time(), time.Minute, id)
				}
				want := "old"
				if test.want == sluice.Updated {
					want = "new"
				}
				require.Equal(b, want, string(b.get("a").Payload))
			}, sluice.WithDuplicates(test.policy))
		})
	}
}

// TestReplaceStartsAnew: attempts of the old version are not the new one's.
func TestReplaceStartsAnew(t *testing.T) {
	eachQueue(t, func(b bundle) {
		b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("old")})
		require.NoError(b, b.q.Retry(b.Context(), b.claimOne(time.Minute), time.Hour))
		b.enqueue(sluice.Updated, sluice.Task{ID: "a"})
		e := b.claimOne(time.Minute)
		require.Equal(b, 1, e.Attempt)
		require.Empty(b, e.Payload)
	})
}

func TestDeferred(t *testing.T) {
	// How the holder of the old version ends, and who gets the new one.
	ends := map[string]func(b bundle, e sluice.Entry){
		"dequeue": func(b bundle, e sluice.Entry) { require.NoError(b, b.q.Dequeue(b.Context(), e)) },
		"retry":   func(b bundle, e sluice.Entry) { require.NoError(b, b.q.Retry(b.Context(), e, time.Hour)) },
		"release": func(b bundle, e sluice.Entry) { require.NoError(b, b.q.Release(b.Context(), e)) },
		"bury":    func(b bundle, e sluice.Entry) { require.NoError(b, b.q.Bury(b.Context(), e, "")) },
		"crash":   bundle.crash,
		"extend, dequeue": func(b bundle, e sluice.Entry) {
			e, err := b.q.Extend(b.Context(), e, time.Minute)
			require.NoError(b, err)
			require.NoError(b, b.q.Dequeue(b.Context(), e))
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			eachQueue(t, func(b bundle) {
				b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("v1")})
				e := b.claimOne(time.Minute)
				b.enqueue(sluice.Deferred, sluice.Task{ID: "a", Payload: []byte("v2")})
				b.enqueue(sluice.Deferred, sluice.Task{ID: "a", Payload: []byte("v3")})
				require.Empty(b, b.claim(1, time.Minute), "worked on twice at once")

				end(b, e)
				var next []sluice.Entry
				b.eventually(func() bool { next = b.claim(10, time.Minute); return len(next) > 0 })
				require.Len(b, next, 1)
				require.Equal(b, "v3", string(next[0].Payload), "an update was lost")
				require.Equal(b, 1, next[0].Attempt)
				require.ErrorIs(b, b.q.Dequeue(b.Context(), e), sluice.ErrStale)
				require.NoError(b, b.q.Dequeue(b.Context(), next[0]))
				b.requireClean()
			})
		})
	}
}

// TestDeferredHasItsOwnTime: the new version is not early because the old one
// was finished, popped or crashed early.
func TestDeferredHasItsOwnTime(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		for _, id := range []string{"done", "crashed"} {
			b.enqueue(sluice.Added, sluice.Task{ID: id})
			e := b.claimOne(time.Minute)
			b.enqueue(sluice.Deferred, sluice.Task{ID: id, Delay: time.Hour})
			if id == "done" {
				require.NoError(b, b.q.Dequeue(ctx, e))
			} else {
				b.crash(e)
				b.eventually(func() bool { return b.get(id).Time().After(e.Time().Add(time.Minute)) })
			}
			require.Empty(b, b.claim(1, time.Minute))
			popped, err := b.q.Pop(ctx, 9)
			require.NoError(b, err)
			require.Empty(b, popped)
			require.InDelta(b, 3600, b.get(id).Score-e.Score, 60)
		}
		require.Equal(b, int64(2), b.stats().Scheduled)
	})
}

// TestPeekAtATakenOverVersion: what Peek and Get say of a version that has taken
// over when a lease ran out is a receipt like any other.
func TestPeekAtATakenOverVersion(t *testing.T) {
	for name, end := range map[string]func(b bundle, e sluice.Entry) error{
		"dequeue": func(b bundle, e sluice.Entry) error { return b.q.Dequeue(b.Context(), e) },
		"retry":   func(b bundle, e sluice.Entry) error { return b.q.Retry(b.Context(), e, time.Hour) },
		"release": func(b bundle, e sluice.Entry) error { return b.q.Release(b.Context(), e) },
		"bury":    func(b bundle, e sluice.Entry) error { return b.q.Bury(b.Context(), e, "") },
		"extend":  func(b bundle, e sluice.Entry) error { _, err := b.q.Extend(b.Context(), e, time.Hour); return err },
	} {
		t.Run(name, func(t *testing.T) {
			eachQueue(t, func(b bundle) {
				b.enqueue(sluice.Added, sluice.Task{ID: "a"})
				e := b.claimOne(time.Minute)
				b.enqueue(sluice.Deferred, sluice.Task{ID: "a", Payload: []byte("v2")})
				b.crash(e)
				var peeked []sluice.Entry
				b.eventually(func() bool {
					var err error
					peeked, err = b.q.Peek(b.Context(), 1)
					require.NoError(b, err)
					return len(peeked) == 1
				})
				require.Equal(b, peeked[0], b.get("a"))
				require.Equal(b, "v2", string(peeked[0].Payload))
				require.NoError(b, end(b, peeked[0]))
				require.ErrorIs(b, end(b, peeked[0]), sluice.ErrStale)
			})
		})
	}
}

// TestDeferredFollowsThePolicy: versions that wait compete as tasks do.
func TestDeferredFollowsThePolicy(t *testing.T) {
	for policy, want := range map[sluice.Duplicates][]sluice.Outcome{
		sluice.Keep:     {sluice.Kept, sluice.Kept, sluice.Kept},
		sluice.Replace:  {sluice.Deferred, sluice.Deferred, sluice.Deferred},
		sluice.Earliest: {sluice.Deferred, sluice.Kept, sluice.Deferred},
		sluice.Latest:   {sluice.Deferred, sluice.Deferred, sluice.Kept},
	} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			eachQueue(t, func(b bundle) {
				b.enqueue(sluice.Added, sluice.Task{ID: "a"})
				b.claimOne(time.Minute)
				for i, hours := range []time.Duration{2, 3, 1} {
					b.enqueue(want[i], sluice.Task{ID: "a", Delay: hours * time.Hour})
				}
			}, sluice.WithDuplicates(policy))
		})
	}
}

func TestCancelAndReschedule(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		for _, missing := range []func() (bool, error){
			func() (bool, error) { return b.q.Cancel(ctx, "a") },
			func() (bool, error) { return b.q.Reschedule(ctx, "a", 0) },
		} {
			found, err := missing()
			require.NoError(b, err)
			require.False(b, found)
		}
		reschedule := func(delay time.Duration) {
			b.Helper()
			found, err := b.q.Reschedule(ctx, "a", delay)
			require.NoError(b, err)
			require.True(b, found)
		}

		b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p"), Delay: time.Hour})
		reschedule(0)
		e := b.claimOne(time.Minute)
		require.Equal(b, "p", string(e.Payload))

		// Of a leased task: again, once the holder has finished.
		reschedule(0)
		require.Empty(b, b.claim(1, time.Minute))
		require.NoError(b, b.q.Dequeue(ctx, e))
		again := b.claimOne(time.Minute)
		require.Equal(b, "p", string(again.Payload))

		found, err := b.q.Cancel(ctx, "a")
		require.NoError(b, err)
		require.True(b, found)
		require.ErrorIs(b, b.q.Dequeue(ctx, again), sluice.ErrStale)
		b.requireClean()
	})
}

func TestMaxAttempts(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		b.enqueue(sluice.Added, sluice.Task{ID: "killer", Payload: []byte("p")})
		for attempt := 1; attempt <= 2; attempt++ {
			e := b.claimOne(time.Minute)
			require.Equal(b, attempt, e.Attempt)
			require.NoError(b, b.q.Retry(ctx, e, 0))
		}
		b.enqueue(sluice.Added, sluice.Task{ID: "other"})
		require.Equal(b, []string{"other"}, ids(b.claim(1, time.Minute)), "a task that is used up stood in the way")

		dead := b.get("killer")
		require.Equal(b, 2, dead.Attempt)
		require.Equal(b, "p", string(dead.Payload))
		require.WithinDuration(b, time.Now(), dead.Time(), time.Minute)
		require.Equal(b, int64(1), b.stats().Dead)
		require.Zero(b, b.stats().Due)

		// Enqueued again it starts anew.
		b.enqueue(sluice.Added, sluice.Task{ID: "killer"})
		require.Zero(b, b.stats().Dead)
		require.Equal(b, 1, b.claimOne(time.Minute).Attempt)
	}, sluice.WithMaxAttempts(2))
}

func TestBatches(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		const n = 1203
		tasks := make([]sluice.Task, n)
		for i := range tasks {
			tasks[i] = sluice.Task{ID: fmt.Sprint(n - i)} // so that order by ID would be another one
		}
		tasks[700].ID = tasks[3].ID
		outcomes, err := b.q.EnqueueBatch(ctx, tasks)
		require.NoError(b, err)
		require.Len(b, outcomes, n)
		require.Equal(b, sluice.Added, outcomes[3])
		require.Equal(b, sluice.Updated, outcomes[700], "duplicates in a batch are applied in order")

		b.eventually(func() bool { return b.stats().Due == n-1 })
		claimed := b.claim(2000, time.Minute)
		want := []string{}
		for i, task := range tasks {
			if i != 3 {
				want = append(want, task.ID)
			}
		}
		require.Equal(b, want, ids(claimed))
		claimed[5].Score++
		err = b.q.Dequeue(ctx, claimed...)
		var stale *sluice.StaleError
		require.ErrorAs(b, err, &stale)
		require.Equal(b, []string{claimed[5].ID}, stale.IDs)
		require.Equal(b, int64(1), b.stats().Scheduled)

		claimed[5].Score--
		require.NoError(b, b.q.Release(ctx, claimed[5]))
		require.NoError(b, b.q.Purge(ctx))
		b.requireClean()
		outcomes, err = b.q.EnqueueBatch(ctx, nil)
		require.NoError(b, err)
		require.Empty(b, outcomes)
		require.NoError(b, b.q.Dequeue(ctx))
	})
}

// TestBatchKeepsTimesApart: only tasks that are due at the same time are set apart.
// No delay is not the same as 1970; a nanosecond is the same as a microsecond.
func TestBatchKeepsTimesApart(t *testing.T) {
	eachQueue(t, func(b bundle) {
		outcomes, err := b.q.EnqueueBatch(b.Context(), []sluice.Task{
			{ID: "a"}, {ID: "b", At: time.Unix(0, 0)}, {ID: "c", Delay: time.Microsecond}, {ID: "d", Delay: 1},
		})
		require.NoError(b, err)
		require.Len(b, outcomes, 4)
		require.Zero(b, b.get("b").Score)
		require.Greater(b, b.get("d").Score, b.get("c").Score)
	})
}

func TestStats(t *testing.T) {
	eachQueue(t, func(b bundle) {
		require.Equal(b, sluice.Stats{}, b.stats())
		ago, ahead := time.Now().Add(-time.Hour).Truncate(time.Microsecond), time.Now().Add(time.Hour).Truncate(time.Microsecond)
		b.enqueue(sluice.Added, sluice.Task{ID: "due", At: ago})
		b.enqueue(sluice.Added, sluice.Task{ID: "next", At: ahead})
		b.enqueue(sluice.Added, sluice.Task{ID: "later", At: ahead.Add(time.Hour)})
		s := b.stats()
		require.Equal(b, int64(1), s.Due)
		require.Equal(b, int64(2), s.Scheduled)
		require.InDelta(b, 3600, s.OldestDue.Seconds(), 10)
		require.True(b, ahead.Equal(s.NextDue), "%v, not %v", s.NextDue, ahead)
	})
}

// TestForeignProducers: PHP puts IDs into the zset with 14-digit scores.
func TestForeignProducers(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		require.NoError(b, b.rdb.Do(ctx, "ZADD", b.key, "1790000000.1234", "php").Err())
		require.NoError(b, b.rdb.Do(ctx, "ZADD", b.key, fmt.Sprintf("%.4f", float64(time.Now().UnixMicro())/1e6-1), "php2").Err())
		if e := b.get("php"); e.Time().After(time.Now()) {
			require.NoError(b, b.rdb.ZRem(ctx, b.key, "php").Err()) // the test machine's clock is before 2026-09
		}
		claimed := b.claim(10, time.Minute)
		require.Contains(b, ids(claimed), "php2")
		require.NoError(b, b.q.Dequeue(ctx, claimed...))
		b.requireClean()
	})
}

// TestHostileData: what cannot be a task goes to the dead letters; the others are
// served. A key of another type is an error, and nothing is written.
func TestHostileData(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx, tasks := b.Context(), "{"+b.key+"}:tasks"
		for id, field := range map[string]string{
			"garbage": "garbage", "huge": "99999999999:::", "lease": "1:nope::", "inf": "1:1e999::p", "deaf": "1:dead:x:",
			"grave": "x:dead:3:abcp", "binary": "\x00\xff",
		} {
			require.NoError(b, b.rdb.ZAdd(ctx, b.key, redis.Z{Score: 1, Member: id}).Err())
			require.NoError(b, b.rdb.HSet(ctx, tasks, id, field).Err())
		}
		require.NoError(b, b.rdb.Do(ctx, "ZADD", b.key, "-inf", "-inf").Err())
		require.NoError(b, b.rdb.Do(ctx, "ZADD", b.key, "+inf", "+inf").Err())
		b.enqueue(sluice.Added, sluice.Task{ID: "good"})
		require.NoError(b, b.q.Wait(ctx))

		_, err := b.q.Get(ctx, "garbage")
		require.ErrorIs(b, err, sluice.ErrCorrupt)
		peeked, err := b.q.Peek(ctx, 100)
		require.NoError(b, err)
		require.Equal(b, []string{"good"}, ids(peeked))
		require.Equal(b, []string{"good"}, ids(b.claim(1, time.Minute)))
		require.Equal(b, int64(8), b.stats().Dead)
		require.Equal(b, "garbage", string(b.get("garbage").Payload), "what it was is kept")
		b.enqueue(sluice.Added, sluice.Task{ID: "+inf"})
		require.Equal(b, "+inf", b.claimOne(time.Minute).ID)
	})
}

// TestPeekReadsOn: a caller that only peeks must get past what it is not shown.
func TestPeekReadsOn(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		pipe := b.rdb.Pipeline()
		for i := range 1200 {
			id := fmt.Sprint("bad", i)
			pipe.ZAdd(ctx, b.key, redis.Z{Score: 1, Member: id})
			pipe.HSet(ctx, "{"+b.key+"}:tasks", id, "garbage")
		}
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		b.enqueue(sluice.Added, sluice.Task{ID: "good"})
		require.NoError(b, b.q.Wait(ctx))
		peeked, err := b.q.Peek(ctx, 1)
		require.NoError(b, err)
		require.Equal(b, []string{"good"}, ids(peeked))
		require.Equal(b, []string{"good"}, ids(b.claim(1, time.Minute)))
		require.Equal(b, int64(1200), b.stats().Dead)
	})
}

// TestLargePayloads: one claim is several scripts where the payloads are large, so
// that none holds the server up.
func TestLargePayloads(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const n = 12
		rdb, faults := s.Faulty(t)
		q := newQueue(t, rdb)
		var tasks []sluice.Task
		for i := range n {
			tasks = append(tasks, sluice.Task{ID: fmt.Sprint(i), Payload: make([]byte, 400_000)})
		}
		_, err := q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		require.NoError(t, q.Wait(t.Context()))
		time.Sleep(time.Millisecond) // the last of the batch is due 12 microseconds after the first
		before := faults.Scripts()
		claimed, err := q.Claim(t.Context(), 100, time.Minute)
		require.NoError(t, err)
		require.Len(t, claimed, n)
		require.Len(t, claimed[n-1].Payload, 400_000)
		require.GreaterOrEqual(t, faults.Scripts()-before, 4, "3 tasks make more than a megabyte")
	})
}

// TestDeadLetterPutBack: PHP knows nothing of dead letters, and enqueues one again
// with a plain ZADD. It starts anew, and is no dead letter any more.
func TestDeadLetterPutBack(t *testing.T) {
	for name, end := range map[string]func(b bundle){
		"enqueue": func(b bundle) { b.enqueue(sluice.Updated, sluice.Task{ID: "a"}) },
		"claim":   func(b bundle) { require.Equal(b, 1, b.claimOne(time.Minute).Attempt) },
		"dequeue": func(b bundle) { require.NoError(b, b.q.Dequeue(b.Context(), b.get("a"))) },
		"retry":   func(b bundle) { require.NoError(b, b.q.Retry(b.Context(), b.get("a"), 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			eachQueue(t, func(b bundle) {
				b.enqueue(sluice.Added, sluice.Task{ID: "a"})
				require.NoError(b, b.q.Retry(b.Context(), b.claimOne(time.Minute), 0))
				require.Empty(b, b.claim(1, time.Minute))
				require.Equal(b, int64(1), b.stats().Dead)
				require.NoError(b, b.rdb.ZAdd(b.Context(), b.key, redis.Z{Score: 1, Member: "a"}).Err())
				end(b)
				require.Zero(b, b.stats().Dead)
			}, sluice.WithMaxAttempts(1))
		})
	}
}

// TestDequeueBreaksOff: what was done before an error, and what was stale, is told.
func TestDequeueBreaksOff(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := newQueue(t, rdb)
		tasks := make([]sluice.Task, 600)
		for i := range tasks {
			tasks[i].ID = fmt.Sprint(i)
		}
		_, err := q.EnqueueBatch(t.Context(), tasks)
		require.NoError(t, err)
		var es []sluice.Entry
		for len(es) < len(tasks) {
			more, err := q.Claim(t.Context(), 600, time.Minute)
			require.NoError(t, err)
			es = append(es, more...)
		}
		require.ErrorIs(t, q.Dequeue(t.Context(), sluice.Entry{ID: "x", Score: 1}), sluice.ErrStale) // knows the script
		es[3].Score++
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		faults.Delay(200 * time.Millisecond)
		second := faults.Scripts() + 2
		go func() { // ends ctx when the second step is on its way, well before its reply
			for faults.Scripts() < second && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		err = q.Dequeue(ctx, es...)
		require.ErrorIs(t, err, context.Canceled)
		var stale *sluice.StaleError
		require.ErrorAs(t, err, &stale)
		require.Equal(t, []string{es[3].ID}, stale.IDs)
	})
}

func TestForeignKeys(t *testing.T) {
	for which, form := range map[string]string{"queue": "%s", "tasks": "{%s}:tasks", "dead": "{%s}:dead"} {
		t.Run(which, func(t *testing.T) {
			eachQueue(t, func(b bundle) {
				ctx := b.Context()
				b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p")})
				key := strings.ReplaceAll(form, "%s", b.key)
				require.NoError(b, b.rdb.Del(ctx, key).Err())
				require.NoError(b, b.rdb.Set(ctx, key, "foreign", 0).Err())
				dump := func() (all []any) {
					for _, k := range []string{b.key, "{" + b.key + "}:tasks", "{" + b.key + "}:dead"} {
						all = append(all, b.rdb.Dump(ctx, k).Val())
					}
					return all
				}
				before := dump()
				e := sluice.Entry{ID: "a", Score: b.rdb.ZScore(ctx, b.key, "a").Val()}
				for name, op := range map[string]func() error{
					"enqueue":    func() error { _, err := b.q.Enqueue(ctx, sluice.Task{ID: "b"}); return err },
					"batch":      func() error { _, err := b.q.EnqueueBatch(ctx, []sluice.Task{{ID: "c"}, {ID: "a"}}); return err },
					"claim":      func() error { _, err := b.q.Claim(ctx, 1, time.Second); return err },
					"pop":        func() error { _, err := b.q.Pop(ctx, 1); return err },
					"stats":      func() error { _, err := b.q.Stats(ctx); return err },
					"cancel":     func() error { _, err := b.q.Cancel(ctx, "a"); return err },
					"dequeue":    func() error { return b.q.Dequeue(ctx, e) },
					"retry":      func() error { return b.q.Retry(ctx, e, 0) },
					"release":    func() error { return b.q.Release(ctx, e) },
					"bury":       func() error { return b.q.Bury(ctx, e, "") },
					"dead":       func() error { _, err := b.q.Dead(ctx, 1); return err },
					"revive":     func() error { _, err := b.q.Revive(ctx, "a"); return err },
					"extend":     func() error { _, err := b.q.Extend(ctx, e, time.Second); return err },
					"reschedule": func() error { _, err := b.q.Reschedule(ctx, "a", 0); return err },
					"get":        func() error { _, err := b.q.Get(ctx, "a"); return err },
					"peek":       func() error { _, err := b.q.Peek(ctx, 1); return err },
				} {
					// Those that do not touch the damaged key may go through.
					touchesDead := slices.Contains([]string{"batch", "claim", "pop", "stats", "cancel", "bury", "dead", "revive"}, name)
					if which == "dead" && !touchesDead || which == "tasks" && name == "stats" {
						continue
					}
					require.ErrorIs(b, op(), sluice.ErrCorrupt, name)
					require.Equal(b, before, dump(), "%s left something half-written", name)
				}
			})
		})
	}
}

func TestForeignLockKey(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := newLocker(t, rdb)
		require.NoError(t, rdb.LPush(ctx, "Lock:"+name, "foreign").Err())
		_, err := l.Lock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrCorrupt)
		require.NotErrorIs(t, err, sluice.ErrLocked)
		_, err = l.TryLock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrCorrupt)
		_, err = l.Inspect(ctx, name)
		require.ErrorIs(t, err, sluice.ErrCorrupt)
		_, err = l.ForceUnlock(ctx, name)
		require.ErrorIs(t, err, sluice.ErrCorrupt)
		require.Equal(t, int64(1), rdb.LLen(ctx, "Lock:"+name).Val())
	})
}

// TestDequeueTheSameTwice: a receipt is good once, also within one call.
func TestDequeueTheSameTwice(t *testing.T) {
	eachQueue(t, func(b bundle) {
		b.enqueue(sluice.Added, sluice.Task{ID: "a"})
		e := b.claimOne(time.Minute)
		var stale *sluice.StaleError
		require.ErrorAs(b, b.q.Dequeue(b.Context(), e, e), &stale)
		require.Equal(b, []string{"a"}, stale.IDs)
		b.requireClean()
	})
}
