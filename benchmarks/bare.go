package main

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

const (
	// batchSize is how many tasks Sluice enqueues with one script, at most.
	batchSize = 250
	// bareGroup is how many tasks a bare queue takes at a time: half of 64 handlers, as a
	// Worker's share of a claim.
	bareGroup = 32
)

// bareQueue is the least that a queue on Redis needs: a sorted set of IDs by due time, with
// commands for many IDs at once. It keeps no payloads, leases or attempts.
type bareQueue struct {
	rdb *redis.Client
	key string
	// take takes up to bareGroup due IDs.
	take func(ctx context.Context, q bareQueue) ([]string, error)
	// finish removes IDs; nil if take has removed them.
	finish func(ctx context.Context, q bareQueue, ids []string) error
}

func openBare(q bareQueue) func(setup) (queue, error) {
	return func(s setup) (queue, error) {
		q.rdb, q.key = newClient(s.Addr), "Queue:"+s.Queue
		ctx := context.Background()
		err := bareTake.Load(ctx, q.rdb).Err()
		if err == nil {
			err = bareFinish.Load(ctx, q.rdb).Err()
		}
		return q, err
	}
}

var (
	bareTake = redis.NewScript(`
local ids, scored = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3]), {}
for i, id in ipairs(ids) do scored[2 * i - 1], scored[2 * i] = ARGV[2], id end
if #ids > 0 then redis.call('ZADD', KEYS[1], unpack(scored)) end
return ids`)
	bareFinish = redis.NewScript(`return redis.call('ZREM', KEYS[1], unpack(ARGV))`)
)

func takeByScript(ctx context.Context, q bareQueue) ([]string, error) {
	now := time.Now()
	return bareTake.EvalSha(ctx, q.rdb, []string{q.key}, bareScore(now), bareScore(now.Add(30*time.Second)), bareGroup).StringSlice()
}

func finishByScript(ctx context.Context, q bareQueue, ids []string) error {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return bareFinish.EvalSha(ctx, q.rdb, []string{q.key}, args...).Err()
}

func takeByPop(ctx context.Context, q bareQueue) (ids []string, err error) {
	popped, err := q.rdb.ZPopMin(ctx, q.key, bareGroup).Result()
	for _, z := range popped {
		ids = append(ids, z.Member.(string))
	}
	return ids, err
}

// bareScore is a time in Unix seconds, as Sluice writes it.
func bareScore(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMicro())/1e6, 'f', 6, 64)
}

func (q bareQueue) Enqueue(ctx context.Context, id int, _ []byte, due time.Time) error {
	return q.EnqueueMany(ctx, id, id+1, func(int) time.Time { return due })
}

// EnqueueMany enqueues the tasks from to to-1 with one command.
func (q bareQueue) EnqueueMany(ctx context.Context, from, to int, due func(id int) time.Time) error {
	args := append(make([]any, 0, 3+2*(to-from)), "ZADD", q.key, "NX")
	for id := from; id < to; id++ {
		at := due(id)
		if at.IsZero() {
			at = time.Now()
		}
		args = append(args, bareScore(at), taskID(id))
	}
	return q.rdb.Do(ctx, args...).Err()
}

func (q bareQueue) Fill(ctx context.Context, n int, _ []byte, due func(int) time.Time) error {
	for from := 0; from < n; from += batchSize {
		if err := q.EnqueueMany(ctx, from, min(from+batchSize, n), due); err != nil {
			return err
		}
	}
	return nil
}

func (q bareQueue) Work(ctx context.Context, concurrency int, handler func(id int)) error {
	var group errgroup.Group
	for range max(concurrency/bareGroup, 1) {
		group.Go(func() error {
			for ctx.Err() == nil {
				if err := q.serve(ctx, handler); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// serve takes one group of IDs through.
func (q bareQueue) serve(ctx context.Context, handler func(id int)) error {
	ids, err := q.take(ctx, q)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		sleep(ctx, time.Millisecond)
		return nil
	}
	for _, id := range ids {
		handler(idOf(id))
	}
	if q.finish == nil {
		return nil
	}
	return q.finish(context.WithoutCancel(ctx), q, ids)
}

func (q bareQueue) count(ctx context.Context) (int, error) {
	n, err := q.rdb.ZCard(ctx, q.key).Result()
	return int(n), err
}

func (q bareQueue) Close() error {
	err := q.rdb.Unlink(context.Background(), q.key).Err()
	if closing := q.rdb.Close(); err == nil {
		err = closing
	}
	return err
}
