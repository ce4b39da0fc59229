package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/sluice-go/sluice"
)

// visit serves a buyer once, who then goes to the end of the line, or home once
// the order is paid. The look before the lock is for the sake of the others: who
// can't buy anyway shouldn't be waited for. It decides nothing.
func (s *seller) visit(ctx context.Context, b buyer, ordered func(purchase)) error {
	v, err := s.shop.look(ctx, b.customer)
	if err != nil || v.status == paid {
		return err
	}
	defer s.line.back(b)
	if v.status == unpaid || v.stock == 0 {
		return nil
	}
	p, err := s.buy(ctx, b.customer)
	switch {
	case errors.Is(err, sluice.ErrUnknown), errors.Is(err, sluice.ErrLost), errors.Is(err, errOvertaken):
		// The buyer comes again. What this attempt has left, if anything, is an
		// order that nobody pays or a task for no order, and goes when it is due.
		return nil
	case err == nil && p.result == sold:
		ordered(p)
	}
	return err
}

// purchase is what came of a stay under the lock.
type purchase struct {
	order
	intention
	result string
}

const (
	sold      = "sold"
	soldOut   = "sold out"
	hasOne    = "has one"
	overtaken = "overtaken"
	failed    = "failed"
)

// buy does what takes the lock, and holds it until the transaction has been
// committed: if it were released before that, the next buyer would see the stock
// of before.
//
// A counter alone would need no lock, as a conditional UPDATE or one script
// decrements it safely. The lock is for what lies between the look and the write
// (pricing, limits, asking other services): nobody else comes in meanwhile, so
// nobody has to begin again.
func (s *seller) buy(ctx context.Context, customer int) (purchase, error) {
	var p purchase
	var stay section
	came := time.Now()
	err := s.locker.Do(ctx, s.Run, func(ctx context.Context) (err error) {
		stay.at = time.Now()
		p, err = s.inside(ctx, customer)
		return err
	})
	if stay.at.IsZero() { // never got in
		return p, err
	}
	stay.waited, stay.result = stay.at.Sub(came), p.result
	return p, errors.Join(err, s.shop.note(ctx, stay))
}

// inside is the critical section. Its ctx ends when the lock is lost, and the
// transaction with it.
func (s *seller) inside(ctx context.Context, customer int) (purchase, error) {
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

	// First the task, then the commit: a process that dies between the two
	// leaves a task for no order, which the worker drops. The other way round it
	// would leave an order that nobody cancels. So the ID is made before the
	// order is, and for this attempt alone: should Enqueue fail, even with
	// ErrUnknown, the attempt is over, and a task that got in finds no order.
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

// pay pays an order, if its customer does, and takes its task out of the queue.
//
// The row decides; the task is only a reminder to look at it. Hence Cancel, which
// removes a task whatever its state. Dequeue would need a receipt: Peek shows
// only tasks that are due, and what Get returns is stale as soon as the worker
// claims the task. A worker that has done so finds the order paid, and so does
// one that is handed the task because Cancel failed: its error, ErrUnknown or
// not, needs no answer.
func (s *seller) pay(ctx context.Context, p purchase) error {
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
