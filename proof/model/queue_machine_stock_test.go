package model_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/proof/model"
)

var (
	someItem = rapid.SampledFrom([]string{"x", "x", "*1,2:$"})
	someTake = rapid.Custom(func(t *rapid.T) sluice.Take {
		return sluice.Take{
			Item: someItem.Draw(t, "item"), Units: rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(t, "units"),
			Restore: rapid.IntRange(0, 7).Draw(t, "restore") == 1,
		}
	})
)

// saleResults are the results that a long run of a sale must have seen.
const saleResults = `take: added; take: kept; take: sold out; take: done; take: other; take: restored; taken from a foreign consumer; a plain task got units; held task kept; held: dead; held: deferred; held: moved; held: claimed; held: gone; sold by a pop; sold by a finish; finished unaware; trimmed unaware;
discard: done; discard: stale; discarded; swept; nothing swept; dropped with units; cancelled with units; revived with units; purged with units; set stock; delete stock; stock: known; stock: not known; stock: below zero`

// TestQueueMachine_SaleInVirtualTime runs the machine with a stock, which most tasks take from.
func TestQueueMachine_SaleInVirtualTime(t *testing.T) {
	t.Parallel()
	rdb, c := virtualServer(t)
	runQueueMachine(t, rdb, c, sell, list(saleResults)...)
}

// TestQueueMachine_SaleOnRealServer is that on a real server.
func TestQueueMachine_SaleOnRealServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	runQueueMachine(t, rdb, &realClock{rdb: rdb}, sell, list(saleResults)...)
}

// sell has the machine begin with a stock, and do more often what units are about.
func sell(m *queueMachine, actions map[string]func(*rapid.T)) {
	m.takes = []bool{true, true, true, false}
	for _, item := range []string{"x", "*1,2:$"} {
		if err := m.queues[0].SetStock(context.Background(), item, 9); err != nil {
			panic(err)
		}
		m.model.SetStock(item, 9)
	}
	for _, name := range []string{"Pause", "Resume", "Resume2", "SetLimits", "Limits", "Invalid", "Stats", "Get2", "Get3", "Peek", "EndRetention", "Finish2", "DequeueAndRemember2"} {
		delete(actions, name)
	}
	for name, action := range map[string]func(*rapid.T){
		"Enqueue": m.enqueue, "EnqueueBatch": m.enqueueBatch, "Pop": m.pop, "Bury": m.bury, "Revive": m.revive, "Drop": m.drop, "Discard": m.discard, "Cancel": m.cancel,
		"ForeignVisit": m.foreignVisit, "SetStock": m.setStock, "DeleteStock": m.deleteStock, "Stock": m.stock, "Presence": m.presence, "ForeignAdd": m.foreignAdd, "ForeignRemove": m.foreignRemove, "Reschedule": m.reschedule, "Purge": m.purge,
	} {
		actions[name+"InSale"], actions[name+"InSale2"] = action, action
	}
}

// take draws what a task takes, perhaps nothing.
func (m *queueMachine) take(t *rapid.T) (take sluice.Take) {
	if rapid.SampledFrom(m.takes).Draw(t, "takes") {
		take = someTake.Draw(t, "take")
	}
	return take
}

// newQueue returns a queue that knows of units: it has been told that some are sold out, which
// changes nothing. One that is unaware does not know of any.
func (m *queueMachine) newQueue(unaware bool, options ...sluice.QueueOption) *sluice.Queue {
	q, err := sluice.NewQueue(m.rdb, strings.TrimPrefix(m.key, "Queue:"), append(options, sluice.WithMaxAttempts(cmp.Or(m.maxAttempts, -1)))...)
	outcome := sluice.OutcomeSoldOut
	if err == nil && !unaware {
		outcome, err = q.Enqueue(context.Background(), sluice.Task{ID: "none", Take: sluice.Take{Item: "nothing"}})
	}
	if err != nil || outcome != sluice.OutcomeSoldOut {
		panic(fmt.Sprint(outcome, err))
	}
	return q
}

// enqueuedTake has the model enqueue a task that takes units.
func (m *queueMachine) enqueuedTake(now, within float64, task sluice.Task, due float64) sluice.Outcome {
	it := *m.model.Item(task.ID)
	task.Take.Units = cmp.Or(task.Take.Units, 1)
	outcome := m.model.EnqueueTake(now, within, task.ID, due, string(task.Payload), task.Take)
	if outcome == 0 {
		m.counts.add("take: other")
		return 0
	}
	m.counts.add("take: " + strings.ReplaceAll(outcome.String(), "_", " "))
	if outcome == sluice.OutcomeAdded {
		if info, _ := m.model.Stock(task.Take.Item); info.Left < 0 {
			m.counts.add("take: restored")
		}
		if it.Take.Units > 0 {
			m.counts.add("taken from a foreign consumer")
		}
	}
	return outcome
}

// enqueuedPlain has the model enqueue a task that takes none.
func (m *queueMachine) enqueuedPlain(now float64, id string, enqueue func() sluice.Outcome) sluice.Outcome {
	it, outcome := *m.model.Item(id), enqueue()
	switch {
	case it.Group != "":
		m.counts.add(either(outcome == sluice.OutcomeAdded, "a plain task got a group", either(it.Awaits() && !it.Queued, "waiting: plain task kept", "held task kept")))
	case it.Take.Units == 0:
	case outcome == sluice.OutcomeAdded:
		m.counts.add("a plain task got units")
	default:
		m.counts.add("held task kept")
	}
	return outcome
}

// foreignID draws whose task a foreign program adds or removes: mostly one that holds units or is in
// a group, if there is any.
func (m *queueMachine) foreignID(t *rapid.T) string {
	var holders []string
	for _, it := range m.model.Items {
		if it.Holds != (model.Holds{}) && (it.Queued || it.Listed || it.Awaits()) {
			holders = append(holders, it.ID)
		}
	}
	if len(holders) > 0 && rapid.Bool().Draw(t, "a holder's") {
		return rapid.SampledFrom(holders).Draw(t, "holder")
	}
	return m.someID.Draw(t, "id")
}

// foreignVisit has a foreign program put a dead letter back, Drop take it off the list, and the
// program remove it: three steps that seldom come one after the other.
func (m *queueMachine) foreignVisit(t *rapid.T) {
	i := slices.IndexFunc(m.model.Items, func(it model.Item) bool { return it.Listed && !it.Queued })
	if i < 0 {
		t.Skip("no dead letter")
	}
	now, id, ctx := m.begin(), m.model.Items[i].ID, context.Background()
	score := math.Floor(now - 3600)
	require.NoError(t, m.rdb.ZAdd(ctx, m.key, redis.Z{Score: score, Member: id}).Err())
	m.model.ForeignAdd(id, score)
	removed, err := m.queues[0].Drop(ctx, id)
	require.NoError(t, err)
	require.Equal(t, m.model.Drop(id), removed)
	require.NoError(t, m.rdb.ZRem(ctx, m.key, id).Err())
	m.model.ForeignRemove(id)
	m.end(t)
}

// sold and held return how many units are, of all items.
func (m *queueMachine) sold() (n int64) {
	for _, s := range m.model.Stocks {
		n += s.Sold
	}
	return n
}

func (m *queueMachine) held() (n int64) {
	for _, s := range m.model.Stocks {
		n += s.Held
	}
	return n
}

// count returns of how many items something is true.
func (m *queueMachine) count(is func(model.Item) bool) (n int) {
	for _, it := range m.model.Items {
		if is(it) {
			n++
		}
	}
	return n
}

// isGone says whether units are held for a task that is no more.
func isGone(it model.Item) bool { return it.Take.Units > 0 && !it.Queued && !it.Listed }

// putsBack counts it if what the model does puts units back.
func (m *queueMachine) putsBack(what string, do func()) {
	before := m.held() + m.sold()
	if do(); m.held()+m.sold() < before {
		m.counts.add(what)
	}
}

// sweep is what a worker's word that it lives does last.
func (m *queueMachine) sweep() {
	before := m.held()
	m.model.Sweep()
	m.counts.add(either(m.held() < before, "swept", "nothing swept"))
}

// discard ends tasks as a Worker does whose handler returns Discard. It has claimed them, and so
// it knows of units.
func (m *queueMachine) discard(t *rapid.T) {
	es := m.someReceipts(t)
	items := make([]store.Item, len(es))
	for i, e := range es {
		items[i] = store.Item{ID: e.ID, Receipt: store.ScoreText(e.Score), Disposition: store.Disposition{Action: store.Discard}}
	}
	_, retention, _ := m.remembering(t)
	now := m.begin()
	x := m.exchange(t, store.QueueOptions{MaxAttempts: m.maxAttempts, Retention: retention}, false, items)
	var stale, want []string
	for i, answer := range x.Answers {
		if !answer.IsAccepted() {
			stale = append(stale, es[i].ID)
		}
	}
	next := m.nexts("finish")
	m.putsBack("discarded", func() { want = m.finished(now, model.Ending{Discarded: true}, es) })
	next()
	require.Equal(t, want, stale)
	m.counts.add("discard: " + either(len(stale) == 0, "done", "stale"))
	m.end(t)
}

func (m *queueMachine) setStock(t *rapid.T) {
	m.begin()
	item, total := someItem.Draw(t, "item"), rapid.Int64Range(0, 7).Draw(t, "total")
	require.NoError(t, m.queues[0].SetStock(context.Background(), item, total))
	m.model.SetStock(item, total)
	m.counts.add("set stock")
	m.end(t)
}

func (m *queueMachine) deleteStock(t *rapid.T) {
	if rapid.Bool().Draw(t, "skip") {
		t.Skip("too little could be sold")
	}
	m.begin()
	item := someItem.Draw(t, "item")
	require.NoError(t, m.queues[0].DeleteStock(context.Background(), item))
	m.model.DeleteStock(item)
	m.counts.add("delete stock")
	m.end(t)
}

// stock reads the stock of an item, and of all.
func (m *queueMachine) stock(t *rapid.T) {
	m.begin()
	item := someItem.Draw(t, "item")
	is, err := m.queues[0].Stock(context.Background(), item)
	want, ok := m.model.Stock(item)
	if ok {
		require.NoError(t, err)
		require.Equal(t, want, is)
		m.counts.add(either(is.Left < 0, "stock: below zero", "stock: known"))
	} else {
		require.ErrorIs(t, err, sluice.ErrNotFound)
		m.counts.add("stock: not known")
	}
	all, err := m.queues[0].Stocks(context.Background())
	require.NoError(t, err)
	require.Len(t, all, len(m.model.Stocks))
	for item, is := range all {
		want, _ := m.model.Stock(item)
		require.Equal(t, want, is)
		require.Equal(t, is.Total, is.Left+is.Held+is.Sold)
	}
	m.end(t)
}

// requireStocks compares what the server counts with the model, and with what tasks hold.
func (m *queueMachine) requireStocks(t *rapid.T, held *model.Queue) {
	require.Len(t, held.Stocks, len(m.model.Stocks), "%+v\nmodel: %+v", held.Stocks, m.model.Stocks)
	for item, is := range held.Stocks {
		require.Equal(t, m.model.Stocks[item], is, item)
	}
	require.ElementsMatch(t, m.model.Owed, held.Owed)
	for what, is := range map[string]func(model.Item) bool{
		"dead": func(it model.Item) bool { return it.Listed && !it.Queued }, "deferred": func(it model.Item) bool { return it.Waiting },
		"moved": func(it model.Item) bool { return it.Lease != 0 && it.Lease != it.Score }, "claimed": func(it model.Item) bool { return it.Attempt > 0 }, "gone": isGone,
	} {
		if m.count(func(it model.Item) bool { return it.Take.Units > 0 && is(it) }) > 0 {
			m.counts.add("held: " + what)
		}
	}
	holding := held.Holding()
	for item, is := range held.Stocks {
		require.Equal(t, holding[item], is.Held, "tasks hold it")
		delete(holding, item)
	}
	require.Empty(t, holding, "of no stock")
}

// cutHolds cuts what a task holds off its state field, or its group.
func cutHolds(field string) (holds, rest string) {
	if _, rest, ok := cutGroup(field); ok {
		return strings.TrimSuffix(field, rest), rest
	}
	var units, length int
	if n, _ := fmt.Sscanf(field, "*%d,%d:", &units, &length); n == 2 {
		end := strings.IndexByte(field, ':') + 1 + length
		return field[:end], field[end:]
	}
	return "", field
}

func takeOf(holds string) (take sluice.Take) {
	if strings.HasPrefix(holds, "*") {
		_, take.Item, _ = strings.Cut(holds, ":")
		_, _ = fmt.Sscanf(holds, "*%d,", &take.Units)
	}
	return take
}

// readOwed reads what stands under no task's ID.
func readOwed(t require.TestingT, field string) sluice.Take {
	holds, rest := cutHolds(field)
	require.NotEmpty(t, holds)
	require.Equal(t, "$", rest, "not sold")
	return takeOf(holds)
}

func readStocks(t require.TestingT, fields map[string]string) map[string]model.Stock {
	stocks := map[string]model.Stock{}
	for field, text := range fields {
		what, item, isItem := strings.Cut(field, ":")
		if !isItem {
			require.Equal(t, "sweep", what)
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		s := stocks[item]
		switch what {
		case "total":
			s.OnSale, s.Total = true, n
		case "held":
			s.Counted, s.Held = true, n
		case "sold":
			require.Positive(t, n)
			s.Sold = n
		default:
			require.Fail(t, "an unknown field", field)
		}
		stocks[item] = s
	}
	return stocks
}
