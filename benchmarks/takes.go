package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

const (
	takeName   = sluiceName + ", Take"
	scriptName = "script by hand"
	onSale     = "phone"
)

// takeScript is the script that stands everywhere: one a buyer, while stock lasts. A process that
// dies after it, and before it has enqueued the order, strands the unit.
var takeScript = redis.NewScript(`
if redis.call("SISMEMBER", KEYS[2], ARGV[1]) == 1 then return 2 end
if tonumber(redis.call("GET", KEYS[1]) or 0) < 1 then return 0 end
redis.call("DECR", KEYS[1])
redis.call("SADD", KEYS[2], ARGV[1])
return 1`)

// seller sells one unit a call.
type seller interface {
	// Stock sets how many units there are.
	Stock(ctx context.Context, units int) error
	// Sell reports whether a buyer got one.
	Sell(ctx context.Context, buyer int) (bool, error)
}

// taker is the queue of Sluice: a unit and its task in one step.
type taker struct{ taskQueue }

func openTaker(s setup) (queue, error) {
	q, err := newTaskQueue(s)
	return taker{q}, err
}

func (q taker) Stock(ctx context.Context, units int) error {
	return q.SetStock(ctx, onSale, int64(units))
}

func (q taker) Sell(ctx context.Context, buyer int) (bool, error) {
	outcome, err := q.Queue.Enqueue(ctx, sluice.Task{ID: taskID(buyer), Take: sluice.Take{Item: onSale}})
	return outcome == sluice.OutcomeAdded, err
}

// byHand is the script, and a queue for the orders, if any.
type byHand struct {
	queue
	rdb   redis.UniversalClient
	stock string
}

func openByHand(open func(setup) (queue, error)) func(setup) (queue, error) {
	return func(s setup) (queue, error) {
		b := byHand{rdb: newClient(s.Addr), stock: "{" + s.Queue + "}:left"}
		if open == nil {
			return b, nil
		}
		var err error
		b.queue, err = open(s)
		return b, err
	}
}

func (b byHand) Stock(ctx context.Context, units int) error {
	return b.rdb.Set(ctx, b.stock, units, 0).Err()
}

func (b byHand) Sell(ctx context.Context, buyer int) (bool, error) {
	got, err := takeScript.Run(ctx, b.rdb, []string{b.stock, b.stock + ":buyers"}, buyer).Int()
	if err == nil && got == 1 && b.queue != nil {
		err = b.Enqueue(ctx, buyer, nil, time.Time{})
	}
	return got == 1, err
}

func (b byHand) Close() error {
	err := b.rdb.Del(context.Background(), b.stock, b.stock+":buyers").Err()
	if b.queue != nil {
		err = errors.Join(err, b.queue.Close())
	}
	return errors.Join(err, b.rdb.Close())
}

// sellers are the ways to sell a unit.
func sellers() []entrant {
	return []entrant{
		{name: takeName, settings: "defaults", openQueue: openTaker},
		{name: scriptName, settings: "a script that decrements the stock, once a buyer; no order", openQueue: openByHand(nil)},
		{name: scriptName + ", then Enqueue", settings: "the same, then the order's task", openQueue: openByHand(openSluiceQueue)},
		{name: scriptName + ", then asynq", settings: "the same, then the order's task", openQueue: openByHand(openAsynq(0))},
	}
}

// takes measures buyers who all get a unit.
func takes() scenario {
	return scenario{
		name:    "takes",
		about:   "goroutines: 64; 50000 buyers, one a call, take a unit of what is for sale, and an order's task is enqueued",
		measure: tasksPerSecond,
		entries: sellers(),
		columns: []column{serverTimeColumn, serverCPUColumn, commandsColumn, allocsColumn},
		turn: func(ctx context.Context, t turn) (result, error) {
			n := t.tasks(50_000)
			return sellTurn(ctx, t, n+64, n)
		},
	}
}

// soldOut measures buyers most of whom come too late.
func soldOut() scenario {
	return scenario{
		name:    "sold-out",
		about:   "goroutines: 64; 1000000 buyers, one a call, for 1000 units",
		measure: tasksPerSecond,
		entries: sellers()[:2],
		columns: []column{commandsColumn, {"commands/s", median, whole}, allocsColumn},
		turn: func(ctx context.Context, t turn) (result, error) {
			r, err := sellTurn(ctx, t, 1000, t.tasks(1_000_000))
			if err != nil {
				return r, err
			}
			u, err := t.meter.read(ctx)
			r.extra = map[string]float64{"commands/s": u.commands * r.value / r.ops}
			return r, err
		},
	}
}

// sellTurn has buyers come, and checks that as many got a unit as there were.
func sellTurn(ctx context.Context, t turn, units, buyers int) (result, error) {
	const warmUp = 64
	s, ok := t.queue.(seller)
	if !ok {
		return result{}, errors.New("this queue sells nothing")
	}
	var sold atomic.Int64
	sell := func(ctx context.Context, buyer int) error {
		got, err := s.Sell(ctx, buyer)
		if got {
			sold.Add(1)
		}
		return err
	}
	if err := s.Stock(ctx, units); err != nil {
		return result{}, err
	}
	if err := inParallel(ctx, warmUp, warmUp, func(ctx context.Context, i int) error { return sell(ctx, buyers+i) }); err != nil {
		return result{}, err
	}
	if err := t.meter.start(ctx); err != nil {
		return result{}, err
	}
	began := time.Now()
	if err := inParallel(ctx, warmUp, buyers, sell); err != nil {
		return result{}, err
	}
	r := result{value: float64(buyers) / time.Since(began).Seconds(), ops: float64(buyers)}
	if want := min(units, buyers+warmUp); sold.Load() != int64(want) {
		return r, fmt.Errorf("%d of %d units sold", sold.Load(), want)
	}
	return r, nil
}
