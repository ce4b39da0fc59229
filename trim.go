package sluice

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// What WithDeadLimit and WithDeadAge do. The script that buries stays as it is: another one drops what is too
// much, sent behind a burial, before a claim or Stats, and with what a worker sends. It drops up to fifty, so that neither
// a limit that is new on a large queue nor a thousand letters of one age hold up the server.

// trimInterval is for how long claims and workers leave a shard's dead letters alone, unless there are
// more to be dropped or one was buried.
const trimInterval = time.Second

// trimPatience is how long a claim waits for what is dropped before it: not for a server that hangs.
const trimPatience = 100 * time.Millisecond

// loggedIDs is how many IDs of dropped letters are logged at a time.
const loggedIDs = 10

// trimmer is when a shard's dead letters are to be looked at.
type trimmer struct {
	limit int // how many may stay in the shard; 0 for any number
	next  atomic.Pointer[time.Time]
}

// shareOfDeadLimit returns how many of the queue's dead letters one of n shards may have.
func (o *queueOptions) shareOfDeadLimit(n int) int { return (o.deadLimit + n - 1) / n }

// trims reports whether there is a limit.
func (o *queueOptions) trims() bool { return o.deadLimit > 0 || o.deadAge > 0 }

// trimIsDue reports whether the shard's dead letters are to be looked at, and that they are until the interval is
// over: then by the next caller.
func (s *shard) trimIsDue() bool {
	if !s.options.trims() {
		return false
	}
	now, next := time.Now(), s.trimmer.next.Load()
	if next != nil && now.Before(*next) {
		return false
	}
	again := now.Add(trimInterval)
	return s.trimmer.next.CompareAndSwap(next, &again)
}

func (s *shard) trimRequest() redisexec.Request {
	return scriptTrim.Request(s.trimKeys(), s.trimmer.limit, micros(ceilMicros(s.options.deadAge)))
}

// trimKeys returns the keys of a script that changes the count of dropped letters.
func (s *shard) trimKeys() []any { return append(s.keys[:5:5], s.dropped()) }

// dropped returns the key of the shard's count of dropped dead letters.
func (s *shard) dropped() any { return s.companion(keyspace.Dropped) }

// trimmed takes the result of a trim, and returns the IDs that were dropped. An error is dropped: the
// next trim does what this one has left.
func (s *shard) trimmed(value any, err error) (ids []string) {
	list, ok := value.([]any)
	if err != nil || !ok || len(list) == 0 {
		return nil
	}
	if list[0] != int64(0) {
		s.trimmer.next.Store(nil)
	}
	for _, item := range list[1:] {
		if id, ok := item.(string); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// trim drops dead letters of the shard.
func (s *shard) trim(ctx context.Context) {
	reply, err := s.executor.Run(ctx, s.trimRequest())
	s.trimmed(reply.Value, err)
}

// trim drops dead letters of all shards.
func (q *Queue) trim(ctx context.Context) {
	if q.options.trims() {
		_ = q.forShards(q.layout(), func(_ int, s *shard) error {
			s.trim(ctx)
			return nil
		})
	}
}

// trimBeforeClaim drops dead letters of the shards where it is due.
func (q *Queue) trimBeforeClaim(ctx context.Context) {
	if !q.options.trims() {
		return
	}
	var due []*shard
	for _, s := range q.layout().shards {
		if s.trimIsDue() {
			due = append(due, s)
		}
	}
	if len(due) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, trimPatience)
	defer cancel()
	_ = q.forEach(len(due), func(i int) *shard { return due[i] }, func(i int) error {
		due[i].trim(ctx)
		return nil
	})
}

// logTrim logs what a worker has dropped.
func logTrim(log *slog.Logger, ids []string) {
	if len(ids) > 0 {
		log.Warn("sluice: dead letters dropped", slog.Int("dropped", len(ids)), slog.Any("tasks", ids[:min(len(ids), loggedIDs)]))
	}
}

// carryDropped writes beside the new layout how many dead letters the former one has dropped, before the move
// ends. All shards that are left are closed: nothing is dropped there any more.
func (q *Queue) carryDropped(ctx context.Context, l *layout) error {
	left, err := q.statsOfFormer(ctx, l)
	if err != nil || left.Dropped == 0 {
		return err
	}
	first := l.shards[0]
	_, err = q.executor.Run(ctx, scriptReshardDropped.Request(first.trimKeys(), left.Dropped))
	return err
}

// forgetDropped removes the counts of a layout that was left. What fails stays: nothing reads it.
func (q *Queue) forgetDropped(ctx context.Context, l *layout) {
	_ = q.forShards(l, func(_ int, s *shard) error {
		_, err := s.executor.Run(ctx, scriptReshardDropped.Request(s.trimKeys(), ""))
		return err
	})
}
