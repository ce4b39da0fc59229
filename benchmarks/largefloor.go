package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// largeFloor is the least that tasks with payloads need: a sorted set, and a hash of
// payloads, with one command at a time for one task.
type largeFloor struct{ bareQueue }

func openLargeFloor(s setup) (queue, error) {
	return largeFloor{bareQueue{rdb: newClient(s.Addr), key: "Queue:" + s.Queue}}, nil
}

func (q largeFloor) payloads() string { return q.key + ":payloads" }

func (q largeFloor) steps(tasks []sluice.Task) []largeStep {
	each := func(do func(ctx context.Context, t sluice.Task) error) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, t := range tasks {
				if err := do(ctx, t); err != nil {
					return err
				}
			}
			return nil
		}
	}
	score := func(ctx context.Context, t sluice.Task) error {
		return q.rdb.ZAdd(ctx, q.key, redis.Z{Score: float64(time.Now().UnixMicro()) / 1e6, Member: t.ID}).Err()
	}
	read := func(ctx context.Context, t sluice.Task) error {
		return errors.Join(score(ctx, t), q.rdb.HGet(ctx, q.payloads(), t.ID).Err())
	}
	write := func(ctx context.Context, t sluice.Task) error {
		return errors.Join(score(ctx, t), q.rdb.HSet(ctx, q.payloads(), t.ID, t.Payload).Err())
	}
	remove := func(ctx context.Context, t sluice.Task) error {
		return errors.Join(q.rdb.ZRem(ctx, q.key, t.ID).Err(), q.rdb.HDel(ctx, q.payloads(), t.ID).Err())
	}
	return []largeStep{
		{"enqueue", each(write)}, {"peek", each(read)}, {"claim", each(read)}, {"extend", each(score)}, {"retry", each(score)},
		{"dequeue", each(remove)}, {"enqueue", each(write)}, {"purge", q.purge},
	}
}

func (q largeFloor) purge(ctx context.Context) error {
	return q.rdb.Unlink(ctx, q.key, q.payloads()).Err()
}

func (q largeFloor) Close() error { return errors.Join(q.purge(context.Background()), q.rdb.Close()) }
