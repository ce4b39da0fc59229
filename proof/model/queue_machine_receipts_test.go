package model_test

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/proof/model"
)

// receipt draws a valid receipt, or one seen before, or invents one.
func (m *queueMachine) receipt(t *rapid.T) sluice.Entry {
	recent := 6
	if m.grouped {
		recent = 3 // of more tasks
	}
	seen := m.receipts[max(len(m.receipts)-recent, 0):]
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

// stale compares the error of an operation with receipts.
func (m *queueMachine) stale(t *rapid.T, op string, want []string, err error) {
	if len(want) == 0 {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, sluice.ErrStale)
		var stale *sluice.StaleError
		if errors.As(err, &stale) { // it names tasks, except of Extend
			require.Equal(t, want, stale.IDs)
		}
	}
	m.counts.add(op + ": " + either(len(want) == 0, "done", "stale"))
	m.end(t)
}

func (m *queueMachine) dequeue(t *rapid.T) {
	es, now := m.someReceipts(t), m.begin()
	q, unaware := m.queues[0], rapid.IntRange(0, 3).Draw(t, "unaware") == 1
	if unaware {
		q = m.newQueue(unaware)
	}
	err := q.Dequeue(context.Background(), known(es, unaware)...)
	next, held := m.nexts("dequeue"), len(m.model.Playing)
	stale := m.finished(now, model.Ending{Unaware: unaware}, es)
	next()
	if unaware && m.count(func(it model.Item) bool { return it.Queued && it.Group != "" }) < held {
		m.counts.add("finished unaware in play")
	}
	m.stale(t, "dequeue", stale, err)
}

func (m *queueMachine) release(t *rapid.T) {
	es, now := m.someReceipts(t), m.begin()
	err := m.queues[0].Release(context.Background(), es...)
	next := m.nexts("release")
	stale := m.model.Release(now, es...)
	next()
	m.stale(t, "release", stale, err)
}

func (m *queueMachine) retry(t *rapid.T) {
	e, now, delay := m.receipt(t), m.begin(), m.delay(t)
	err := m.queues[0].Retry(context.Background(), delay, "failed", e)
	next := m.nexts("retry")
	ok := m.model.Retry(now, e, decimal(micros(delay)), "failed")
	next()
	m.stale(t, "retry", staleID(e, ok), err)
}

func (m *queueMachine) bury(t *rapid.T) {
	e, now := m.receipt(t), m.begin()
	reason := rapid.SampledFrom([]string{"", "no", "1:dead:2:", strings.Repeat("ö", 300)}).Draw(t, "reason")
	q, b := m.limited(t)
	buried := m.model.Buried
	err := q.Bury(context.Background(), reason, known([]sluice.Entry{e}, b.unaware)...)
	next, ok := m.nexts("bury"), false
	m.model.As(b.unaware, func() { ok = m.model.Bury(now, e, reason[:min(len(reason), 512)]) })
	next()
	m.trimBehind("burial", now, b, buried)
	m.stale(t, "bury", staleID(e, ok), err)
}

// known returns the entries as one has them who was told only of the IDs and receipts, if that is
// so: then they do not say that their tasks hold units, or are in groups.
func known(es []sluice.Entry, isUnaware bool) []sluice.Entry {
	if !isUnaware {
		return es
	}
	bare := make([]sluice.Entry, len(es))
	for i, e := range es {
		bare[i] = sluice.Entry{ID: e.ID, Score: e.Score}
	}
	return bare
}

func staleID(e sluice.Entry, ok bool) []string {
	if ok {
		return nil
	}
	return []string{e.ID}
}

func (m *queueMachine) extend(t *rapid.T) {
	e, now, lease := m.receipt(t), m.begin(), m.lease(t)
	err := m.queues[0].Extend(context.Background(), e, lease)
	m.stale(t, "extend", staleID(e, m.model.Extend(now, e, decimal(micros(lease)))), err)
}
