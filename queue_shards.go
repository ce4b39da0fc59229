package sluice

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/watch"
	"github.com/sluice-go/sluice/internal/wire"
)

// shard is one of the parts of a queue: a queue for itself, in one slot of a Cluster.
type shard struct {
	queue     *Queue
	executor  *redisexec.Executor
	options   *queueOptions
	keys      []any  // queue, tasks, dead letters, states, leased tasks
	errorKeys []any  // and the line of idle clients, the last errors
	allKeys   []any  // and the pause, the counts
	doneKeys  []any  // and what is done, with its results
	canceled  string // on which the IDs of tasks are published that were cancelled while leased
	isAlone   bool   // the queue's only one
	watcher   *watch.Watcher
	trimmer   trimmer
	sighted   atomic.Pointer[sighting] // of several shards: the head
	took      atomic.Int64             // how long the last claim has taken, in ns
	enqueues  *committer[wire.Enqueue]
	dequeues  *committer[[]wire.Item]
	claims    *committer[claimArg]
}

// Which of the shard's keys are these.
const (
	lineKey  = 5
	pauseKey = 7
)

// replicated has a request that changes the queue wait for the replicas. If there is nothing to change, they are to have what
// has been changed before: perhaps by a call that too few have acknowledged, and this one is its repeat.
func (s *shard) replicated(r redisexec.Request) redisexec.Request {
	if s.options.replicas > 0 {
		mark := scriptMark.Request(s.keys)
		r.Replicas, r.ReplicaWait, r.Mark = s.options.replicas, longestReplicaWait, &mark
	}
	return r
}

// workerKeys are all keys, and behind them the workers.
func (s *shard) workerKeys() []any {
	return append(slices.Clip(s.doneKeys), s.companion(keyspace.Workers))
}

// newShards returns the shards of q. If there is one, it has the queue's main key.
func newShards(q *Queue, n int) []*shard {
	if n == 1 {
		return []*shard{newShard(q, q.main)}
	}
	shards := make([]*shard, n)
	for i := range shards {
		shards[i] = newShard(q, keyspace.Shard(q.main, n, i))
	}
	return shards
}

// newShard returns the shard of q that has this main key.
func newShard(q *Queue, key string) *shard {
	s := &shard{
		queue: q, executor: q.executor, options: &q.options,
		keys: []any{key, keyspace.Companion(key, keyspace.Tasks), keyspace.Companion(key, keyspace.Dead), keyspace.Companion(key, keyspace.State)},
	}
	s.keys = append(s.keys, s.companion(keyspace.Leased))
	s.errorKeys = append(slices.Clip(s.keys), s.companion(keyspace.Line), s.companion(keyspace.Errors))
	s.allKeys = append(slices.Clip(s.errorKeys), s.companion(keyspace.Paused), s.companion(keyspace.Counts))
	s.doneKeys = append(slices.Clip(s.allKeys), s.companion(keyspace.Done), s.companion(keyspace.Results))
	s.canceled = s.companion(keyspace.Canceled)
	s.isAlone = q.options.shards == 1
	s.trimmer.bounds = q.options.deadBounds()
	s.watcher = newWatcher(s)
	s.enqueues, s.dequeues, s.claims = newCommitter(s, s.commitEnqueues), newCommitter(s, s.commitDequeues), newCommitter(s, s.commitClaims)
	return s
}

// indexOf returns in which shard a task is.
func (q *Queue) indexOf(id string) int {
	if len(q.shards) == 1 {
		return 0
	}
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(len(q.shards)))
}

// shardOf returns the shard of a task.
func (q *Queue) shardOf(id string) *shard { return q.shards[q.indexOf(id)] }

// ready compares, once, the number of shards with what stands beside the queue, and records it if nothing does. To
// a queue that is to have one shard the first operation says if it has more: see explain.
func (q *Queue) ready(ctx context.Context) error {
	if len(q.shards) == 1 || q.known.Load() {
		return nil
	}
	err := q.compare(ctx, len(q.shards))
	if err == nil {
		q.known.Store(true)
	}
	return err
}

// unrecorded is what layout.lua says of a queue that has no number of shards yet.
const unrecorded = -1

// compare reads how many shards the queue has, and records wanted, unless that is 0, if no number is recorded.
func (q *Queue) compare(ctx context.Context, wanted int) error {
	keys := []any{keyspace.Companion(q.main, keyspace.Layout), q.main, keyspace.Companion(q.main, keyspace.Dead)}
	reply, err := q.executor.Run(ctx, scriptLayout.Request(keys, wanted, fmt.Sprintf("sluice: this queue has %d shards", wanted)))
	if err != nil {
		return err
	}
	switch n, err := redisexec.Int(reply.Value); {
	case err != nil:
		return err
	case n == unrecorded && wanted == 0:
		return nil
	case n < 1 || n > maxShards:
		return fmt.Errorf("%w: the number of shards", ErrCorrupt)
	case n != int64(len(q.shards)):
		return fmt.Errorf("%w: the queue has %d shards, not %d", ErrInvalid, n, len(q.shards))
	}
	return nil
}

// explain takes the error of an operation. If a key has another type, the queue may have another number of shards:
// then it returns that.
func (q *Queue) explain(ctx context.Context, err error) error {
	if errors.Is(err, redisexec.ErrWrongType) && !errors.Is(err, ErrUnknown) {
		if other := q.compare(ctx, 0); errors.Is(other, ErrInvalid) {
			return other
		}
	}
	return err
}

// wrap is the package's wrap, for an operation that was carried out in shards.
func (q *Queue) wrap(ctx context.Context, op string, err error) error {
	return wrap(op, q.name, q.explain(ctx, err))
}

// companion returns a key of the shard.
func (s *shard) companion(ending string) string {
	main, _ := s.keys[0].(string)
	return keyspace.Companion(main, ending)
}

// perNode is how many requests of one operation on several shards are under way to one server at
// the same time.
const perNode = 4

// shardPart is what an operation on several tasks has to do in one shard. T is how the operation has its
// tasks: what it was given by its caller.
type shardPart[T any] struct {
	shard *shard
	tasks []T
	at    []int // which of the operation's tasks these are; nil for all of them
}

// index returns which of the operation's tasks the i-th of the part is.
func (p shardPart[T]) index(i int) int {
	if p.at == nil {
		return i
	}
	return p.at[i]
}

// inParts carries out an operation on tasks: f does it for those in one shard.
func inParts[T any](ctx context.Context, q *Queue, all []T, id func(t T) string, f func(p shardPart[T]) error) error {
	if len(all) == 0 {
		return nil
	}
	if err := q.ready(ctx); err != nil {
		return err
	}
	if len(q.shards) == 1 || len(all) == 1 {
		return f(shardPart[T]{shard: q.shardOf(id(all[0])), tasks: all})
	}
	parts, err := split(ctx, q, all, id)
	if err != nil {
		return err
	}
	return q.forEach(len(parts), func(i int) *shard { return parts[i].shard }, func(i int) error { return f(parts[i]) })
}

// looksAt is after how many tasks of a call its context is looked at, before anything is sent. A million take half a second.
const looksAt = 1000

// split divides an operation on tasks by their shards.
func split[T any](ctx context.Context, q *Queue, all []T, id func(t T) string) (parts []shardPart[T], err error) {
	of := make(map[*shard]int, len(q.shards)) // the index of a shard's part
	for i, t := range all {
		if i%looksAt == looksAt-1 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s := q.shardOf(id(t))
		p, found := of[s]
		if !found {
			p = len(parts)
			of[s] = p
			parts = append(parts, shardPart[T]{shard: s})
		}
		parts[p].tasks, parts[p].at = append(parts[p].tasks, t), append(parts[p].at, i)
	}
	return parts, nil
}

// forEach calls f for each of n parts of an operation, of which shardOf returns the shard: those of
// different servers at the same time, and perNode of those of one server. So a server that hangs
// delays its own parts. forEach waits for the end of all calls. It joins their errors.
func (q *Queue) forEach(n int, shardOf func(i int) *shard, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	errs := make([]error, n)
	var all sync.WaitGroup
	for _, indexes := range q.executor.ByNode(n, func(i int) any { return shardOf(i).keys[0] }) {
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
