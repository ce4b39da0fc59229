package main

import (
	"context"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
)

// TestChange_LeavesAloneWhatAWorkerHasTaken since it was chosen: its handler's work would be done twice.
func TestChange_LeavesAloneWhatAWorkerHasTaken(t *testing.T) {
	for _, command := range [][]string{
		{"delay", "orders", "--all", "--state", "due", "--for", "1h"}, {"run", "orders", "--all", "--state", "due"}, {"bury", "orders", "--all", "--state", "due"},
	} {
		t.Run(command[0], func(t *testing.T) {
			s := newStage(t)
			q := s.queue("orders")
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
			require.NoError(t, err)
			var es []sluice.Entry
			s.input, s.interactive = "1\n", true
			s.before = func() {
				if es == nil { // it is asked back how many
					es, err = q.Claim(t.Context(), 1, time.Minute)
					assert.NoError(t, err)
					assert.Len(t, es, 1)
				}
			}
			require.Contains(t, s.ok(command...), "not found: 1")
			require.Len(t, es, 1)
			require.NoError(t, q.Dequeue(t.Context(), es...))
			_, err = q.Get(t.Context(), "a")
			require.ErrorIs(t, err, sluice.ErrNotFound, "it comes again")
		})
	}
}

// TestMove_ADryRunSaysTheTruth: what holds units, or is there, stays; and a queue that is not paused moves
// nothing.
func TestMove_ADryRunSaysTheTruth(t *testing.T) {
	s := newStage(t)
	q, to := s.queue("orders"), s.queue("other")
	require.NoError(t, q.SetStock(t.Context(), "phone", 1))
	for _, task := range []sluice.Task{{ID: "a"}, {ID: "b"}, {ID: "holds", Take: sluice.Take{Item: "phone"}}} {
		_, err := q.Enqueue(t.Context(), task)
		require.NoError(t, err)
	}
	_, err := to.Enqueue(t.Context(), sluice.Task{ID: "b"})
	require.NoError(t, err)
	move := []string{"move", "orders", "--to", "other", "--all", "--state", "due"}
	got := s.run(append(move, "--dry-run")...)
	require.Equal(t, exitOK, got.code)
	require.Contains(t, got.err, "now it would move dead letters alone: the queue orders hands tasks out")
	require.Equal(t, exitNotConfirmed, s.run(append(move, "--yes")...).code)
	s.ok("pause", "orders")
	var dry, done resultJSON
	s.json(exitOK, &dry, append(move, "--dry-run")...)
	s.json(exitFailed, &done, append(move, "--yes")...)
	require.Equal(t, map[string]int{"done": 1, string(outcomeKept): 1, string(outcomeHolds): 1}, dry.Outcomes)
	require.Equal(t, done.Outcomes, dry.Outcomes)
	require.Equal(t, exitUsage, s.run("move", "orders", "--to", "orders", "--all", "--state", "due", "--dry-run").code)
	s.json(exitFailed, &dry, "move", "orders", "b", "holds", "--to", "third", "--dry-run")
	require.Equal(t, []string{"done", string(outcomeHolds)}, []string{dry.Tasks[0].Outcome, dry.Tasks[1].Outcome})
}

// TestChange_WhatIsDoneBeforeAnErrorIsNotNothing: the exit codes 4 and 5 say that nothing was done.
func TestChange_WhatIsDoneBeforeAnErrorIsNotNothing(t *testing.T) {
	s := newStage(t)
	q := s.queue("orders")
	for _, id := range []string{"a", "b"} {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: id})
		require.NoError(t, err)
	}
	cancel := func(scripts int32, ids ...string) int {
		rdb := s.server.Client(t)
		left := refusing(scripts)
		rdb.AddHook(&left)
		a := &app{in: strings.NewReader(""), out: &output{Writer: io.Discard}, errOut: io.Discard, rdb: rdb, lookupEnv: func(string) (string, bool) { return "", false }}
		return a.run(t.Context(), append([]string{"cancel", "orders"}, ids...))
	}
	require.Equal(t, exitUnavailable, cancel(0, "a", "b"))
	require.Equal(t, "due", s.stateOf(q, "a"))
	require.Equal(t, exitFailed, cancel(2, "a", "b")) // the server does not know the first one
	require.Equal(t, "absent", s.stateOf(q, "a"))
	require.Equal(t, "due", s.stateOf(q, "b"))
}

// refusing is a hook that lets so many scripts through.
type refusing int32

func (r *refusing) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			if *r--; *r < 0 {
				err := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
				cmd.SetErr(err)
				return err
			}
		}
		return next(ctx, cmd)
	}
}

func (r *refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
