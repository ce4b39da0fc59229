// Orders is a shop that cancels an order which is not paid in 15 minutes, and reminds its buyer
// after ten. It shows how to test such a service: its tests use the package sluicetest and nothing
// else, and an afternoon of orders takes milliseconds.
//
// Without a flag it needs no other program: Redis is a miniredis within the process, and its 15
// minutes are three seconds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// Shop sells. The states of its orders stand for a database.
type Shop struct {
	Queue    *sluice.Queue
	Locker   *sluice.Locker
	PayIn    time.Duration      // from the order until it is cancelled
	Remember func(order string) // sends a reminder; may be called twice for an order

	mu     sync.Mutex
	orders map[string]string // "unpaid", "paid" or "canceled"
}

// errLate says that an order was cancelled before it was paid.
var errLate = errors.New("the order was cancelled")

// Order takes an order. What happens later is enqueued before the order is stored: a process that
// dies between the two leaves tasks for an order that is not there, which do nothing.
func (s *Shop) Order(ctx context.Context, order string) error {
	return s.Locker.Do(ctx, order, func(ctx context.Context) error {
		_, err := s.Queue.EnqueueBatch(ctx, []sluice.Task{
			{ID: "remind:" + order, Payload: []byte(order), Delay: s.PayIn * 2 / 3},
			{ID: "cancel:" + order, Payload: []byte(order), Delay: s.PayIn},
		})
		if err == nil {
			s.set(order, "unpaid")
		}
		return err
	})
}

// Pay pays an order. The state of the order decides, not what Cancel says: that only tidies up.
func (s *Shop) Pay(ctx context.Context, order string) error {
	if !s.move(order, "unpaid", "paid") {
		return errLate
	}
	_, _ = s.Queue.Cancel(ctx, "remind:"+order)
	_, _ = s.Queue.Cancel(ctx, "cancel:"+order)
	return nil
}

// Work carries out what is due, until ctx ends.
func (s *Shop) Work(ctx context.Context) error {
	return (&sluice.Worker{Queue: s.Queue, Handler: s.handle}).Run(ctx)
}

// handle takes the lock that Order takes, so that it does not look for an order which is about to
// be stored.
func (s *Shop) handle(ctx context.Context, e sluice.Entry) error {
	order := string(e.Payload)
	return s.Locker.Do(ctx, order, func(context.Context) error {
		switch {
		case e.ID == "cancel:"+order:
			s.move(order, "unpaid", "canceled")
		case s.State(order) == "unpaid":
			s.Remember(order)
		}
		return nil
	})
}

// State returns an order's state, "" for none.
func (s *Shop) State(order string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.orders[order]
}

func (s *Shop) set(order, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orders == nil {
		s.orders = map[string]string{}
	}
	s.orders[order] = state
}

// move is UPDATE orders SET state = ? WHERE id = ? AND state = ?.
func (s *Shop) move(order, from, to string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orders[order] != from {
		return false
	}
	s.orders[order] = to
	return true
}

func main() {
	payIn := flag.Duration("pay-in", 3*time.Second, "how `long` a buyer has to pay")
	flag.Parse()
	if err := run(context.Background(), *payIn, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// run sells to two buyers, of whom one pays.
func run(ctx context.Context, payIn time.Duration, out io.Writer) error {
	m, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer m.Close()
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	queue, err := sluice.NewQueue(rdb, "orders")
	if err != nil {
		return err
	}
	locker, err := sluice.NewLocker(rdb)
	if err != nil {
		return err
	}
	defer locker.Close()
	shop := &Shop{Queue: queue, Locker: locker, PayIn: payIn, Remember: func(order string) { fmt.Fprintln(out, "please pay", order) }}
	if err := errors.Join(shop.Order(ctx, "order-1"), shop.Order(ctx, "order-2"), shop.Pay(ctx, "order-1")); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, payIn+30*time.Second)
	defer stop()
	go func() {
		for ctx.Err() == nil && shop.State("order-2") == "unpaid" {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
	}()
	err = shop.Work(ctx)
	fmt.Fprintln(out, "order-1 is", shop.State("order-1"), "and order-2 is", shop.State("order-2"))
	return err
}
