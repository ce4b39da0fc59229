// Wallet books what happens to wallets: of each wallet one booking after the other, in the order in
// which they were made, and many wallets at the same time. One wallet with a thousand bookings does
// not hold up the others. No booking takes a lock: its task's Group says whose turn it is.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

func main() {
	if err := run(context.Background(), os.Stdout, 1000); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// wallets are the balances, in place of rows of a database.
type wallets struct {
	mu       sync.Mutex // guards what follows
	balances map[string]int
	booked   map[string]int // the number of the last booking
}

func (w *wallets) get(name string) (balance, booked int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.balances[name], w.booked[name]
}

func (w *wallets) set(name string, balance, number int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.balances[name], w.booked[name] = balance, number
}

// book is the handler. Between its read and its write no other booking of that wallet runs. It may
// run again after its write, so that it looks at the number.
func (w *wallets) book(_ context.Context, e sluice.Entry) error {
	number, err := strconv.Atoi(e.Header["number"])
	if err != nil {
		return sluice.Permanent(err)
	}
	amount, err := strconv.Atoi(string(e.Payload))
	if err != nil {
		return sluice.Permanent(err)
	}
	balance, booked := w.get(e.Group)
	switch {
	case number <= booked:
		return nil // this is a repeat
	case number > booked+1:
		return errors.New("out of order")
	}
	time.Sleep(100 * time.Microsecond) // the database
	w.set(e.Group, balance+amount, number)
	return nil
}

// run books so many bookings of one wallet, and ten of each of ten others.
func run(ctx context.Context, out io.Writer, many int) error {
	server, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	queue, err := sluice.NewQueue(rdb, "bookings")
	if err != nil {
		return err
	}
	enqueue := func(wallet string, n int) error {
		var ts []sluice.Task
		for i := 1; i <= n; i++ {
			ts = append(ts, sluice.Task{
				ID: fmt.Sprint(wallet, "-", i), Group: wallet, Payload: []byte(strconv.Itoa(i % 3)), Header: map[string]string{"number": strconv.Itoa(i)},
			})
		}
		_, err := queue.EnqueueBatch(ctx, ts)
		return err
	}
	if err := enqueue("big", many); err != nil {
		return err
	}
	for i := range 10 {
		if err := enqueue(fmt.Sprint("small", i), 10); err != nil {
			return err
		}
	}

	w := wallets{balances: map[string]int{}, booked: map[string]int{}}
	working, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for range 2 { // as in two processes
		all.Go(func() { _ = (&sluice.Worker{Queue: queue, Handler: w.book}).Run(working) })
	}
	small := false
	for {
		s, err := queue.Stats(ctx)
		if err != nil {
			return err
		}
		if !small {
			small = true
			for i := range 10 {
				_, booked := w.get(fmt.Sprint("small", i))
				small = small && booked == 10
			}
			if small {
				fmt.Fprintf(out, "the small wallets are done; of the big one %d bookings wait\n", s.GroupWaiting)
			}
		}
		if s.Due+s.Scheduled+s.Leased+s.GroupWaiting == 0 {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	balance, booked := w.get("big")
	fmt.Fprintf(out, "big: %d bookings in order, balance %d\n", booked, balance)
	return nil
}
