package model_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/proof/model"
)

// queueResults are the results that a long run must have seen.
const queueResults = `advance; bury: done; bury: stale; cancel: absent; cancel: dead; cancel: due; cancel: leased; cancel: scheduled; claim: none; claim: some;
dead: none; dead: some; list: scheduled; list: due; list: leased; list: dead; pause: without an end; pause: with an end; resume; limits: none; limits: running; limits: rate; limits: both; limited by running; limited by rate; limited after a change; dequeue: done; dequeue: stale; enqueue: added; enqueue: deferred; enqueue: kept; enqueue: updated; enqueue: done;
dequeue and remember: done; dequeue and remember: stale; finish: done; finish: stale; finish: with a result; remembered again; forgotten by a finish; forgotten by a presence;
list: done; get: done; cancel: done; cancel: shadowed; cancel unchanged: absent; cancel unchanged: changed; cancel unchanged: due; cancel unchanged: scheduled; cancel unchanged: dead; once: dead; once: over; kept due: updated; kept due: deferred;
enqueue batch; extend: done; extend: stale; foreign add; foreign remove; noted; get: found; get: not found; payloads: none; payloads: small; invalid; peek: none;
peek: some; pop: none; pop: some; purge; release: done; release: stale; reschedule: done; reschedule: none; retry: done;
retry: stale; revive: none; revive: some; stats; drop: none; drop: some; trimmed by a presence: some; trimmed by a presence: none; trimmed by a claim; trimmed by a burial; version taken over; moved during a lease; delivery not counted; attempts used up; put back by a foreign producer; ended context; lease ended`

// TestQueueMachine_VirtualTime runs the machine on a miniredis whose clock the test sets:
// leases and delays end at drawn moments, and scores are compared to the last bit.
func TestQueueMachine_VirtualTime(t *testing.T) {
	t.Parallel()
	rdb, c := virtualServer(t)
	runQueueMachine(t, rdb, c, nil, "pause ended")
}

// TestQueueMachine_RealServer runs the machine on a real server. When an operation begins,
// every due time has come or is hours away.
func TestQueueMachine_RealServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	runQueueMachine(t, rdb, &realClock{rdb: rdb}, nil)
}

// runQueueMachine runs the machine, which change may change.
func runQueueMachine(t *testing.T, rdb redis.UniversalClient, c clock, change func(m *queueMachine, actions map[string]func(*rapid.T)), wanted ...string) {
	name := redistest.Name(t)
	var counts tally
	rapid.Check(t, func(rt *rapid.T) {
		m := newQueueMachine(rt, rdb, name, c, &counts)
		actions := map[string]func(*rapid.T){
			"Enqueue": m.enqueue, "Enqueue2": m.enqueue, "Enqueue3": m.enqueue, "EnqueueBatch": m.enqueueBatch, "EnqueueBatch2": m.enqueueBatch,
			"Claim": m.claim, "Claim2": m.claim, "Claim3": m.claim, "Claim4": m.claim, "Claim5": m.claim, "Claim6": m.claim, "Claim7": m.claim, "Pop": m.pop, "Peek": m.peek,
			"Dequeue": m.dequeue, "DequeueAndRemember": m.dequeueAndRemember, "DequeueAndRemember2": m.dequeueAndRemember, "Finish": m.finish, "Finish2": m.finish, "EndRetention": m.endRetention, "Extend": m.extend, "Retry": m.retry, "Release": m.release, "Bury": m.bury,
			"Dead": m.dead, "List": m.list, "Pause": m.pause, "SetLimits": m.setLimits, "Limits": m.limits, "Resume": m.resume, "Resume2": m.resume, "Revive": m.revive, "Cancel": m.cancel, "CancelUnchanged": m.cancelUnchanged, "Reschedule": m.reschedule,
			"Get": m.get, "Get2": m.get, "Get3": m.get, "Stats": m.stats, "Presence": m.presence, "Drop": m.drop, "Purge": m.purge,
			"ForeignAdd": m.foreignAdd, "ForeignRemove": m.foreignRemove, "LaterVersion": m.laterVersion,
			"EndLease": m.endLease, "Advance": m.advance, "Invalid": m.invalid,
		}
		if change != nil {
			change(m, actions)
		}
		rt.Repeat(actions)
	})
	if change == nil {
		wanted = append(list(queueResults), wanted...)
	}
	counts.report(t, wanted)
}

// queueMachine performs an operation on the queue and on the model, and compares the results.
type queueMachine struct {
	rdb         redis.UniversalClient
	key         string
	takes       []bool                          // to draw from, for whether a task takes units
	queues      [6]*sluice.Queue                // by duplicate policy, except DuplicatesOnce; 0 has the default
	retaining   map[time.Duration]*sluice.Queue // by their retention, to finish tasks, and to enqueue with DuplicatesOnce
	retentions  []time.Duration
	maxAttempts int
	clock       clock
	model       *model.Queue
	receipts    []sluice.Entry    // all so far
	read        []sluice.TaskInfo // that were not leased
	counts      *tally
	handed      []time.Time // tasks, since limits were set
	started     time.Time   // when the current operation began
	grouped     bool        // whether tasks are in groups
	someID      *rapid.Generator[string]
}

func newQueueMachine(t *rapid.T, rdb redis.UniversalClient, name string, c clock, counts *tally) *queueMachine {
	m := &queueMachine{rdb: rdb, key: "Queue:" + name, clock: c, model: &model.Queue{}, counts: counts, takes: []bool{false},
		someID:      rapid.SampledFrom([]string{"a", "b", "c", "\x00:dead:1:\xff"}),
		maxAttempts: rapid.SampledFrom([]int{0, 1, 1, 1, 2, 25}).Draw(t, "max attempts")}
	require.NoError(t, rdb.Del(context.Background(), append(m.companions(), m.key)...).Err())
	for policy := range sluice.DuplicatesOnce {
		m.queues[policy] = m.newQueue(policy != 0, sluice.WithDuplicates(policy))
	}
	m.retentions, m.retaining = rapid.SampledFrom([][]time.Duration{c.retentions(), c.retentions()[:1]}).Draw(t, "retentions"), map[time.Duration]*sluice.Queue{}
	for _, retention := range m.retentions {
		m.retaining[retention] = m.newQueue(false, sluice.WithDuplicates(sluice.DuplicatesOnce), sluice.WithRetention(retention))
	}
	return m
}

// begin begins an operation, and returns the model's time.
func (m *queueMachine) begin() float64 {
	m.started = m.clock.begin(m.model)
	m.model.Lapse(seconds(m.started))
	return seconds(m.started)
}

// end compares everything that the server holds with the model. On a real server, times that
// the operation has set may be later than the model's, except later than the operation's
// end; the model adopts them.
func (m *queueMachine) end(t *rapid.T) {
	ended := m.clock.end()
	held := readQueue(t, m.rdb, m.key)
	m.model.Tidy()
	m.requireIndex(t, held, seconds(ended))
	m.requireLimits(t, ended)
	m.requireRecords(t, held.Records, ended)
	m.requireStocks(t, held)
	require.Len(t, held.Items, len(m.model.Items), "%+v\nmodel: %+v", held.Items, m.model.Items)
	for i, is := range held.Items {
		want := &m.model.Items[i]
		m.adopt(t, ended, &want.Score, is.Score)
		m.adopt(t, ended, &want.Lease, is.Lease)
		m.adopt(t, ended, &want.Token, is.Token)
		m.adopt(t, ended, &want.Due, is.Due)
		m.adopt(t, ended, &want.Died, is.Died)
		m.adopt(t, ended, &want.FailedAt, is.FailedAt)
		require.Equal(t, *want, is)
	}
	m.requirePlaces(t, held, ended)
	m.requireCounts(t, held, seconds(ended))
}

// requireCounts compares what the server has counted. The leases that have run out and are listed
// count as lost.
func (m *queueMachine) requireCounts(t *rapid.T, held *model.Queue, now float64) {
	held.Lost = m.lost(t, now)
	m.model.Lapse(now)
	counts := func(q *model.Queue) []int64 {
		return []int64{q.Finished, q.Discarded, q.Retried, q.Buried, q.Lost, q.Trimmed}
	}
	require.Equal(t, counts(m.model), counts(held), "done, discarded, retried, buried, lost, dropped")
}

// requireIndex compares the list of leased tasks with the state fields. Foreign clients have not
// written it.
func (m *queueMachine) requireIndex(t *rapid.T, held *model.Queue, now float64) {
	listed, err := m.rdb.ZRangeByScoreWithScores(context.Background(), "{"+m.key+"}:leased",
		&redis.ZRangeBy{Min: fmt.Sprintf("(%.17g", now), Max: "+inf"}).Result()
	require.NoError(t, err)
	index := map[string]float64{}
	for _, z := range listed {
		index[z.Member.(string)] = z.Score
	}
	require.Equal(t, held.Index(now), index)
}

// lost returns how many leases the server shows as lost: those that are counted, and those that are
// still listed and have run out.
func (m *queueMachine) lost(t *rapid.T, now float64) int64 {
	ctx := context.Background()
	listed, err := m.rdb.ZCount(ctx, "{"+m.key+"}:leased", "-inf", fmt.Sprintf("%.17g", now)).Result()
	require.NoError(t, err)
	counted, err := m.rdb.HGet(ctx, "{"+m.key+"}:counts", "lost").Int64()
	if !errors.Is(err, redis.Nil) {
		require.NoError(t, err)
	}
	return listed + counted
}

// adoptLost adopts how many of so many leases that have ended since the operation began had run out
// before that.
func (m *queueMachine) adoptLost(t *rapid.T, most int) {
	now := seconds(m.clock.end())
	m.model.Lapse(now)
	lost := m.lost(t, now)
	require.GreaterOrEqual(t, lost, m.model.Lost)
	require.LessOrEqual(t, lost, m.model.Lost+int64(most))
	m.model.Lost = lost
}

// adopt sets want to the time that the server has set, if that is possible.
func (m *queueMachine) adopt(t *rapid.T, ended time.Time, want *float64, is float64) {
	if *want != is {
		m.near(t, ended, *want, is)
		*want = is
	}
}

// lastBits is by how much two sums of the same times may differ: less than a microsecond.
const lastBits = 0.4e-6

// near checks that a time of the server lies within the operation. In virtual time, that is
// the model's, except for the last bits of sums: a batch adds the microseconds in another order.
func (m *queueMachine) near(t *rapid.T, ended time.Time, want, is float64) {
	late := is - want
	require.False(t, late < -2e-6 || late > ended.Sub(m.started).Seconds()+2e-6 || ended.Equal(m.started) && math.Abs(late) > 0.9e-6,
		"%.6f instead of %.6f", is, want)
}

// same compares entries, and keeps the server's as receipts.
func (m *queueMachine) same(t *rapid.T, want, is []sluice.Entry) {
	ended := m.clock.end()
	require.Len(t, is, len(want), "%v\nmodel: %v", is, want)
	for i := range want {
		m.near(t, ended, want[i].Score, is[i].Score)
		want[i].Score = is[i].Score
	}
	if len(want) > 0 {
		require.Equal(t, want, is)
	}
	m.receipts = append(m.receipts, is...)
}

var (
	somePayload = rapid.SampledFrom([]string{"", "", "x", "yy", ":::", "3:dead:2:zz", "1:2:3:\x00\xff"})
	few         = rapid.IntRange(1, 4)
)

func (m *queueMachine) span(t *rapid.T, what string) time.Duration {
	return rapid.SampledFrom(m.clock.spans()).Draw(t, what)
}

// delay draws a delay. One below zero is none.
func (m *queueMachine) delay(t *rapid.T) time.Duration {
	return m.clear(rapid.SampledFrom(append(m.clock.spans(), -time.Hour)).Draw(t, "delay"))
}

// clear returns a time from now, or one that is far from all others that are drawn, if groups or the
// scripts of a batch depend on that: on a real server a later one may run a second after the model
// has begun.
func (m *queueMachine) clear(d time.Duration) time.Duration {
	_, isReal := m.clock.(*realClock)
	switch {
	case !isReal || !m.grouped && len(m.takes) == 1 || d <= 0 || d >= time.Minute:
		return d
	case d < time.Second:
		return 20 * time.Hour
	}
	return 30 * time.Hour
}

func (m *queueMachine) lease(t *rapid.T) time.Duration {
	d := max(m.span(t, "lease"), time.Millisecond)
	if m.grouped && d < time.Second && rapid.IntRange(0, 7).Draw(t, "short") != 1 {
		return time.Hour // more is enqueued, and ends, meanwhile
	}
	return d
}

// task draws a task. due returns its due time, if it is the after-th of a batch.
func (m *queueMachine) task(t *rapid.T, now float64) (task sluice.Task, due func(after int) float64) {
	task = sluice.Task{ID: m.someID.Draw(t, "id"), Payload: []byte(somePayload.Draw(t, "payload")), Take: m.take(t)}
	task.Group = m.group(t, task.ID)
	if rapid.Bool().Draw(t, "at") {
		task.At = m.started.Add(m.clear(rapid.SampledFrom(m.clock.offsets()).Draw(t, "offset")))
		if rapid.IntRange(0, 15).Draw(t, "epoch") == 1 {
			task.At = time.Unix(1, 0) // miniredis's Lua does not read 1e-06 as a number
		}
		at := task.At.Add(999 * time.Nanosecond).Truncate(time.Microsecond)
		return task, func(after int) float64 { return decimal(at.UnixMicro() + int64(after)) }
	}
	task.Delay = m.delay(t)
	return task, func(after int) float64 { return now + decimal(micros(task.Delay)+int64(after)) }
}

// readQueue reads everything that the server holds of a queue.
func readQueue(t *rapid.T, rdb redis.UniversalClient, key string) *model.Queue {
	ctx, pipe := context.Background(), rdb.Pipeline()
	scores := pipe.ZRangeWithScores(ctx, key, 0, -1)
	payloads := pipe.HGetAll(ctx, "{"+key+"}:tasks")
	fields := pipe.HGetAll(ctx, "{"+key+"}:state")
	dead := pipe.ZRangeWithScores(ctx, "{"+key+"}:dead", 0, -1)
	counts, failures := pipe.HGetAll(ctx, "{"+key+"}:counts"), pipe.HGetAll(ctx, "{"+key+"}:errors")
	done, results := pipe.ZRangeWithScores(ctx, "{"+key+"}:done", 0, -1), pipe.HGetAll(ctx, "{"+key+"}:results")
	stocks := pipe.HGetAll(ctx, "{"+key+"}:stock")
	groups := pipe.ZRange(ctx, "{"+key+"}:groups", 0, -1)
	_, err := pipe.Exec(ctx)
	require.NoError(t, err)
	q := &model.Queue{Records: readRecords(t, done.Val(), results.Val()), Stocks: readStocks(t, stocks.Val())}
	q.Playing, q.Awaiting = readPlaces(t, groups.Val())
	for what, n := range map[string]*int64{"done": &q.Finished, "discarded": &q.Discarded, "retried": &q.Retried, "buried": &q.Buried, "lost": &q.Lost, "dropped": &q.Trimmed} {
		*n, _ = strconv.ParseInt(counts.Val()[what], 10, 64)
	}
	for id, text := range failures.Val() {
		at, reason, _ := strings.Cut(text, " ")
		it := q.Item(id)
		it.Error = reason
		it.FailedAt, _ = strconv.ParseFloat(at, 64)
	}
	for _, z := range scores.Val() {
		it := q.Item(z.Member.(string))
		it.Queued, it.Score = true, z.Score
	}
	for id, payload := range payloads.Val() {
		require.NotEmpty(t, payload)
		q.Item(id).Payload = payload
	}
	for id, field := range fields.Val() {
		require.NotEqual(t, "::", field, "a state that says nothing")
		if len(id) > 512 { // no task's
			q.Owed = append(q.Owed, readOwed(t, field))
			continue
		}
		require.NoError(t, readField(q.Item(id), field))
	}
	for _, z := range dead.Val() {
		it := q.Item(z.Member.(string))
		it.Listed, it.Died = true, z.Score
	}
	return q
}

// readField reads a task's state field.
func readField(it *model.Item, field string) error {
	holds, field := cutHolds(field)
	it.Take = takeOf(holds)
	it.Group, _, _ = cutGroup(holds)
	parts := strings.SplitN(field, ":", 3)
	if len(parts) != 3 {
		return fmt.Errorf("field %q", field)
	}
	attempt, unseen, _ := strings.Cut(parts[0], "+")
	it.Attempt, _ = strconv.Atoi(attempt)
	it.Unseen, _ = strconv.Atoi(unseen)
	if parts[1] == "dead" {
		it.Buried, it.Reason = true, parts[2]
		return nil
	}
	lease, token, extended := strings.Cut(parts[1], "/")
	it.Lease, _ = strconv.ParseFloat(lease, 64)
	it.Token = it.Lease
	if extended {
		it.Token, _ = strconv.ParseFloat(token, 64)
	}
	due, note, _ := strings.Cut(parts[2], ":")
	it.Waiting, it.Claimant = due != "", note
	it.Due, _ = strconv.ParseFloat(due, 64)
	it.Had = it.Group != "" && parts[0] == "0"
	return nil
}
