package shophttp

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	sampleEvery = 250 * time.Millisecond
	// redisAway is for how long the Redis server that was killed stays away.
	redisAway = time.Second
	// settleLimit bounds the wait for tasks of orders at the end.
	settleLimit = 15 * time.Second
)

// Options say what sale is to be held.
type Options struct {
	Method      string             // ByStock, or one of Ways
	Ways        map[string]OpenWay // as RunChild has them
	Redis       string             // address of a server; empty to start one
	Processes   int                // of the service
	Generators  int                // processes of the load generator
	Connections int                // of each
	Requests    int                // in all, at least
	Stock       int
	Customers   int           // in all; a customer comes again and again
	PayWithin   time.Duration // or the order is cancelled
	Faults      bool          // kill -9 of two processes of the service, and of Redis between
	Say         func(format string, args ...any)
}

// sale is a sale under way.
type sale struct {
	Options
	began    time.Time
	redis    *redisServer
	store    *Store
	way      Way // for its stock alone
	listener *os.File
	service  assignment

	mu       sync.Mutex // guards what follows
	children []*child   // of the service
	underWay []int64    // requests, by process
	total    report
	interval histogram // since the last sample
	samples  []Sample
	events   []Event
	ending   bool
	broken   error // a process that could not be replaced
}

// Sample is the state of a sale at a time.
type Sample struct {
	At        time.Duration // since the beginning
	Requests  int64         // so far
	Rate      float64       // requests a second since the sample before
	P99       time.Duration // of those; 0 if none was answered
	UnderWay  int64         // requests
	Stock     int           // left; as before while Redis is away
	Unpaid    int
	Paid      int
	Cancelled int
}

// Event is something that was done to the sale.
type Event struct {
	At   time.Duration
	What string
}

// Hold holds a sale in processes of its own, and shows it on the page unless that is nil. The
// result is whole if the error is nil; whether it is right is Result.Check's to say.
func Hold(ctx context.Context, o Options, p *Page) (Result, error) {
	dir, err := os.MkdirTemp("", "seckill-")
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s := &sale{Options: o, underWay: make([]int64, o.Processes), children: make([]*child, o.Processes), interval: histogram{}}
	s.total.Times = histogram{}
	if s.redis, err = openRedis(ctx, o.Redis, dir); err != nil {
		return Result{}, err
	}
	defer func() { s.redis.down() }()
	file := filepath.Join(dir, "sale.db")
	if s.store, err = CreateStore(ctx, file); err != nil {
		return Result{}, err
	}
	defer s.store.Close()
	rdb := connect(s.redis.addr)
	defer rdb.Close()
	s.service = assignment{Method: o.Method, Redis: s.redis.addr, DB: file, Stock: o.Stock, PayWithin: o.PayWithin, Run: "seckill-" + rand.Text()[:10]}
	if s.way, err = openWay(o.Method, o.Ways, s.service.site(rdb, s.store)); err != nil {
		return Result{}, err
	}
	defer s.way.Close()
	if err := s.way.Begin(ctx); err != nil {
		return Result{}, err
	}
	if o.Redis != "" { // a server that is not ours
		defer s.end(ctx)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return Result{}, err
	}
	defer listener.Close()
	if s.listener, err = listener.(*net.TCPListener).File(); err != nil {
		return Result{}, err
	}
	defer s.listener.Close()
	defer s.stop()
	if err := s.open(ctx); err != nil {
		return Result{}, err
	}
	return s.run(ctx, "http://"+listener.Addr().String(), p)
}

// open starts the service.
func (s *sale) open(ctx context.Context) error {
	for i := range s.children {
		c, err := s.startService(i)
		if err != nil {
			return err
		}
		select {
		case <-c.ready:
		case <-c.ended:
			return fmt.Errorf("process %d of the service: %w", i+1, cmp.Or(c.err, errors.New("ended")))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// startService starts a process of the service, which is replaced when it dies. What the dead one
// left needs no cleaning up: the database rolls its transaction back, its orders have tasks, and
// those that it had claimed are due again when the lease ends.
func (s *sale) startService(i int) (*child, error) {
	c, err := start(s.service, s.listener, func(r report) { s.hear(i, r) })
	if err != nil {
		return nil, err
	}
	s.Say("process %d of the service: pid %d", i+1, c.cmd.Process.Pid)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.children[i] = c
	if s.ending { // since the one before has died
		_ = c.stdin.Close()
	}
	go s.replace(i, c) // ends with the process
	return c, nil
}

func (s *sale) replace(i int, c *child) {
	<-c.ended
	s.hear(i, report{})
	s.mu.Lock()
	ending := s.ending
	s.mu.Unlock()
	if ending {
		return
	}
	select {
	case <-c.ready:
		if _, err := s.startService(i); err == nil {
			return
		}
	default: // it never served: another would not either
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = fmt.Errorf("process %d of the service: %w", i+1, cmp.Or(c.err, errors.New("ended")))
}

// end removes the sale from a server that stays, also when ctx has ended.
func (s *sale) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	s.way.End(ctx)
}

// stop ends the service.
func (s *sale) stop() {
	s.mu.Lock()
	s.ending = true
	children := append([]*child(nil), s.children...)
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, c := range children {
		if c != nil {
			all.Go(c.stop)
		}
	}
	all.Wait()
}

// hear notes a report, of process i of the service or, if that is negative, of the load generator.
func (s *sale) hear(i int, r report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i >= 0 {
		s.underWay[i] = r.UnderWay
	}
	t := &s.total
	t.Transactions += r.Transactions
	t.Requests += r.Requests
	t.Sold += r.Sold
	t.Paid += r.Paid
	t.Failed += r.Failed
	t.Broken += r.Broken
	t.Hung += r.Hung
	t.Times.add(r.Times)
	s.interval.add(r.Times)
}

// run runs the load generator to its end, and returns the result.
func (s *sale) run(ctx context.Context, url string, p *Page) (Result, error) {
	commands, err := s.redis.commands(ctx)
	if err != nil {
		return Result{}, err
	}
	s.began = time.Now()
	generators, err := s.generate(url)
	defer func() {
		for _, g := range generators {
			g.kill()
		}
	}()
	if err != nil {
		return Result{}, err
	}
	if err := s.watch(ctx, generators, p); err != nil {
		return Result{}, err
	}
	r := s.result()
	r.Took = time.Since(s.began)
	if !s.Faults { // a server that was started again has counted from 0
		after, err := s.redis.commands(ctx)
		if err != nil {
			return Result{}, err
		}
		r.Commands = after - commands
	}
	if r.Tasks, err = s.settle(ctx); err != nil {
		return Result{}, err
	}
	r.Rows, err = s.standing(ctx)
	return r, err
}

// standing asks the database, and the way to sell for what is left.
func (s *sale) standing(ctx context.Context) (standing, error) {
	n, err := s.store.standing(ctx)
	if err != nil {
		return n, err
	}
	n.Total = s.Stock
	n.Stock, err = s.way.Left(ctx)
	return n, err
}

func (s *sale) generate(url string) (generators []*child, err error) {
	for i := range s.Generators {
		a := s.service
		a.URL, a.Connections = url, s.Connections
		a.Requests, a.Customers = s.Requests/s.Generators, s.Customers/s.Generators
		a.First = i * a.Customers
		g, err := start(a, nil, func(r report) { s.hear(-1, r) })
		if err != nil {
			return generators, err
		}
		generators = append(generators, g)
	}
	return generators, nil
}
