package sluice

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync/atomic"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// layout is in which shards the tasks of a queue are. Another number of shards is another layout,
// of the next epoch, with keys of its own: a client that has slept through it finds tombstones, not
// keys that are in use again. Only a single shard has the same keys in all epochs; but while a queue is being moved
// to a single shard, that has others too. At the end they are renamed, and that is an epoch again.
type layout struct {
	epoch  int64
	shards []*shard
	// assumed says that the layout is what the options make one expect. What stands beside the queue counts more.
	assumed bool
	// from is the layout that is left, while the queue is being moved to this one; and of which shards
	// this client knows that nothing is left there.
	from    *layout
	drained []atomic.Bool
	gates   []*gate     // of the former shards
	ended   atomic.Bool // the move has: nothing is in the former shards, and no count
}

// newLayout returns a layout. from says whether the queue is being moved to it.
func newLayout(q *Queue, epoch int64, n int, from bool) *layout {
	l := &layout{epoch: epoch, shards: make([]*shard, n)}
	for i := range l.shards {
		switch {
		case n > 1:
			l.shards[i] = newShard(q, keyspace.Shard(q.main, epoch, n, i))
		case from:
			l.shards[i] = newShard(q, keyspace.Companion(q.main, fmt.Sprintf("%s.%d", keyspace.MoveOne, epoch)))
			l.shards[i].useChannelsOf(q, q.main)
		default:
			l.shards[i] = newShard(q, q.main)
		}
		l.shards[i].isAlone = n == 1
		l.shards[i].trimmer.bounds = q.options.deadBounds(n)
	}
	return l
}

// indexOf returns in which shard a task is.
func (l *layout) indexOf(id string) int {
	if len(l.shards) == 1 {
		return 0
	}
	return int(crc32.ChecksumIEEE([]byte(id)) % uint32(len(l.shards)))
}

// shardOf returns the shard of a task.
func (l *layout) shardOf(id string) *shard { return l.shards[l.indexOf(id)] }

// canceledChannels returns the channels on which the IDs of canceled tasks are published.
func (l *layout) canceledChannels() []string {
	channels := make([]string, len(l.shards))
	for i, s := range l.shards {
		channels[i] = s.canceled
	}
	return channels
}

// only returns the shard of a queue that has one.
func (l *layout) only() *shard { return l.shards[0] }

// layoutRecord is what stands beside a queue.
type layoutRecord struct {
	shards, epoch   int64
	from, fromEpoch int64 // of the layout that is left; 0 unless the queue is being moved
}

func decodeRecord(value any) (layoutRecord, error) {
	n, err := decodeInts[int64](value, 4)
	if err != nil {
		return layoutRecord{}, err
	}
	r := layoutRecord{n[0], n[1], n[2], n[3]}
	if r.shards < 1 || r.shards > maxShards || r.from < 0 || r.from > maxShards || r.epoch < 0 || r.fromEpoch < 0 {
		return layoutRecord{}, fmt.Errorf("%w: the record of the shards", ErrCorrupt)
	}
	return r, nil
}

// follow changes to the layout that the record names, unless this client knows a newer one.
func (q *Queue) follow(r layoutRecord) *layout {
	for {
		l := q.layout()
		same := l.epoch == r.epoch && len(l.shards) == int(r.shards)
		switch {
		case l.epoch > r.epoch && !l.assumed:
			return l
		case same && r.from == 0:
			l.finished()
			return l
		case same && l.from != nil:
			return l
		}
		next := newLayout(q, r.epoch, int(r.shards), r.from > 0)
		if r.from > 0 {
			next.from = l
			if l.epoch != r.fromEpoch || len(l.shards) != int(r.from) {
				next.from = newLayout(q, r.fromEpoch, int(r.from), false)
			}
			next.drained, next.gates = make([]atomic.Bool, r.from), newGates(int(r.from))
		}
		if q.current.CompareAndSwap(l, next) {
			return next
		}
	}
}

// isDrained reports whether nothing is left in the former shards, as far as this client knows.
func (l *layout) isDrained() bool {
	for i := range l.drained {
		if !l.drained[i].Load() {
			return false
		}
	}
	return true
}

// finished notes that nothing is left in the former shards.
func (l *layout) finished() {
	for i := range l.drained {
		l.drained[i].Store(true)
	}
	l.ended.Store(true)
}

// ready returns the layout for an operation on the tasks with these IDs. If the queue is to have several
// shards, the first operation compares their number with what stands beside the queue. While the queue
// is being moved, the tasks are brought to their new shards.
func (q *Queue) ready(ctx context.Context, ids ...string) (*layout, error) {
	if q.options.shards > 1 && !q.known.Load() {
		if err := q.compare(ctx, q.options.shards); err != nil {
			return nil, err
		}
	}
	l := q.layout()
	for l.from != nil && len(ids) > 0 {
		err := q.bring(ctx, l, slices.Clone(ids)...) // else all callers would allocate them
		if !errors.Is(err, errMoveOver) {
			return l, err
		}
		if err := q.refresh(ctx); err != nil {
			return nil, err
		}
		if l == q.layout() {
			return nil, errMoveOver
		}
		l = q.layout()
	}
	return l, nil
}

// compare reads how many shards the queue has, and records that number if none is recorded.
func (q *Queue) compare(ctx context.Context, wanted int) error {
	r, err := q.readRecord(ctx, wanted)
	if err != nil {
		return err
	}
	if n := int64(q.options.shards); r.shards != n && r.from != n {
		return fmt.Errorf("%w: the queue has %d shards, not %d", ErrInvalid, r.shards, n)
	}
	q.follow(r)
	q.known.Store(true)
	return nil
}

// refresh reads which layout the queue has, and follows it. What has not been in touch with the queue
// must have the right number of shards.
func (q *Queue) refresh(ctx context.Context) error {
	if !q.known.Load() {
		return q.compare(ctx, 0)
	}
	r, err := q.readRecord(ctx, 0)
	if err == nil {
		q.follow(r)
	}
	return err
}

func (q *Queue) readRecord(ctx context.Context, wanted int) (layoutRecord, error) {
	keys := []any{keyspace.Companion(q.main, keyspace.Layout), q.main, keyspace.Companion(q.main, keyspace.Dead)}
	reply, err := q.executor.Run(ctx, scriptLayout.Request(keys, wanted, tombstone(wanted)))
	if err != nil {
		return layoutRecord{}, err
	}
	return decodeRecord(reply.Value)
}

// again takes the error of an operation on a layout, nil for none. It reports whether the operation is to be
// made again, because the shard was closed: it has found a tombstone, and done nothing. The queue
// has another layout then. Else it returns the operation's error, or why that is not known. An operation of which
// an earlier attempt had no reply may have been carried out before the shard was closed: that stays ErrUnknown.
func (q *Queue) again(ctx context.Context, l *layout, err error) (bool, error) {
	if err == nil {
		if !q.known.Load() {
			q.known.Store(true)
		}
		return false, nil
	}
	if !errors.Is(err, redisexec.ErrWrongType) {
		return false, err
	}
	failed := q.refresh(ctx)
	switch {
	case errors.Is(err, ErrUnknown):
		if failed != nil || q.layout() != l {
			err = fmt.Errorf("%w: the queue was moved meanwhile", ErrUnknown)
		}
		return false, err
	case failed != nil:
		return false, failed
	}
	return q.layout() != l, err
}

// tombstone is the string that takes the place of a sorted set.
func tombstone(n int) string {
	if n == 1 {
		return "sluice: this queue has 1 shard"
	}
	return fmt.Sprintf("sluice: this queue has %d shards", n)
}
