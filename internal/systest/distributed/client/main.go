// Command client is the process that TestBuilds_ShareLocksAndAQueue starts. The test compiles it
// with the build of now and with the build before, whose source it is copied into: it uses only
// what the public API of both has.
//
// It takes turns at what -kind names until its standard input ends or -for is over, and prints a
// JSON line about each. A line "die" of its standard input makes it kill itself in its next turn,
// and "rest" has it enqueue no more.
//
// It exits with 0 if it ended in order, and with 1 after an error that it has no use for. Whether
// turns overlapped is told by the lines of all processes together.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// ttl is that of the locks: a killed holder keeps the others waiting for so long.
const ttl = time.Second

// permits is how many turns of the kind "permits" may overlap. The test knows it, too.
const permits = 2

// A LockAll takes basket of the names on the shelf.
const shelf, basket = 4, 2

// jobs are the kinds of turns. A job works until ctx ends, and reports each turn.
var jobs = map[string]func(ctx context.Context, c *client) error{
	"plain": sections(func(ctx context.Context, l *sluice.Locker, name string) (held, error) {
		return lock(l.Lock(ctx, name))
	}),
	"fenced": sections(func(ctx context.Context, l *sluice.Locker, name string) (held, error) {
		return lock(l.Lock(ctx, name, sluice.WithFencing()))
	}),
	"permits": sections(func(ctx context.Context, l *sluice.Locker, name string) (held, error) {
		return lock(l.Lock(ctx, name, sluice.WithPermits(permits), sluice.WithFencing()))
	}),
	"lockall": sections(func(ctx context.Context, l *sluice.Locker, name string) (held, error) {
		var names []string
		for _, i := range rand.Perm(shelf)[:basket] {
			names = append(names, fmt.Sprint(name, ".", i))
		}
		set, err := l.LockAll(ctx, names)
		return held{handle: set, names: names}, err
	}),
	"tasks":     tasks,
	"work":      work(sluice.Limits{}, ofEach),
	"limits":    work(sluice.Limits{Running: permits}, func(c *client, _ sluice.Entry) string { return c.name }),
	"retention": work(sluice.Limits{}, ofEach, retention...), // in the build of now only
}

// ofEach gives the turns of each task a name of their own.
func ofEach(c *client, e sluice.Entry) string { return c.name + "." + e.ID }

// client is what a job needs.
type client struct {
	rdb     *redis.Client
	name    string
	callers int
	hold    time.Duration // the mean
	pause   time.Duration // the mean
	die     atomic.Bool
	rest    atomic.Bool // it enqueues no more
}

// report is a line of the standard output. A turn has one when it begins and one when it has ended,
// which is missing if the process was killed. A wait that has not led to a turn when the process
// ends has one without names.
//
// From and Until are numbers of one counter on the server, so they have an order over all
// processes, whatever their clocks say. The handle was valid after each of them was drawn, so two
// turns that exclude each other and overlap by these numbers are two handles that were valid at the
// same time. A process that was stopped beyond its TTL proves nothing of the kind.
//
// Each task that is enqueued has a report without names: before, and again when that is known.
type report struct {
	Enqueued    string // its ID
	IsSure      bool
	Names       []string
	From, Until int64
	Fence       int64
	Wait        time.Duration
}

// print writes the line in one piece.
func (r report) print() error {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = os.Stdout.Write(append(line, '\n'))
	}
	return err
}

// held is what a section has taken.
type held struct {
	handle interface {
		Valid() bool
		Unlock(ctx context.Context) error
	}
	names []string
	fence int64
}

func lock(k *sluice.Lock, err error) (held, error) {
	if err != nil {
		return held{}, err
	}
	return held{handle: k, names: []string{k.Name()}, fence: k.Fence()}, nil
}

// sections returns a job of several callers, each of which takes something, holds it for a moment
// and lets go, again and again.
func sections(take func(ctx context.Context, l *sluice.Locker, name string) (held, error)) func(context.Context, *client) error {
	return func(ctx context.Context, c *client) error {
		l, err := sluice.NewLocker(c.rdb, sluice.WithTTL(ttl))
		if err != nil {
			return err
		}
		failed := make([]error, c.callers)
		var all sync.WaitGroup
		for i := range c.callers {
			all.Go(func() {
				for ctx.Err() == nil && failed[i] == nil {
					failed[i] = c.section(ctx, func() (held, error) { return take(ctx, l, c.name) })
					time.Sleep(rand.N(2 * c.pause)) // it does something else
				}
			})
		}
		all.Wait()
		if err := l.Close(); !errors.Is(err, sluice.ErrUnknown) {
			failed = append(failed, err)
		}
		return errors.Join(failed...)
	}
}

// taskIDs is how many tasks are enqueued again and again.
const taskIDs = 20

// tasks is a job that enqueues tasks, and of several callers, each of which waits for one and
// handles it. A turn is a handler's.
func tasks(ctx context.Context, c *client) error {
	q, err := sluice.NewQueue(c.rdb, c.name)
	if err != nil {
		return err
	}
	failed := make([]error, c.callers+1)
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil && failed[c.callers] == nil {
			if _, err := q.Enqueue(ctx, sluice.Task{ID: fmt.Sprint(rand.N(taskIDs))}); ctx.Err() == nil && !errors.Is(err, sluice.ErrUnknown) {
				failed[c.callers] = err
			}
			time.Sleep(rand.N(2*c.pause) / 2)
		}
	})
	for i := range c.callers {
		all.Go(func() {
			for ctx.Err() == nil && failed[i] == nil {
				failed[i] = c.task(ctx, q)
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// work returns a job that enqueues tasks, each once, and handles them by a Worker whose queue has
// limits. A turn is a handler's, on what named returns. One task in ten fails at first.
func work(limits sluice.Limits, named func(c *client, e sluice.Entry) string, opts ...sluice.QueueOption) func(context.Context, *client) error {
	return func(ctx context.Context, c *client) error {
		q, err := sluice.NewQueue(c.rdb, c.name, opts...)
		if err != nil {
			return err
		}
		if err := q.SetLimits(ctx, limits); err != nil && !errors.Is(err, sluice.ErrUnknown) {
			return err
		}
		var failed error
		var all sync.WaitGroup
		all.Go(func() {
			for n := 0; ctx.Err() == nil && failed == nil && !c.rest.Load(); n++ {
				failed = c.enqueue(ctx, q, fmt.Sprintf("%d-%d", os.Getpid(), n))
				time.Sleep(rand.N(2 * c.pause))
			}
		})
		w := &sluice.Worker{Queue: q, Concurrency: c.callers, Lease: ttl, Logger: slog.New(slog.DiscardHandler), Handler: func(ctx context.Context, e sluice.Entry) error {
			if e.Attempt == 1 && rand.N(10) == 0 {
				return sluice.RetryIn(time.Millisecond, errors.New("at first"))
			}
			r := report{Names: []string{named(c, e)}, Wait: time.Since(e.Due)}
			return c.turn(&r, func() bool { return sluice.LeaseValid(ctx) })
		}}
		err = w.Run(ctx)
		all.Wait()
		return errors.Join(err, failed)
	}
}

// enqueue enqueues a task, and reports it.
func (c *client) enqueue(ctx context.Context, q *sluice.Queue, id string) error {
	r := report{Enqueued: id}
	if err := r.print(); err != nil {
		return err
	}
	_, err := q.Enqueue(ctx, sluice.Task{ID: id, Delay: rand.N(time.Millisecond)})
	if ctx.Err() != nil || errors.Is(err, sluice.ErrUnknown) {
		return nil
	}
	if r.IsSure = err == nil; !r.IsSure {
		return err
	}
	return r.print()
}

// task waits for a task and handles it.
func (c *client) task(ctx context.Context, q *sluice.Queue) error {
	err := q.Wait(ctx)
	began := time.Now()
	var entries []sluice.Entry
	if err == nil {
		entries, err = q.Claim(ctx, 1, ttl)
	}
	if ctx.Err() != nil || errors.Is(err, sluice.ErrUnknown) || errors.Is(err, sluice.ErrLost) {
		return nil
	}
	for _, e := range entries {
		r := report{Names: []string{c.name + "." + e.ID}, Wait: time.Since(e.Due)}
		err = errors.Join(c.turn(&r, func() bool { return time.Since(began) < ttl }), q.Dequeue(context.Background(), e))
	}
	if errors.Is(err, sluice.ErrStale) || errors.Is(err, sluice.ErrUnknown) { // it was slower than the lease
		return nil
	}
	return err
}

// section has one section.
func (c *client) section(ctx context.Context, take func() (held, error)) error {
	begun := time.Now()
	h, err := take()
	for ctx.Err() == nil && (errors.Is(err, sluice.ErrLost) || errors.Is(err, sluice.ErrUnknown)) { // a busy machine
		h, err = take()
	}
	r := report{Wait: time.Since(begun)}
	if err != nil && ctx.Err() != nil {
		return r.print()
	}
	if err != nil {
		return err
	}
	r.Names, r.Fence = h.names, h.fence
	err = errors.Join(c.turn(&r, h.handle.Valid), h.handle.Unlock(context.Background()))
	if errors.Is(err, sluice.ErrNotHeld) || errors.Is(err, sluice.ErrUnknown) { // it was slower than the TTL
		return nil
	}
	return err
}

// turn holds something for a moment, and reports for how long it was valid. A job of another kind
// can use it, too.
func (c *client) turn(r *report, valid func() bool) error {
	var err error
	if r.From, err = c.draw(); err != nil || !valid() {
		return err
	}
	r.Until = r.From
	if err := r.print(); err != nil {
		return err
	}
	if c.die.Load() {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		time.Sleep(time.Minute) // until the signal arrives: this turn must not end
		return err
	}
	time.Sleep(rand.N(2 * c.hold)) // the turn
	until, err := c.draw()
	if err != nil || !valid() {
		return err
	}
	r.Until = until
	return r.print()
}

// draw returns the next number of the counter.
func (c *client) draw() (int64, error) {
	return c.rdb.Incr(context.Background(), c.name+".counter").Result()
}

// obey ends ctx when the standard input ends, as it does when the test dies in whatever way.
func (c *client) obey(cancel func()) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch lines.Text() {
		case "die":
			c.die.Store(true)
		case "rest":
			c.rest.Store(true)
		}
	}
	cancel()
}

func run() error {
	var c client
	addr := flag.String("addr", "127.0.0.1:6379", "address of the server")
	kind := flag.String("kind", "plain", fmt.Sprint("what it does: one of ", slices.Sorted(maps.Keys(jobs))))
	limit := flag.Duration("for", time.Minute, "ends after this time, if its input has not ended before")
	flag.StringVar(&c.name, "name", "shared", "what the processes share")
	flag.IntVar(&c.callers, "callers", 2, "goroutines")
	flag.DurationVar(&c.hold, "hold", 2*time.Millisecond, "mean length of a turn")
	flag.DurationVar(&c.pause, "pause", 30*time.Millisecond, "mean length of a caller's pause after a turn")
	flag.Parse()
	job := jobs[*kind]
	if job == nil {
		return fmt.Errorf("no kind %q", *kind)
	}
	c.rdb = redis.NewClient(&redis.Options{Addr: *addr})
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	go c.obey(cancel)
	return job(ctx, &c)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
