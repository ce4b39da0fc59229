// Periodic sweeps sessions that have ended, every so often, and makes a report each night. Several
// processes work, each with the same list; one of them does each sweep. There is no scheduler.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice"
)

// Nightly is the schedule of a time of day in a zone. Those of a cron package are of the same type.
type Nightly struct {
	Hour, Minute int
	Zone         *time.Location
}

// Next returns the first such time after t. Where clocks are set ahead over it, that day's is as
// much later.
func (n Nightly) Next(t time.Time) time.Time {
	t = t.In(n.Zone)
	for day := 0; ; day++ {
		if next := time.Date(t.Year(), t.Month(), t.Day()+day, n.Hour, n.Minute, 0, 0, n.Zone); next.After(t) {
			return next
		}
	}
}

// Sessions is the store: a database, in a real program.
type Sessions struct {
	mu   sync.Mutex // guards what follows
	ends map[string]time.Time
}

// Add adds a session.
func (s *Sessions) Add(id string, ends time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ends == nil {
		s.ends = map[string]time.Time{}
	}
	s.ends[id] = ends
}

// Sweep removes the sessions that had ended by then, and returns how many are left.
func (s *Sessions) Sweep(then time.Time) (left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, ends := range s.ends {
		if !ends.After(then) {
			delete(s.ends, id)
		}
	}
	return len(s.ends)
}

// Worker returns what each process runs.
func Worker(queue *sluice.Queue, sessions *Sessions, every time.Duration, report func(due time.Time)) *sluice.Worker {
	return &sluice.Worker{
		Queue: queue,
		Periodic: []sluice.Periodic{
			{ID: "sweep", Schedule: sluice.Every(every)},
			{ID: "report", Schedule: Nightly{3, 0, time.UTC}},
		},
		// The same handler has the other tasks of the queue, by their IDs.
		Handler: func(_ context.Context, e sluice.Entry) error {
			switch e.ID {
			case "sweep":
				// Due is the time of the schedule, also if the sweep is late or repeated after a
				// crash: so it does the same.
				sessions.Sweep(e.Due)
				return nil
			case "report":
				report(e.Due)
				return nil
			}
			return sluice.Permanent(errors.New("no such task"))
		},
	}
}

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "periodic:", err)
		os.Exit(1)
	}
}

// run sweeps every 100ms, with three workers, until no session is left.
func run(ctx context.Context, out io.Writer) error {
	m, err := miniredis.Run() // a real program connects to its own Redis
	if err != nil {
		return err
	}
	defer m.Close()
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer rdb.Close()
	queue, err := sluice.NewQueue(rdb, "chores")
	if err != nil {
		return err
	}
	var sessions Sessions
	for i := range 10 {
		sessions.Add(fmt.Sprint(i), time.Now().Add(time.Duration(i)*200*time.Millisecond))
	}
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	var all sync.WaitGroup
	errs, workers := make([]error, 3), make([]*sluice.Worker, 3)
	for i := range workers {
		workers[i] = Worker(queue, &sessions, 100*time.Millisecond, func(time.Time) {})
		all.Go(func() { errs[i] = workers[i].Run(ctx) })
	}
	for ctx.Err() == nil && sessions.Sweep(time.Time{}) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	all.Wait()
	sweeps := int64(0)
	for _, w := range workers {
		sweeps += w.Stats().Done
	}
	fmt.Fprintf(out, "sessions left: %d; swept more than once: %t\n", sessions.Sweep(time.Time{}), sweeps > 1)
	return errors.Join(errs...)
}
