package sluice

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// notPaused is what scripts say instead of for how many milliseconds a queue is paused.
const notPaused = -2

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
	return q.onPauses(ctx, "pause", func(s *shard) redisexec.Request {
		return s.replicated(scriptPause.Request(s.allKeys, s.announce, millis(d)))
	})
}

// Resume ends a pause. Those who wait for tasks learn of it at once. A queue that is not paused stays
// as it is. With several shards, those of which the error is not are resumed. After ErrUnknown it may be called again.
func (q *Queue) Resume(ctx context.Context) error {
	return q.onPauses(ctx, "resume", func(s *shard) redisexec.Request {
		return s.replicated(scriptResume.Request(s.allKeys, s.announce))
	})
}

// pause returns the key of the shard's pause.
func (s *shard) pause() any { return s.allKeys[len(s.allKeys)-1] }

// onPauses changes the pauses of all shards.
func (q *Queue) onPauses(ctx context.Context, op string, request func(s *shard) redisexec.Request) error {
	if err := q.check(op, ctx); err != nil {
		return err
	}
	return q.wrap(ctx, op, q.onShards(ctx, func(_ int, s *shard) error {
		reply, err := s.executor.Run(ctx, request(s))
		if err == nil {
			err = reply.Shortfall
		}
		return err
	}))
}
