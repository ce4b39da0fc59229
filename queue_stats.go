package sluice

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
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
	// Paused says whether the queue is paused.
	Paused bool
	// PausedUntil is when the pause ends by itself, by the server's clock. Zero if it lasts until Resume.
	PausedUntil time.Time
	// Waiting is how many clients of go-redis wait in line for tasks, for Workers that have room and callers of Wait.
	// A client that has died counts until it is told of a task, or until the line ends: a minute,
	// or some poll intervals, after the last one has looked. One that may not subscribe is not in line.
	Waiting int
	// Limits are what SetLimits has set; zero for none.
	Limits Limits
}

// Stats counts the queue's tasks. It changes nothing.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	return q.stats(ctx, "stats")
}

// stats is Stats, as a part of an operation.
func (q *Queue) stats(ctx context.Context, op string) (Stats, error) {
	if err := q.check(op); err != nil {
		return Stats{}, err
	}
	reply, err := q.executor.Run(ctx, scripts.Stats.Request(q.keys.all))
	var s Stats
	if err == nil {
		s, err = decodeStats(reply.Value)
	}
	return s, wrap(op, q.name, err)
}

// decodeStats decodes how many are due, scheduled and dead, then the scores, or nothing, of
// the oldest due and the next scheduled or leased task, the time, how many are leased, how
// long the pause lasts, the counts, how many workers there are and when one was seen, how many clients are in line, how many tasks are remembered,
// and the limits.
func decodeStats(value any) (s Stats, err error) {
	r := store.Read(value)
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
		s.Worked = store.TimeOf(worked)
	}
	if pause >= 0 {
		s.PausedUntil = store.TimeOf(now).Add(store.TimeToLive(pause))
	}
	if hasDue {
		s.OldestDue = time.Duration(min((now-oldest)*1e6, 9e15)) * time.Microsecond
	}
	if hasNext {
		s.NextDue = store.TimeOf(next)
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
// may yet return. After ErrUnknown it may be called
// again. ErrInvalid: d is negative. Stats says whether a queue is paused, and until when.
func (q *Queue) Pause(ctx context.Context, d time.Duration) error {
	if d < 0 || d > store.LongestDuration {
		return invalid("pause", fmt.Sprintf("pause of %v", d))
	}
	return q.change(ctx, "pause", scripts.Pause.Request(q.keys.counts, store.Millis(d)))
}

// Resume ends a pause. Those who wait for tasks learn of it at once. A queue that is not paused stays
// as it is. After ErrUnknown it may be called again.
func (q *Queue) Resume(ctx context.Context) error {
	return q.change(ctx, "resume", scripts.Resume.Request(q.keys.counts))
}

// change changes the queue's pause or limits.
func (q *Queue) change(ctx context.Context, op string, r redisexec.Request) error {
	if err := q.check(op); err != nil {
		return err
	}
	reply, err := q.executor.Run(ctx, q.replicated(r))
	if err == nil {
		err = reply.Shortfall
	}
	return wrap(op, q.name, err)
}
