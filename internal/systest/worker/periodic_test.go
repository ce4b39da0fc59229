package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// periodsOf returns the periods of n periodic tasks, from 200ms to 5s.
func periodsOf(n int) map[string]time.Duration {
	periods := map[string]time.Duration{}
	for i := range n {
		periods[fmt.Sprint(i)] = 200*time.Millisecond + time.Duration(i)*4800*time.Millisecond/time.Duration(n-1)
	}
	return periods
}

// The role "periodic" is a process that works on periodic tasks until it is killed. Its settings
// are the server's address, the name of a queue and the number of tasks. The effect of a run is an
// element of a list.
var _ = systest.Role("periodic", func(settings string) {
	systest.ExitWithStdin()
	var addr, name string
	var n int
	if _, err := fmt.Sscan(settings, &addr, &name, &n); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(-1))
	if err != nil {
		panic(err)
	}
	periods := periodsOf(n)
	w := &sluice.Worker{Queue: q, Concurrency: 8, Lease: childLease, Handler: func(ctx context.Context, e sluice.Entry) error {
		now := rdb.Time(ctx).Val()
		if err := rdb.RPush(ctx, "effects", fmt.Sprint(e.ID, " ", e.Due.UnixNano(), " ", now.UnixNano(), " ", os.Getpid())).Err(); err != nil {
			return err
		}
		work := 50 * time.Millisecond
		if rand.N(20) == 0 {
			work = 2 * periods[e.ID] // some occurrences are missed
		}
		time.Sleep(rand.N(work)) // most kills come in the midst of some
		return nil
	}}
	for id, period := range periods {
		w.Periodic = append(w.Periodic, sluice.Periodic{ID: id, Schedule: sluice.Every(period), Payload: []byte(id)})
	}
	_ = w.Run(context.Background())
})

// TestPeriodic_ProcessesAreKilled by SIGKILL, at random, and started again. Each occurrence that
// was enqueued is handled once, or again if its process was killed.
func TestPeriodic_ProcessesAreKilled(t *testing.T) {
	t.Parallel()
	killPeriodic(t, 3, 6, 6*time.Second)
}

// killPeriodic runs worker processes on n periodic tasks, and kills some of them.
func killPeriodic(t *testing.T, processes, n int, last time.Duration) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "no")
	b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t), sluice.WithMaxAttempts(-1))
	killed := map[string]bool{} // process IDs
	spawn := func() *systest.Child {
		return systest.StartChild(t, "periodic", s.Addr, strings.TrimPrefix(b.Key, "Queue:"), n)
	}
	var workers []*systest.Child
	for range processes {
		workers = append(workers, spawn())
	}
	kill := func(c *systest.Child) {
		killed[strconv.Itoa(c.Process.Pid)] = true
		c.Kill()
	}
	for began := time.Now(); time.Since(began) < last; {
		time.Sleep(200*time.Millisecond + rand.N(time.Second)) // between two crashes
		victim := rand.N(processes)
		kill(workers[victim])
		workers[victim] = spawn()
	}
	for _, w := range workers {
		kill(w)
	}
	require.Zero(t, b.Stats().Dead)
	h := readPeriods(t, s.Log(t), b.Key)
	h.check(periodsOf(n), killed)
	slices.Sort(h.late)
	t.Logf("%d processes, %d tasks, %v, %d kills: %d occurrences enqueued, %d skipped since they had passed, %d handled, of which %d again; late p50 %.1f ms, max %.1f ms",
		processes, n, last, len(killed)-processes, h.placed, h.skipped, h.handled, h.again, h.late[len(h.late)/2], h.late[len(h.late)-1])
}

// notedWorker runs a worker of one periodic task, which passes on the time of each occurrence that
// it handles.
func notedWorker(b systest.QueueTest, every time.Duration, handle func()) (handled <-chan time.Time, stop func() error) {
	all := make(chan time.Time, 1000)
	w := &sluice.Worker{Queue: b.Q, Periodic: []sluice.Periodic{{ID: "a", Schedule: sluice.Every(every)}},
		Handler: func(_ context.Context, e sluice.Entry) error {
			all <- e.Due
			handle()
			return nil
		}}
	return all, systest.StartWorker(b.T, w)
}

// TestPeriodic_OnAFullServer: each occurrence is handled once.
func TestPeriodic_OnAFullServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory-policy", "noeviction")
	b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t))
	handled, stop := notedWorker(b, 100*time.Millisecond, func() {})
	var last time.Time
	more := func(n int) {
		for range n {
			due := <-handled
			require.True(t, due.After(last), "%v after %v", due, last)
			last = due
		}
	}
	more(3)
	require.NoError(t, b.RDB.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.Error(t, b.RDB.Set(t.Context(), "full", "?", 0).Err())
	more(15)
	require.NoError(t, b.RDB.ConfigSet(t.Context(), "maxmemory", "0").Err())
	more(3)
	require.NoError(t, stop())
}

// TestPeriodic_TheServerRestartsAsTheHandlerReturns: no occurrence is handled again, and the next
// one, whose time comes while the server is away, is handled.
func TestPeriodic_TheServerRestartsAsTheHandlerReturns(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	const every = 3 * time.Second // a busy machine has so long from the claim to the handler's return
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	b := systest.NewQueueTest(t, s.Client(t), redistest.Name(t))
	begun, down := make(chan struct{}, 1000), make(chan struct{})
	handled, stop := notedWorker(b, every, func() {
		begun <- struct{}{}
		<-down
	})
	<-begun
	s.Down()
	close(down)
	// The server is away for longer than a period.
	require.Never(t, func() bool { return len(handled) > 1 }, 4*time.Second, 10*time.Millisecond)
	s.Up(t)
	first, second, third := <-handled, <-handled, <-handled
	require.Equal(t, first.Add(every).UTC(), second.UTC())
	require.True(t, third.After(second), "%v after %v", third, second)
	require.NoError(t, stop())
}

// periodHistory is what a server's log has of periodic tasks.
type periodHistory struct {
	t           *testing.T
	occurrences map[string][]placed       // by ID, in the order of the log
	effects     map[string][]periodEffect // by ID and due time

	placed, skipped, handled, again int
	late                            []float64 // in ms
}

// placed is an occurrence that was enqueued: the first after a time or, if it was missed, the last
// until then.
type placed struct{ after, due time.Time }

func (p placed) isMissed() bool { return !p.due.After(p.after) }

// periodEffect is what a handler has written.
type periodEffect struct {
	at  time.Time // by the server's clock
	pid string
}

var periodHeader = regexp.MustCompile(`(?s)sluice-period.(\d{4}-[0-9T:.-]+Z).sluice-period-after.(\d{4}-[0-9T:.-]+Z)(?:.sluice-period-before.(\d{4}-[0-9T:.-]+Z))?`)

// readPeriods reads a log, and checks that each occurrence is the first after a time that has come:
// those left out had passed.
func readPeriods(t *testing.T, commands [][]string, key string) *periodHistory {
	h := &periodHistory{t: t, occurrences: map[string][]placed{}, effects: map[string][]periodEffect{}}
	var after []time.Time // of the occurrences that were enqueued since the last claim or extension
	for _, c := range commands {
		switch name := strings.ToUpper(c[0]); {
		case name == "HSET" && c[1] == "{"+key+"}:tasks":
			header := periodHeader.FindStringSubmatch(c[3])
			require.NotNil(t, header, "%q", c)
			if header[1] == header[3] { // it was handled, and keeps the place of the next one
				continue
			}
			var p placed
			var err error
			p.due, err = time.Parse(time.RFC3339Nano, header[1])
			require.NoError(t, err)
			p.after, err = time.Parse(time.RFC3339Nano, header[2])
			require.NoError(t, err)
			h.occurrences[c[2]] = append(h.occurrences[c[2]], p)
			after = append(after, p.after)
		case name == "ZADD" && c[1] == "{"+key+"}:leased": // the server's time, and a lease
			end, err := strconv.ParseFloat(c[2], 64)
			require.NoError(t, err)
			now := time.UnixMicro(int64(end * 1e6)).Add(-childLease)
			for _, a := range after {
				require.False(t, a.After(now.Add(time.Millisecond)), "an occurrence that was to come was left out: %v is after %v", a, now)
			}
			after = nil
		case name == "RPUSH" && c[1] == "effects":
			var id, pid string
			var due, at int64
			_, err := fmt.Sscan(c[2], &id, &due, &at, &pid)
			require.NoError(t, err)
			of := fmt.Sprint(id, " ", due)
			h.effects[of] = append(h.effects[of], periodEffect{time.Unix(0, at), pid})
		}
	}
	return h
}

// check checks that each occurrence that was enqueued is one of the schedule and later than the one
// before, and that each was handled, not early, and again only if its process was killed; or a
// later one in its place, if it was missed.
func (h *periodHistory) check(periods map[string]time.Duration, killed map[string]bool) {
	t := h.t
	require.Len(t, h.occurrences, len(periods))
	for id, all := range h.occurrences {
		s := sluice.Every(periods[id])
		for i, p := range all {
			h.placed++
			if p.isMissed() { // in the place of one before it
				require.True(t, i > 0 && s.Next(p.due).After(p.after) && p.due.Equal(s.Next(p.due.Add(-1))), "%s: %v", id, p)
			} else {
				require.True(t, p.due.Equal(s.Next(p.after)), "%s: %v", id, p)
			}
			of := fmt.Sprint(id, " ", p.due.UnixNano())
			effects := h.effects[of]
			if i > 0 {
				before := all[i-1]
				require.True(t, p.after.After(before.due) && p.due.After(before.due), "%s: %v after %v", id, p, before)
				h.skipped += int(p.due.Sub(before.due)/periods[id]) - 1
			}
			if i < len(all)-1 && !all[i+1].isMissed() {
				require.NotEmpty(t, effects, "%s: the occurrence %v was not handled", id, p)
			}
			for k, e := range effects {
				require.False(t, e.at.Before(p.due), "%s: early: %v", id, p)
				require.True(t, k == len(effects)-1 || killed[e.pid], "%s: %v was handled again, and process %s lives", id, p, e.pid)
			}
			if len(effects) > 0 {
				h.handled += len(effects)
				h.again += len(effects) - 1
				h.late = append(h.late, float64(effects[0].at.Sub(p.due).Microseconds())/1e3)
			}
			delete(h.effects, of)
		}
	}
	require.Empty(t, h.effects, "handled, and never enqueued")
}
