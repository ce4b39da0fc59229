package inspect_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/cmd/sluice/inspect"
	"github.com/sluice-go/sluice/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// newQueue returns a queue beneath the prefix.
func newQueue(t *testing.T, rdb redis.UniversalClient, o inspect.Options, name string, opts ...sluice.QueueOption) *sluice.Queue {
	t.Helper()
	q, err := sluice.NewQueue(rdb, name, append(opts, sluice.WithQueuePrefix(o.QueuePrefix))...)
	require.NoError(t, err)
	return q
}

func enqueue(t *testing.T, q *sluice.Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: id, Payload: []byte("payload of " + id)})
		require.NoError(t, err)
	}
}

// bury has a task die.
func bury(t *testing.T, q *sluice.Queue, id string) {
	t.Helper()
	enqueue(t, q, id)
	entries, err := q.Claim(t.Context(), 1, time.Minute)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NoError(t, q.Bury(t.Context(), "it is hopeless", entries[0]))
}

func TestQueues_FindsEachOnceAndNothingElse(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb := t.Context(), s.Client(t)
		o := inspect.Options{QueuePrefix: redistest.Name(t) + "*?[q]:"} // what a pattern would take for its own
		enqueue(t, newQueue(t, rdb, o, "plain"), "a", "b")
		enqueue(t, newQueue(t, rdb, o, "orders:dead"), "a")
		enqueue(t, newQueue(t, rdb, o, "{eu}:orders"), "a")
		enqueue(t, newQueue(t, rdb, o, "esc\x1b[31m\n订单"), "a")
		several, err := sluice.NewQueues(rdb, "several", 2, sluice.WithQueuePrefix(o.QueuePrefix))
		require.NoError(t, err)
		for _, q := range several {
			enqueue(t, q, "a")
		}
		bury(t, newQueue(t, rdb, o, "only-dead"), "x")
		bury(t, newQueue(t, rdb, o, "{eu}:only-dead"), "x")
		remembers := newQueue(t, rdb, o, "only-done", sluice.WithRetention(time.Hour))
		enqueue(t, remembers, "x")
		entries, err := remembers.Claim(ctx, 1, time.Minute)
		require.NoError(t, err)
		require.NoError(t, remembers.Dequeue(ctx, entries...))
		require.NoError(t, rdb.Del(ctx, "{"+o.QueuePrefix+"only-done}:counts").Err()) // a day later
		require.NoError(t, newQueue(t, rdb, o, "limited").SetLimits(ctx, sluice.Limits{Running: 1}))
		require.NoError(t, rdb.Set(ctx, o.QueuePrefix+"foreign", "a string", 0).Err())
		for _, key := range []string{
			o.QueuePrefix + "{eu}:orders:line", "{" + o.QueuePrefix + "awaited}:line", // the line of a queue that is empty
			"{" + o.QueuePrefix + "plain}:watch", // a later version's
		} {
			require.NoError(t, rdb.ZAdd(ctx, key, redis.Z{Score: 1, Member: "m"}).Err())
		}
		require.NoError(t, rdb.HSet(ctx, o.QueuePrefix+"a-hash", "a", "b").Err())
		require.NoError(t, rdb.Set(ctx, "X"+o.QueuePrefix+"other", "another prefix", 0).Err())

		found, err := inspect.Queues(ctx, rdb, o)
		require.NoError(t, err)
		require.Equal(t, []string{
			"esc\x1b[31m\n订单", "limited", "only-dead", "only-done", "orders:dead", "plain",
			"several:0", "several:1", "{eu}:only-dead", "{eu}:orders",
		}, found)

		for _, name := range found {
			q, err := inspect.Open(rdb, name, o)
			require.NoError(t, err)
			stats, err := q.Stats(ctx)
			require.NoError(t, err, name)
			tasks := stats.Due + stats.Scheduled + stats.Leased + stats.Dead + stats.Done
			require.Equal(t, name == "limited", tasks == 0, name)
			exists, err := inspect.Exists(ctx, rdb, name, o)
			require.NoError(t, err)
			require.True(t, exists, name)
		}
		exists, err := inspect.Exists(ctx, rdb, "absent", o)
		require.NoError(t, err)
		require.False(t, exists)
		_, err = inspect.Exists(ctx, rdb, "{", o)
		require.ErrorIs(t, err, sluice.ErrInvalidName)
	})
}

func TestQueues_WithoutAPrefix(t *testing.T) {
	s := redistest.Start(t)
	ctx, rdb := t.Context(), s.Client(t)
	q, err := sluice.NewQueue(rdb, "bare", sluice.WithQueuePrefix(""))
	require.NoError(t, err)
	enqueue(t, q, "a")
	bury(t, q, "b")
	require.NoError(t, rdb.Set(ctx, "Lock:x", "token", 0).Err())
	require.NoError(t, rdb.Set(ctx, "{Lock:x}:fence", "5", 0).Err())
	found, err := inspect.Queues(ctx, rdb, inspect.Options{QueuePrefix: inspect.NoPrefix})
	require.NoError(t, err)
	require.Equal(t, []string{"bare"}, found)
}

func TestQueues_EndsAtItsLimit(t *testing.T) {
	s := redistest.Start(t)
	ctx, rdb := t.Context(), s.Client(t)
	for i := range 5000 {
		rdb.Set(ctx, fmt.Sprint("other-", i), "", 0)
	}
	_, err := inspect.Queues(ctx, rdb, inspect.Options{MaxKeys: 2000})
	require.ErrorIs(t, err, inspect.ErrIncomplete)
	_, err = inspect.Locks(ctx, rdb, inspect.Options{MaxKeys: 2000}, "", 10)
	require.ErrorIs(t, err, inspect.ErrIncomplete)
	_, err = inspect.Queues(ctx, rdb, inspect.Options{})
	require.NoError(t, err)
}

func TestLocks_FindsWhatIsHeld(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb := t.Context(), s.Client(t)
		o := inspect.Options{LockPrefix: redistest.Name(t) + "[l]:"}
		locker, err := sluice.NewLocker(rdb, sluice.WithLockPrefix(o.LockPrefix), sluice.WithTTL(time.Minute))
		require.NoError(t, err)
		defer func() { _ = locker.Close() }()
		names := []string{"a*b", "esc\x1b]0;title\a", "fenced", "stock:1", "stock:2", "{eu}:x"}
		for _, name := range names {
			_, err := locker.Lock(ctx, name, sluice.WithFencing())
			require.NoError(t, err)
		}
		require.NoError(t, rdb.Set(ctx, o.LockPrefix+"php", "1", 0).Err())
		require.NoError(t, rdb.HSet(ctx, o.LockPrefix+"no-lock", "a", "b").Err())
		other, err := sluice.NewLocker(rdb, sluice.WithLockPrefix(o.LockPrefix))
		require.NoError(t, err)
		var waiting sync.WaitGroup
		defer waiting.Wait()
		defer func() { _ = other.Close() }()
		waiting.Go(func() { _, _ = other.Lock(ctx, "fenced") })
		require.Eventually(t, func() bool {
			info, _, err := inspect.Lock(ctx, locker, "fenced")
			require.NoError(t, err)
			return info.Waiting == 1
		}, 10*time.Second, time.Millisecond)

		infos, err := inspect.Locks(ctx, rdb, o, "", 100)
		require.NoError(t, err)
		var found []string
		for _, info := range infos {
			found = append(found, info.Name)
			require.Equal(t, info.Name == "php", info.TTL < 0, info.Name)
			require.LessOrEqual(t, info.TTL, time.Minute+time.Second)
			require.Equal(t, info.Name == "fenced", info.Waiting == 1, info.Name)
		}
		require.Equal(t, slices.Sorted(slices.Values(append(names, "php"))), found)

		infos, err = inspect.Locks(ctx, rdb, o, "stock:*", 100)
		require.NoError(t, err)
		require.Len(t, infos, 2)
		foreign := []redis.Z{{Score: -3}} // more holders than there can be
		for i := range 1001 {
			foreign = append(foreign, redis.Z{Score: 9e15, Member: fmt.Sprint(i)})
		}
		require.NoError(t, rdb.ZAdd(ctx, o.LockPrefix+"stock:foreign", foreign...).Err())
		infos, err = inspect.Locks(ctx, rdb, o, "stock:*", 100)
		require.NoError(t, err, "one key of another program hides no lock")
		require.Len(t, infos, 2)
		infos, err = inspect.Locks(ctx, rdb, o, "", 3)
		require.NoError(t, err)
		require.Len(t, infos, 3)
	})
}

func TestConnect_Addresses(t *testing.T) {
	for url, want := range map[string]string{
		"redis://":                              "localhost:6379",
		"redis://h":                             "h:6379",
		"redis://u:p%2Fw@h:7/3":                 "h:7",
		"rediss://h:7?db=3":                     "h:7",
		"redis://[::1]:7":                       "[::1]:7",
		"redis://:p@ss@h:7":                     "h:7",
		"redis://a:1,b:2,c":                     "a:1 b:2 c:6379",
		"unix:///run/redis.sock":                "/run/redis.sock",
		"redis://u:canary@h:70000":              "",
		"redis://u:can/ary@h:1":                 "",
		"redis://u:can#ary@h:1":                 "",
		"redis://u:canary@h:1/x":                "",
		"redis://u:canary@h:1?read_timeout=5s":  "",
		"redis://u:canary@a:1,b:2/3":            "",
		"http://u:canary@h":                     "",
		"u:canary@h:6379":                       "",
		"redis://u:can%zzary@h":                 "",
		"redis://u:canary@h:1,,":                "localhost",
		"redis://u:canary@h\x00:1":              "",
		"redis://user:ca%6eary@h:1/canary/more": "",
	} {
		client, err := inspect.Connect(url, inspect.Server{})
		if want == "" {
			require.ErrorIs(t, err, inspect.ErrURL, "%q", url)
			require.NotContains(t, strings.TrimPrefix(err.Error(), inspect.ErrURL.Error()), "can", "%q", url)
			continue
		}
		require.NoError(t, err, "%q", url)
		switch c := client.(type) {
		case *redis.Client:
			require.Equal(t, want, c.Options().Addr)
		case *redis.ClusterClient:
			require.Contains(t, strings.Join(c.Options().Addrs, " "), want)
		}
		require.NoError(t, client.Close())
	}
}

func TestConnect_ClusterAndSentinel(t *testing.T) {
	ctx := t.Context()
	cluster := redistest.StartCluster(t)
	one, err := inspect.Connect("redis://"+cluster.Nodes[0].Addr, inspect.Server{})
	require.NoError(t, err)
	defer func() { require.NoError(t, one.Close()) }()
	_, err = inspect.Queues(t.Context(), one, inspect.Options{QueuePrefix: "Queue:"})
	require.ErrorContains(t, err, "--cluster", "else it would tell of a part")
	rdb, err := inspect.Connect("redis://"+cluster.Nodes[0].Addr, inspect.Server{Cluster: true})
	require.NoError(t, err)
	defer func() { _ = rdb.Close() }()
	o := inspect.Options{QueuePrefix: "Queue:"}
	for i := range 20 {
		enqueue(t, newQueue(t, rdb, o, fmt.Sprint("q", i)), "a")
	}
	found, err := inspect.Queues(ctx, rdb, o)
	require.NoError(t, err)
	require.Len(t, found, 20)
}

func TestErrors_HoldNoPassword(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	require.NoError(t, s.Client(t).ConfigSet(t.Context(), "requirepass", "right-password").Err())
	for name, url := range map[string]string{
		"wrong password": "redis://:canary@" + s.Addr, "wrong user": "redis://u:canary@" + s.Addr,
		"no server": "redis://:canary@127.0.0.1:1", "no TLS": "rediss://:canary@" + s.Addr,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for seconds
			rdb, err := inspect.Connect(url, inspect.Server{})
			require.NoError(t, err)
			_, err = inspect.Queues(t.Context(), rdb, inspect.Options{})
			require.Error(t, err)
			require.NotContains(t, err.Error(), "canary")
			_, err = inspect.Exists(t.Context(), rdb, "q", inspect.Options{})
			require.Error(t, err)
			require.NotContains(t, err.Error(), "canary")
			require.NoError(t, rdb.Close())
		})
	}
}
