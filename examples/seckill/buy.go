// This file and worker.go sell by a lock.

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/sluice-go/sluice"
)

// byLock sells with a Locker around the look at the stock, the work and the write, and with a task
// that cancels the order if it is not paid.
type byLock struct {
	assignment
	shop   *shop
	locker *sluice.Locker
	queue  *sluice.Queue
}

// buy buys a unit under the lock, if there was one to be seen before: a buyer that cannot buy
// anyway does not have the others wait. It holds the lock until the transaction has committed: if
// it released the lock before that, the next buyer would read the old stock.
//
// A counter alone needs no lock, nor do a unit and its order (see byStock). The lock is for the
// work between the look and the write (pricing, limits, calls of other services): no other buyer
// changes the stock meanwhile, so none has to start again.
func (s *byLock) buy(ctx context.Context, customer int, seen view) (purchase, error) {
	if seen.stock == 0 {
		return purchase{result: soldOut}, nil
	}
	var p purchase
	var hold section
	began := time.Now()
	err := s.locker.Do(ctx, s.Run, func(ctx context.Context) (err error) {
		hold.at = time.Now()
		p, err = s.inside(ctx, customer)
		return err
	})
	if hold.at.IsZero() { // never got the lock
		return p, err
	}
	hold.waited, hold.result = hold.at.Sub(began), p.result
	return p, errors.Join(err, s.shop.note(ctx, hold))
}

// inside is the critical section. Its ctx, and with it the transaction, ends when the lock is
// lost.
func (s *byLock) inside(ctx context.Context, customer int) (purchase, error) {
	v, err := s.shop.look(ctx, customer)
	switch {
	case err != nil:
		return purchase{result: failed}, err
	case v.stock == 0:
		return purchase{result: soldOut}, nil
	case v.status != "":
		return purchase{result: hasOne}, nil
	}
	in := intend(s.Seed, customer, v.orders)
	if err := pause(ctx, in.think); err != nil {
		return purchase{result: failed}, err
	}

	// Enqueue the task before the commit. A process that dies between the two leaves a task
	// without an order, which the worker drops; in the other order it would leave an order
	// that is never cancelled. So the ID is made before the order, and for this attempt only:
	// if Enqueue fails, even with ErrUnknown, the attempt is over, and a task that was
	// enqueued all the same finds no order.
	o := order{id: rand.Text(), customer: customer, due: time.Now().Add(payWithin)}
	if _, err := s.queue.Enqueue(ctx, sluice.Task{ID: o.id, Delay: payWithin}); err != nil {
		return purchase{result: failed}, err
	}
	err = s.shop.place(ctx, o, v.stock)
	switch {
	case errors.Is(err, errOvertaken):
		return purchase{result: overtaken}, err
	case err != nil:
		return purchase{result: failed}, err
	}
	return purchase{order: o, intention: in, result: sold}, nil
}

// pay pays an order if its customer wants to, and removes its task from the queue.
//
// The row decides; the task only reminds a worker to check it. So pay calls Cancel, which
// removes a task in any state. Dequeue would need a receipt: Peek returns only due tasks, and
// the receipt of Get is stale once a worker claims the task. A worker that has claimed the task
// finds the order paid. So does a worker that claims it because Cancel failed, so errors of
// Cancel, including ErrUnknown, can be ignored.
func (s *byLock) pay(ctx context.Context, p purchase) error {
	if !p.pays || pause(ctx, p.after) != nil {
		return nil
	}
	done, err := s.shop.pay(ctx, p.id)
	if done {
		_, _ = s.queue.Cancel(ctx, p.id)
	}
	if ctx.Err() != nil {
		return nil // the sale is over
	}
	return err
}
