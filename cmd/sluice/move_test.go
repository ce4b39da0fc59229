package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestMove_WhatHasChangedStays: a task that changes between the two steps of a move stays where it
// is, and leaves the other queue again, unless that one has it in another version by then.
func TestMove_WhatHasChangedStays(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	from, to := s.queue("orders"), s.queue("parked")
	bury := func(id, why string) {
		_, err := from.Enqueue(ctx, sluice.Task{ID: id})
		require.NoError(t, err)
		es, err := from.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		require.Equal(t, id, es[0].ID)
		require.NoError(t, from.Bury(ctx, why, es...))
	}
	ids := []string{"changed", "changed in both", "same"}
	for _, id := range ids {
		bury(id, "first")
	}
	tasks, err := getAll(ctx, from, ids)
	require.NoError(t, err)
	_, err = to.Restore(ctx, tasks...)
	require.NoError(t, err)
	bury("changed", "second")
	bury("changed in both", "second")
	_, err = to.Enqueue(ctx, sluice.Task{ID: "changed in both", Delay: time.Hour})
	require.NoError(t, err)

	became := map[outcome]int{}
	require.NoError(t, leave(ctx, from, to, tasks, became))
	require.Equal(t, map[outcome]int{outcomeDone: 1, outcomeChanged: 2}, became)
	has := func(q *sluice.Queue) map[string]string {
		found := map[string]string{}
		for _, state := range []sluice.State{sluice.StateDead, sluice.StateScheduled} {
			for d, err := range q.All(ctx, state) {
				require.NoError(t, err)
				found[d.ID] = d.State.String() + d.Reason
			}
		}
		return found
	}
	require.Equal(t, map[string]string{"changed": "deadsecond", "changed in both": "deadsecond"}, has(from))
	require.Equal(t, map[string]string{"same": "deadfirst", "changed in both": "scheduled"}, has(to))
}

// TestMove_ForeignTimes: what another program has put into a queue may be due before 1970, or after
// all times. It is moved and exported as due at the first or last time that there is.
func TestMove_ForeignTimes(t *testing.T) {
	s := newStage(t)
	ctx := context.Background()
	from, to := s.queue("orders"), s.queue("parked")
	require.NoError(t, from.Pause(ctx, 0))
	require.NoError(t, s.rdb.ZAdd(ctx, "Queue:orders", redis.Z{Score: -5, Member: "before"}, redis.Z{Score: 1e15, Member: "after"}, redis.Z{Score: 7, Member: "in"}).Err())
	lines := s.ok("export", "orders")
	var got resultJSON
	s.json(exitOK, &got, "move", "orders", "--to", "parked", "--all", "--state", "due,scheduled", "--yes")
	require.Equal(t, 3, got.Done)
	require.Equal(t, strings.ReplaceAll(lines, `"orders"`, `"parked"`), s.ok("export", "parked"))
	before, err := to.Get(ctx, "before")
	require.NoError(t, err)
	require.Equal(t, int64(0), before.Due.Unix())
	after, err := to.Get(ctx, "after")
	require.NoError(t, err)
	require.Equal(t, 2200, after.Due.UTC().Year())
	require.NoError(t, to.Purge(ctx))
	s.input = lines
	require.Contains(t, s.ok("import", "-"), "3 tasks imported")
}

// TestMove_OfGroups: a task that waits in its group in the other queue is known there. A repeat
// takes away what an interrupted move has left, and one that has changed is taken back.
func TestMove_OfGroups(t *testing.T) {
	s := newStage(t)
	ctx := t.Context()
	from, to := s.queue("orders"), s.queue("parked")
	for _, id := range []string{"in play there", "a", "b"} {
		q := from
		if id == "in play there" {
			q = to
		}
		_, err := q.Enqueue(ctx, sluice.Task{ID: id, Group: "g", Payload: []byte("p")})
		require.NoError(t, err)
	}
	es, err := from.Claim(ctx, 1, time.Minute)
	require.NoError(t, err)
	require.NoError(t, from.Retry(ctx, 0, "failed", es...))
	require.NoError(t, from.Pause(ctx, 0))
	tasks, err := getAll(ctx, from, []string{"a"})
	require.NoError(t, err)
	require.Equal(t, 1, tasks[0].Attempt)
	_, err = to.Restore(ctx, tasks...) // and there it was interrupted
	require.NoError(t, err)
	var got resultJSON
	s.json(exitOK, &got, "move", "orders", "a", "--to", "parked")
	require.Equal(t, 1, got.Done)

	tasks, err = getAll(ctx, from, []string{"b"})
	require.NoError(t, err)
	_, err = to.Restore(ctx, tasks...)
	require.NoError(t, err)
	_, err = from.Reschedule(ctx, "b", time.Hour)
	require.NoError(t, err)
	became := map[outcome]int{}
	require.NoError(t, leave(ctx, from, to, tasks, became))
	require.Equal(t, map[outcome]int{outcomeDone: 0, outcomeChanged: 1}, became)
	_, err = to.Get(ctx, "b")
	require.ErrorIs(t, err, sluice.ErrNotFound)
}
