package sluice

import (
	"context"
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
	at    []int // which of the operation's tasks these are; nil for all of them
}

// index returns which of the operation's tasks the i-th of the part is.
func (p part[T]) index(i int) int {
	if p.at == nil {
		return i
	}
	return p.at[i]
}

// inParts carries out an operation on tasks: f does it for those in one shard.
func inParts[T any](ctx context.Context, q *Queue, all []T, id func(t T) string, f func(p part[T]) error) error {
	if len(all) == 0 {
		return nil
	}
	if err := q.ready(ctx); err != nil {
		return err
	}
	if len(q.shards) == 1 || len(all) == 1 {
		return f(part[T]{shard: q.shardOf(id(all[0])), tasks: all})
	}
	parts := split(q, all, id)
	return q.forEach(len(parts), func(i int) *shard { return parts[i].shard }, func(i int) error { return f(parts[i]) })
}

// split divides an operation on tasks by their shards.
func split[T any](q *Queue, all []T, id func(t T) string) []part[T] {
	var parts []part[T]
	of := make(map[*shard]int, len(q.shards)) // the index of a shard's part
	for i, t := range all {
		s := q.shardOf(id(t))
		p, found := of[s]
		if !found {
			p = len(parts)
			of[s] = p
			parts = append(parts, part[T]{shard: s})
		}
		parts[p].tasks, parts[p].at = append(parts[p].tasks, t), append(parts[p].at, i)
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

// onShards carries out an operation on all shards.
func (q *Queue) onShards(ctx context.Context, f func(i int, s *shard) error) error {
	if err := q.ready(ctx); err != nil {
		return err
	}
	return q.forShards(f)
}

// forShards is forEach for all shards.
func (q *Queue) forShards(f func(i int, s *shard) error) error {
	return q.forEach(len(q.shards), func(i int) *shard { return q.shards[i] }, func(i int) error { return f(i, q.shards[i]) })
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
func (p pager) merge(ctx context.Context, q *Queue, n int) ([]Entry, error) {
	p.size = min(max(smallestPage, 2*n/len(q.shards)), n, maxGroup)
	lists := make([]list, len(q.shards))
	err := q.forShards(func(i int, s *shard) error {
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
func (q *Queue) waitForAny(ctx context.Context) error {
	told := make(chan notice, len(q.shards))
	waiters := make([]*waiter, len(q.shards))
	for i, s := range q.shards {
		waiters[i] = s.watcher.enter(told)
	}
	defer q.leave(waiters, told)
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
			if len(failed) == len(q.shards) {
				return joinErrors(failed)
			}
			if late == nil {
				timer := time.NewTimer(q.options.poll)
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
func (q *Queue) leave(waiters []*waiter, told <-chan notice) {
	for i, s := range q.shards {
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
