package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/examples/seckill/shophttp"
)

//go:embed seckill.lua
var seckillText string

var (
	seckill = redis.NewScript(seckillText)
	putBack = redis.NewScript(`if redis.call('SREM', KEYS[2], ARGV[1]) == 1 then redis.call('INCR', KEYS[1]) end return 0`)
)

// byScript sells by a script of its own, and enqueues the order as a second step. A process that
// dies between the two strands the unit: it is neither left nor sold, and no task puts it back.
type byScript struct {
	shophttp.Site
	queue *sluice.Queue
	known memory
}

func openScript(s shophttp.Site) (shophttp.Way, error) {
	queue, err := sluice.NewQueue(s.Redis, s.Name)
	return &byScript{Site: s, queue: queue}, err
}

func (b *byScript) keys() []string { return []string{b.Name + ":stock", b.Name + ":buyers"} }

func (b *byScript) Begin(ctx context.Context) error {
	return b.Redis.Set(ctx, b.keys()[0], b.Stock, 0).Err()
}

func (b *byScript) End(ctx context.Context) {
	_ = b.queue.Purge(ctx)
	_ = b.Redis.Del(ctx, b.keys()...).Err()
}

func (b *byScript) Left(ctx context.Context) (int, error) {
	return b.Redis.Get(ctx, b.keys()[0]).Int()
}

func (*byScript) Close() {}

func (b *byScript) Buy(ctx context.Context, customer int) (string, error) {
	if b.known.isSoldOut() {
		return "", shophttp.ErrSoldOut
	}
	answer, err := seckill.Run(ctx, b.Redis, b.keys(), customer).Int()
	switch {
	case err != nil:
		return "", err
	case answer == 1:
		b.known.set(0)
		return "", shophttp.ErrSoldOut
	case answer == 2:
		return "", shophttp.ErrHasOne
	}
	number := sluice.NewID()
	_, err = b.queue.Enqueue(ctx, sluice.Task{ID: number, Payload: strconv.AppendInt(nil, int64(customer), 10)})
	return number, err
}

func (b *byScript) Pay(ctx context.Context, number string) error {
	_, err := b.Store.Pay(ctx, number)
	if err == nil {
		_, _ = b.queue.Reschedule(ctx, number, 0)
	}
	return err
}

func (b *byScript) Work(ctx context.Context) error {
	go b.known.keep(ctx, b.Left) // ends with ctx
	return work(ctx, b.queue, b.order)
}

// order is the life of an order, as in byStock. The unit goes back by a step of its own. If the
// process dies after that step, the next attempt repeats it: it then finds no buyer, unless that
// buyer has bought again in between. That unit would be put back although it is held.
func (b *byScript) order(ctx context.Context, e sluice.Entry) error {
	customer, err := strconv.Atoi(string(e.Payload))
	if err != nil {
		return sluice.Discard(err)
	}
	status, due, err := b.Store.Order(ctx, e.ID, customer, b.PayWithin)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return sluice.Discard(shophttp.ErrHasOne)
	case err != nil:
		return err
	case status == shophttp.Unpaid:
		return sluice.Again(time.Until(due))
	case status == shophttp.Cancelled:
		return putBack.Run(ctx, b.Redis, b.keys(), customer).Err()
	}
	return nil
}
