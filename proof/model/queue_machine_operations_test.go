package model_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/proof/model"
)

func (m *queueMachine) claim(t *rapid.T) {
	now := m.begin()
	n, lease := few.Draw(t, "n"), m.lease(t)
	b := m.bounds(t) // an unaware queue would claim twice: the second time it is not unaware any more
	q := m.newQueue(false, sluice.WithDeadLimit(b.limit), sluice.WithDeadAge(b.age))
	m.note(now)
	buried := m.model.Buried
	claimed, err := q.Claim(context.Background(), n, lease)
	next := m.nexts("claim")
	want := m.model.Claim(now, n, decimal(micros(lease)), m.maxAttempts)
	next()
	m.trimBehind("claim", now, b, buried)
	if errors.Is(err, sluice.ErrLost) { // this machine was slower than the lease
		m.awaitRelease(t, want)
		require.Empty(t, m.model.Release(now, want...))
		m.adoptLost(t, len(want))
		m.counts.add("claim: too late")
		want, err = nil, nil
	}
	require.NoError(t, err)
	m.same(t, want, claimed)
	m.handedOut(t, n, len(claimed))
	m.counts.add("claim: " + either(len(claimed) > 0, "some", "none"))
	m.end(t)
}

// awaitRelease waits until the tasks of a claim that has outlasted its lease are given back,
// which the library does in the background.
func (m *queueMachine) awaitRelease(t *rapid.T, es []sluice.Entry) {
	require.Eventually(t, func() bool {
		held := readQueue(t, m.rdb, m.key)
		return !slices.ContainsFunc(es, func(e sluice.Entry) bool { return held.Item(e.ID).Lease != 0 })
	}, time.Minute, time.Millisecond)
}

// note counts the special cases among the tasks that a claim will find.
func (m *queueMachine) note(now float64) {
	if m.model.IsPaused(now) {
		return
	}
	for _, it := range m.model.Items {
		if !it.Queued || it.Score > now {
			continue
		}
		if it.Lease > now {
			m.counts.add("moved during a lease")
		} else if it.Lease != 0 && it.Lease == it.Score && it.Lease == it.Token && !it.Waiting {
			m.counts.add("delivery not counted")
		} else if it.Waiting {
			m.counts.add("version taken over")
		}
		if m.maxAttempts > 0 && it.Attempt >= m.maxAttempts && !it.Buried {
			m.counts.add("attempts used up")
		} else if it.Buried {
			m.counts.add("put back by a foreign producer")
		}
	}
}

func (m *queueMachine) pop(t *rapid.T) {
	now, n := m.begin(), few.Draw(t, "n")
	popped, err := m.queues[0].Pop(context.Background(), n)
	require.NoError(t, err)
	sold, next := m.sold(), m.nexts("pop")
	m.same(t, m.model.Pop(now, n), popped)
	next()
	if m.sold() > sold {
		m.counts.add("sold by a pop")
	}
	m.handedOut(t, n, len(popped))
	m.counts.add("pop: " + either(len(popped) > 0, "some", "none"))
	m.end(t)
}

func (m *queueMachine) peek(t *rapid.T) {
	now, n := m.begin(), few.Draw(t, "n")
	seen, err := m.queues[0].Peek(context.Background(), n)
	require.NoError(t, err)
	m.same(t, m.model.Peek(now, n), seen)
	m.counts.add("peek: " + either(len(seen) > 0, "some", "none"))
	m.end(t)
}

func (m *queueMachine) dead(t *rapid.T) {
	m.begin()
	n := few.Draw(t, "n")
	most, options := m.payloads(t)
	var after sluice.TaskInfo
	for page, left := n, true; left; { // all pages
		letters, err := m.queues[0].List(context.Background(), sluice.StateDead, after, page, options...)
		require.NoError(t, err)
		require.Equal(t, model.LeaveOut(m.model.Dead(after, page), most), letters)
		if left = len(letters) == page; left {
			after = letters[page-1]
		}
	}
	letters := m.model.Dead(sluice.TaskInfo{}, n)
	m.counts.add("dead: " + either(len(letters) > 0, "some", "none"))
	m.end(t)
}

// payloads draws which payloads are read: those of up to so many bytes, or all if it is negative.
func (m *queueMachine) payloads(t *rapid.T) (most int, options []sluice.ReadOption) {
	most = rapid.SampledFrom([]int{-1, 0, 1, 2, 3}).Draw(t, "payloads up to")
	switch {
	case most == 0:
		m.counts.add("payloads: none")
		return most, []sluice.ReadOption{sluice.WithoutPayloads()}
	case most > 0:
		m.counts.add("payloads: small")
		return most, []sluice.ReadOption{sluice.WithPayloadsUpTo(most)}
	}
	return most, nil
}

// list walks through all tasks in a state, in pages.
func (m *queueMachine) list(t *rapid.T) {
	now := m.begin()
	last := sluice.StateDone
	if m.grouped {
		last = sluice.StateWaiting
	}
	n, s := few.Draw(t, "n"), sluice.State(rapid.IntRange(int(sluice.StateScheduled), int(last)).Draw(t, "state"))
	most, options := m.payloads(t)
	want := model.LeaveOut(m.model.List(now, s, sluice.TaskInfo{}, 100), most)
	var all []sluice.TaskInfo
	for left := true; left; {
		var after sluice.TaskInfo
		if len(all) > 0 {
			after = all[len(all)-1]
		}
		page, err := m.queues[0].List(context.Background(), s, after, n, options...)
		require.NoError(t, err)
		all, left = append(all, page...), len(page) == n
		require.LessOrEqual(t, len(all), len(want), "%+v\nmodel: %+v", all, want)
	}
	require.Equal(t, want, all)
	all = nil
	for task, err := range m.queues[0].All(context.Background(), s, options...) {
		require.NoError(t, err)
		all = append(all, task)
	}
	require.Equal(t, model.LeaveOut(m.model.All(now, s), most), all)
	if len(all) > len(want) {
		m.counts.add("list: behind an ended lease")
	}
	if len(all) > 0 {
		m.counts.add("list: " + s.String())
	}
	m.end(t)
}

func (m *queueMachine) revive(t *rapid.T) {
	now, ids := m.begin(), m.someIDs(t)
	revived, err := m.queues[0].Revive(context.Background(), ids...)
	require.NoError(t, err)
	holding := m.count(func(it model.Item) bool { return it.Listed && it.Take.Units > 0 })
	next, waiting := m.nexts("revive"), len(m.model.Awaiting)
	require.Equal(t, m.model.Revive(now, ids...), revived)
	next()
	if len(m.model.Awaiting) > waiting {
		m.counts.add("revive: waits")
	}
	if m.count(func(it model.Item) bool { return it.Listed && it.Take.Units > 0 }) < holding {
		m.counts.add("revived with units")
	}
	m.counts.add("revive: " + either(revived > 0, "some", "none"))
	m.end(t)
}

func (m *queueMachine) reschedule(t *rapid.T) {
	now, id, delay := m.begin(), m.anID(t), m.delay(t)
	found, err := m.queues[0].Reschedule(context.Background(), id, delay)
	require.NoError(t, err)
	if m.stateOf(now, id) == sluice.StateWaiting {
		m.counts.add("reschedule: waiting")
	}
	next := m.nexts("reschedule")
	require.Equal(t, m.model.Reschedule(now, id, decimal(micros(delay))), found)
	next()
	m.counts.add("reschedule: " + either(found, "done", "none"))
	m.end(t)
}

func (m *queueMachine) get(t *rapid.T) {
	now, id := m.begin(), m.anID(t)
	most, options := m.payloads(t)
	e, err := m.queues[0].Get(context.Background(), id, options...)
	want, ok := m.model.Get(now, id)
	if ok {
		require.NoError(t, err)
		want = model.LeaveOut([]sluice.TaskInfo{want}, most)[0]
		ended := m.clock.end()
		m.near(t, ended, want.Score, e.Score)
		m.near(t, ended, store.ScoreOf(want.LeaseEnds), store.ScoreOf(e.LeaseEnds))
		want.Score, want.LeaseEnds = e.Score, e.LeaseEnds
		require.Equal(t, want, e)
		if e.State != sluice.StateLeased { // whose receipt is its holder's
			m.receipts, m.read = append(m.receipts, e.Entry), append(m.read, e)
		}
	} else {
		require.ErrorIs(t, err, sluice.ErrNotFound)
	}
	m.counts.add("get: " + either(ok, either(e.State == sluice.StateDone, "done", either(e.State == sluice.StateWaiting, "waiting", "found")), "not found"))
	m.end(t)
}

func (m *queueMachine) stats(t *rapid.T) {
	now := m.begin()
	is, err := m.queues[0].Stats(context.Background())
	require.NoError(t, err)
	want := m.model.Stats(now)
	want.Waiting, want.WorkerSeen = is.Waiting, is.WorkerSeen // hints, which the model has not
	m.pauseEnds(t, want.Paused, is.PausedUntil)
	want.PausedUntil = is.PausedUntil
	if want.Due > 0 {
		m.near(t, m.clock.end(), want.Lateness.Seconds(), is.Lateness.Seconds())
		want.Lateness = is.Lateness
	}
	require.Equal(t, want, is)
	m.counts.add("stats")
	m.end(t)
}

// bounds are a queue's limits on its dead letters; 0 for none.
type bounds struct {
	limit   int
	age     time.Duration
	unaware bool // it does not know that tasks hold units
}

// bounds draws limits, perhaps none.
func (m *queueMachine) bounds(t *rapid.T) bounds {
	limit := rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(t, "dead limit")
	age := rapid.SampledFrom([]time.Duration{0, 0, time.Second, time.Hour}).Draw(t, "dead age")
	if _, isReal := m.clock.(*realClock); isReal && age == time.Second {
		age = 0 // it may be over between the model's time and the server's
	}
	return bounds{limit: limit, age: age}
}

// limited returns a queue with limits that were drawn.
func (m *queueMachine) limited(t *rapid.T) (*sluice.Queue, bounds) {
	b := m.bounds(t)
	b.unaware = rapid.Bool().Draw(t, "unaware")
	q := m.newQueue(b.unaware, sluice.WithDeadLimit(b.limit), sluice.WithDeadAge(b.age))
	return q, b
}

// trim drops what is too much from the model, and reports whether there was any.
func (m *queueMachine) trim(now float64, b bounds) bool {
	before, gone := m.model.Trimmed, m.count(isGone)
	m.model.Trim(now, b.limit, decimal(micros(b.age)), b.unaware)
	if m.count(isGone) > gone {
		m.counts.add("trimmed unaware")
	}
	return m.model.Trimmed > before
}

// trimBehind is trim, behind what may have buried: buried is how many were before it.
func (m *queueMachine) trimBehind(op string, now float64, b bounds, buried int64) {
	if m.model.Buried > buried && m.trim(now, b) {
		m.counts.add("trimmed by a " + op)
	}
}

// presence runs the script with which a Worker says that it has ended.
func (m *queueMachine) presence(t *rapid.T) {
	b, age := m.bounds(t), rapid.SampledFrom(append([]time.Duration{0, 0}, m.retentions...)).Draw(t, "retention")
	options := store.QueueOptions{DeadLimit: b.limit, DeadAge: b.age, Retention: age}
	q := store.NewQueue(store.Load(os.DirFS("../../lua")), m.key, options)
	now := m.begin()
	reply := redisexec.New(m.rdb).Once(context.Background(), q.Presence(45, "", nil))
	require.NoError(t, reply.Err)
	require.Zero(t, reply.Value, "nothing is left to be dropped")
	m.counts.add("trimmed by a presence: " + either(m.trim(now, b), "some", "none"))
	if age > 0 {
		m.model.Retention = decimal(micros(age))
		if m.model.Forget(now, m.model.Retention) > 0 {
			m.counts.add("forgotten by a presence")
		}
	}
	m.sweep()
	next := m.nexts("presence")
	m.model.SweepGroups()
	next()
	m.end(t)
}

// drop removes dead letters by their IDs, which does not count as dropped by a limit.
func (m *queueMachine) drop(t *rapid.T) {
	m.begin()
	ids := rapid.SliceOfN(m.someID, 0, 4).Draw(t, "ids")
	removed, err := m.queues[0].Drop(context.Background(), ids...)
	require.NoError(t, err)
	m.putsBack("dropped with units", func() { require.Equal(t, m.model.Drop(ids...), removed) })
	m.counts.add("drop: " + either(removed > 0, "some", "none"))
	m.end(t)
}

func (m *queueMachine) purge(t *rapid.T) {
	if rapid.IntRange(0, 7).Draw(t, "really") != 1 {
		t.Skip("too destructive to do it often")
	}
	m.begin()
	require.NoError(t, m.queues[0].Purge(context.Background()))
	m.putsBack("purged with units", m.model.Purge)
	m.counts.add("purge")
	m.end(t)
}

// endLease ends a lease that was extended before, as if that time had come.
func (m *queueMachine) endLease(t *rapid.T) {
	now, ctx := m.begin(), context.Background()
	for i := range m.model.Items {
		it := &m.model.Items[i]
		if !it.Queued || it.Buried || it.Lease != it.Score || it.Lease <= now {
			continue
		}
		it.Lease, it.Score = math.Floor(now-60), math.Floor(now-60)
		holds, field := cutHolds(m.rdb.HGet(ctx, "{"+m.key+"}:state", it.ID).Val())
		parts := strings.SplitN(field, ":", 3)
		require.Len(t, parts, 3)
		field = fmt.Sprintf("%s%s:%.0f/%.17g:%s", holds, parts[0], it.Lease, it.Token, parts[2])
		require.NoError(t, m.rdb.HSet(ctx, "{"+m.key+"}:state", it.ID, field).Err())
		require.NoError(t, m.rdb.ZAdd(ctx, m.key, redis.Z{Score: it.Score, Member: it.ID}).Err())
		require.NoError(t, m.rdb.ZAdd(ctx, "{"+m.key+"}:leased", redis.Z{Score: it.Lease, Member: it.ID}).Err())
		m.counts.add("lease ended")
		break
	}
	m.end(t)
}

// foreignAdd adds a task as a producer that writes only the sorted set.
func (m *queueMachine) foreignAdd(t *rapid.T) {
	now, id := m.begin(), m.foreignID(t)
	score := now + rapid.SampledFrom(m.clock.offsets()).Draw(t, "offset").Seconds()
	if rapid.IntRange(0, 7).Draw(t, "odd") == 1 {
		score = rapid.SampledFrom([]float64{0, -5.25, math.Floor(now - 1), 1.5e-7}).Draw(t, "score")
	}
	require.NoError(t, m.rdb.ZAdd(context.Background(), m.key, redis.Z{Score: score, Member: id}).Err())
	if m.stateOf(now, id) == sluice.StateWaiting {
		m.counts.add("foreign add: waiting")
	}
	m.model.ForeignAdd(id, score)
	m.counts.add("foreign add")
	m.end(t)
}

func (m *queueMachine) foreignRemove(t *rapid.T) {
	m.begin()
	id := m.foreignID(t)
	require.NoError(t, m.rdb.ZRem(context.Background(), m.key, id).Err())
	if it := m.model.Item(id); it.Queued && it.Group != "" {
		m.counts.add("foreign remove: in play")
	}
	m.model.ForeignRemove(id)
	m.counts.add("foreign remove")
	m.end(t)
}

// laterVersion writes the fourth part of a task's state field.
func (m *queueMachine) laterVersion(t *rapid.T) {
	m.begin()
	id, note, states := m.anID(t), rapid.SampledFrom([]string{"x", "1e5", "w=7/+3", strings.Repeat("~", 128)}).Draw(t, "note"), "{"+m.key+"}:state"
	if m.model.LaterVersion(id, note) {
		holds, field := cutHolds(m.rdb.HGet(context.Background(), states, id).Val())
		parts := append(strings.Split(field, ":"), "", "", "")
		require.NoError(t, m.rdb.HSet(context.Background(), states, id, holds+strings.Join(append(parts[:3], note), ":")).Err())
		m.counts.add("noted")
	}
	m.end(t)
}

func (m *queueMachine) advance(t *rapid.T) {
	m.clock.advance(t, m.model)
	m.counts.add("advance")
}

// invalid makes calls that fail before anything is sent.
func (m *queueMachine) invalid(t *rapid.T) {
	m.begin()
	q, ctx, e := m.queues[0], context.Background(), sluice.Entry{ID: "a", Score: 1}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	id := m.someID.Draw(t, "id")
	call := rapid.SampledFrom([]func() (error, error){
		func() (error, error) { _, err := q.Enqueue(ctx, sluice.Task{}); return err, sluice.ErrInvalid },
		func() (error, error) {
			_, err := q.EnqueueBatch(ctx, []sluice.Task{{ID: id}, {ID: ""}})
			return err, sluice.ErrInvalid
		},
		func() (error, error) {
			_, err := q.Enqueue(ctx, sluice.Task{ID: id, Delay: 1, At: m.started})
			return err, sluice.ErrInvalid
		},
		func() (error, error) {
			_, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: make([]byte, 1<<20+1)})
			return err, sluice.ErrInvalid
		},
		func() (error, error) {
			_, err := q.Enqueue(ctx, sluice.Task{ID: id, Take: sluice.Take{Item: "x", Units: -1}})
			return err, sluice.ErrInvalid
		},
		func() (error, error) { return q.SetStock(ctx, "x", -1), sluice.ErrInvalid },
		func() (error, error) { return q.DeleteStock(ctx, ""), sluice.ErrInvalid },
		func() (error, error) { _, err := q.Claim(ctx, 0, time.Hour); return err, sluice.ErrInvalid },
		func() (error, error) { _, err := q.Claim(ctx, 1, time.Microsecond); return err, sluice.ErrInvalid },
		func() (error, error) { _, err := q.Pop(ctx, 0); return err, sluice.ErrInvalid },
		func() (error, error) { return q.Dequeue(ctx, e, sluice.Entry{}), sluice.ErrInvalid },
		func() (error, error) { return q.Dequeue(ctx, e, sluice.Entry{ID: id, Attempt: 1}), sluice.ErrInvalid },
		func() (error, error) { return q.Retry(ctx, math.MaxInt64, "", e), sluice.ErrInvalid },
		func() (error, error) { _, err := q.Cancel(ctx, ""); return err, sluice.ErrInvalid },
		func() (error, error) { _, err := q.Revive(ctx, id, ""); return err, sluice.ErrInvalid },
		func() (error, error) { _, err := q.Enqueue(ended, sluice.Task{ID: id}); return err, context.Canceled },
		func() (error, error) { _, err := q.Claim(ended, 1, time.Hour); return err, context.Canceled },
		func() (error, error) { return q.Purge(ended), context.Canceled },
		func() (error, error) { _, err := q.Cancel(ended, id); return err, context.Canceled },
	}).Draw(t, "call")
	err, want := call()
	require.ErrorIs(t, err, want)
	require.NotErrorIs(t, err, sluice.ErrUnknown)
	m.counts.add(either(errors.Is(want, sluice.ErrInvalid), "invalid", "ended context"))
	m.end(t)
}
