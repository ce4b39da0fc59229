// Gocron shows the Locker and the Elector of gocron by Sluice: several processes have the same
// jobs, and each run of a job is done by one of them. With tasks of your own, Worker.Periodic does
// the same without gocron, and repeats what a crash has cut off.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// Locker has each run of a job done by the first process that asks.
type Locker struct {
	Locker *sluice.Locker
	Splay  time.Duration // by how much the clocks of processes may differ: a job that is quicker keeps its lock for as long
}

// Lock does not wait: another process has this run.
func (l Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	held, err := l.Locker.TryLock(ctx, "gocron:"+key, sluice.WithTTL(l.Splay), sluice.WithAutoRenew())
	if err != nil {
		return nil, err
	}
	return lock{held, l.Splay}, nil
}

type lock struct {
	held  *sluice.Lock
	splay time.Duration
}

// Unlock leaves the lock held until its TTL ends, so that a process whose clock is behind does not
// do this run again.
func (l lock) Unlock(ctx context.Context) error {
	if err := l.held.Extend(ctx, l.splay); err != nil {
		return err // ErrNotHeld: it was lost, and the job may have run twice
	}
	_, err := l.held.Detach(ctx)
	return err
}

// Elector has all jobs done by one process, until it ends.
type Elector struct{ term chan context.Context }

// NewElector stands for election until ctx ends. Processes lead in the order in which they began to
// stand.
func NewElector(ctx context.Context, locker *sluice.Locker) *Elector {
	e := &Elector{make(chan context.Context, 1)}
	go func() { // ends with ctx
		for ctx.Err() == nil {
			_ = locker.Do(ctx, "gocron:leader", func(ctx context.Context) error {
				e.term <- ctx
				<-ctx.Done() // before another process can lead
				<-e.term
				return nil
			})
			select {
			case <-time.After(time.Second): // Redis is away, or the term was lost
			case <-ctx.Done():
			}
		}
	}()
	return e
}

var errFollows = errors.New("another process leads")

// IsLeader says whether this process leads.
func (e *Elector) IsLeader(context.Context) error {
	select {
	case ctx := <-e.term:
		e.term <- ctx
		return ctx.Err()
	default:
		return errFollows
	}
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gocron:", err)
		os.Exit(1)
	}
}

// run has three processes with a job each second, for three seconds.
func run(ctx context.Context, out io.Writer) error {
	m, err := miniredis.Run()
	if err != nil {
		return err
	}
	defer m.Close()
	m.ClockTTL(true)
	done := make(chan string, 100)
	for i := range 3 {
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		defer rdb.Close()
		stop, err := Start(rdb, fmt.Sprint("process ", i+1), done)
		if err != nil {
			return err
		}
		defer stop()
	}
	for range 3 {
		select {
		case name := <-done:
			fmt.Fprintln(out, "done by", name)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Start starts a process: its jobs are those of all others.
func Start(rdb *redis.Client, name string, done chan<- string) (stop func(), err error) {
	locker, err := sluice.NewLocker(rdb, sluice.WithOwner(name))
	if err != nil {
		return nil, err
	}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(Locker{locker, 500 * time.Millisecond}))
	if err != nil {
		return nil, err
	}
	job := func() { done <- name }
	if _, err := scheduler.NewJob(gocron.CronJob("* * * * * *", true), gocron.NewTask(job), gocron.WithName("sweep")); err != nil {
		return nil, err
	}
	scheduler.Start()
	return func() { _ = scheduler.Shutdown(); _ = locker.Close() }, nil
}
