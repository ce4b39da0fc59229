package model_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/proof/model"
)

// queueResults are what a run has to have seen.
var queueResults = strings.Split(`advance; bury: done; bury: stale; cancel: done; cancel: none; claim: none; claim: some;
dead: none; dead: some; dequeue: done; dequeue: stale; enqueue: added; enqueue: deferred; enqueue: kept; enqueue: updated;
enqueue batch; extend: done; extend: stale; foreign add; foreign remove; get: found; get: not found; invalid; peek: none;
peek: some; pop: none; pop: some; purge; release: done; release: stale; reschedule: done; reschedule: none; retry: done;
retry: stale; revive: none; revive: some; stats; version taken over; attempts used up; put back by a foreigner; ended context`, ";")

// TestQueueMachineVirtual does it on a miniredis whose clock the test sets: leases and
// delays run out at drawn moments, and scores are compared to the last bit.
func TestQueueMachineVirtual(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	t.Cleanup(func() { _ = rdb.Close() })
	c := &virtualClock{server: m}
	c.set(time.Date(2026, 5, 6, 7, 8, 9, 123457000, time.UTC))
	runQueueMachine(t, rdb, c)
}

// TestQueueMachineReal does it on a real server. What it schedules has come when
// the next operation begins, or is hours off.
func TestQueueMachineReal(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	runQueueMachine(t, rdb, &realClock{rdb: rdb})
}

func runQueueMachine(t *testing.T, rdb redis.UniversalClient, c clock) {
	name := redistest.Name(t)
	var counts tally
	rapid.Check(t, func(rt *rapid.T) {
		m := newQueueMachine(rt, rdb, name, c, &counts)
		rt.Repeat(map[string]func(*rapid.T){
			"Enqueue": m.enqueue, "Enqueue2": m.enqueue, "Enqueue3": m.enqueue, "EnqueueBatch": m.enqueueBatch,
			"Claim": m.claim, "Claim2": m.claim, "Claim3": m.claim, "Claim4": m.claim, "Pop": m.pop, "Peek": m.peek,
			"Dequeue": m.dequeue, "Extend": m.extend, "Retry": m.retry, "Release": m.release, "Bury": m.bury,
			"Dead": m.dead, "Revive": m.revive, "Cancel": m.cancel, "Reschedule": m.reschedule,
			"Get": m.get, "Stats": m.stats, "Purge": m.purge,
			"ForeignAdd": m.foreignAdd, "ForeignRemove": m.foreignRemove,
			"Advance": m.advance, "Invalid": m.invalid,
		})
	})
	wanted := make([]string, len(queueResults))
	for i, what := range queueResults {
		wanted[i] = strings.TrimSpace(what)
	}
	counts.report(t, wanted)
}

// clock is the server's.
type clock interface {
	// begin returns the time at which an operation begins, when no score of the
	// model lies just ahead.
	begin(q *model.Queue) time.Time
	// end returns the time at which it ended.
	end() time.Time
	// spans are the delays and leases that are drawn, offsets the distances of
	// due times from now.
	spans() []time.Duration
	offsets() []time.Duration
	// advance lets time pass.
	advance(t *rapid.T, q *model.Queue)
}

type virtualClock struct {
	server *miniredis.Miniredis
	now    time.Time
}

func (c *virtualClock) begin(*model.Queue) time.Time { return c.now }

func (c *virtualClock) set(now time.Time) {
	c.now = now
	c.server.SetTime(now)
}

func (c *virtualClock) end() time.Time { return c.now }

func (*virtualClock) spans() []time.Duration {
	return []time.Duration{0, 1, time.Microsecond, time.Millisecond, 1500 * time.Microsecond, time.Second, time.Hour}
}

func (*virtualClock) offsets() []time.Duration {
	return []time.Duration{-time.Hour, -time.Microsecond, 0, 1, time.Microsecond, time.Millisecond, time.Second, time.Hour}
}

// advance goes some way, or to where a score is, or next to it.
func (c *virtualClock) advance(t *rapid.T, q *model.Queue) {
	ahead := []time.Duration{time.Microsecond, time.Millisecond, time.Second, 2 * time.Hour}
	for _, it := range q.Items {
		if at := (sluice.Entry{Score: it.Score}).Time(); at.After(c.now) {
			ahead = append(ahead, at.Sub(c.now)-time.Microsecond, at.Sub(c.now), at.Sub(c.now)+time.Microsecond)
		}
	}
	c.set(c.now.Add(rapid.SampledFrom(ahead).Draw(t, "by")))
}

type realClock struct{ rdb redis.UniversalClient }

// begin waits for the scores that are a millisecond off.
func (c *realClock) begin(q *model.Queue) time.Time {
	for {
		now, wait := c.end(), false
		soon := func(score float64) bool {
			off := score - seconds(now)
			return off >= 0 && off < 60
		}
		for _, it := range q.Items {
			wait = wait || it.Queued && soon(it.Score) || it.Waiting && soon(it.Due)
		}
		if !wait {
			return now
		}
		time.Sleep(300 * time.Microsecond) // the server's time is real
	}
}

func (c *realClock) end() time.Time {
	now, err := c.rdb.Time(context.Background()).Result()
	if err != nil {
		panic(err)
	}
	return now
}

func (*realClock) spans() []time.Duration {
	return []time.Duration{0, time.Millisecond, time.Hour, 90 * time.Minute}
}

func (*realClock) offsets() []time.Duration {
	return []time.Duration{-time.Hour, -time.Second - time.Microsecond, -time.Second - 1, -time.Millisecond, 61 * time.Minute, 100 * time.Minute}
}

func (*realClock) advance(*rapid.T, *model.Queue) {}

// queueMachine makes an operation on the queue and on the model, and compares.
type queueMachine struct {
	rdb      redis.UniversalClient
	key      string
	queues   [4]*sluice.Queue // by duplicate policy
	most     int              // attempts
	clock    clock
	model    *model.Queue
	receipts []sluice.Entry // all that were ever seen
	counts   *tally
	started  time.Time // of the operation that is under way
}

func newQueueMachine(t *rapid.T, rdb redis.UniversalClient, name string, c clock, counts *tally) *queueMachine {
	m := &queueMachine{rdb: rdb, key: "Queue:" + name, clock: c, model: &model.Queue{}, counts: counts,
		most: rapid.SampledFrom([]int{0, 1, 2, 25}).Draw(t, "most attempts")}
	for policy := range m.queues {
		var err error
		m.queues[policy], err = sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(m.most),
			sluice.WithDuplicates(sluice.Duplicates(policy)), sluice.WithMaxPayload(1000))
		require.NoError(t, err)
	}
	require.NoError(t, rdb.Del(context.Background(), m.key, "{"+m.key+"}:tasks", "{"+m.key+"}:dead").Err())
	return m
}

// begin is the time to give to the model.
func (m *queueMachine) begin() float64 {
	m.started = m.clock.begin(m.model)
	return seconds(m.started)
}

// end compares all that the server holds with the model. On a real server the
// times that the operation has set may be later than the model's, but not later
// than its end; the model takes them over.
func (m *queueMachine) end(t *rapid.T) {
	ended := m.clock.end()
	held := readQueue(t, m.rdb, m.key)
	m.model.Tidy()
	require.Len(t, held.Items, len(m.model.Items), "%+v\nmodel: %+v", held.Items, m.model.Items)
	for i, is := range held.Items {
		want := &m.model.Items[i]
		m.take(t, ended, &want.Score, is.Score)
		m.take(t, ended, &want.Lease, is.Lease)
		m.take(t, ended, &want.Due, is.Due)
		m.take(t, ended, &want.Died, is.Died)
		require.Equal(t, *want, is)
	}
}

func (m *queueMachine) take(t *rapid.T, ended time.Time, want *float64, is float64) {
	if *want != is {
		m.near(t, ended, *want, is)
		*want = is
	}
}

func (m *queueMachine) near(t *rapid.T, ended time.Time, want, is float64) {
	late := is - want
	require.False(t, late < -2e-6 || late > ended.Sub(m.started).Seconds()+2e-6 || ended.Equal(m.started) && late != 0,
		"%.6f instead of %.6f", is, want)
}

// same compares entries, and keeps them as receipts.
func (m *queueMachine) same(t *rapid.T, want, is []sluice.Entry) {
	ended := m.clock.end()
	require.Len(t, is, len(want), "%v\nmodel: %v", is, want)
	for i := range want {
		m.near(t, ended, want[i].Score, is[i].Score)
		want[i].Score = is[i].Score
	}
	require.Equal(t, want, is)
	m.receipts = append(m.receipts, is...)
}

var (
	someID      = rapid.SampledFrom([]string{"a", "b", "c", "\x00:dead:1:\xff"})
	somePayload = rapid.SampledFrom([]string{"", "", "x", "yy", ":::", "3:dead:2:zz", "1:2:3:\x00\xff"})
	few         = rapid.IntRange(1, 4)
)

func (m *queueMachine) span(t *rapid.T, what string) time.Duration {
	return rapid.SampledFrom(m.clock.spans()).Draw(t, what)
}

func (m *queueMachine) lease(t *rapid.T) time.Duration {
	return max(m.span(t, "lease"), time.Millisecond)
}

// task draws a task, and its due time.
func (m *queueMachine) task(t *rapid.T, now float64) (task sluice.Task, due func(after int) float64) {
	task = sluice.Task{ID: someID.Draw(t, "id"), Payload: []byte(somePayload.Draw(t, "payload"))}
	if rapid.Bool().Draw(t, "at") {
		task.At = m.started.Add(rapid.SampledFrom(m.clock.offsets()).Draw(t, "offset"))
		if rapid.IntRange(0, 15).Draw(t, "epoch") == 1 {
			task.At = time.Unix(1, 0) // miniredis's Lua takes 1e-06 for no number
		}
		at := task.At.Add(999 * time.Nanosecond).Truncate(time.Microsecond)
		return task, func(after int) float64 { return decimal(at.UnixMicro() + int64(after)) }
	}
	task.Delay = m.span(t, "delay")
	return task, func(after int) float64 { return now + decimal(micros(task.Delay)+int64(after)) }
}

func (m *queueMachine) enqueue(t *rapid.T) {
	now := m.begin()
	task, due := m.task(t, now)
	policy := sluice.Duplicates(rapid.IntRange(0, 3).Draw(t, "policy"))
	outcome, err := m.queues[policy].Enqueue(context.Background(), task)
	require.NoError(t, err)
	want := m.model.Enqueue(now, policy, task.ID, due(0), string(task.Payload))
	require.Equal(t, want, outcome)
	m.counts.add("enqueue: " + outcome.String())
	m.end(t)
}

func (m *queueMachine) enqueueBatch(t *rapid.T) {
	now := m.begin()
	tasks := make([]sluice.Task, rapid.IntRange(0, 5).Draw(t, "tasks"))
	want := make([]sluice.Outcome, len(tasks))
	policy := sluice.Duplicates(rapid.IntRange(0, 3).Draw(t, "policy"))
	same := map[any]int{}
	for i := range tasks {
		task, due := m.task(t, now)
		tasks[i] = task
		when := any(micros(task.Delay))
		if !task.At.IsZero() {
			when = due(0)
		}
		want[i] = m.model.Enqueue(now, policy, task.ID, due(same[when]), string(task.Payload))
		same[when]++
	}
	outcomes, err := m.queues[policy].EnqueueBatch(context.Background(), tasks)
	require.NoError(t, err)
	require.Equal(t, want, outcomes)
	m.counts.add("enqueue batch")
	m.end(t)
}

func (m *queueMachine) claim(t *rapid.T) {
	now := m.begin()
	n, lease := few.Draw(t, "n"), m.lease(t)
	if _, ok := m.clock.(*realClock); ok && lease < time.Minute {
		n = 1 // it may take two steps, the second of which could find the first one's lease ended
	}
	m.note(now)
	claimed, err := m.queues[0].Claim(context.Background(), n, lease)
	require.NoError(t, err)
	m.same(t, m.model.Claim(now, n, decimal(micros(lease)), m.most), claimed)
	m.counts.add("claim: " + either(len(claimed) > 0, "some", "none"))
	m.end(t)
}

// note counts what a claim is about to come upon.
func (m *queueMachine) note(now float64) {
	for _, it := range m.model.Items {
		if !it.Queued || it.Score > now {
			continue
		}
		if it.Waiting {
			m.counts.add("version taken over")
		} else if m.most > 0 && it.Attempt >= m.most && !it.Buried {
			m.counts.add("attempts used up")
		} else if it.Buried {
			m.counts.add("put back by a foreigner")
		}
	}
}

func (m *queueMachine) pop(t *rapid.T) {
	now, n := m.begin(), few.Draw(t, "n")
	popped, err := m.queues[0].Pop(context.Background(), n)
	require.NoError(t, err)
	m.same(t, m.model.Pop(now, n), popped)
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

// receipt draws one that is good, or one that was seen, or invents one.
func (m *queueMachine) receipt(t *rapid.T) sluice.Entry {
	seen := m.receipts[max(len(m.receipts)-6, 0):]
	for _, it := range m.model.Items {
		if it.Queued {
			seen = append(slices.Clip(seen), sluice.Entry{ID: it.ID, Score: it.Score})
		}
	}
	if len(seen) == 0 {
		t.Skip("no receipt yet")
	}
	e := seen[rapid.IntRange(0, len(seen)-1).Draw(t, "receipt")]
	if rapid.IntRange(0, 15).Draw(t, "forged") == 1 {
		e.Score += 1e-6
	}
	return e
}

func (m *queueMachine) someReceipts(t *rapid.T) []sluice.Entry {
	es := make([]sluice.Entry, rapid.IntRange(1, 4).Draw(t, "receipts"))
	for i := range es {
		es[i] = m.receipt(t)
	}
	return es
}

// stale compares the error of an operation on receipts.
func (m *queueMachine) stale(t *rapid.T, op string, want []string, err error) {
	if len(want) == 0 {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, sluice.ErrStale)
		var stale *sluice.StaleError
		require.ErrorAs(t, err, &stale)
		require.Equal(t, want, stale.IDs)
	}
	m.counts.add(op + ": " + either(len(want) == 0, "done", "stale"))
	m.end(t)
}

func (m *queueMachine) dequeue(t *rapid.T) {
	es, now := m.someReceipts(t), m.begin()
	err := m.queues[0].Dequeue(context.Background(), es...)
	m.stale(t, "dequeue", m.model.Dequeue(now, es...), err)
}

func (m *queueMachine) release(t *rapid.T) {
	es, now := m.someReceipts(t), m.begin()
	err := m.queues[0].Release(context.Background(), es...)
	m.stale(t, "release", m.model.Release(now, es...), err)
}

func (m *queueMachine) retry(t *rapid.T) {
	e, now, delay := m.receipt(t), m.begin(), m.span(t, "delay")
	err := m.queues[0].Retry(context.Background(), e, delay)
	m.stale(t, "retry", staleID(e, m.model.Retry(now, e, decimal(micros(delay)))), err)
}

func (m *queueMachine) bury(t *rapid.T) {
	e, now := m.receipt(t), m.begin()
	reason := rapid.SampledFrom([]string{"", "no", "1:dead:2:", strings.Repeat("ö", 300)}).Draw(t, "reason")
	err := m.queues[0].Bury(context.Background(), e, reason)
	m.stale(t, "bury", staleID(e, m.model.Bury(now, e, reason[:min(len(reason), 512)])), err)
}

func staleID(e sluice.Entry, ok bool) []string {
	if ok {
		return nil
	}
	return []string{e.ID}
}

func (m *queueMachine) extend(t *rapid.T) {
	e, now, lease := m.receipt(t), m.begin(), m.lease(t)
	extended, err := m.queues[0].Extend(context.Background(), e, lease)
	receipt, ok := m.model.Extend(now, e, decimal(micros(lease)))
	if ok {
		require.NoError(t, err)
		e.Score = receipt
		m.same(t, []sluice.Entry{e}, []sluice.Entry{extended})
	} else {
		require.ErrorIs(t, err, sluice.ErrStale)
	}
	m.counts.add("extend: " + either(ok, "done", "stale"))
	m.end(t)
}

func (m *queueMachine) dead(t *rapid.T) {
	m.begin()
	n := few.Draw(t, "n")
	letters, err := m.queues[0].Dead(context.Background(), n)
	require.NoError(t, err)
	require.Equal(t, m.model.Dead(n), letters)
	m.counts.add("dead: " + either(len(letters) > 0, "some", "none"))
	m.end(t)
}

func (m *queueMachine) revive(t *rapid.T) {
	now, ids := m.begin(), rapid.SliceOfN(someID, 0, 4).Draw(t, "ids")
	revived, err := m.queues[0].Revive(context.Background(), ids...)
	require.NoError(t, err)
	require.Equal(t, m.model.Revive(now, ids...), revived)
	m.counts.add("revive: " + either(revived > 0, "some", "none"))
	m.end(t)
}

func (m *queueMachine) cancel(t *rapid.T) {
	m.begin()
	id := someID.Draw(t, "id")
	found, err := m.queues[0].Cancel(context.Background(), id)
	require.NoError(t, err)
	require.Equal(t, m.model.Cancel(id), found)
	m.counts.add("cancel: " + either(found, "done", "none"))
	m.end(t)
}

func (m *queueMachine) reschedule(t *rapid.T) {
	now, id, delay := m.begin(), someID.Draw(t, "id"), m.span(t, "delay")
	found, err := m.queues[0].Reschedule(context.Background(), id, delay)
	require.NoError(t, err)
	require.Equal(t, m.model.Reschedule(now, id, decimal(micros(delay))), found)
	m.counts.add("reschedule: " + either(found, "done", "none"))
	m.end(t)
}

func (m *queueMachine) get(t *rapid.T) {
	now, id := m.begin(), someID.Draw(t, "id")
	e, err := m.queues[0].Get(context.Background(), id)
	want, ok := m.model.Get(now, id)
	if ok {
		require.NoError(t, err)
		m.same(t, []sluice.Entry{want}, []sluice.Entry{e})
	} else {
		require.ErrorIs(t, err, sluice.ErrNotFound)
	}
	m.counts.add("get: " + either(ok, "found", "not found"))
	m.end(t)
}

func (m *queueMachine) stats(t *rapid.T) {
	now := m.begin()
	is, err := m.queues[0].Stats(context.Background())
	require.NoError(t, err)
	want := m.model.Stats(now)
	if want.Due > 0 {
		m.near(t, m.clock.end(), want.OldestDue.Seconds(), is.OldestDue.Seconds())
		want.OldestDue = is.OldestDue
	}
	require.Equal(t, want, is)
	m.counts.add("stats")
	m.end(t)
}

func (m *queueMachine) purge(t *rapid.T) {
	if rapid.IntRange(0, 7).Draw(t, "really") != 1 {
		t.Skip("too destructive to do it often")
	}
	m.begin()
	require.NoError(t, m.queues[0].Purge(context.Background()))
	m.model.Purge()
	m.counts.add("purge")
	m.end(t)
}

// foreignAdd is a producer that knows only the sorted set.
func (m *queueMachine) foreignAdd(t *rapid.T) {
	now, id := m.begin(), someID.Draw(t, "id")
	score := now + rapid.SampledFrom(m.clock.offsets()).Draw(t, "offset").Seconds()
	if rapid.IntRange(0, 7).Draw(t, "odd") == 1 {
		score = rapid.SampledFrom([]float64{0, -5.25, math.Floor(now - 1), 1.5e-7}).Draw(t, "score")
	}
	require.NoError(t, m.rdb.ZAdd(context.Background(), m.key, redis.Z{Score: score, Member: id}).Err())
	m.model.ForeignAdd(id, score)
	m.counts.add("foreign add")
	m.end(t)
}

func (m *queueMachine) foreignRemove(t *rapid.T) {
	m.begin()
	id := someID.Draw(t, "id")
	require.NoError(t, m.rdb.ZRem(context.Background(), m.key, id).Err())
	m.model.ForeignRemove(id)
	m.counts.add("foreign remove")
	m.end(t)
}

func (m *queueMachine) advance(t *rapid.T) {
	m.clock.advance(t, m.model)
	m.counts.add("advance")
}

// invalid does what is refused before anything is sent.
func (m *queueMachine) invalid(t *rapid.T) {
	m.begin()
	q, ctx, e := m.queues[0], context.Background(), sluice.Entry{ID: "a", Score: 1}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	id := someID.Draw(t, "id")
	call := rapid.SampledFrom([]func() (error, error){
		func() (error, error) { _, err := q.Enqueue(ctx, sluice.Task{}); return err, sluice.ErrInvalid },
		func() (error, error) {
			_, err := q.EnqueueBatch(ctx, []sluice.Task{{ID: id}, {ID: id, Delay: -1}})
			return err, sluice.ErrInvalid
		},
		func() (error, error) {
			_, err := q.Enqueue(ctx, sluice.Task{ID: id, Delay: 1, At: m.started})
			return err, sluice.ErrInvalid
		},
		func() (error, error) {
			_, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: make([]byte, 1001)})
			return err, sluice.ErrInvalid
		},
		func() (error, error) { _, err := q.Claim(ctx, 0, time.Hour); return err, sluice.ErrInvalid },
		func() (error, error) { _, err := q.Claim(ctx, 1, time.Microsecond); return err, sluice.ErrInvalid },
		func() (error, error) { _, err := q.Pop(ctx, 0); return err, sluice.ErrInvalid },
		func() (error, error) { return q.Dequeue(ctx, e, sluice.Entry{}), sluice.ErrInvalid },
		func() (error, error) { return q.Retry(ctx, e, -1), sluice.ErrInvalid },
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

// readQueue reads what the server holds.
func readQueue(t *rapid.T, rdb redis.UniversalClient, key string) *model.Queue {
	ctx, pipe := context.Background(), rdb.Pipeline()
	scores := pipe.ZRangeWithScores(ctx, key, 0, -1)
	fields := pipe.HGetAll(ctx, "{"+key+"}:tasks")
	dead := pipe.ZRangeWithScores(ctx, "{"+key+"}:dead", 0, -1)
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	q := &model.Queue{}
	for _, z := range scores.Val() {
		it := q.Item(z.Member.(string))
		it.Queued, it.Score = true, z.Score
	}
	for id, field := range fields.Val() {
		require.NoError(t, readField(q.Item(id), field))
	}
	for _, z := range dead.Val() {
		it := q.Item(z.Member.(string))
		it.Listed, it.Died = true, z.Score
	}
	return q
}

// readField reads what the library keeps of a task beside its score.
func readField(it *model.Item, field string) error {
	parts := strings.SplitN(field, ":", 4)
	if len(parts) != 4 {
		return fmt.Errorf("field %q", field)
	}
	it.Attempt, _ = strconv.Atoi(parts[0])
	if parts[1] == "dead" {
		size, err := strconv.Atoi(parts[2])
		it.Buried, it.Reason, it.Payload = true, parts[3][:size], parts[3][size:]
		return err
	}
	it.Lease, _ = strconv.ParseFloat(parts[1], 64)
	it.Waiting = parts[2] != ""
	it.Due, _ = strconv.ParseFloat(parts[2], 64)
	it.Payload = parts[3]
	return nil
}

// seconds is a time as the scripts see it.
func seconds(t time.Time) float64 {
	return float64(t.Unix()) + float64(t.Nanosecond()/1000)/1e6
}

// micros rounds up, as a delay is.
func micros(d time.Duration) int64 {
	return int64((d + time.Microsecond - 1) / time.Microsecond)
}

// decimal is what microseconds are after the way through text.
func decimal(us int64) float64 {
	x, err := strconv.ParseFloat(fmt.Sprintf("%d.%06d", us/1e6, us%1e6), 64)
	if err != nil {
		panic(err)
	}
	return x
}
