package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// What paused.lua says, besides for how many milliseconds a queue is paused.
const (
	pausedForEver = -1
	notPaused     = -2
)

// Pause keeps the queue's tasks from being handed out for d, by the server's clock, or until Resume
// if d is 0: no Claim, Pop or Worker of any process gets one. It replaces a pause that the queue has.
// A d of less than a millisecond is a millisecond.
//
// Tasks that are leased go on: they are extended, finished, retried and buried as ever. What
// enqueues and lists works, Wait waits, and delays go by: what becomes due meanwhile is handed out at the
// end of the pause, which those who wait learn at once. It works on a full server.
//
// When Pause returns nil, no later claim brings a task. A claim that the server has carried out before
// may yet return. With several shards, those of which the error is not are paused. After ErrUnknown it may be called
// again. ErrInvalid: d is negative. Stats says whether a queue is paused, and until when.
func (q *Queue) Pause(ctx context.Context, d time.Duration) error {
	if d < 0 || d > longest {
		return invalid("pause", fmt.Sprintf("pause of %v", d))
	}
	return q.onPauses(ctx, "pause", func(s *shard) redisexec.Request { return s.pauseRequest(millis(d)) })
}

// Resume ends a pause. Those who wait for tasks learn of it at once. A queue that is not paused stays
// as it is. With several shards, those of which the error is not are resumed. After ErrUnknown it may be called again.
func (q *Queue) Resume(ctx context.Context) error {
	return q.onPauses(ctx, "resume", (*shard).resumeRequest)
}

// pause returns the key of the shard's pause.
func (s *shard) pause() any { return s.allKeys[len(s.allKeys)-1] }

func (s *shard) pauseRequest(ms int64) redisexec.Request {
	return s.replicated(scriptPause.Request(s.allKeys, s.announce, ms))
}

func (s *shard) resumeRequest() redisexec.Request {
	return s.replicated(scriptResume.Request(s.allKeys, s.announce))
}

// onPauses changes the pauses of all shards, also of those of a layout that is left: see carryPause.
// It asks for the layout before and after: no shard tells of another layout here.
func (q *Queue) onPauses(ctx context.Context, op string, request func(s *shard) redisexec.Request) error {
	if err := q.check(op, ctx); err != nil {
		return err
	}
	if _, err := q.ready(ctx); err != nil {
		return wrap(op, q.name, err)
	}
	for {
		if err := q.refreshIfAllowed(ctx); err != nil {
			return wrap(op, q.name, err)
		}
		l := q.layout()
		err := q.forPauses(l, func(s *shard) error {
			reply, err := s.executor.Run(ctx, request(s))
			if err == nil {
				err = reply.Shortfall
			}
			return err
		})
		if err == nil {
			err = q.refreshIfAllowed(ctx)
		}
		if err != nil || q.layout() == l {
			return wrap(op, q.name, err)
		}
	}
}

// refreshIfAllowed is refresh for a user who may lack the rights on the layout's key: such a queue has one
// shard, and is not moved.
func (q *Queue) refreshIfAllowed(ctx context.Context) error {
	err := q.refresh(ctx)
	var denied redis.Error
	if l := q.layout(); len(l.shards) == 1 && l.from == nil && errors.As(err, &denied) && !errors.Is(err, redisexec.ErrWrongType) {
		return nil
	}
	return err
}

// forPauses calls f for each shard that may have a pause: those of the layout that is left first, so that a mover which carries
// what it has found there is overwritten; then those of the other.
func (q *Queue) forPauses(l *layout, f func(s *shard) error) error {
	each := func(_ int, s *shard) error { return f(s) }
	var left error
	if l.from != nil {
		left = q.forShards(l.from, each)
	}
	return joinErrors([]error{left, q.forShards(l, each)})
}

// carryPause gives the shards of a new layout the pause of those that are left, before any task is
// moved. If the queue is resumed meanwhile, they are, too: as long as the queue is being moved, both have the pause.
func (q *Queue) carryPause(ctx context.Context, l *layout) error {
	left, err := q.pauseOf(ctx, l.from)
	if err == nil && left != notPaused {
		if err = q.carryPauseStep(ctx, l, max(left, 0)); err == nil {
			left, err = q.pauseOf(ctx, l.from)
		}
	}
	switch {
	case err != nil:
		return err
	case left == notPaused:
		return q.carryPauseStep(ctx, l, "clear")
	}
	return q.carryPauseStep(ctx, l, "keep")
}

// carryPauseStep makes a step of reshard_pause.lua in each shard of a new layout.
func (q *Queue) carryPauseStep(ctx context.Context, l *layout, step any) error {
	return q.forShards(l, func(_ int, s *shard) error {
		keys := append(slices.Clip(s.allKeys), s.companion(keyspace.Move))
		_, err := q.executor.Run(ctx, scriptReshardPause.Request(keys, s.announce, step))
		return err
	})
}

// pauseOf returns how long the pause of a layout lasts, as paused.lua says it: that of the shard that
// has the longest.
func (q *Queue) pauseOf(ctx context.Context, l *layout) (int64, error) {
	all := make([]int64, len(l.shards))
	err := q.forShards(l, func(i int, s *shard) error {
		reply, err := s.executor.Run(ctx, scriptPaused.Request([]any{s.pause()}))
		if err == nil {
			all[i], err = redisexec.Int(reply.Value)
		}
		return err
	})
	left := int64(notPaused)
	for _, ms := range all {
		switch {
		case ms == pausedForEver || left == pausedForEver:
			left = pausedForEver
		case ms >= 0:
			left = max(left, ms, 1)
		}
	}
	return left, err
}

// forgetPause removes the pauses of a layout that was left. What fails stays: a mover that comes late may read it, and carries no
// pause any more.
func (q *Queue) forgetPause(ctx context.Context, l *layout) {
	_ = q.forShards(l, func(_ int, s *shard) error {
		_, err := s.executor.Run(ctx, s.resumeRequest())
		return err
	})
}
