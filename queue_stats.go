package sluice

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/wire"
)

// Stats is the state of a queue.
type Stats struct {
	// Due is how many tasks a worker may take now, unless pause or limits keep it from that, or would set aside. A leased task that
	// a foreign producer has moved to the past counts here until the next Claim.
	Due int64
	// Scheduled is how many are due later, without those that are leased.
	Scheduled int64
	// Leased is how many are leased. A leased task that a foreign consumer has removed counts until
	// the end of its lease.
	Leased int64
	// Dead is how many are among the dead letters.
	Dead int64
	// What became of tasks, in any process: Done were finished by a Worker or Dequeue, or taken by Pop; Retried failed, and are to be tried
	// again; Buried were put among the dead letters; Lost are leases that ran out, so that the task was handed out again, or
	// buried; Dropped are dead letters that went because of WithDeadLimit or WithDeadAge. They begin at 0 when nothing was counted,
	// or fewer than 16, and no Worker ran, for a day; nothing else makes them fall. A server that denies HINCRBY counts nothing.
	Done, Retried, Buried, Lost, Dropped int64
	// Retained is how many finished tasks are remembered, see WithRetention, with those that are over and not forgotten yet.
	Retained int64
	// Workers is how many Workers run, of all processes: see Queue.Workers.
	Workers int
	// Worked is when a Worker was last seen, by the server's clock. Zero if none was for a day.
	Worked time.Time
	// OldestDue is for how long the first due task has been due.
	OldestDue time.Duration
	// NextDue is when the first task is due that is scheduled or, because its lease ends,
	// leased, by the server's clock. Zero if there is none.
	NextDue time.Time
	// Paused says whether the queue is paused, or any of its shards.
	Paused bool
	// PausedUntil is when the pause ends by itself, by the server's clock: the last one, if shards
	// differ. Zero if it lasts until Resume.
	PausedUntil time.Time
	// Waiting is how many clients of go-redis wait in line for tasks, for Workers that have room and callers of Wait. One that waits
	// at several shards counts at each. A client that has died counts until it is told of a task, or until the line ends: a minute,
	// or some poll intervals, after the last one has looked. One that may not subscribe is not in line.
	Waiting int
	// Limits are what SetLimits has set; zero for none.
	Limits Limits
}

// Stats counts the queue's tasks. With several shards it adds up what each has at about the same
// time; the error is that of any of them. With WithDeadLimit or WithDeadAge it drops first what
// those say.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	return q.stats(ctx, "stats")
}

// stats is Stats, as a part of an operation.
func (q *Queue) stats(ctx context.Context, op string) (Stats, error) {
	if err := q.check(op); err != nil {
		return Stats{}, err
	}
	q.trim(ctx)
	all := make([]Stats, len(q.shards))
	err := q.onShards(ctx, func(i int, s *shard) error {
		reply, err := s.executor.Run(ctx, scriptStats.Request(s.workerKeys()))
		if err == nil {
			all[i], err = decodeStats(reply.Value)
		}
		return err
	})
	if err != nil {
		return Stats{}, q.wrap(ctx, op, err)
	}
	sum := all[0]
	for _, s := range all[1:] {
		sum = sum.plus(s)
	}
	return sum, nil
}

// plus returns the state of two shards.
func (s Stats) plus(o Stats) Stats {
	s.Due += o.Due
	s.Scheduled += o.Scheduled
	s.Leased += o.Leased
	s.Dead += o.Dead
	s.Done, s.Retried, s.Buried = s.Done+o.Done, s.Retried+o.Retried, s.Buried+o.Buried
	s.Lost, s.Dropped = s.Lost+o.Lost, s.Dropped+o.Dropped
	s.Waiting += o.Waiting
	s.Retained += o.Retained
	switch {
	case !o.Paused:
	case !s.Paused:
		s.Paused, s.PausedUntil = true, o.PausedUntil
	case s.PausedUntil.IsZero(), o.PausedUntil.IsZero():
		s.PausedUntil = time.Time{}
	case o.PausedUntil.After(s.PausedUntil):
		s.PausedUntil = o.PausedUntil
	}
	s.OldestDue = max(s.OldestDue, o.OldestDue)
	if s.NextDue.IsZero() || !o.NextDue.IsZero() && o.NextDue.Before(s.NextDue) {
		s.NextDue = o.NextDue
	}
	return s
}

// decodeStats decodes how many are due, scheduled and dead, then the scores, or nothing, of
// the oldest due and the next scheduled or leased task, the time, how many are leased, how
// long the pause lasts, the counts, how many workers there are and when one was seen, how many clients are in line, how many tasks are remembered,
// and the limits.
func decodeStats(value any) (s Stats, err error) {
	r := wire.Read(value)
	s.Due, s.Scheduled, s.Dead = r.Int(), r.Int(), r.Int()
	oldest, hasDue := r.MaybeScore()
	next, hasNext := r.MaybeScore()
	now := r.Score()
	leased, pause := r.Int(), r.Int()
	s.Done, s.Retried, s.Buried, s.Lost, s.Dropped = r.Int(), r.Int(), r.Int(), r.Int(), r.Int()
	workers := r.Int()
	worked, hasWorked := r.MaybeScore()
	waiting, retained := r.Int(), r.Int()
	s.Limits = readLimits(&r)
	if err := r.Err(); err != nil {
		return Stats{}, err
	}
	s.Leased, s.Retained, s.Workers, s.Waiting, s.Paused = leased, retained, int(workers), int(waiting), pause != notPaused
	if hasWorked {
		s.Worked = wire.TimeOf(worked)
	}
	if pause >= 0 {
		s.PausedUntil = wire.TimeOf(now).Add(duration(pause))
	}
	if hasDue {
		s.OldestDue = time.Duration(min((now-oldest)*1e6, 9e15)) * time.Microsecond
	}
	if hasNext {
		s.NextDue = wire.TimeOf(next)
	}
	return s, nil
}

// notPaused is what scripts say instead of for how many milliseconds a queue is paused.
const notPaused = -2

// Pause keeps the queue's tasks from being handed out for d, by the server's clock, or until Resume if d is 0: no
// Claim, Pop or Worker of any process gets one. It replaces a pause that the queue has; limits stay.
//
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
	if d < 0 || d > longestDuration {
		return invalid("pause", fmt.Sprintf("pause of %v", d))
	}
	return q.onPauses(ctx, "pause", func(s *shard) redisexec.Request {
		return s.replicated(scriptPause.Request(s.allKeys, millis(d)))
	})
}

// Resume ends a pause. Those who wait for tasks learn of it at once. A queue that is not paused stays
// as it is. With several shards, those of which the error is not are resumed. After ErrUnknown it may be called again.
func (q *Queue) Resume(ctx context.Context) error {
	return q.onPauses(ctx, "resume", func(s *shard) redisexec.Request {
		return s.replicated(scriptResume.Request(s.allKeys))
	})
}

// onPauses changes the pauses of all shards.
func (q *Queue) onPauses(ctx context.Context, op string, request func(s *shard) redisexec.Request) error {
	if err := q.check(op); err != nil {
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
