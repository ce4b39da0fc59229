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
	reply, err := q.executor.Run(ctx, q.store.Stats())
	var s store.Stats
	if err == nil {
		s, err = store.DecodeStats(reply.Value)
	}
	return statsOf(s), wrap(op, q.name, err)
}

func statsOf(s store.Stats) Stats {
	return Stats{
		Due: s.Due, Scheduled: s.Scheduled, Leased: s.Leased, Dead: s.Dead,
		Done: s.Done, Retried: s.Retried, Buried: s.Buried, Lost: s.Lost, Dropped: s.Dropped, Retained: s.Retained,
		Workers: s.Workers, Worked: s.Worked, OldestDue: s.OldestDue, NextDue: s.NextDue,
		Paused: s.Paused, PausedUntil: s.PausedUntil, Waiting: s.Waiting, Limits: Limits(s.Limits),
	}
}

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
	return q.change(ctx, "pause", func() redisexec.Request { return q.store.Pause(d) })
}

// Resume ends a pause. Those who wait for tasks learn of it at once. A queue that is not paused stays
// as it is. After ErrUnknown it may be called again.
func (q *Queue) Resume(ctx context.Context) error {
	return q.change(ctx, "resume", func() redisexec.Request { return q.store.Resume() })
}

// change changes the queue's pause or limits.
func (q *Queue) change(ctx context.Context, op string, request func() redisexec.Request) error {
	if err := q.check(op); err != nil {
		return err
	}
	reply, err := q.executor.Run(ctx, request())
	if err == nil {
		err = reply.Shortfall
	}
	return wrap(op, q.name, err)
}
