package model_test

import (
	"context"
	"os"
	"slices"
	"strconv"
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

// companions are the keys beside the queue's own, in the order in which scripts take them.
func (m *queueMachine) companions() (keys []string) {
	for _, ending := range []string{"tasks", "dead", "state", "leased", "line", "errors", "paused", "counts", "done", "results", "stock", "workers", "groups"} {
		keys = append(keys, "{"+m.key+"}:"+ending)
	}
	return keys
}

// remembering draws a queue with a retention, which the model takes in seconds.
func (m *queueMachine) remembering(t *rapid.T) (q *sluice.Queue, retention time.Duration, age float64) {
	retention = rapid.SampledFrom(m.retentions).Draw(t, "retention")
	return m.retaining[retention], retention, decimal(micros(retention))
}

// finished has the model finish tasks.
func (m *queueMachine) finished(now float64, end model.Ending, es []sluice.Entry) (stale []string) {
	before := map[string]bool{}
	for _, r := range m.model.Records {
		before[r.ID] = true
	}
	sold, owed := m.sold(), len(m.model.Owed)
	m.model.As(end.Unaware, func() { stale = m.model.Finish(now, end, es...) })
	if m.sold() > sold {
		m.counts.add("sold by a finish")
	}
	if len(m.model.Owed) > owed {
		m.counts.add("finished unaware")
	}
	for _, r := range m.model.Records {
		if r.At == now && before[r.ID] {
			m.counts.add("remembered again")
		}
		delete(before, r.ID)
	}
	if len(before) > 0 {
		m.counts.add("forgotten by a finish")
	}
	return stale
}

// dequeueAndRemember is dequeue on a queue with a retention.
func (m *queueMachine) dequeueAndRemember(t *rapid.T) {
	es := m.someReceipts(t)
	q, _, age := m.remembering(t)
	now := m.begin()
	err := q.Dequeue(context.Background(), es...)
	m.stale(t, "dequeue and remember", m.finished(now, model.Ending{Age: age}, es), err)
}

var someResult = rapid.SampledFrom([]string{"", "", "r", "12 ss", "\n\x00\xff ", "7"})

// finish finishes tasks with results, as a Worker's loop does: only a handler can record one.
func (m *queueMachine) finish(t *rapid.T) {
	es := m.someReceipts(t)
	_, retention, age := m.remembering(t)
	items, results := make([]store.Item, len(es)), map[int]string{}
	for i, e := range es {
		results[i] = someResult.Draw(t, "result")
		items[i] = store.Item{ID: e.ID, Receipt: store.ScoreText(e.Score), Disposition: store.Disposition{Action: store.Finish, Result: results[i]}}
	}
	now := m.begin()
	options := store.QueueOptions{MaxAttempts: m.maxAttempts, Retention: retention}
	unaware := rapid.Bool().Draw(t, "unaware")
	x := m.exchange(t, options, unaware, items)
	var stale []string
	for i, answer := range x.Answers {
		switch {
		case !answer.IsAccepted():
			stale = append(stale, es[i].ID)
		case results[i] != "":
			m.counts.add("finish: with a result")
		}
		require.NotEqual(t, store.Resultless, answer)
	}
	require.Equal(t, m.finished(now, model.Ending{Age: age, Results: results, Unaware: unaware}, es), stale)
	m.counts.add("finish: " + either(len(stale) == 0, "done", "stale"))
	m.end(t)
}

// exchange has tasks finished or discarded, as a Worker does.
func (m *queueMachine) exchange(t *rapid.T, options store.QueueOptions, unaware bool, items []store.Item) store.Exchanged {
	q := store.NewQueue(store.Load(os.DirFS("../../lua")), m.key, options)
	if !unaware {
		q.Holds([]store.Task{{Take: store.Take{Units: 1}}})
	}
	reply := redisexec.New(m.rdb).Once(context.Background(), q.Exchange(items, store.Claim{}))
	require.NoError(t, reply.Err)
	x, err := store.DecodeExchange(reply.Value, len(items))
	require.NoError(t, err)
	return x
}

// endRetention has a task finished earlier, as if that time had come.
func (m *queueMachine) endRetention(t *rapid.T) {
	if len(m.model.Records) == 0 {
		t.Skip("nothing is remembered")
	}
	now, i := m.begin(), rapid.IntRange(0, 3).Draw(t, "record")
	if len(m.model.Records) > 0 {
		r := &m.model.Records[i%len(m.model.Records)]
		r.At = float64(int64(now) - rapid.SampledFrom([]int64{600, 7200, 14400}).Draw(t, "by"))
		require.NoError(t, m.rdb.ZAdd(context.Background(), "{"+m.key+"}:done", redis.Z{Score: r.At, Member: r.ID}).Err())
	}
	m.end(t)
}

// readRecords reads what the server remembers.
func readRecords(t require.TestingT, done []redis.Z, results map[string]string) (records []model.Record) {
	for _, z := range done {
		r := model.Record{ID: z.Member.(string), At: z.Score, Attempt: 1}
		if text, ok := results[r.ID]; ok {
			attempt, result, _ := strings.Cut(text, " ")
			n, err := strconv.Atoi(attempt)
			require.NoError(t, err)
			require.False(t, n == 1 && result == "", "more than is needed")
			r.Attempt, r.Result = n, result
			delete(results, r.ID)
		}
		records = append(records, r)
	}
	require.Empty(t, results, "of tasks that are not remembered")
	slices.SortFunc(records, func(a, b model.Record) int { return strings.Compare(a.ID, b.ID) })
	return records
}

// requireRecords compares what the server remembers with the model.
func (m *queueMachine) requireRecords(t *rapid.T, held []model.Record, ended time.Time) {
	require.Len(t, held, len(m.model.Records), "%+v\nmodel: %+v", held, m.model.Records)
	for i, is := range held {
		m.adopt(t, ended, &m.model.Records[i].At, is.At)
		require.Equal(t, m.model.Records[i], is)
	}
}
