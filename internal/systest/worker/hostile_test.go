package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// PHP producers put IDs into the sorted set, with scores of 14 digits.
func TestQueue_HandsOutTasksOfForeignProducers(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		require.NoError(b, b.RDB.Do(ctx, "ZADD", b.Key, "1790000000.1234", "php").Err())
		require.NoError(b, b.RDB.Do(ctx, "ZADD", b.Key, fmt.Sprintf("%.4f", float64(time.Now().UnixMicro())/1e6-1), "php2").Err())
		if b.Get("php").Due.After(time.Now()) {
			require.NoError(b, b.RDB.ZRem(ctx, b.Key, "php").Err()) // the test machine's clock is before 2026-09
		}
		claimed := b.Claim(10, time.Minute)
		require.Contains(b, systest.IDs(claimed), "php2")
		require.NoError(b, b.Q.Dequeue(ctx, claimed...))
		b.RequireClean()
	})
}

// What cannot be a task goes to the dead letters, and the tasks beside it are handed out.
func TestQueue_BuriesWhatCannotBeATask(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, tasks, states := b.Context(), "{"+b.Key+"}:tasks", "{"+b.Key+"}:state"
		for id, field := range map[string]string{
			"garbage": "garbage", "huge": "99999999999::", "lease": "1:nope:", "inf": "1:1e999:", "short": "1:dead",
			"grave": "x:dead:why", "binary": "\x00\xff", "long": "1:::p:q",
			"no note": "1:::", "long note": "1:::" + strings.Repeat("n", 129), "odd note": "1:::a b",
		} {
			require.NoError(b, b.RDB.ZAdd(ctx, b.Key, redis.Z{Score: 1, Member: id}).Err())
			require.NoError(b, b.RDB.HSet(ctx, states, id, field).Err())
			require.NoError(b, b.RDB.HSet(ctx, tasks, id, "payload").Err())
		}
		require.NoError(b, b.RDB.Do(ctx, "ZADD", b.Key, "-inf", "-inf").Err())
		require.NoError(b, b.RDB.Do(ctx, "ZADD", b.Key, "+inf", "+inf").Err())
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "good"})
		require.NoError(b, b.Q.Wait(ctx))

		_, err := b.Q.Get(ctx, "garbage")
		require.ErrorIs(b, err, sluice.ErrCorrupt)
		peeked, err := b.Q.Peek(ctx, 100)
		require.NoError(b, err)
		require.Equal(b, []string{"good"}, systest.IDs(peeked))
		require.Equal(b, []string{"good"}, systest.IDs(b.Claim(1, time.Minute)))
		require.Equal(b, int64(12), b.Stats().Dead)
		require.Equal(b, "payload", string(b.Get("garbage").Payload), "the payload is kept")
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "+inf"})
		require.Equal(b, "+inf", b.ClaimOne(time.Minute).ID)
	})
}

// untouched are the operations that do not read a key, and go through whatever is there.
func untouched(which string) []string {
	if which == "queue" {
		return nil
	}
	return append([]string{"Queue.Pause", "Queue.Resume", "Queue.SetLimits", "Queue.Purge", "Queue.Wait", "Queue.Workers",
		"Queue.SetStock", "Queue.DeleteStock", "Queue.Stock", "Queue.Stocks"}, map[string][]string{
		"tasks":  {"Queue.Stats", "Queue.Limits", "Queue.Retry", "Queue.Release", "Queue.Bury", "Queue.Extend", "Queue.KeepAlive", "Queue.Reschedule"},
		"state":  {"Queue.Stats", "Queue.Limits"},
		"dead":   {"Queue.Dequeue", "Queue.Enqueue", "Typed.Enqueue", "Queue.Reschedule", "Queue.Get", "Queue.Peek", "Queue.List"},
		"leased": {"Queue.Enqueue", "Queue.EnqueueBatch", "Queues.EnqueueBatch", "Typed.Enqueue", "Typed.EnqueueBatch", "Queue.All", "Queue.Revive", "Queue.Drop", "Queue.Get", "Queue.Peek"},
	}[which]...)
}

// A key of another type is an error, and nothing is written.
func TestQueue_ReportsKeysOfAnotherType(t *testing.T) {
	for which, form := range map[string]string{"queue": "%s", "tasks": "{%s}:tasks", "state": "{%s}:state", "dead": "{%s}:dead", "leased": "{%s}:leased"} {
		t.Run(which, func(t *testing.T) {
			systest.Each(t, func(t *testing.T, s *redistest.Server) {
				ctx, rdb := t.Context(), s.Client(t)
				for _, op := range operations.OfQueues() {
					if op.Lost == operations.GoesOn {
						continue
					}
					f := operations.New(t, rdb)
					op.Prepare(t, f)
					key := strings.ReplaceAll(form, "%s", "Queue:"+f.Name)
					require.NoError(t, rdb.Del(ctx, key).Err())
					require.NoError(t, rdb.Set(ctx, key, "foreign", 0).Err())
					before := operations.State(t, rdb, f.Name)
					_, err := op.Call(ctx, f)
					if slices.Contains(untouched(which), op.Name) {
						require.NoError(t, err, op.Name)
						continue
					}
					require.ErrorIs(t, err, sluice.ErrCorrupt, "%s; one that does not read this key is untouched", op.Name)
					operations.Same(t, before, operations.State(t, rdb, f.Name), "%s left something half-written", op.Name)
				}
			})
		})
	}
}

// PHP producers know nothing of dead letters, and enqueue one again with a plain ZADD.
// It starts anew, and is no dead letter any more.
func TestQueue_DeadLetterPutBackStartsAnew(t *testing.T) {
	for name, end := range map[string]func(b systest.QueueTest){
		"enqueue": func(b systest.QueueTest) { b.Enqueue(sluice.OutcomeUpdated, sluice.Task{ID: "a"}) },
		"claim":   func(b systest.QueueTest) { require.Equal(b, 1, b.ClaimOne(time.Minute).Attempt) },
		"dequeue": func(b systest.QueueTest) { require.NoError(b, b.Q.Dequeue(b.Context(), b.Get("a").Entry)) },
		"retry":   func(b systest.QueueTest) { require.NoError(b, b.Q.Retry(b.Context(), 0, "failed", b.Get("a").Entry)) },
	} {
		t.Run(name, func(t *testing.T) {
			systest.EachQueue(t, func(b systest.QueueTest) {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
				require.NoError(b, b.Q.Retry(b.Context(), 0, "failed", b.ClaimOne(time.Minute)))
				require.Empty(b, b.Claim(1, time.Minute))
				require.Equal(b, int64(1), b.Stats().Dead)
				require.NoError(b, b.RDB.ZAdd(b.Context(), b.Key, redis.Z{Score: 1, Member: "a"}).Err())
				end(b)
				require.Zero(b, b.Stats().Dead)
			}, sluice.WithMaxAttempts(1))
		})
	}
}

// Dead letters that the library has not written are listed as they are, and can be
// revived and finished.
func TestQueue_ShowsHostileDeadLettersAsTheyAre(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		tasks, states, dead := "{"+b.Key+"}:tasks", "{"+b.Key+"}:state", "{"+b.Key+"}:dead"
		for id, field := range map[string]string{"garbage": "garbage", "live": "3::", "short": "1:dead", "many": "999999999999999999999:dead:r"} {
			require.NoError(b, b.RDB.HSet(ctx, states, id, field).Err())
			require.NoError(b, b.RDB.HSet(ctx, tasks, id, "payload").Err())
			require.NoError(b, b.RDB.ZAdd(ctx, dead, redis.Z{Score: 1, Member: id}).Err())
		}
		for _, score := range []string{"-inf", "+inf", "-5"} {
			require.NoError(b, b.RDB.Do(ctx, "ZADD", dead, score, score).Err())
		}
		letters := b.Dead(100)
		require.Len(b, letters, 7)
		all := []string{}
		for _, letter := range letters {
			all = append(all, letter.ID)
			require.Equal(b, "malformed", letter.Reason)
			switch letter.ID {
			case "garbage", "live", "short", "many":
				require.Equal(b, "payload", string(letter.Payload), "it is kept")
			}
		}
		b.Revive(7, all...)
		claimed := b.Claim(100, time.Minute)
		require.Len(b, claimed, 7)
		require.NoError(b, b.Q.Dequeue(ctx, claimed...))
		b.RequireClean()

		// A field that is not ours does not keep its task from being buried.
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
		require.NoError(b, b.RDB.HSet(ctx, states, "a", "garbage").Err())
		b.Bury(sluice.Entry{ID: "a", Score: b.RDB.ZScore(ctx, b.Key, "a").Val()}, "poison")
		require.Equal(b, "p", string(b.Dead(1)[0].Payload))
		require.Equal(b, "poison", b.Dead(1)[0].Reason)
	})
}

// PHP producers enqueue a dead letter again with a plain ZADD.
func TestQueue_DeadLetterPutBackIsNotListed(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a", Payload: []byte("p")})
		b.Bury(b.ClaimOne(time.Minute), "why")
		require.NoError(b, b.RDB.ZAdd(b.Context(), b.Key, redis.Z{Score: 1, Member: "a"}).Err())
		require.Empty(b, b.Dead(10))
		b.Revive(0, "a")
		require.Equal(b, 1.0, b.Get("a").Score, "it has a time of its own")
		require.Zero(b, b.Get("a").Attempt, "Get shows that it starts anew")
		e := b.ClaimOne(time.Minute)
		require.Equal(b, 1, e.Attempt)
		require.NoError(b, b.Q.Dequeue(b.Context(), e))
		b.RequireClean()
	})
}

// A worker buries tasks with fields that the library has not written, also when a field
// is overwritten while a handler runs.
func TestWorker_SetsPoisonAside(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, states := b.Context(), "{"+b.Key+"}:state"
		require.NoError(b, b.RDB.ZAdd(ctx, b.Key, redis.Z{Score: 1, Member: "poison"}, redis.Z{Score: 1, Member: ""}).Err())
		require.NoError(b, b.RDB.HSet(ctx, states, "poison", "garbage").Err())
		require.NoError(b, b.RDB.Do(ctx, "ZADD", b.Key, "-inf", "-inf").Err())
		for _, id := range []string{"retried", "finished", "good"} {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id})
		}
		w := &sluice.Worker{Queue: b.Q, Backoff: systest.After(0), Handler: func(_ context.Context, e sluice.Entry) error {
			if e.ID != "good" {
				require.NoError(b, b.RDB.HSet(ctx, states, e.ID, "garbage").Err())
			}
			if e.ID == "retried" {
				return errors.New("again")
			}
			return nil
		}}
		stop := systest.StartWorker(b.T, w)
		b.RequireDrained()
		require.NoError(b, stop())
		require.Equal(b, sluice.WorkerStats{Done: 2, Buried: 1}, w.Stats())
		require.Len(b, b.Dead(10), 4)
	})
}

func TestLocker_ReportsAKeyOfAnotherType(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, name := t.Context(), s.Client(t), redistest.Name(t)
		l := systest.NewLocker(t, rdb)
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
