package sluice_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// faultyWorker is a worker on a connection with faults, a queue on one without, and
// a task whose handler has begun and waits for the gate.
type faultyWorker struct {
	bundle
	faults *redistest.Faults
	w      *sluice.Worker
	stop   func() error
	gate   chan error
	causes chan error // of handlers' contexts that have ended
}

func eachFaulty(t *testing.T, lease time.Duration, test func(f faultyWorker)) {
	t.Helper()
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb, faults := s.Faulty(t)
		name, clean := redistest.Name(t), s.Client(t)
		q, err := sluice.NewQueue(rdb, name, sluice.WithPollInterval(time.Minute))
		require.NoError(t, err)
		own, err := sluice.NewQueue(clean, name)
		require.NoError(t, err)
		f := faultyWorker{
			bundle: bundle{T: t, q: own, rdb: clean, key: "Queue:" + name}, faults: faults,
			gate: make(chan error), causes: make(chan error, 10),
		}
		teach(t, own) // a script that the server doesn't know is sent twice
		begun := make(chan struct{}, 10)
		f.w = &sluice.Worker{Queue: q, Concurrency: 1, Lease: lease, Backoff: at(time.Hour),
			Handler: func(ctx context.Context, e sluice.Entry) error {
				begun <- struct{}{}
				select {
				case err := <-f.gate:
					return err
				case <-ctx.Done():
					f.causes <- context.Cause(ctx)
					return ctx.Err()
				}
			}}
		f.enqueue(sluice.Added, sluice.Task{ID: "a", Payload: []byte("p")})
		f.stop = start(t, f.w)
		<-begun
		test(f)
	})
}

// TestLostReplyOfAVerdict: it is sent again with the same receipt, and counts once,
// whether the first copy was carried out or not.
func TestLostReplyOfAVerdict(t *testing.T) {
	for name, verdict := range map[string]struct {
		err   error
		stats sluice.WorkerStats
	}{
		"done":    {nil, sluice.WorkerStats{Done: 1}},
		"retried": {errors.New("again"), sluice.WorkerStats{Retried: 1}},
		"buried":  {sluice.Permanent(errors.New("no")), sluice.WorkerStats{Buried: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			for what, strike := range map[string]func(f *redistest.Faults){
				"reply":   func(f *redistest.Faults) { f.DropReply(1) },
				"request": func(f *redistest.Faults) { f.DropRequest(1) },
			} {
				t.Run(what, func(t *testing.T) {
					eachFaulty(t, time.Minute, func(f faultyWorker) {
						strike(f.faults)
						f.gate <- verdict.err
						f.eventually(func() bool { s := f.w.Stats(); return s.Done+s.Retried+s.Buried > 0 })
						require.NoError(f, f.stop())
						require.Equal(f, verdict.stats, f.w.Stats())
						switch s := f.stats(); name {
						case "done":
							f.requireClean()
						case "retried":
							require.Equal(f, int64(1), s.Scheduled)
							require.Equal(f, 1, f.get("a").Attempt)
						case "buried":
							require.Equal(f, int64(1), s.Dead)
						}
					})
				})
			}
		})
	}
}

// TestLostReplyOfAnExtension: one that was not carried out is repeated. Of one that
// was, the receipt is gone: the handler is told at once, and the task comes back
// when that lease has ended.
func TestLostReplyOfAnExtension(t *testing.T) {
	const lease = 900 * time.Millisecond
	t.Run("request", func(t *testing.T) {
		eachFaulty(t, lease, func(f faultyWorker) {
			f.faults.DropRequest(1)
			time.Sleep(2 * lease) // the handler's work
			require.Empty(f, f.causes)
			f.gate <- nil
			f.eventually(func() bool { return f.w.Stats().Done == 1 })
			require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
			f.requireClean()
		})
	})
	t.Run("reply", func(t *testing.T) {
		eachFaulty(t, lease, func(f faultyWorker) {
			f.faults.DropReply(1)
			require.ErrorIs(f, f.cause(), sluice.ErrLost)
			held := f.get("a")
			require.Equal(f, 1, held.Attempt)
			f.gate <- nil // it has been handed out again
			f.eventually(func() bool { return f.w.Stats().Done == 1 })
			require.Equal(f, sluice.WorkerStats{Done: 1, Lost: 1}, f.w.Stats())
			require.GreaterOrEqual(f, f.now(), held.Score, "before that lease had ended")
			f.requireClean()
		})
	})
}

// TestLostExtensionAndVerdict: the extension has used the receipt up and not the
// verdict, so that nobody may count it as accepted.
func TestLostExtensionAndVerdict(t *testing.T) {
	eachFaulty(t, 3*time.Second, func(f faultyWorker) {
		first := f.get("a").Score
		f.faults.DropReply(1)
		f.eventually(func() bool { return f.get("a").Score != first })
		f.faults.DropReply(1)
		f.gate <- nil
		f.eventually(func() bool { s := f.w.Stats(); return s.Done+s.Lost > 0 })
		require.Equal(f, sluice.WorkerStats{Lost: 1}, f.w.Stats())
		require.NotZero(f, f.get("a").Score, "it is still there")
	})
}

// cause is why the handler's context has ended, as it must before long.
func (f faultyWorker) cause() error {
	f.Helper()
	select {
	case err := <-f.causes:
		return err
	case <-time.After(10 * time.Second):
		require.Fail(f, "the handler was not told")
		return nil
	}
}

// now is the server's time, as a score.
func (f faultyWorker) now() float64 {
	return float64(f.rdb.Time(f.Context()).Val().UnixMicro()) / 1e6
}

// TestVerdictDuringAnExtension: the handler returns while its lease is being
// extended. The verdict waits for the new receipt.
func TestVerdictDuringAnExtension(t *testing.T) {
	eachFaulty(t, 900*time.Millisecond, func(f faultyWorker) {
		before := f.faults.Scripts()
		f.faults.Delay(100 * time.Millisecond)
		for f.faults.Scripts() == before {
			time.Sleep(time.Millisecond) // until the extension is on its way
		}
		f.gate <- nil
		f.eventually(func() bool { s := f.w.Stats(); return s.Done+s.Lost > 0 })
		require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
	})
}

// TestHungServer: a server that accepts and says nothing. The handler is told in
// time, and the loop goes on.
func TestHungServer(t *testing.T) {
	const lease = time.Second
	eachFaulty(t, lease, func(f faultyWorker) {
		ends := f.get("a").Time()
		f.faults.Stall()
		defer f.faults.Resume()
		require.ErrorIs(f, f.cause(), sluice.ErrLost)
		require.True(f, time.Now().Before(ends), "it was told too late")
		f.faults.Resume()
		f.gate <- nil // again
		f.eventually(func() bool { return f.w.Stats().Done == 1 })
	})
}

// TestDeadConnections: the connections that the worker has are dead, and nobody
// says so. What it has to say goes out on others, before go-redis gives those up.
func TestDeadConnections(t *testing.T) {
	eachFaulty(t, 3*time.Second, func(f faultyWorker) {
		f.faults.HalfOpen()
		start := time.Now()
		f.gate <- nil
		f.eventually(func() bool { return f.w.Stats().Done == 1 })
		require.Less(f, time.Since(start), 3*time.Second)
		f.requireClean()
	})
}

// TestLateAnswer: the server answers when the verdict was given up and sent again.
// It counts once.
func TestLateAnswer(t *testing.T) {
	eachFaulty(t, 3*time.Second, func(f faultyWorker) {
		f.faults.Stall()
		f.gate <- nil
		time.Sleep(1500 * time.Millisecond) // half a second longer than it is waited for
		f.faults.Resume()
		f.eventually(func() bool { return f.w.Stats().Done > 0 })
		require.NoError(f, f.stop())
		require.Equal(f, sluice.WorkerStats{Done: 1}, f.w.Stats())
		f.requireClean()
	})
}

// TestNothingIsLeftOfAWorker: the server hangs when the worker is to stop. When it
// answers at last, nobody waits to say so.
func TestNothingIsLeftOfAWorker(t *testing.T) {
	// Not parallel: it counts the process's goroutines.
	s := redistest.Start(t)
	rdb, faults := s.Faulty(t)
	senders := func() int { return strings.Count(strings.Join(goroutines(), "\n"), "sluice.(*door).work(") }
	before := senders()
	q := newQueue(t, rdb)
	b := bundle{T: t, q: q}
	b.enqueue(sluice.Added, sluice.Task{ID: "a"})
	begun, gate := make(chan struct{}), make(chan struct{})
	w := &sluice.Worker{Queue: q, Grace: time.Millisecond, Handler: func(context.Context, sluice.Entry) error {
		close(begun)
		<-gate
		return nil
	}}
	stop := start(t, w)
	<-begun
	faults.Stall()
	close(gate)
	var left *sluice.UnfinishedError
	require.ErrorAs(t, stop(), &left)
	left.Claims = 0 // 1 if the handler's result came before the end
	require.Equal(t, sluice.UnfinishedError{Unacknowledged: 1}, *left)
	faults.Resume()
	require.Eventually(t, func() bool { return senders() <= before }, 2*time.Second, 10*time.Millisecond)
}

// TestRandomFaults: connections break all the time. Every task is done, and what
// is said of one task counts once.
func TestRandomFaults(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const n = 60
		rdb, faults := s.Faulty(t)
		name, clean := redistest.Name(t), s.Client(t)
		q, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)
		own, err := sluice.NewQueue(clean, name)
		require.NoError(t, err)
		b := bundle{T: t, q: own, rdb: clean, key: "Queue:" + name}
		for i := range n {
			b.enqueue(sluice.Added, sluice.Task{ID: fmt.Sprint(i), Delay: rand.N(800 * time.Millisecond)})
		}
		var calls atomic.Int64
		w := &sluice.Worker{Queue: q, Concurrency: 5, Lease: 400 * time.Millisecond, Handler: func(context.Context, sluice.Entry) error {
			calls.Add(1)
			time.Sleep(rand.N(20 * time.Millisecond)) // the work
			return nil
		}}
		stop := start(t, w)
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			if rand.N(2) == 0 {
				faults.DropReply(1 + rand.N(3))
			} else {
				faults.DropRequest(1 + rand.N(3))
			}
			time.Sleep(rand.N(20 * time.Millisecond)) // so that the faults fall at any time
		}
		b.drained()
		_ = stop()
		stats := w.Stats()
		t.Logf("%d calls, %+v", calls.Load(), stats)
		require.LessOrEqual(t, stats.Done, int64(n))
		require.GreaterOrEqual(t, stats.Done+stats.Lost, int64(n))
		require.Equal(t, calls.Load(), stats.Done+stats.Lost)
	})
}

// TestServerRestarts: the server is killed and started again, append-only. All is
// done, one warning is logged, and the worker does not spin meanwhile.
func TestServerRestarts(t *testing.T) {
	// Not parallel: it measures.
	const n = 400
	outage := 2 * time.Second * time.Duration(min(scale(), 5))
	s := redistest.Start(t, "--appendonly", "yes")
	q, log := newQueue(t, s.Client(t)), &diary{}
	b := bundle{T: t, q: q}
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Payload: []byte("p"), Delay: rand.N(outage + time.Second)}
	}
	_, err := q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	w := &sluice.Worker{Queue: q, Concurrency: 10, Logger: log.logger(), Handler: func(context.Context, sluice.Entry) error {
		time.Sleep(rand.N(30 * time.Millisecond)) // the work
		return nil
	}}
	stop := start(t, w)
	time.Sleep(500 * time.Millisecond) // in the midst of it
	s.Down()
	before := cpu(t)
	time.Sleep(outage)
	used := cpu(t) - before
	s.Up(t)
	up := time.Now()
	b.drained()
	t.Logf("outage of %v: %v of CPU time, all done %v after it, %+v\n%s", outage, used, time.Since(up), w.Stats(), log)
	require.NoError(t, stop())
	require.Less(t, used, outage/5, "it spins")
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log)
	require.Equal(t, 1, strings.Count(log.String(), "level=INFO"), log)
	require.Equal(t, int64(n), w.Stats().Done)
}

// cpu is the time that this process has used.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// workerEnv makes this test binary a worker process; it holds "ADDR QUEUE".
const workerEnv = "SLUICE_TEST_WORKER"

// childLease is short enough to see crashes healed, and long enough not to be
// extended by handlers of a few milliseconds.
const childLease = 1500 * time.Millisecond

// workerChild works until it is killed. The effect of a task is a count in a hash.
func workerChild(settings string) {
	addr, name, _ := strings.Cut(settings, " ")
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(0))
	if err != nil {
		panic(err)
	}
	w := &sluice.Worker{Queue: q, Concurrency: 8, Lease: childLease, Handler: func(ctx context.Context, e sluice.Entry) error {
		time.Sleep(rand.N(10 * time.Millisecond)) // the work
		return rdb.HIncrBy(ctx, "effects", e.ID, 1).Err()
	}}
	_ = w.Run(context.Background())
}

// TestKilledWorkers kills worker processes by -9, one after the other. The server's
// append-only file is the witness of what they did.
func TestKilledWorkers(t *testing.T) {
	// Not parallel: it measures.
	processes, n, period := 3, 1000, 300*time.Millisecond
	if scale() > 1 {
		processes, n, period = 8, 1000*scale(), time.Second
	}
	s := redistest.Start(t, "--appendonly", "yes")
	rdb, name := s.Client(t), redistest.Name(t)
	q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(0))
	require.NoError(t, err)
	b := bundle{T: t, q: q, rdb: rdb, key: "Queue:" + name}
	spread := 3 * time.Second * time.Duration(min(scale(), 10))
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Delay: rand.N(spread)}
	}
	_, err = q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)

	spawn := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), workerEnv+"="+s.Addr+" "+name)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, cmd.Start())
		return cmd
	}
	var workers []*exec.Cmd
	kill := func(i int) {
		require.NoError(t, workers[i].Process.Kill())
		_ = workers[i].Wait()
	}
	for range processes {
		workers = append(workers, spawn())
	}
	defer func() {
		for i := range workers {
			kill(i)
		}
	}()
	kills := 0
	for stats := b.stats(); stats.Due+stats.Scheduled > 0; stats = b.stats() {
		time.Sleep(period) // between two crashes
		victim := rand.N(processes)
		kill(victim)
		workers[victim] = spawn()
		kills++
		require.Less(t, kills, 600)
	}
	effects := rdb.HGetAll(t.Context(), "effects").Val()
	require.Len(t, effects, n, "tasks were lost")
	require.Zero(t, b.stats().Dead)
	twice := 0
	for _, times := range effects {
		if times != "1" {
			twice++
		}
	}
	late := testify(t, s, b.key, n)
	slices.Sort(late)
	require.NotEmpty(t, late, "nobody was killed at work")
	t.Logf("%d processes, %d tasks, %d kills, %d tasks worked on again (%d with their effect twice), taken p50 %.1f ms, max %.1f ms after their lease ended",
		processes, n, kills, len(late), twice, late[len(late)/2]*1e3, late[len(late)-1]*1e3)
}

// testify reads the append-only file: every task was removed with a receipt exactly
// once, and was never handed out before its last lease had ended. It returns how
// long after that each redelivery came, in seconds.
func testify(t *testing.T, s *redistest.Server, key string, n int) (late []float64) {
	t.Helper()
	removed, attempts, ends := map[string]int{}, map[string]int{}, map[string]float64{}
	block := func(commands [][]string) {
		scores, fields, gone := map[string]float64{}, map[string]string{}, map[string]bool{}
		for _, c := range commands {
			switch {
			case c[0] == "ZADD" && c[1] == key:
				for i := 2; i < len(c); i += 2 {
					scores[c[i+1]], _ = strconv.ParseFloat(c[i], 64)
				}
			case c[0] == "HSET" && c[1] == "{"+key+"}:tasks":
				for i := 2; i < len(c); i += 2 {
					fields[c[i]] = c[i+1]
				}
			case c[0] == "ZREM" && c[1] == key:
				for _, id := range c[2:] {
					gone[id] = true
				}
			}
		}
		for id := range gone {
			if _, back := scores[id]; !back {
				removed[id]++
			}
		}
		for id, score := range scores {
			first, _, _ := strings.Cut(fields[id], ":")
			if attempt, _ := strconv.Atoi(first); attempt > attempts[id] {
				if attempts[id] > 0 {
					require.GreaterOrEqual(t, score-childLease.Seconds(), ends[id]-2e-6, "task %s was handed out early", id)
					late = append(late, score-childLease.Seconds()-ends[id])
				}
				attempts[id] = attempt
			}
			ends[id] = score
		}
	}
	var open [][]string
	inside := false
	for _, c := range appendOnly(t, s) {
		switch c[0] {
		case "MULTI":
			inside, open = true, nil
		case "EXEC":
			inside = false
			block(open)
		default:
			if open = append(open, c); !inside {
				block([][]string{c})
				open = nil
			}
		}
	}
	require.Len(t, removed, n)
	for id, times := range removed {
		require.Equal(t, 1, times, "task %s was finished by two receipts", id)
	}
	return late
}

// appendOnly reads the commands of a server's append-only file, names in capitals.
func appendOnly(t *testing.T, s *redistest.Server) (commands [][]string) {
	t.Helper()
	files, err := filepath.Glob(s.Dir() + "/appendonlydir/*.incr.aof")
	require.NoError(t, err)
	if len(files) == 0 {
		files = []string{s.Dir() + "/appendonly.aof"} // Redis 6
	}
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		defer func() { _ = f.Close() }()
		for r := bufio.NewReader(f); ; {
			command, err := readCommand(r)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			commands = append(commands, command)
		}
	}
	return commands
}

func readCommand(r *bufio.Reader) (words []string, err error) {
	number := func(mark string) (n int) {
		var line string
		if line, err = r.ReadString('\n'); err == nil {
			_, err = fmt.Sscanf(line, mark+"%d", &n)
		}
		return n
	}
	for range number("*") {
		word := make([]byte, number("$")+2)
		if err == nil {
			_, err = io.ReadFull(r, word)
		}
		if err != nil {
			return nil, err
		}
		words = append(words, string(word[:len(word)-2]))
	}
	if err == nil {
		words[0] = strings.ToUpper(words[0])
	}
	return words, err
}

// TestWorkerLateness: tasks due at random, an idle worker. The time of a claim is
// the server's own: its score less the lease.
func TestWorkerLateness(t *testing.T) {
	// Not parallel: it measures.
	n, spread, lease := 2000, time.Second, time.Minute
	if scale() > 1 {
		n, spread = 10_000, 5*time.Second
	}
	s := redistest.Redis(t)
	rdb, name := s.Client(t), redistest.Name(t)
	q, err := sluice.NewQueue(rdb, name)
	require.NoError(t, err)
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Delay: 300*time.Millisecond + rand.N(spread)}
	}
	_, err = q.EnqueueBatch(t.Context(), tasks)
	require.NoError(t, err)
	due := map[string]float64{}
	for _, z := range rdb.ZRangeWithScores(t.Context(), "Queue:"+name, 0, -1).Val() {
		due[z.Member.(string)] = z.Score
	}
	times := make(chan float64, n)
	start(t, &sluice.Worker{Queue: q, Lease: lease, Handler: func(_ context.Context, e sluice.Entry) error {
		times <- e.Score - lease.Seconds() - due[e.ID]
		return nil
	}})
	var late []float64
	for range n {
		late = append(late, <-times)
	}
	slices.Sort(late)
	t.Logf("%d tasks in %v, lateness in ms: min %.3f, p50 %.3f, p99 %.3f, max %.3f", n, spread,
		late[0]*1e3, late[n/2]*1e3, late[n*99/100]*1e3, late[n-1]*1e3)
	require.GreaterOrEqual(t, late[0], -1e-6, "early") // a microsecond: doubles round
}
