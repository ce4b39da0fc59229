package sluice_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

func (b bundle) dead(n int) []sluice.DeadEntry {
	b.Helper()
	letters, err := b.q.Dead(b.Context(), n)
	require.NoError(b, err)
	return letters
}

func (b bundle) revive(want int, ids ...string) {
	b.Helper()
	n, err := b.q.Revive(b.Context(), ids...)
	require.NoError(b, err)
	require.Equal(b, want, n)
}

func (b bundle) bury(e sluice.Entry, reason string) {
	b.Helper()
	require.NoError(b, b.q.Bury(b.Context(), e, reason))
}

func TestBuryDeadRevive(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		require.Empty(b, b.dead(10))
		for i, payload := range []string{"x\x00:y", ""} {
			b.enqueue(sluice.Added, sluice.Task{ID: fmt.Sprint(i), Payload: []byte(payload)})
			e := b.claimOne(time.Minute)
			b.bury(e, "no:such\x00order")
			require.ErrorIs(b, b.q.Bury(ctx, e, "again"), sluice.ErrStale)
			require.ErrorIs(b, b.q.Dequeue(ctx, e), sluice.ErrStale)
		}
		letters := b.dead(10)
		require.Len(b, letters, 2)
		require.Equal(b, b.dead(1), letters[:1])
		for i, letter := range letters {
			require.Equal(b, fmt.Sprint(i), letter.ID, "who died first comes first")
			require.Equal(b, "no:such\x00order", letter.Reason)
			require.Equal(b, 1, letter.Attempt)
			require.WithinDuration(b, time.Now(), letter.Time, time.Minute)
		}
		require.Equal(b, "x\x00:y", string(letters[0].Payload))
		require.Empty(b, letters[1].Payload)
		require.Equal(b, sluice.Stats{Dead: 2}, b.stats())
		require.Empty(b, b.claim(10, time.Minute), "a dead letter was handed out")

		b.revive(1, "0", "nobody", "0")
		b.revive(0, "0")
		b.revive(0)
		e := b.claimOne(time.Minute)
		require.Equal(b, "x\x00:y", string(e.Payload))
		require.Equal(b, 1, e.Attempt, "it starts anew")
		require.NoError(b, b.q.Dequeue(ctx, e))
		b.revive(1, "1")
		require.NoError(b, b.q.Dequeue(ctx, b.claimOne(time.Minute)))
		b.requireClean()

		// One that was never claimed can be buried too, and cancelled then.
		b.enqueue(sluice.Added, sluice.Task{ID: "peeked"})
		peeked, err := b.q.Peek(ctx, 1)
		require.NoError(b, err)
		b.bury(peeked[0], "")
		require.Equal(b, "", b.dead(1)[0].Reason)
		found, err := b.q.Cancel(ctx, "peeked")
		require.NoError(b, err)
		require.True(b, found)
		b.requireClean()
	})
}

func TestReasonIsCut(t *testing.T) {
	eachQueue(t, func(b bundle) {
		for reason, want := range map[string]string{
			strings.Repeat("x", 512):             strings.Repeat("x", 512),
			strings.Repeat("x", 513):             strings.Repeat("x", 512),
			strings.Repeat("x", 511) + "é":       strings.Repeat("x", 511),
			strings.Repeat("x", 510) + "日本":      strings.Repeat("x", 510),
			strings.Repeat("\x80", 600):          strings.Repeat("\x80", 512),
			"é" + strings.Repeat("x", 510) + "x": "é" + strings.Repeat("x", 510),
		} {
			b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("payload")})
			b.bury(b.claimOne(time.Minute), reason)
			letter := b.dead(1)[0]
			require.Equal(b, want, letter.Reason)
			require.Equal(b, "payload", string(letter.Payload))
		}
	})
}

// TestBuryADeferred: the new version takes over at its own time.
func TestBuryADeferred(t *testing.T) {
	eachQueue(t, func(b bundle) {
		for _, delay := range []time.Duration{0, time.Hour} {
			b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("v1")})
			e := b.claimOne(time.Minute)
			b.enqueue(sluice.Deferred, sluice.Task{ID: "a", Payload: []byte("v2"), Delay: delay})
			b.bury(e, "hopeless")
			require.Empty(b, b.dead(1))
			next := b.get("a")
			require.Equal(b, "v2", string(next.Payload))
			require.Zero(b, next.Attempt)
			require.InDelta(b, delay.Seconds(), next.Score-e.Score+60, 10)
			require.Len(b, b.claim(1, time.Minute), map[bool]int{true: 1}[delay == 0], "its own time")
			require.NoError(b, b.q.Purge(b.Context()))
		}
	})
}

// TestDeadPages: any number of letters is listed and revived, in steps.
func TestDeadPages(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx, want := b.Context(), []string{}
		pipe := b.rdb.Pipeline()
		for i := range 1203 {
			id := fmt.Sprint(5000 - i)
			want = append(want, id)
			pipe.ZAdd(ctx, "{"+b.key+"}:dead", redis.Z{Score: float64(i), Member: id})
			pipe.HSet(ctx, "{"+b.key+"}:tasks", id, "7:dead:3:whyp")
		}
		_, err := pipe.Exec(ctx)
		require.NoError(b, err)
		letters := b.dead(5000)
		require.Len(b, letters, len(want))
		for i, letter := range letters {
			require.Equal(b, sluice.DeadEntry{
				ID: want[i], Payload: []byte("p"), Reason: "why", Attempt: 7, Time: time.Unix(int64(i), 0),
			}, letter)
		}
		require.Len(b, b.dead(501), 501)
		b.revive(len(want), append(want, "nobody")...)
		require.Empty(b, b.dead(1))
		require.Len(b, b.claim(5000, time.Minute), len(want))
	})
}

// TestLargeDeadLetters: a step ends at a megabyte, and the next one goes on there.
func TestLargeDeadLetters(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		q := newQueue(t, rdb)
		var ids []string
		for i := range 12 {
			ids = append(ids, fmt.Sprint(i))
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: ids[i], Payload: make([]byte, 400_000)})
			require.NoError(t, err)
			es, err := q.Claim(t.Context(), 1, time.Minute)
			require.NoError(t, err)
			require.NoError(t, q.Bury(t.Context(), es[0], ""))
		}
		before := faults.Scripts()
		letters, err := q.Dead(t.Context(), 100)
		require.NoError(t, err)
		require.Len(t, letters, 12)
		require.GreaterOrEqual(t, faults.Scripts()-before, 4, "3 letters make more than a megabyte")
		before = faults.Scripts()
		n, err := q.Revive(t.Context(), ids...)
		require.NoError(t, err)
		require.Equal(t, 12, n)
		require.GreaterOrEqual(t, faults.Scripts()-before, 4)
	})
}

// TestHostileDeadLetters: what is not the library's is shown as it is, and can be
// buried, revived and got rid of.
func TestHostileDeadLetters(t *testing.T) {
	eachQueue(t, func(b bundle) {
		ctx := b.Context()
		tasks, dead := "{"+b.key+"}:tasks", "{"+b.key+"}:dead"
		hostile := map[string]string{"garbage": "garbage", "live": "3:::p", "deaf": "1:dead:x:", "long": "1:dead:999999999999999999999:r"}
		for id, field := range hostile {
			require.NoError(b, b.rdb.HSet(ctx, tasks, id, field).Err())
			require.NoError(b, b.rdb.ZAdd(ctx, dead, redis.Z{Score: 1, Member: id}).Err())
		}
		for _, score := range []string{"-inf", "+inf", "-5"} {
			require.NoError(b, b.rdb.Do(ctx, "ZADD", dead, score, score).Err())
		}
		letters := b.dead(100)
		require.Len(b, letters, 7)
		all := []string{}
		for _, letter := range letters {
			all = append(all, letter.ID)
			switch letter.ID {
			case "garbage", "deaf":
				require.Equal(b, hostile[letter.ID], string(letter.Payload), "what it was is kept")
				require.Equal(b, "malformed", letter.Reason)
			case "live":
				require.Equal(b, "p", string(letter.Payload))
			}
		}
		b.revive(7, all...)
		claimed := b.claim(100, time.Minute)
		require.Len(b, claimed, 7)
		require.NoError(b, b.q.Dequeue(ctx, claimed...))
		b.requireClean()

		// A field that is not ours does not keep its task from being buried.
		b.enqueue(sluice.Added, sluice.Task{ID: "a"})
		require.NoError(b, b.rdb.HSet(ctx, tasks, "a", "garbage").Err())
		b.bury(sluice.Entry{ID: "a", Score: b.rdb.ZScore(ctx, b.key, "a").Val()}, "poison")
		require.Equal(b, "garbage", string(b.dead(1)[0].Payload))
		require.Equal(b, "poison", b.dead(1)[0].Reason)
	})
}

// TestPutBackIsNotDead: PHP enqueues a dead letter again with a plain ZADD.
func TestPutBackIsNotDead(t *testing.T) {
	eachQueue(t, func(b bundle) {
		b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p")})
		b.bury(b.claimOne(time.Minute), "why")
		require.NoError(b, b.rdb.ZAdd(b.Context(), b.key, redis.Z{Score: 1, Member: "a"}).Err())
		require.Empty(b, b.dead(10))
		b.revive(0, "a")
		require.Equal(b, 1.0, b.get("a").Score, "it has a time of its own")
		require.Zero(b, b.get("a").Attempt, "it starts anew, for who looks at it too")
		e := b.claimOne(time.Minute)
		require.Equal(b, 1, e.Attempt)
		require.NoError(b, b.q.Dequeue(b.Context(), e))
		b.requireClean()
	})
}

// TestDeadAgain: to enqueue a dead letter's ID starts it anew, alone or in a batch.
func TestDeadAgain(t *testing.T) {
	eachQueue(t, func(b bundle) {
		for _, batch := range [][]sluice.Task{{{ID: "a"}}, {{ID: "a"}, {ID: "b"}}} {
			b.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p")})
			b.bury(b.claimOne(time.Minute), "hopeless")
			outcomes, err := b.q.EnqueueBatch(b.Context(), batch)
			require.NoError(b, err)
			require.Equal(b, sluice.Added, outcomes[0])
			require.Empty(b, b.dead(1))
			b.eventually(func() bool { return b.stats().Due == int64(len(batch)) })
			es := b.claim(10, time.Minute)
			require.Equal(b, "a", es[0].ID)
			require.Equal(b, 1, es[0].Attempt)
			require.Empty(b, es[0].Payload)
			require.NoError(b, b.q.Dequeue(b.Context(), es...))
			b.requireClean()
		}
	})
}

// TestNewHeadWakes: waiters are told of a task that is due before all others,
// whatever has put it there.
func TestNewHeadWakes(t *testing.T) {
	enqueue := func(tasks ...sluice.Task) func(b bundle) error {
		return func(b bundle) error {
			_, err := b.q.EnqueueBatch(b.Context(), tasks)
			return err
		}
	}
	payload := []byte("p")
	for name, put := range map[string]func(b bundle) error{
		"one":               enqueue(sluice.Task{ID: "a"}),
		"one with payload":  enqueue(sluice.Task{ID: "a", Payload: payload}),
		"one again":         enqueue(sluice.Task{ID: "later"}),
		"many":              enqueue(sluice.Task{ID: "x", Delay: time.Hour}, sluice.Task{ID: "a"}, sluice.Task{ID: "y", Delay: time.Hour}),
		"many with payload": enqueue(sluice.Task{ID: "x", Delay: time.Hour}, sluice.Task{ID: "a", Payload: payload}),
		"moved on at once":  enqueue(sluice.Task{ID: "a"}, sluice.Task{ID: "a", Delay: time.Second}),
		"rescheduled": func(b bundle) error {
			_, err := b.q.Reschedule(b.Context(), "later", 0)
			return err
		},
		"revived": func(b bundle) error {
			_, err := b.q.Revive(b.Context(), "dead")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachQueue(t, func(b bundle) {
				b.enqueue(sluice.Added, sluice.Task{ID: "dead"})
				b.bury(b.claimOne(time.Minute), "")
				b.enqueue(sluice.Added, sluice.Task{ID: "later", Delay: 30 * time.Minute})
				ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
				defer cancel()
				woken := make(chan error, 1)
				go func() { woken <- b.q.Wait(ctx) }()
				wake := "{" + b.key + "}:wake"
				b.eventually(func() bool { return b.rdb.PubSubNumSub(ctx, wake).Val()[wake] == 1 })
				require.NoError(b, put(b))
				require.NoError(b, <-woken)
			}, sluice.WithPollInterval(time.Minute))
		})
	}
}
