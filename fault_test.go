package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
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

// TestLostReplies loses the reply, or the request, of each operation in turn.
// Each row says what the operation may return then; what it must never do is in
// the checks. runs is how often the script may run when the reply is lost: once,
// or twice where its header says that it may.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{false, true} {
		s := *redistest.Start(t)
		s.AutoPipeline = auto
		rdb := s.Client(t)
		faulty, faults := s.Faulty(t)
		l := newLocker(t, faulty)
		name := fmt.Sprintf("n%v", auto)
		key := "Lock:" + name
		q, err := sluice.NewQueue(faulty, name)
		require.NoError(t, err)
		clean, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)

		var k *sluice.Lock
		var e sluice.Entry
		free := func() {
			l = newLocker(t, faulty) // one that knows of no holder
			require.NoError(t, rdb.Del(t.Context(), key).Err())
		}
		lock := func() {
			free()
			k, err = l.Lock(t.Context(), name)
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
			{"extend task", claim, func(ctx context.Context) (err error) { e, err = q.Extend(ctx, e, time.Hour); return err },
				func(err error, _ bool) {
					unknownOr(err, stored().Score == e.Score)
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
					letters, err := clean.Dead(t.Context(), 9)
					require.NoError(t, err)
					require.Len(t, letters, 1)
				}, 2},
			{"dead", claim, func(ctx context.Context) error { _, err := q.Dead(ctx, 1); return err },
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
				require.Equal(t, op.runs, faults.Scripts()-written, "attempts of %s", op.name)
				if reply {
					require.Equal(t, op.runs, ran, "runs of %s", op.name)
				} else {
					require.Equal(t, op.runs-1, ran, "runs of %s", op.name)
				}
				op.check(err, reply)
			}
		}
	}
}

// TestLostReplyOfTheFirstTry: the caller gets the lock all the same, and nothing
// is left of the one that nobody knows of.
func TestLostReplyOfTheFirstTry(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name, rdb := redistest.Name(t), s.Client(t)
		faulty, faults := s.Faulty(t)
		l := newLocker(t, faulty, sluice.WithTTL(time.Minute))
		warm(t, l, name)
		for _, fault := range []func(int){faults.DropReply, faults.DropRequest, faults.HoldRequest} {
			fault(1)
			k, err := l.Lock(t.Context(), name)
			require.NoError(t, err)
			faults.Deliver()
			require.Equal(t, k.Token(), rdb.Get(t.Context(), "Lock:"+name).Val())
			require.NoError(t, k.Unlock(t.Context()))
		}
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
			2*time.Second, 5*time.Millisecond, "an acquisition stayed behind")
	})
}

// TestLostReplyOfAStaleReceipt: a repeat does not make a stale receipt good.
func TestLostReplyOfAStaleReceipt(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		faulty, faults := s.Faulty(t)
		q := newQueue(t, faulty)
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
		require.NoError(t, err)
		es, err := q.Claim(t.Context(), 1, 10*time.Millisecond)
		require.NoError(t, err)
		require.NoError(t, q.Wait(t.Context()))
		newer, err := q.Claim(t.Context(), 1, time.Minute)
		require.NoError(t, err)
		for _, op := range []func() error{
			func() error { return q.Dequeue(t.Context(), es...) },
			func() error { return q.Retry(t.Context(), es[0], 0) },
			func() error { return q.Release(t.Context(), es[0]) },
			func() error { return q.Bury(t.Context(), es[0], "") },
			func() error { _, err := q.Extend(t.Context(), es[0], time.Hour); return err },
		} {
			faults.DropReply(1)
			require.ErrorIs(t, op(), sluice.ErrUnknown)
			e, err := q.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, newer[0], e)
		}
	})
}

// TestLateAcquisition: a lock that was acquired behind its caller's back is
// released, even if the first release is lost.
func TestLateAcquisition(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		faulty, faults := s.Faulty(t)
		l, rdb := newLocker(t, faulty), s.Client(t)
		k, err := l.Lock(t.Context(), name) // now the server knows the scripts
		require.NoError(t, err)
		require.NoError(t, k.Unlock(t.Context()))
		faults.Delay(200 * time.Millisecond)
		faults.DropRequest(2)
		start := time.Now()
		_, err = l.Lock(within(t, 50*time.Millisecond), name)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, sluice.ErrUnknown)
		require.NotErrorIs(t, err, sluice.ErrLocked)
		require.Less(t, time.Since(start), 100*time.Millisecond)
		require.Equal(t, int64(1), rdb.Exists(t.Context(), "Lock:"+name).Val(), "the fault did not strike")
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "Lock:"+name).Val() == 0 },
			2*time.Second, 5*time.Millisecond, "an acquisition stayed behind")
	})
}

// TestReplyAfterTheDeadline: a lock that is over before its holder hears of it is
// an error, and is released.
func TestReplyAfterTheDeadline(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		faulty, faults := s.Faulty(t)
		l := newLocker(t, faulty, sluice.WithTTL(60*time.Millisecond))
		require.NoError(t, faulty.Ping(t.Context()).Err())
		faults.Delay(100 * time.Millisecond)
		k, err := l.TryLock(context.Background(), name)
		require.Nil(t, k)
		require.ErrorIs(t, err, sluice.ErrLost)
	})
}

// hangs runs every operation with a context of 100ms while nothing is answered.
// Each must return within 150ms, and none may claim to know what it does not.
func hangs(t *testing.T, rdb redis.UniversalClient, name string, k *sluice.Lock, l *sluice.Locker, q *sluice.Queue) {
	t.Helper()
	e := sluice.Entry{ID: "a", Score: 1}
	for op, run := range map[string]func(ctx context.Context) error{
		"lock":         func(ctx context.Context) error { _, err := l.Lock(ctx, name); return err },
		"try lock":     func(ctx context.Context) error { _, err := l.TryLock(ctx, name); return err },
		"do":           func(ctx context.Context) error { return l.Do(ctx, name, func(context.Context) error { return nil }) },
		"inspect":      func(ctx context.Context) error { _, err := l.Inspect(ctx, name); return err },
		"force unlock": func(ctx context.Context) error { _, err := l.ForceUnlock(ctx, name); return err },
		"extend lock":  func(ctx context.Context) error { return k.Extend(ctx, time.Minute) },
		"ttl":          func(ctx context.Context) error { _, err := k.TTL(ctx); return err },
		"enqueue":      func(ctx context.Context) error { _, err := q.Enqueue(ctx, sluice.Task{ID: "a"}); return err },
		"claim":        func(ctx context.Context) error { _, err := q.Claim(ctx, 1, time.Second); return err },
		"pop":          func(ctx context.Context) error { _, err := q.Pop(ctx, 1); return err },
		"peek":         func(ctx context.Context) error { _, err := q.Peek(ctx, 1); return err },
		"dequeue":      func(ctx context.Context) error { return q.Dequeue(ctx, e) },
		"retry":        func(ctx context.Context) error { return q.Retry(ctx, e, 0) },
		"release":      func(ctx context.Context) error { return q.Release(ctx, e) },
		"bury":         func(ctx context.Context) error { return q.Bury(ctx, e, "") },
		"dead":         func(ctx context.Context) error { _, err := q.Dead(ctx, 1); return err },
		"revive":       func(ctx context.Context) error { _, err := q.Revive(ctx, "a"); return err },
		"extend":       func(ctx context.Context) error { _, err := q.Extend(ctx, e, time.Second); return err },
		"cancel":       func(ctx context.Context) error { _, err := q.Cancel(ctx, "a"); return err },
		"reschedule":   func(ctx context.Context) error { _, err := q.Reschedule(ctx, "a", 0); return err },
		"get":          func(ctx context.Context) error { _, err := q.Get(ctx, "a"); return err },
		"stats":        func(ctx context.Context) error { _, err := q.Stats(ctx); return err },
		"purge":        func(ctx context.Context) error { return q.Purge(ctx) },
		"wait":         q.Wait,
	} {
		start := time.Now()
		err := run(within(t, 100*time.Millisecond))
		require.Less(t, time.Since(start), 150*time.Millisecond, op)
		require.ErrorIs(t, err, context.DeadlineExceeded, op)
		require.NotErrorIs(t, err, sluice.ErrLocked, op)
		require.NotErrorIs(t, err, sluice.ErrStale, op)
		require.NotErrorIs(t, err, sluice.ErrNotFound, op)
		require.NotErrorIs(t, err, sluice.ErrNotHeld, op)
	}
	// These two go on when their context has ended, and say so.
	start := time.Now()
	require.ErrorIs(t, k.Unlock(ended()), sluice.ErrUnknown)
	require.Less(t, time.Since(start), 50*time.Millisecond)
	start = time.Now()
	require.NoError(t, l.UnlockAll(ended())) // nothing is held any more
	require.Less(t, time.Since(start), 50*time.Millisecond)
}

// TestServerHangs stops a real server's process, for a time shorter and for one
// longer than go-redis's read timeout. What it finds in its sockets when it goes
// on, it carries out; no lock of ours may stay for it.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	for _, outage := range []time.Duration{3 * time.Second, 7 * time.Second} {
		for _, auto := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/%v", outage, auto), func(t *testing.T) {
				t.Parallel()
				s := *redistest.Start(t)
				s.AutoPipeline = auto
				rdb, name := s.Client(t), redistest.Name(t)
				l := newLocker(t, rdb, sluice.WithTTL(time.Minute))
				q := newQueue(t, rdb)
				k, err := l.Lock(t.Context(), name)
				require.NoError(t, err)

				s.Pause(t)
				paused := time.Now()
				hangs(t, rdb, "other", k, l, q)
				time.Sleep(time.Until(paused.Add(outage))) // the outage
				s.Resume(t)
				time.Sleep(time.Second) // the promise
				keys := redis.NewClient(&redis.Options{Addr: s.Addr})
				defer func() { _ = keys.Close() }()
				require.Empty(t, keys.Keys(t.Context(), "Lock:*").Val())
			})
		}
	}
}

// TestBlackHole is a server that accepts connections and says nothing at all.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	rdb := redis.NewClient(&redis.Options{Addr: listener.Addr().String()})
	defer func() { _ = rdb.Close() }()
	l, err := sluice.NewLocker(rdb)
	require.NoError(t, err)
	start := time.Now()
	_, err = l.Lock(within(t, 100*time.Millisecond), "a")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, time.Since(start), 150*time.Millisecond)
}

// TestServerGone: a definite failure is an error at once, and not ErrUnknown.
func TestServerGone(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	defer func() { _ = rdb.Close() }()
	l := newLocker(t, rdb)
	_, err := l.Lock(t.Context(), "a")
	require.Error(t, err)
	require.NotErrorIs(t, err, sluice.ErrUnknown)
	require.NotErrorIs(t, err, sluice.ErrLocked)
	q := newQueue(t, rdb)
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a"})
	require.Error(t, err)
	require.NotErrorIs(t, err, sluice.ErrUnknown)
}

// TestFullServer: at maxmemory what is there can still be finished.
func TestFullServer(t *testing.T) {
	t.Parallel()
	for _, auto := range []bool{false, true} {
		s := *redistest.Start(t)
		s.AutoPipeline = auto
		ctx, rdb := t.Context(), s.Client(t)
		l, q := newLocker(t, rdb), newQueue(t, rdb)
		k, err := l.Lock(ctx, "a")
		require.NoError(t, err)
		for i := range 6 {
			_, err := q.Enqueue(ctx, sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p")})
			require.NoError(t, err)
		}
		require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		require.ErrorContains(t, rdb.Set(ctx, "x", "y", 0).Err(), "OOM")

		es, err := q.Claim(ctx, 3, time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 3)
		es[0], err = q.Extend(ctx, es[0], time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Dequeue(ctx, es[0]))
		require.NoError(t, q.Retry(ctx, es[1], 0))
		require.NoError(t, q.Release(ctx, es[2]))
		again, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		for _, id := range []string{again[0].ID, es[1].ID} { // a leased and a due one
			found, err := q.Reschedule(ctx, id, 0)
			require.NoError(t, err)
			require.True(t, found)
		}
		_, err = q.Pop(ctx, 1)
		require.NoError(t, err)
		buried, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, q.Bury(ctx, buried[0], "why"))
		revived, err := q.Revive(ctx, buried[0].ID)
		require.NoError(t, err)
		require.Equal(t, 1, revived)
		require.NoError(t, k.Extend(ctx, time.Minute))
		require.NoError(t, k.Unlock(ctx))

		var server redis.Error
		for _, id := range []string{"new", again[0].ID} {
			_, err = q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte("p")})
			require.ErrorAs(t, err, &server)
			require.ErrorContains(t, err, "OOM")
			require.NotErrorIs(t, err, sluice.ErrUnknown)
		}
		_, err = q.Get(ctx, "new")
		require.ErrorIs(t, err, sluice.ErrNotFound)
		_, err = l.TryLock(ctx, "b")
		require.ErrorAs(t, err, &server)
		require.NotErrorIs(t, err, sluice.ErrLocked)
		found, err := q.Cancel(ctx, again[0].ID)
		require.NoError(t, err)
		require.True(t, found)
		require.NoError(t, q.Purge(ctx))
	}
}

// TestSecrets: a server that repeats a command's arguments in its error must not
// make us repeat them.
func TestSecrets(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--rename-command", "EVALSHA", "", "--rename-command", "EVAL", "")
	rdb := s.Client(t)
	l, q := newLocker(t, rdb), newQueue(t, rdb)
	_, err := l.TryLock(t.Context(), "a")
	require.ErrorContains(t, err, "unknown command")
	require.NotContains(t, err.Error(), "15000")
	_, err = q.Enqueue(t.Context(), sluice.Task{ID: "a", Payload: []byte("s3cret")})
	require.ErrorContains(t, err, "unknown command")
	require.NotContains(t, err.Error(), "s3cret")
	var server redis.Error
	require.ErrorAs(t, err, &server)
}
