// Package systest holds what the tests of the whole library share: lockers and queues
// on every backend, a fake clock with a fake server, child processes, and a scan of the
// library's goroutines. The folders beneath it hold the large tests; see
// CONTRIBUTING.md.
package systest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
)

// Main runs a package's tests; call it in TestMain. In a child process it runs the
// child's role instead.
func Main(m *testing.M) {
	if env := os.Getenv(childEnv); env != "" {
		runRole(env)
		return
	}
	redistest.Main(m)
}

// Each runs a test on every backend, in parallel with other tests.
func Each(t *testing.T, test func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	t.Parallel()
	redistest.Each(t, test)
}

// NewLocker returns a Locker that is closed when the test ends.
func NewLocker(t *testing.T, rdb redis.UniversalClient, opts ...sluice.LockOption) *sluice.Locker {
	t.Helper()
	l, err := sluice.NewLocker(rdb, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// NewQueue returns a Queue with a name of the test's own.
func NewQueue(t *testing.T, rdb redis.UniversalClient, opts ...sluice.QueueOption) *sluice.Queue {
	t.Helper()
	q, err := sluice.NewQueue(rdb, redistest.Name(t), opts...)
	require.NoError(t, err)
	return q
}

// Warm takes, extends and releases a lock, so that the server of that name knows the
// scripts and the client has a connection to it.
func Warm(t *testing.T, l *sluice.Locker, name string) {
	t.Helper()
	k, err := l.Lock(t.Context(), name, sluice.WithTTL(time.Minute))
	require.NoError(t, err)
	require.NoError(t, k.Extend(t.Context(), 2*time.Minute))
	require.NoError(t, k.Unlock(t.Context()))
}

// Ended returns a context that has ended.
func Ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Within returns a context that ends after d.
func Within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Unsure makes a call with a context that ends after d, until one was sent before that: its outcome is
// not known. Of the others nothing is left.
func Unsure(t *testing.T, d time.Duration, call func(ctx context.Context) error) {
	t.Helper()
	for began := time.Now(); ; {
		err := call(Within(t, d))
		if errors.Is(err, sluice.ErrUnknown) {
			return
		}
		require.Error(t, err)
		require.Less(t, time.Since(began), time.Minute, "%v", err)
	}
}

// Scale is the number in the environment variable SLUICE_TEST_SCALE, 1 by default.
// Tests multiply their sizes by it.
func Scale() int {
	n, err := strconv.Atoi(os.Getenv("SLUICE_TEST_SCALE"))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// Root returns the folder of the module's go.mod, which is above the current one.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := moduleRoot()
	require.NoError(t, err)
	return dir
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above")
		}
	}
	return "", err
}

// Dial returns a client with options of the test's own, closed when the test ends.
func Dial(t *testing.T, options redis.Options) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&options)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Pipelines is a hook that counts the pipelines which a client sends, and the commands
// in them.
type Pipelines struct{ Sent, Commands atomic.Int64 }

// Reset sets the counts to zero.
func (p *Pipelines) Reset() {
	p.Sent.Store(0)
	p.Commands.Store(0)
}

// DialHook implements redis.Hook.
func (*Pipelines) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (*Pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (p *Pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.Sent.Add(1)
		p.Commands.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// Connections is how many connections a server has accepted so far.
func Connections(t testing.TB, rdb redis.UniversalClient) int {
	t.Helper()
	info, err := rdb.Info(context.Background(), "stats").Result()
	require.NoError(t, err)
	n, err := strconv.Atoi(regexp.MustCompile(`total_connections_received:(\d+)`).FindStringSubmatch(info)[1])
	require.NoError(t, err)
	return n
}

// Subscribers returns how many clients are subscribed to a channel on any server, be it as a
// sharded one or classically.
func Subscribers(ctx context.Context, rdb redis.UniversalClient, channel string) (n int64) {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return rdb.PubSubNumSub(ctx, channel).Val()[channel] + rdb.PubSubShardNumSub(ctx, channel).Val()[channel]
	}
	var mu sync.Mutex
	_ = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		n += c.PubSubNumSub(ctx, channel).Val()[channel] + c.PubSubShardNumSub(ctx, channel).Val()[channel]
		return nil
	})
	return n
}

// InLine returns how many processes wait in the line of the lock or queue with a key.
func InLine(ctx context.Context, rdb redis.UniversalClient, key string) int64 {
	return rdb.ZCard(ctx, keyspace.Companion(key, keyspace.Line)).Val()
}

// Listeners returns how many clients are subscribed on one server to be told of the lock or queue
// with a key.
func Listeners(ctx context.Context, rdb redis.UniversalClient, key string) int {
	pattern := keyspace.Companion(key, keyspace.Wake) + ":*"
	return len(rdb.PubSubChannels(ctx, pattern).Val()) + len(rdb.PubSubShardChannels(ctx, pattern).Val())
}
