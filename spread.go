package sluice

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// perNode is how many requests of one operation on several shards are under way to one server at
// the same time.
const perNode = 4

// part is what an operation on several tasks has to do in one shard. T is how the operation has its
// tasks: what it was given by its caller.
type part[T any] struct {
	shard *shard
	tasks []T
	at    []int // which of the operation's tasks these are; nil if the last ones, in a row
}

// index returns which of the operation's n tasks the i-th of the part is.
func (p part[T]) index(i, n int) int {
	if p.at == nil {
		return n - len(p.tasks) + i
	}
	return p.at[i]
}

// from returns the part without its first tasks.
func (p part[T]) from(done int) part[T] {
	p.tasks = p.tasks[done:]
	if p.at != nil {
		p.at = p.at[done:]
	}
	return p
}

// inParts carries out an operation on tasks: f does it for those in one shard, and says how many of
// them it has dealt with when it fails. Where f finds that its shard is closed, because the queue has
// another layout, the others are divided again.
func inParts[T any](ctx context.Context, q *Queue, all []T, id func(t T) string, f func(p part[T]) (done int, err error)) error {
	for left := (part[T]{tasks: all}); len(left.tasks) > 0; {
		l, err := q.ready(ctx)
		if err == nil && l.from != nil {
			ids := make([]string, len(left.tasks))
			for i, t := range left.tasks {
				ids[i] = id(t)
			}
			l, err = q.ready(ctx, ids...)
		}
		if err != nil {
			return err
		}
		if len(l.shards) == 1 || len(left.tasks) == 1 {
			left.shard = l.shardOf(id(left.tasks[0]))
			done, err := f(left)
			again, err := q.again(ctx, l, err)
			if !again {
				return err
			}
			left = left.from(done)
			continue
		}
		parts := split(l, left, len(all), id)
		err = q.forEach(len(parts), func(i int) *shard { return parts[i].shard }, func(i int) error {
			done, err := f(parts[i])
			again, err := q.again(ctx, l, err)
			if !again {
				done = len(parts[i].tasks)
			} else {
				err = nil
			}
			parts[i] = parts[i].from(done)
			return err
		})
		if err != nil {
			return err
		}
		left = part[T]{at: []int{}}
		for _, p := range parts {
			left.tasks, left.at = append(left.tasks, p.tasks...), append(left.at, p.at...)
		}
	}
	return nil
}

// split divides a part of an operation on n tasks by the shards of the layout.
func split[T any](l *layout, whole part[T], n int, id func(t T) string) []part[T] {
	var parts []part[T]
	of := make(map[*shard]int, len(l.shards)) // the index of a shard's part
	for i, t := range whole.tasks {
		s := l.shardOf(id(t))
		p, found := of[s]
		if !found {
			p = len(parts)
			of[s] = p
			parts = append(parts, part[T]{shard: s})
		}
		parts[p].tasks, parts[p].at = append(parts[p].tasks, t), append(parts[p].at, whole.index(i, n))
	}
	return parts
}

// forEach calls f for each of n parts of an operation, of which shardOf returns the shard: those of
// different servers at the same time, and perNode of those of one server. So a server that hangs
// delays its own parts. forEach returns when all calls have. It joins their errors.
func (q *Queue) forEach(n int, shardOf func(i int) *shard, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	errs := make([]error, n)
	byNode := map[any][]int{}
	for i := range n {
		node := q.executor.NodeOf(shardOf(i).keys[0])
		byNode[node] = append(byNode[node], i)
	}
	var all sync.WaitGroup
	for _, indexes := range byNode {
		next := make(chan int, len(indexes))
		for _, i := range indexes {
			next <- i
		}
		close(next)
		for range min(perNode, len(indexes)) {
			all.Add(1)
			q.executor.Go(func() {
				defer all.Done()
				for i := range next {
					errs[i] = f(i)
				}
			})
		}
	}
	all.Wait()
	return joinErrors(errs)
}

// onShards carries out an operation on all shards. begin is called with their number, then f for each;
// once more, if a shard was closed, because the queue has another layout.
func (q *Queue) onShards(ctx context.Context, begin func(l *layout), f func(i int, s *shard) error) error {
	for {
		l, err := q.ready(ctx)
		if err != nil {
			return err
		}
		begin(l)
		again, err := q.again(ctx, l, q.forShards(l, f))
		if !again {
			return err
		}
	}
}

// fromShards carries out an operation that hands out tasks of any shard. If a shard was closed, and
// there are none, it is made again.
func fromShards[E any](ctx context.Context, q *Queue, f func(l *layout) ([]E, error)) ([]E, error) {
	for {
		l, err := q.ready(ctx)
		if err != nil {
			return nil, err
		}
		entries, err := f(l)
		again, err := q.again(ctx, l, err)
		switch {
		case !again:
			return entries, err
		case len(entries) > 0:
			return entries, nil
		}
	}
}

// forShards is forEach for all shards of a layout.
func (q *Queue) forShards(l *layout, f func(i int, s *shard) error) error {
	return q.forEach(len(l.shards), func(i int) *shard { return l.shards[i] }, func(i int) error { return f(i, l.shards[i]) })
}

// joinErrors joins what went wrong in several shards, each error once.
func joinErrors(errs []error) error {
	var joined error
	told := map[string]bool{}
	for _, err := range errs {
		switch {
		case err == nil || told[err.Error()]:
			continue
		case joined == nil:
			joined = err
		default:
			joined = fmt.Errorf("%w; %w", joined, err)
		}
		told[err.Error()] = true
	}
	return joined
}

// list is a list of a shard that is read in pages.
type list struct {
	shard  *shard
	read   []Entry
	after  cursor
	isOver bool
}

// pager reads pages of lists.
type pager struct {
	decode  decoder[cursor]
	request func(s *shard, n int, after cursor) redisexec.Request
	after   cursor // where to begin
	size    int    // of a page
}

// smallestPage is how many entries a page of several lists has at least.
const smallestPage = 16

// comesBefore compares two entries as lists are sorted.
func comesBefore(a, b Entry) bool { return a.Score < b.Score || a.Score == b.Score && a.ID < b.ID }

// fill reads pages until there is an entry, or no more.
func (p pager) fill(ctx context.Context, l *list) error {
	for len(l.read) == 0 && !l.isOver {
		stopped, entries, err := step(ctx, l.shard, p.request(l.shard, p.size, l.after), p.decode)
		if err != nil {
			return err
		}
		l.read, l.after, l.isOver = entries, stopped, stopped == cursor{}
	}
	return nil
}

// merge reads n entries of the lists of all shards, in their order.
func (p pager) merge(ctx context.Context, q *Queue, l *layout, n int) ([]Entry, error) {
	p.size = min(max(smallestPage, 2*n/len(l.shards)), n, maxGroup)
	lists := make([]list, len(l.shards))
	err := q.forShards(l, func(i int, s *shard) error {
		lists[i].shard, lists[i].after = s, p.after
		return p.fill(ctx, &lists[i])
	})
	var merged []Entry
	for err == nil && len(merged) < n {
		var first *list
		for i := range lists {
			if this := &lists[i]; len(this.read) > 0 && (first == nil || comesBefore(this.read[0], first.read[0])) {
				first = this
			}
		}
		if first == nil {
			break
		}
		merged = append(merged, first.read[0])
		first.read = first.read[1:]
		if len(merged) < n {
			err = p.fill(ctx, first)
		}
	}
	return merged, err
}

// wait waits until a task of any shard may be due. A shard that cannot be looked at keeps no
// caller from the tasks of the others: its error is returned if all fail, or if nothing else has
// come for a poll interval.
func (l *layout) wait(ctx context.Context, poll time.Duration) error {
	told := make(chan notice, len(l.shards))
	waiters := make([]*waiter, len(l.shards))
	for i, s := range l.shards {
		waiters[i] = s.watcher.enter(told)
	}
	defer l.leave(waiters, told)
	var failed []error
	var late <-chan time.Time
	for {
		select {
		case n := <-told:
			if n.err == nil {
				n.from.shard.sight(0)
				return nil
			}
			failed = append(failed, n.err)
			if len(failed) == len(l.shards) || errors.Is(n.err, redisexec.ErrWrongType) { // it may be closed
				return joinErrors(failed)
			}
			if late == nil {
				timer := time.NewTimer(poll)
				defer timer.Stop()
				late = timer.C
			}
		case <-late:
			return joinErrors(failed)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave takes a caller out of all shards, and passes on what it was told and makes no use of.
func (l *layout) leave(waiters []*waiter, told <-chan notice) {
	for i, s := range l.shards {
		s.watcher.exit(waiters[i])
	}
	for {
		select {
		case n := <-told:
			if n.err == nil {
				n.from.tellNext()
			}
		default:
			return
		}
	}
}
