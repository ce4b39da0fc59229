package model_test

import (
	"context"
	"math"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/proof/model"
)

// somePolicy draws the first ones more often: what DuplicatesOnce is about is seen least.
var somePolicy = rapid.SampledFrom([]sluice.Duplicates{
	sluice.DuplicatesOnce, sluice.DuplicatesReplace, sluice.DuplicatesKeep, sluice.DuplicatesEarliest, sluice.DuplicatesLatest, sluice.DuplicatesKeepDue,
})

// enqueuer draws a duplicate policy. It returns a queue with that policy, and what the model does.
// The queue is a new one if it is to remember nothing of what is sold out.
func (m *queueMachine) enqueuer(t *rapid.T, now float64, isNew bool) (q *sluice.Queue, own sluice.Duplicates, enqueue func(task sluice.Task, due float64) sluice.Outcome) {
	policy := somePolicy.Draw(t, "policy")
	if policy != sluice.DuplicatesOnce {
		of := policy
		if rapid.Bool().Draw(t, "by the task") {
			of, own = sluice.Duplicates(rapid.IntRange(0, len(m.queues)-1).Draw(t, "queue")), policy
		}
		if q = m.queues[of]; isNew {
			q = m.newQueue(true, sluice.WithDuplicates(of))
		}
		return q, own, func(task sluice.Task, due float64) sluice.Outcome {
			if task.Take != (sluice.Take{}) {
				return m.enqueuedTake(now, 0, task, due)
			}
			if task.Group != "" {
				return m.enqueuedIn(now, 0, policy, task, due)
			}
			outcome := m.enqueuedPlain(now, task.ID, func() sluice.Outcome { return m.model.Enqueue(now, policy, task.ID, due, string(task.Payload)) })
			if policy == sluice.DuplicatesKeepDue {
				m.counts.add("kept due: " + outcome.String())
			}
			return outcome
		}
	}
	retention := rapid.SampledFrom(m.retentions).Draw(t, "retention")
	within := decimal(micros(retention))
	if q = m.retaining[retention]; isNew {
		q = m.newQueue(true, sluice.WithDuplicates(sluice.DuplicatesOnce), sluice.WithRetention(retention))
	}
	return q, own, func(task sluice.Task, due float64) sluice.Outcome {
		if task.Take != (sluice.Take{}) {
			return m.enqueuedTake(now, within, task, due)
		}
		if task.Group != "" {
			return m.enqueuedIn(now, within, policy, task, due)
		}
		isDead, before := m.model.Item(task.ID).Buried, slices.Clone(m.model.Records)
		outcome := m.enqueuedPlain(now, task.ID, func() sluice.Outcome {
			return m.model.EnqueueOnce(now, within, task.ID, due, string(task.Payload))
		})
		isDone := slices.ContainsFunc(before, func(r model.Record) bool { return r.ID == task.ID })
		switch {
		case outcome != sluice.OutcomeAdded:
		case isDead:
			m.counts.add("once: dead")
		case isDone:
			m.counts.add("once: over")
		}
		return outcome
	}
}

func (m *queueMachine) enqueue(t *rapid.T) {
	now := m.begin()
	task, due := m.task(t, now)
	q, own, enqueue := m.enqueuer(t, now, task.Take != sluice.Take{})
	task.Duplicates = own
	outcome, err := q.Enqueue(context.Background(), task)
	if outcome == 0 {
		require.ErrorIs(t, err, sluice.ErrInvalid)
	} else {
		require.NoError(t, err)
		m.counts.add("enqueue: " + outcome.String())
	}
	next := m.nexts("enqueue")
	m.enqueued(t, []sluice.Outcome{outcome}, func(_ int, nudge float64) sluice.Outcome { return enqueue(task, due(0)+nudge) })
	next()
	m.end(t)
}

// enqueueBatch enqueues tasks. Those in a row that take units are a chunk, as are those that are in
// groups, and the others.
func (m *queueMachine) enqueueBatch(t *rapid.T) {
	now := m.begin()
	tasks := make([]sluice.Task, rapid.IntRange(0, 5).Draw(t, "tasks"))
	chunks := make([]int, len(tasks)) // of each the place of its chunk's first task
	q, own, enqueue := m.enqueuer(t, now, false)
	for i := range tasks {
		task, _ := m.task(t, now)
		tasks[i], tasks[i].Duplicates = task, own
		if chunks[i] = i; i > 0 && (task.Take == sluice.Take{}) == (tasks[i-1].Take == sluice.Take{}) && (task.Group == "") == (tasks[i-1].Group == "") {
			chunks[i] = chunks[i-1]
		}
	}
	dues := duesOf(now, tasks, chunks)
	outcomes, err := q.EnqueueBatch(context.Background(), tasks)
	require.Len(t, outcomes, len(tasks))
	failed, next := math.MaxInt, m.nexts("enqueue batch") // the chunk behind which none was sent
	m.enqueued(t, outcomes, func(i int, nudge float64) (outcome sluice.Outcome) {
		if chunks[i] <= failed {
			for j, task := range tasks {
				if chunks[j] == i && task.Take != (sluice.Take{}) { // and i is the first of a chunk
					m.model.PutBack(task.ID)
				} else if chunks[j] == i && task.Group != "" {
					m.model.ClearGone(task.ID)
				}
			}
			outcome = enqueue(tasks[i], dues[i]+nudge)
		}
		if outcome == 0 {
			failed = min(failed, chunks[i])
		}
		return outcome
	})
	next()
	if failed < math.MaxInt {
		require.ErrorIs(t, err, sluice.ErrInvalid)
	} else {
		require.NoError(t, err)
	}
	m.counts.add("enqueue batch")
	m.end(t)
}

// enqueued compares outcomes with those of the model, task by task. Of two equal times one may be
// later by the last bits of a sum, which is for the server to say.
func (m *queueMachine) enqueued(t *rapid.T, outcomes []sluice.Outcome, enqueue func(i int, nudge float64) sluice.Outcome) {
	want := make([]sluice.Outcome, len(outcomes))
	for i := range outcomes {
		before := m.model
		for _, nudge := range []float64{0, lastBits, -lastBits} {
			m.model = before.Clone()
			if want[i] = enqueue(i, nudge); want[i] == outcomes[i] {
				break
			}
		}
	}
	require.Equal(t, want, outcomes)
}
