package sluice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// ReshardProgress is how far Reshard has come.
type ReshardProgress struct {
	// Moved is how many tasks and dead letters this call has moved.
	Moved int64
	// Left is how many are to be moved, as far as is known: of shards that were not yet
	// looked at, nothing is.
	Left int64
}

// Reshard moves the queue to n shards, while producers and workers run: each finds the new
// shards by itself, with its next operation. It returns when all tasks and dead letters have
// been moved, or with the first error. progress, if it is not nil, is called after each step,
// by one goroutine at a time.
//
// Each task stays as it is: its due time, its attempts, its lease and its holder's receipt. An
// operation on a task that has not been moved moves it first. Tasks are moved in the order in which
// they are due, up to 250, or a megabyte of payload, at a time; while a task is on its way, which takes two
// round trips, no worker is given it.
//
// After an error, or a crash of the process, nothing is lost: call it again with the same n, anywhere. Until
// then up to 250 tasks of each of the former shards are not handed out, unless an operation names one of
// them, and the others that were not moved wait. ErrInvalid also says that the queue is being moved to
// another number of shards; finish that first.
//
// What was made by NewQueue before goes on with the new number. What is made later has to name it: deploy
// WithShards(n) while Reshard runs, or after it. Foreign producers that write the queue's sorted set get the
// server's error WRONGTYPE from then on. A pause goes on. While the queue is being moved, Peek, List and Dead
// show what has been moved, and Purge is ErrUnavailable. An operation by ID needs the access rights that a
// move needs.
func (q *Queue) Reshard(ctx context.Context, n int, progress func(ReshardProgress)) error {
	const op = "reshard"
	if err := q.check(op, ctx); err != nil {
		return err
	}
	if err := checkShards(n, q.main); err != nil {
		return fmt.Errorf("sluice: %s: %w", op, err)
	}
	var before, last int64 // what this call has moved, in the rounds before and in this one
	var report func(ReshardProgress)
	if progress != nil {
		report = func(p ReshardProgress) {
			last = p.Moved
			p.Moved += before
			progress(p)
		}
	}
	for {
		before, last = before+last, 0
		l, err := q.begin(ctx, n)
		if err == nil && l.from != nil {
			err = q.bringAll(ctx, l, report)
		}
		if l == nil || !errors.Is(err, errMoveOver) && !errors.Is(err, redisexec.ErrWrongType) { // done, or another error
			return wrap(op, q.name, err)
		}
		// Others have ended this move, if there is another layout by now: then begin knows what is left to be done.
		if failed := q.refresh(ctx); failed != nil || q.layout() == l {
			return wrap(op, q.name, cmp.Or(failed, err))
		}
	}
}

// bringAll brings all that the queue has to its new layout, and ends the move.
func (q *Queue) bringAll(ctx context.Context, l *layout, progress func(ReshardProgress)) error {
	if err := q.carryPause(ctx, l); err != nil {
		return err
	}
	if err := q.moveAll(ctx, l, progress); err != nil {
		return err
	}
	if err := q.carryDropped(ctx, l); err != nil {
		return err
	}
	if err := q.end(ctx, l); err != nil {
		return err
	}
	if len(l.from.shards) > 1 { // the keys of an only shard may be in use again; end has removed them
		q.forgetPause(ctx, l.from)
		q.forgetDropped(ctx, l.from)
	}
	return nil
}

// begin records that the queue is to have n shards, unless it has, or is being moved to as many.
func (q *Queue) begin(ctx context.Context, n int) (*layout, error) {
	r, err := q.readRecord(ctx, 0)
	if err == nil && r.from == 0 && r.shards != int64(n) {
		var reply redisexec.Reply
		if reply, err = q.executor.Run(ctx, scriptReshardBegin.Request([]any{keyspace.Companion(q.main, keyspace.Layout), q.main}, n, r.epoch)); err == nil {
			r, err = decodeRecord(reply.Value)
		}
	}
	switch {
	case err != nil:
		return nil, err
	case r.shards != int64(n):
		return nil, fmt.Errorf("%w: it is being moved to %d shards", ErrInvalid, r.shards)
	}
	q.known.Store(true)
	return q.follow(r), nil
}

// end records that the queue has been moved, and follows.
func (q *Queue) end(ctx context.Context, l *layout) error {
	home := newShard(q, q.main)
	keys := append([]any{keyspace.Companion(q.main, keyspace.Layout)}, home.allKeys...)
	keys = append(keys, home.companion(keyspace.Move), home.companion(keyspace.Dropped))
	if len(l.shards) == 1 {
		keys = append(append(keys, l.only().allKeys...), l.only().companion(keyspace.Dropped))
	}
	if _, err := q.executor.Run(ctx, scriptReshardEnd.Request(keys, l.epoch, tombstone(1), home.announce)); err != nil {
		return err
	}
	return q.refresh(ctx)
}

// moveAll moves what is in the former shards, all of them at the same time.
func (q *Queue) moveAll(ctx context.Context, l *layout, progress func(ReshardProgress)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	report := newReshardReport(len(l.from.shards), progress)
	for i := range l.from.shards {
		all.Go(func() {
			if err := (move{q, l, i}).all(ctx, report); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// reshardReport adds up the progress of the former shards.
type reshardReport struct {
	mu       sync.Mutex // guards what follows
	left     []int64
	sum      ReshardProgress
	progress func(ReshardProgress)
}

func newReshardReport(shards int, progress func(ReshardProgress)) *reshardReport {
	return &reshardReport{left: make([]int64, shards), progress: progress}
}

// step notes what a step in a former shard has moved, and how much is left there.
func (r *reshardReport) step(shard int, moved, left int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Moved += int64(moved)
	r.sum.Left += left - r.left[shard]
	r.left[shard] = left
	if r.progress != nil {
		r.progress(r.sum)
	}
}

// move is the way out of one former shard. Any number of processes may be on it at the same time:
//
//	take     the script closes the shard, if it is open, and puts up to a group of tasks in transit, or
//	         finds that there are some: one batch, with a number
//	put      each of the new shards is given its part of the batch, once: it knows the number
//	confirm  with the next take, the batch is no longer in transit
//
// After a crash, the next call that takes finds the batch in transit, and puts it.
type move struct {
	queue *Queue
	to    *layout
	index int // of the former shard
}

// transit is a batch of tasks, or of dead letters, on its way.
type transit struct {
	number int64 // 0 for none
	dead   bool
	left   int64 // tasks and dead letters in the shard besides
	tasks  []transitTask
}

// transitTask is a task as the scripts move it.
type transitTask struct{ id, score, payload, field any }

// errMoveOver says that the queue has another layout by now.
var errMoveOver = errors.New("the queue has been moved on")

// all moves all that is in the shard.
func (m move) all(ctx context.Context, report *reshardReport) error {
	for confirmed := int64(0); ; {
		t, err := m.take(ctx, confirmed, maxGroup)
		if err != nil {
			return err
		}
		if t.number == 0 {
			report.step(m.index, 0, 0)
			return nil
		}
		n, err := m.put(ctx, t)
		if err != nil {
			return err
		}
		report.step(m.index, n, t.left)
		confirmed = t.number
	}
}

// named moves the tasks with these IDs that are in the shard.
func (m move) named(ctx context.Context, ids []string) error {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	for confirmed := int64(0); ; {
		t, err := m.take(ctx, confirmed, 0, args...)
		if err == nil && t.number == 0 {
			return nil
		}
		if err == nil {
			_, err = m.put(ctx, t)
		}
		if err != nil {
			return err
		}
		confirmed = t.number
	}
}

// take confirms a batch, and takes the next one.
func (m move) take(ctx context.Context, confirm int64, n int, ids ...any) (transit, error) {
	s := m.to.from.shards[m.index]
	keys := append(s.keys[:4:4], s.companion(keyspace.MoveLeft), s.companion(keyspace.MoveTransit), s.companion(keyspace.Move), s.keys[4])
	args := append([]any{m.to.epoch, confirm, n, tombstone(len(m.to.shards)), s.announce}, ids...)
	reply, err := m.queue.executor.Run(ctx, scriptReshardTake.Request(keys, args...))
	if err != nil {
		return transit{}, err
	}
	t, err := decodeTransit(reply.Value)
	if err == nil && t.number == 0 && t.left == 0 {
		m.to.drained[m.index].Store(true)
	}
	return t, err
}

// put gives the new shards their parts of a batch, and returns how many tasks were new there.
func (m move) put(ctx context.Context, t transit) (int64, error) {
	parts := map[*shard][]any{}
	for _, task := range t.tasks {
		id, _ := task.id.(string)
		s := m.to.shardOf(id)
		parts[s] = append(parts[s], id, task.score, task.payload, task.field)
	}
	var all sync.WaitGroup
	var put atomic.Int64
	errs := make(chan error, len(parts))
	for s, part := range parts {
		all.Go(func() {
			n, err := m.putPart(ctx, t, s, part)
			put.Add(n)
			if err != nil {
				errs <- err
			}
		})
	}
	all.Wait()
	select {
	case err := <-errs:
		return put.Load(), err
	default:
		return put.Load(), nil
	}
}

// putPart gives a shard its part of a batch.
func (m move) putPart(ctx context.Context, t transit, s *shard, part []any) (int64, error) {
	dead := 0
	if t.dead {
		dead = 1
	}
	args := append([]any{m.to.epoch, m.index, t.number, s.announce, dead}, part...)
	reply, err := m.queue.executor.Run(ctx, scriptReshardPut.Request(append(s.keys[:4:4], s.companion(keyspace.Move), s.keys[4]), args...))
	if errors.Is(err, redisexec.ErrWrongType) { // the shard was left meanwhile
		return 0, errMoveOver
	}
	if err != nil {
		return 0, err
	}
	n, err := redisexec.Int(reply.Value)
	if err == nil && n < 0 {
		n, err = 0, errMoveOver
	}
	return n, err
}

// decodeTransit decodes the reply of reshard_take.lua.
func decodeTransit(value any) (transit, error) {
	list, ok := value.([]any)
	if !ok || len(list) != 7 {
		return transit{}, redisexec.Unexpected(value)
	}
	numbers, err := decodeInts[int64](list[:3], 3)
	if err != nil {
		return transit{}, err
	}
	if numbers[0] < 0 {
		return transit{}, errMoveOver
	}
	t := transit{number: numbers[0], dead: numbers[1] == 1, left: numbers[2]}
	var columns [4][]any
	for i := range columns {
		if columns[i], ok = list[3+i].([]any); !ok {
			return transit{}, redisexec.Unexpected(list[3+i])
		}
	}
	for _, column := range columns {
		if len(column) != len(columns[0]) {
			return transit{}, redisexec.Unexpected(value)
		}
	}
	for i, id := range columns[0] {
		t.tasks = append(t.tasks, transitTask{id, columns[1][i], columns[2][i], columns[3][i]})
	}
	return t, nil
}
