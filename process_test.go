package sluice_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// childEnv makes this test binary another process: it holds the process's role, and
// settings for it.
const childEnv = "SLUICE_TEST_CHILD"

// roles are what a child process may be. Each ends when its standard input does,
// as it does when the test dies in whatever way.
var roles = map[string]func(settings string){
	"waiter":    waiter,
	"contender": contend,
	"holder":    hold,
}

// child is the main function of a child process.
func child(env string) {
	role, settings, _ := strings.Cut(env, " ")
	roles[role](settings)
}

// waiter takes the lock named on each line of its standard input, prints when it
// got it, and releases it; a line that begins with "keep " it does not release.
// Its settings are "ADDR TTL RETRY-INTERVAL".
func waiter(settings string) {
	var addr string
	var ttl, retry time.Duration
	if _, err := fmt.Sscan(settings, &addr, (*duration)(&ttl), (*duration)(&retry)); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	l, err := sluice.NewLocker(rdb, sluice.WithTTL(ttl), sluice.WithRetryInterval(retry))
	if err != nil {
		panic(err)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		name, keep := strings.CutPrefix(lines.Text(), "keep ")
		k, err := l.Lock(context.Background(), name)
		if err != nil {
			panic(err)
		}
		fmt.Println(time.Now().UnixNano())
		if !keep {
			if err := k.Unlock(context.Background()); err != nil {
				panic(err)
			}
		}
	}
}

// duration is scanned from a word.
type duration time.Duration

func (d *duration) Scan(state fmt.ScanState, _ rune) error {
	word, err := state.Token(true, nil)
	if err != nil {
		return err
	}
	parsed, err := time.ParseDuration(string(word))
	*d = duration(parsed)
	return err
}

// process is a running child.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	// wait waits for its end, after which out has no more to give.
	wait func() error
}

// startChild starts a child process, which is killed at the latest when the test
// ends.
func startChild(t *testing.T, role string, settings ...any) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+strings.TrimSuffix(fmt.Sprintln(append([]any{role}, settings...)...), "\n"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{t: t, cmd: cmd, in: in, out: bufio.NewReader(out), wait: sync.OnceValue(cmd.Wait)}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = p.wait() })
	return p
}

// tell writes a line to the child.
func (p *process) tell(line string) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, line)
	require.NoError(p.t, err)
}

// answer scans a line that the child writes, word by word.
func (p *process) answer(words ...any) {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err, "the child has ended")
	_, err = fmt.Sscan(line, words...)
	require.NoError(p.t, err, line)
}

// took waits for a waiter to have the lock, and returns when it got it.
func (p *process) took() time.Time {
	p.t.Helper()
	var ns int64
	p.answer(&ns)
	return time.Unix(0, ns)
}

// lateness has a child wait for a lock that is held, releases it when the child
// has had time to subscribe, and returns how late the child got it, per round.
func lateness(t *testing.T, s *redistest.Server, rdb redis.UniversalClient, retry time.Duration, rounds int) (late []time.Duration) {
	t.Helper()
	l, c := newLocker(t, rdb), startChild(t, "waiter", s.Addr, 15*time.Second, retry)
	for i := range rounds {
		name := fmt.Sprintf("%s.%d", redistest.Name(t), i)
		k, err := l.Lock(t.Context(), name)
		require.NoError(t, err)
		c.tell(name)
		// Long enough to be waiting, and not always equally far into an interval.
		time.Sleep(60*time.Millisecond + rand.N(60*time.Millisecond))
		released := time.Now()
		require.NoError(t, k.Unlock(t.Context()))
		late = append(late, c.took().Sub(released))
	}
	slices.Sort(late)
	t.Logf("%d rounds: p50 %v, p99 %v, max %v", rounds, late[rounds/2], late[rounds*99/100], late[rounds-1])
	return late
}

// TestWakeUpAcrossProcesses: with a retry interval of a minute it is the
// notification that wakes the waiter.
func TestWakeUpAcrossProcesses(t *testing.T) {
	// Not parallel: it measures.
	s := redistest.Redis(t)
	late := lateness(t, s, s.Client(t), time.Minute, 50)
	require.LessOrEqual(t, late[len(late)/2], 2*time.Millisecond)
	require.Less(t, late[len(late)-1], time.Second)
}

// TestPublishDenied: unlocking works, and waiters look by themselves.
func TestPublishDenied(t *testing.T) {
	t.Parallel()
	const retry = 100 * time.Millisecond
	for name, deny := range map[string]func(*testing.T) *redistest.Server{
		"renamed": func(t *testing.T) *redistest.Server {
			return redistest.Start(t, "--rename-command", "PUBLISH", "")
		},
		"acl": func(t *testing.T) *redistest.Server {
			s := redistest.Start(t)
			require.NoError(t, s.Client(t).ACLSetUser(t.Context(), "default", "-publish").Err())
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := deny(t)
			rdb := s.Client(t)
			require.Error(t, rdb.Publish(t.Context(), "a", "b").Err())
			late := lateness(t, s, rdb, retry, 20)
			require.LessOrEqual(t, late[len(late)-1], retry+30*time.Millisecond) // and the way there
			q := newQueue(t, rdb)
			_, err := q.Enqueue(t.Context(), sluice.Task{ID: "a"})
			require.NoError(t, err)
		})
	}
}

// TestHolderKilled: kill -9 of the holder costs its TTL and an interval at most.
func TestHolderKilled(t *testing.T) {
	t.Parallel()
	const ttl, retry = 700 * time.Millisecond, 100 * time.Millisecond
	s := redistest.Redis(t)
	l := newLocker(t, s.Client(t))
	for range 3 {
		name, c := redistest.Name(t), startChild(t, "waiter", s.Addr, ttl, retry)
		c.tell("keep " + name)
		took := c.took()
		require.NoError(t, c.cmd.Process.Kill())
		k, err := l.Lock(t.Context(), name, sluice.WithRetryInterval(retry))
		require.NoError(t, err)
		late := time.Since(took.Add(ttl))
		t.Logf("free %v after the end of the TTL", late)
		require.Less(t, late, retry+50*time.Millisecond)
		require.NoError(t, k.Unlock(t.Context()))
	}
}

// TestNeverEarly: 10,000 tasks with random delays, one loop of Wait and Claim.
// The time of a claim is the server's own: its score less the lease.
func TestNeverEarly(t *testing.T) {
	// Not parallel: it measures.
	const n, lease = 10_000, time.Hour
	ctx, s := t.Context(), redistest.Redis(t)
	rdb, name := s.Client(t), redistest.Name(t)
	q, err := sluice.NewQueue(rdb, name)
	require.NoError(t, err)
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: fmt.Sprint(i), Delay: rand.N(3 * time.Second)}
	}
	_, err = q.EnqueueBatch(ctx, tasks)
	require.NoError(t, err)
	due := map[string]float64{}
	for _, z := range rdb.ZRangeWithScores(ctx, "Queue:"+name, 0, -1).Val() {
		due[z.Member.(string)] = z.Score
	}
	require.Len(t, due, n)
	begin := float64(s.Now(t, rdb).UnixMicro()) / 1e6
	var late []float64
	for taken := 0; taken < n; {
		require.NoError(t, q.Wait(ctx))
		es, err := q.Claim(ctx, 100, lease)
		require.NoError(t, err)
		taken += len(es)
		for _, e := range es {
			at := e.Score - lease.Seconds()
			require.GreaterOrEqual(t, at, due[e.ID]-1e-6, "early") // a microsecond: doubles round
			if due[e.ID] > begin {                                 // those before were late when the loop began
				late = append(late, at-due[e.ID])
			}
		}
		require.NoError(t, q.Dequeue(ctx, es...))
	}
	slices.Sort(late)
	t.Logf("%d tasks, lateness in ms: min %.3f, p50 %.3f, p99 %.3f, max %.3f", len(late),
		late[0]*1e3, late[len(late)/2]*1e3, late[len(late)*99/100]*1e3, late[len(late)-1]*1e3)
}

// TestIdleOnARealServer counts what an idle process sends, as the server sees it.
func TestIdleOnARealServer(t *testing.T) {
	t.Parallel()
	const seconds = 6
	s := redistest.Start(t)
	rdb := s.Client(t)
	q := newQueue(t, rdb)
	for range 10 {
		go func() { _ = q.Wait(t.Context()) }()
	}
	calls := func() (n int) {
		info := rdb.Info(t.Context(), "commandstats").Val()
		for line := range strings.Lines(info) {
			var c int
			if name, rest, ok := strings.Cut(line, ":calls="); ok && name != "cmdstat_info" {
				_, err := fmt.Sscanf(rest, "%d", &c)
				require.NoError(t, err)
				if name != "cmdstat_time" && name != "cmdstat_zrange" { // what the script itself calls
					n += c
				}
			}
		}
		return n
	}
	time.Sleep(time.Second)
	before := calls()
	time.Sleep(seconds * time.Second)
	sent := calls() - before
	t.Logf("%d commands in %d s", sent, seconds)
	require.LessOrEqual(t, sent, seconds)
	require.GreaterOrEqual(t, sent, seconds-2, "it did not look at all")
}
