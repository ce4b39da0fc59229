package shophttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-go/sluice"
)

// watch samples the sale, and does to it what Faults asks for, until the load generator has ended.
func (s *sale) watch(ctx context.Context, generators []*child, p *Page) error {
	faults := make(chan error, 1) // the outcome of the one under way
	next, under := 0, false
	defer func() {
		if under {
			<-faults
		}
	}()
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case err := <-faults:
			if under = false; err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		now, err := s.sample(ctx)
		if err != nil {
			return err
		}
		p.show(s.result())
		if s.Faults && !under && next < len(plan) && now.Paid*len(plan) >= s.Stock*next+1 {
			do := plan[next]
			next, under = next+1, true
			go func() { faults <- do(s, ctx) }() // watch waits for it
		}
		ended, err := haveEnded(generators)
		if err != nil || (ended && !under) {
			return err
		}
	}
}

// plan is what Faults does: the first when the first unit is paid, the others at a third and two
// thirds.
var plan = []func(*sale, context.Context) error{
	func(s *sale, _ context.Context) error { return s.killService(0) },
	(*sale).restartRedis,
	func(s *sale, _ context.Context) error { return s.killService(len(s.children) - 1) },
}

func (s *sale) killService(i int) error {
	s.mu.Lock()
	c := s.children[i]
	s.mu.Unlock()
	s.happened(fmt.Sprintf("kill -9 of process %d", i+1))
	c.kill()
	return nil
}

// restartRedis kills Redis, and starts it again on its append-only file.
func (s *sale) restartRedis(ctx context.Context) error {
	if s.Redis != "" {
		return nil // a server that is not ours
	}
	s.happened("kill -9 of Redis")
	s.redis.down()
	pause(ctx, redisAway)
	err := s.redis.up(ctx)
	s.happened("Redis is back")
	return err
}

func (s *sale) happened(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, Event{time.Since(s.began), what})
	s.Say("%s", what)
}

// haveEnded says whether all processes of the load generator have, and whether one failed.
func haveEnded(generators []*child) (bool, error) {
	for _, g := range generators {
		select {
		case <-g.ended:
			if g.err != nil {
				return true, fmt.Errorf("load generator: %w", g.err)
			}
		default:
			return false, nil
		}
	}
	return true, nil
}

func (s *sale) sample(ctx context.Context) (Sample, error) {
	n, err := s.store.standing(ctx)
	asking, cancel := context.WithTimeout(ctx, sampleEvery/2)
	left, errLeft := s.way.Left(asking)
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(err, s.broken); err != nil {
		return Sample{}, err
	}
	last := Sample{Stock: s.Stock}
	if len(s.samples) > 0 {
		last = s.samples[len(s.samples)-1]
	}
	if errLeft != nil { // Redis is away
		left = last.Stock
	}
	now := Sample{
		At: time.Since(s.began), Requests: s.total.Requests, P99: s.interval.percentile(99),
		Stock: left, Unpaid: n.Unpaid, Paid: n.Paid, Cancelled: n.Cancelled,
	}
	for _, n := range s.underWay {
		now.UnderWay += n
	}
	now.Rate = float64(now.Requests-last.Requests) / (now.At - last.At).Seconds()
	s.samples = append(s.samples, now)
	clear(s.interval)
	return now, nil
}

// result returns what is known so far.
func (s *sale) result() Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := Result{Options: s.Options, Told: s.total, Took: time.Since(s.began), Samples: slices.Clone(s.samples), Events: slices.Clone(s.events)}
	r.Told.Times = maps.Clone(s.total.Times)
	return r
}

// settle waits until the tasks of orders have been handled. It returns how many are left: after its
// limit, or dead.
func (s *sale) settle(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	rdb := connect(s.redis.addr)
	defer rdb.Close()
	queue, err := sluice.NewQueue(rdb, s.service.Run)
	if err != nil {
		return 0, err
	}
	for {
		stats, err := queue.Stats(ctx)
		left := stats.Scheduled + stats.Due + stats.Leased + stats.Dead
		if err == nil && (left == 0 || stats.Dead > 0) {
			return left, nil
		}
		pause(ctx, lookEvery)
		if ctx.Err() != nil {
			return left, errors.Join(err, context.Cause(ctx))
		}
	}
}
