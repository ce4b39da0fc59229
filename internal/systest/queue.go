package systest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/store"
)

// eventTimeout is how long tests wait for an event that has to come. It bounds what a
// failing test costs, and is long enough for a busy machine.
const eventTimeout = 30 * time.Second

// QueueTest is a queue and what its tests need. Its methods fail the test on an error.
type QueueTest struct {
	*testing.T
	// Q is the queue.
	Q *sluice.Queue
	// RDB is a client of the queue's server.
	RDB redis.UniversalClient
	// Key is the key of the queue's sorted set.
	Key string
	// Backend is the name of the server.
	Backend string
}

// NewQueueTest returns a queue of the test's own on rdb.
func NewQueueTest(t *testing.T, rdb redis.UniversalClient, name string, opts ...sluice.QueueOption) QueueTest {
	t.Helper()
	q, err := sluice.NewQueue(rdb, name, opts...)
	require.NoError(t, err)
	return QueueTest{T: t, Q: q, RDB: rdb, Key: "Queue:" + name}
}

// On returns the same queue on another client.
func (b QueueTest) On(rdb redis.UniversalClient, opts ...sluice.QueueOption) *sluice.Queue {
	b.Helper()
	q, err := sluice.NewQueue(rdb, strings.TrimPrefix(b.Key, "Queue:"), opts...)
	require.NoError(b, err)
	return q
}

// EachQueue runs a test on every backend, with a queue of its own.
func EachQueue(t *testing.T, test func(b QueueTest), opts ...sluice.QueueOption) {
	t.Helper()
	Each(t, func(t *testing.T, s *redistest.Server) {
		b := NewQueueTest(t, s.Client(t), redistest.Name(t), opts...)
		b.Backend = s.Name
		test(b)
	})
}

// Sized returns n or, on miniredis, a tenth of it: scripts that deal with many tasks are
// slow there.
func (b QueueTest) Sized(n int) int {
	if b.Backend == "miniredis" {
		return n / 10
	}
	return n
}

// Enqueue enqueues a task, with the outcome that is wanted.
func (b QueueTest) Enqueue(want sluice.Outcome, task sluice.Task) {
	b.Helper()
	outcome, err := b.Q.Enqueue(b.Context(), task)
	require.NoError(b, err)
	require.Equal(b, want, outcome)
}

// Claim claims up to n tasks that are due.
func (b QueueTest) Claim(n int, lease time.Duration) []sluice.Entry {
	b.Helper()
	entries, err := b.Q.Claim(b.Context(), n, lease)
	require.NoError(b, err)
	return entries
}

// ClaimOne claims the one task that is due.
func (b QueueTest) ClaimOne(lease time.Duration) sluice.Entry {
	b.Helper()
	entries := b.Claim(10, lease)
	require.Len(b, entries, 1)
	return entries[0]
}

// ClaimOneOf claims one of the tasks that are due.
func (b QueueTest) ClaimOneOf(lease time.Duration) sluice.Entry {
	b.Helper()
	entries := b.Claim(1, lease)
	require.Len(b, entries, 1)
	return entries[0]
}

// Get returns the task of that ID.
func (b QueueTest) Get(id string) sluice.TaskInfo {
	b.Helper()
	t, err := b.Q.Get(b.Context(), id)
	require.NoError(b, err)
	return t
}

// Stats returns the queue's counts.
func (b QueueTest) Stats() sluice.Stats {
	b.Helper()
	s, err := b.Q.Stats(b.Context())
	require.NoError(b, err)
	return Standing(s)
}

// Standing returns what Stats says of what is in a queue: not of what became of other tasks, except
// Trimmed, nor of who waits.
func Standing(s sluice.Stats) sluice.Stats {
	s.Finished, s.Retried, s.Buried, s.Lost, s.Done, s.Workers, s.Waiting, s.WorkerSeen = 0, 0, 0, 0, 0, 0, 0, time.Time{}
	return s
}

// Dead returns up to n dead letters.
func (b QueueTest) Dead(n int) []sluice.TaskInfo {
	b.Helper()
	letters, err := b.Q.List(b.Context(), sluice.StateDead, sluice.TaskInfo{}, n)
	require.NoError(b, err)
	return letters
}

// Revive revives dead letters, as many of them as are wanted.
func (b QueueTest) Revive(want int, ids ...string) {
	b.Helper()
	n, err := b.Q.Revive(b.Context(), ids...)
	require.NoError(b, err)
	require.Equal(b, want, n)
}

// Bury buries a task.
func (b QueueTest) Bury(e sluice.Entry, reason string) {
	b.Helper()
	require.NoError(b, b.Q.Bury(b.Context(), reason, e))
}

// Now is the server's time, as a score.
func (b QueueTest) Now() float64 {
	b.Helper()
	now, err := b.RDB.Time(b.Context()).Result()
	require.NoError(b, err)
	return float64(now.UnixMicro()) / 1e6
}

// EndLeaseSoon makes a lease so short that it ends soon, as if its holder had extended it
// before, and then crashed.
func (b QueueTest) EndLeaseSoon(e sluice.Entry) {
	b.Helper()
	end := b.Now() + 0.02
	b.setLease(e.ID, end, fmt.Sprintf("%.17g/%.17g", end, e.Score))
}

// EndLeaseUnseen ends a lease, as if nothing had been heard of its holder since the claim.
func (b QueueTest) EndLeaseUnseen(e sluice.Entry) {
	b.Helper()
	end := b.Now() - 1
	b.setLease(e.ID, end, fmt.Sprintf("%.17g", end))
}

func (b QueueTest) setLease(id string, end float64, lease string) {
	b.Helper()
	ctx, states := b.Context(), "{"+b.Key+"}:state"
	field, units, length, holds := b.RDB.HGet(ctx, states, id).Val(), 0, 0, ""
	if n, _ := fmt.Sscanf(field, "*%d,%d:", &units, &length); n == 2 { // what the task holds
		end := strings.IndexByte(field, ':') + 1 + length
		holds, field = field[:end], field[end:]
	}
	parts := strings.SplitN(field, ":", 3)
	require.Len(b, parts, 3)
	require.NoError(b, b.RDB.HSet(ctx, states, id, holds+parts[0]+":"+lease+":"+parts[2]).Err())
	require.NoError(b, b.RDB.ZAdd(ctx, b.Key, redis.Z{Score: end, Member: id}).Err())
	require.NoError(b, b.RDB.ZAdd(ctx, "{"+b.Key+"}:leased", redis.Z{Score: end, Member: id}).Err())
}

// Publish publishes a message as a sharded one, where there are such, and as a classic one, and
// returns how many subscribers have got it.
func (b QueueTest) Publish(channel, message string) int64 {
	return b.RDB.SPublish(b.Context(), channel, message).Val() + b.RDB.Publish(b.Context(), channel, message).Val()
}

// Eventually calls f until it says yes, for an event that has to come. Unlike require.Eventually it
// calls f in the goroutine of the test, which f may fail.
func (b QueueTest) Eventually(f func() bool) {
	b.Helper()
	for deadline := time.Now().Add(eventTimeout); !f(); time.Sleep(2 * time.Millisecond) {
		require.True(b, time.Now().Before(deadline), "it never happened")
	}
}

// RequireDrained waits until nothing is left in the queue except dead letters.
func (b QueueTest) RequireDrained() {
	b.Helper()
	b.Eventually(func() bool { s := b.Stats(); return s.Due+s.Scheduled+s.Leased == 0 })
}

// RequireClean checks that no key of the queue is left.
func (b QueueTest) RequireClean() {
	b.Helper()
	require.Zero(b, b.RDB.Exists(b.Context(), b.Key, "{"+b.Key+"}:tasks", "{"+b.Key+"}:state", "{"+b.Key+"}:dead", "{"+b.Key+"}:leased", "{"+b.Key+"}:paused", "{"+b.Key+"}:errors").Val())
}

// LeasedInfo is a task that was claimed for so long as Get shows it.
func LeasedInfo(e sluice.Entry, lease time.Duration) sluice.TaskInfo {
	ends, since := store.ExactTimeOf(e.Score), store.TimeOf(e.Score-lease.Seconds())
	e.Score, e.Due = 0, time.Time{}
	return sluice.TaskInfo{Entry: e, State: sluice.StateLeased, LeaseEnds: ends, LeasedSince: since}
}

// IDs returns the IDs of tasks, in their order.
func IDs[T sluice.Entry | sluice.TaskInfo](tasks []T) (ids []string) {
	for _, t := range tasks {
		switch t := any(t).(type) {
		case sluice.Entry:
			ids = append(ids, t.ID)
		case sluice.TaskInfo:
			ids = append(ids, t.ID)
		}
	}
	return ids
}

// DifferentIDs counts the IDs of entries, each once.
func DifferentIDs(entries []sluice.Entry) int {
	ids := IDs(entries)
	slices.Sort(ids)
	return len(slices.Compact(ids))
}

// WarmQueue has the server learn all scripts that a worker sends. A script that the
// server does not know is sent twice, which tests that count scripts must not see.
func WarmQueue(t *testing.T, q *sluice.Queue) {
	t.Helper()
	ctx := t.Context()
	claim := func() sluice.Entry {
		es, err := q.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, es, 1)
		return es[0]
	}
	_, err := q.Enqueue(ctx, sluice.Task{ID: "a"})
	require.NoError(t, err)
	require.NoError(t, q.Wait(ctx))
	require.NoError(t, q.Retry(ctx, 0, "failed", claim()))
	e := claim()
	require.NoError(t, q.Extend(ctx, e, time.Minute))
	require.NoError(t, q.Bury(ctx, "", e))
	_, err = q.Revive(ctx, "a")
	require.NoError(t, err)
	require.NoError(t, q.Dequeue(ctx, claim()))
}

// StartWorker runs a worker until stop is called, or the test ends. stop returns what
// Run returned.
func StartWorker(t *testing.T, w *sluice.Worker) (stop func() error) {
	t.Helper()
	return run(t, w.Run)
}

// StartPool runs a pool, and returns what stops it and waits for its end, once.
func StartPool(t *testing.T, p *sluice.Pool) (stop func() error) {
	t.Helper()
	return run(t, p.Run)
}

func run(t *testing.T, run func(ctx context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-result })
	t.Cleanup(func() { _ = stop() })
	return stop
}

// DueTasks returns so many tasks that are due, with their numbers as IDs.
func DueTasks(n int) []sluice.Task {
	tasks := make([]sluice.Task, n)
	for i := range tasks {
		tasks[i] = sluice.Task{ID: strconv.Itoa(i), At: time.Now().Add(-time.Hour)}
	}
	return tasks
}

// After returns a Worker.Backoff that is always d.
func After(d time.Duration) func(int, error) time.Duration {
	return func(int, error) time.Duration { return d }
}

// LogTo returns a logger that writes to w.
func LogTo(w *Buffer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

// Count returns how often a text is in what was written so far.
func (b *Buffer) Count(text string) int { return strings.Count(b.String(), text) }
