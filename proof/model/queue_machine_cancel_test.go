package model_test

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
)

func (m *queueMachine) cancel(t *rapid.T) {
	now, ids := m.begin(), []string{m.anID(t)}
	var were []sluice.State
	var err error
	if rapid.IntRange(0, 2).Draw(t, "batch") == 1 {
		ids = m.someIDs(t)
		were, err = m.queues[0].CancelBatch(context.Background(), ids...)
	} else {
		were = make([]sluice.State, 1)
		were[0], err = m.queues[0].Cancel(context.Background(), ids[0])
	}
	require.NoError(t, err)
	before, next := len(m.model.Records), m.nexts("cancel")
	m.putsBack("cancelled with units", func() {
		if want := m.model.Cancel(now, ids...); len(ids) > 0 {
			require.Equal(t, want, were)
		}
	})
	next()
	done := 0
	for _, was := range were {
		m.counts.add("cancel: " + was.String())
		if was == sluice.StateDone {
			done++
		}
	}
	if len(m.model.Records) < before-done {
		m.counts.add("cancel: shadowed")
	}
	m.end(t)
}

func (m *queueMachine) cancelUnchanged(t *rapid.T) {
	now, recent := m.begin(), slices.Clip(m.read[max(len(m.read)-3, 0):])
	for _, it := range m.model.Items {
		if is, ok := m.model.Get(now, it.ID); ok && is.State != sluice.StateLeased {
			recent = append(recent, is)
		}
	}
	if len(recent) == 0 {
		t.Skip("nothing was read yet")
	}
	ts := make([]sluice.TaskInfo, rapid.IntRange(1, 3).Draw(t, "tasks"))
	for i := range ts {
		ts[i] = recent[rapid.IntRange(0, len(recent)-1).Draw(t, "read")]
		if rapid.IntRange(0, 15).Draw(t, "forged") == 1 {
			ts[i].Score += 1e-6
		}
	}
	were, err := m.queues[0].CancelUnchanged(context.Background(), ts...)
	require.NoError(t, err)
	next := m.nexts("cancel")
	m.putsBack("cancelled with units", func() { require.Equal(t, m.model.CancelUnchanged(now, ts...), were) })
	next()
	for i, was := range were {
		m.counts.add("cancel unchanged: " + was.String())
		if was == sluice.StateAbsent && m.stateOf(now, ts[i].ID) != was {
			m.counts.add("cancel unchanged: changed")
		}
	}
	m.end(t)
}
