package model_test

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/proof/model"
)

// groupResults are the results that a long run with groups must have seen.
const groupResults = `group: added; group: updated; group: kept; group: deferred; group: done; group: other; group: in play; group: waits; waiting: updated; waiting: kept; waiting: kept due; waiting: plain task kept; dead letter of a group replaced; dead letter of another group replaced; left by a foreign consumer; a plain task got a group;
changed places; several in play; next: enqueue; next: enqueue batch; next: claim; next: pop; next: dequeue; next: bury; next: cancel; next: reschedule; next: revive; next: retry; next: release; next: presence; next: finish;
cancel: waiting; get: waiting; list: waiting; list: one group; reschedule: waiting; revive: waits; foreign add: waiting; foreign remove: in play; a place of a task that does not wait; finished unaware in play; purge; per group`

// TestQueueMachine_GroupsInVirtualTime runs the machine with tasks most of which are in groups.
func TestQueueMachine_GroupsInVirtualTime(t *testing.T) {
	t.Parallel()
	rdb, c := virtualServer(t)
	runQueueMachine(t, rdb, c, group, list(groupResults)...)
}

// TestQueueMachine_GroupsOnRealServer is that on a real server.
func TestQueueMachine_GroupsOnRealServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.Redis(t).Client(t)
	runQueueMachine(t, rdb, &realClock{rdb: rdb}, group, list(groupResults)...)
}

// oddGroup could be taken for a state field, and farGroup begins as another one does.
const nearGroup, farGroup, oddGroup = "g", "g\x01", "@1:g::"

// homes are the groups to which IDs belong, as long as no other one is drawn.
var homes = map[string]string{"a": nearGroup, "b": nearGroup, "c": nearGroup, "~": nearGroup, "e": oddGroup, "\x00:dead:1:\xff": oddGroup, "g": ""}

// group has the machine put tasks into groups, and do more often what these are about. There are
// more IDs, so that some wait.
func group(m *queueMachine, actions map[string]func(*rapid.T)) {
	m.grouped, m.someID = true, rapid.SampledFrom([]string{"a", "b", "c", "~", "e", "\x00:dead:1:\xff", "g"})
	for _, name := range []string{"Limits", "Invalid", "Get2", "Get3", "Peek", "EndRetention", "DequeueAndRemember", "DequeueAndRemember2", "Resume2", "Dead", "Drop", "Extend", "Finish2"} {
		delete(actions, name)
	}
	for name, action := range map[string]func(*rapid.T){
		"Enqueue": m.enqueue, "EnqueueBatch": m.enqueueBatch, "Dequeue": m.dequeue, "Discard": m.discard, "ListGroup": m.listGroup, "Reschedule": m.reschedule, "Revive": m.revive, "EndLease": m.endLease, "Retry": m.retry, "ForeignAdd": m.foreignAdd,
	} {
		actions[name+"OfGroups"], actions[name+"OfGroups2"] = action, action
	}
}

// anID draws an ID: with groups mostly that of a task which is there.
func (m *queueMachine) anID(t *rapid.T) string {
	var ids []string
	for _, it := range m.model.Items {
		if it.Queued || it.Listed || it.Awaits() {
			ids = append(ids, it.ID)
		}
	}
	if m.grouped && len(ids) > 0 && rapid.IntRange(0, 3).Draw(t, "any") > 0 {
		return rapid.SampledFrom(ids).Draw(t, "id")
	}
	return m.someID.Draw(t, "id")
}

// someIDs draws IDs, perhaps none.
func (m *queueMachine) someIDs(t *rapid.T) []string {
	ids := make([]string, rapid.IntRange(0, 4).Draw(t, "ids"))
	for i := range ids {
		ids[i] = m.anID(t)
	}
	return ids
}

// group draws the group of a task, perhaps none: mostly the one to which its ID belongs.
func (m *queueMachine) group(t *rapid.T, id string) string {
	switch {
	case !m.grouped:
		return ""
	case rapid.IntRange(0, 9).Draw(t, "another group") == 1:
		return rapid.SampledFrom([]string{"", nearGroup, oddGroup, farGroup}).Draw(t, "group")
	}
	return homes[id]
}

// perGroup draws how many tasks of a group may be in play.
func (m *queueMachine) perGroup(t *rapid.T) int {
	if !m.grouped {
		return 0
	}
	m.counts.add("per group")
	return rapid.SampledFrom([]int{0, 1, 1, 2, 3}).Draw(t, "per group")
}

// enqueuedIn has the model enqueue a task of a group.
func (m *queueMachine) enqueuedIn(now, within float64, policy sluice.Duplicates, task sluice.Task, due float64) sluice.Outcome {
	was, state := *m.model.Item(task.ID), m.stateOf(now, task.ID)
	outcome := m.model.EnqueueIn(now, within, policy, task.Group, task.ID, due, string(task.Payload))
	if outcome == 0 {
		m.counts.add("group: other")
		return 0
	}
	m.counts.add("group: " + outcome.String())
	switch is := m.stateOf(now, task.ID); {
	case state == sluice.StateWaiting:
		m.counts.add("waiting: " + either(policy == sluice.DuplicatesKeepDue, "kept due", outcome.String()))
	case outcome == sluice.OutcomeAdded:
		m.counts.add("group: " + either(is == sluice.StateWaiting, "waits", "in play"))
	}
	switch {
	case outcome != sluice.OutcomeAdded || was.Group == "":
	case state == sluice.StateDead:
		m.counts.add("dead letter of " + either(was.Group == task.Group, "a", "another") + " group replaced")
	default:
		m.counts.add("left by a foreign consumer")
	}
	return outcome
}

// stateOf returns the state of a task, StateAbsent of one that is done.
func (m *queueMachine) stateOf(now float64, id string) sluice.State {
	task, ok := m.model.Get(now, id)
	if !ok || task.State == sluice.StateDone {
		return sluice.StateAbsent
	}
	return task.State
}

// nexts notes where tasks of groups are before an operation. What it returns counts it if others
// have been put into play since, and compares what must hold of any groups.
func (m *queueMachine) nexts(what string) func() {
	if !m.grouped {
		return func() {}
	}
	playing, awaiting := map[model.Place]bool{}, map[string]bool{}
	for _, p := range m.model.Playing {
		playing[p] = true
	}
	for _, p := range m.model.Awaiting {
		awaiting[p.ID] = true
	}
	return func() {
		for _, p := range m.model.Playing {
			if !playing[p] && awaiting[p.ID] {
				m.counts.add("next: " + what)
			}
			delete(playing, p)
		}
		for p := range playing {
			if it := m.model.Item(p.ID); it.Awaits() && it.Group == p.Group {
				m.counts.add("changed places")
			}
		}
	}
}

// listGroup lists the tasks that wait in one group.
func (m *queueMachine) listGroup(t *rapid.T) {
	m.begin()
	of := rapid.SampledFrom([]string{nearGroup, nearGroup, farGroup, oddGroup}).Draw(t, "group")
	most, options := m.payloads(t)
	want := model.LeaveOut(m.model.ListWaiting(of, sluice.TaskInfo{}, 100), most)
	var all []sluice.TaskInfo
	for task, err := range m.queues[0].All(context.Background(), sluice.StateWaiting, append(options, sluice.InGroup(of))...) {
		require.NoError(t, err)
		all = append(all, task)
	}
	require.Equal(t, want, all)
	if len(all) > 0 {
		m.counts.add("list: one group")
	}
	m.end(t)
}

// requirePlaces compares which tasks are in play, and which wait, with the model.
func (m *queueMachine) requirePlaces(t *rapid.T, held *model.Queue, ended time.Time) {
	require.True(t, slices.Equal(m.model.Playing, held.Playing), "in play: %q\nmodel: %q", held.Playing, m.model.Playing)
	require.Len(t, held.Awaiting, len(m.model.Awaiting), "%q\nmodel: %q", held.Awaiting, m.model.Awaiting)
	for i, is := range held.Awaiting {
		want := &m.model.Awaiting[i]
		if want.Due != is.Due {
			m.near(t, ended, want.Due/1e6, is.Due/1e6)
			want.Due = is.Due
		}
		require.Equal(t, *want, is)
	}
	if n := len(held.Playing); n > 1 && m.model.Limits.PerGroup > 1 {
		m.counts.add("several in play")
	}
	for _, p := range held.Awaiting {
		if !held.Item(p.ID).Awaits() {
			m.counts.add("a place of a task that does not wait")
		}
	}
}

// readPlaces reads the groups.
func readPlaces(t require.TestingT, members []string) (playing, awaiting []model.Place) {
	for _, member := range members {
		group, rest, _ := strings.Cut(member[1:], "\x00")
		if member[0] == '!' {
			playing = append(playing, model.Place{Group: group, ID: rest})
			continue
		}
		require.Equal(t, byte('~'), member[0], "%q", member)
		due, err := strconv.ParseFloat(rest[:16], 64)
		require.NoError(t, err)
		require.InDelta(t, math.Trunc(due), due, 0)
		awaiting = append(awaiting, model.Place{Group: group, Due: due, ID: rest[16:]})
	}
	return playing, awaiting
}

// cutGroup cuts a task's group off its state field.
func cutGroup(field string) (group, rest string, ok bool) {
	if field == "" || field[0] != '@' {
		return "", field, false
	}
	length, after, _ := strings.Cut(field[1:], ":")
	n, err := strconv.Atoi(length)
	if err != nil {
		return "", field, false
	}
	return after[:n], after[n:], true
}
