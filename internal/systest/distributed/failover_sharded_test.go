package distributed

import (
	"context"
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

// rarely is a retry and poll interval that none of these tests waits for: what ends a wait in
// time is a notification.
const rarely = time.Minute

// waitFor has a caller wait for a lock and another for a task, and returns a function that checks
// that both are woken by a release and an enqueue of other clients.
func waitFor(t *testing.T, waiting, acting redis.UniversalClient, name string) (wake func()) {
	t.Helper()
	ctx := systest.Within(t, 50*time.Second)
	theirs, ours := systest.NewLocker(t, acting), systest.NewLocker(t, waiting, sluice.WithRetryInterval(rarely))
	k, err := theirs.Lock(ctx, name, sluice.WithTTL(10*time.Minute))
	require.NoError(t, err)
	q, err := sluice.NewQueue(waiting, name, sluice.WithPollInterval(rarely))
	require.NoError(t, err)
	producer, err := sluice.NewQueue(acting, name)
	require.NoError(t, err)
	ended := make(chan error, 2)
	go func() { _, err := ours.Lock(ctx, name); ended <- err }()
	go func() { ended <- q.Wait(ctx) }()
	require.Eventually(t, func() bool {
		return systest.InLine(ctx, waiting, "Lock:"+name) == 1 && systest.InLine(ctx, waiting, "Queue:"+name) == 1 // the names have hash tags
	}, 20*time.Second, 5*time.Millisecond)
	return func() {
		t.Helper()
		require.NoError(t, k.Unlock(ctx))
		_, err = producer.Enqueue(ctx, sluice.Task{ID: "a"})
		require.NoError(t, err)
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	}
}

// calls is how often a Cluster's servers were sent a command, and how often it was refused.
func calls(t *testing.T, rdb *redis.ClusterClient, command string) (n, refused int) {
	t.Helper()
	counts := make(chan [2]int, 100)
	require.NoError(t, rdb.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
		for line := range strings.Lines(c.Info(ctx, "commandstats").Val()) {
			if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":"); ok {
				counts <- [2]int{figure(t, rest, "calls="), figure(t, rest, "rejected_calls=")}
			}
		}
		return nil
	}))
	close(counts)
	for c := range counts {
		n, refused = n+c[0], refused+c[1]
	}
	return n, refused
}

func figure(t *testing.T, line, name string) int {
	t.Helper()
	for _, part := range strings.Split(strings.TrimSpace(line), ",") {
		if text, ok := strings.CutPrefix(part, name); ok {
			n, err := strconv.Atoi(text)
			require.NoError(t, err)
			return n
		}
	}
	return 0
}

// TestCluster_ChannelsAreSharded: waiters are woken, and no message goes to servers that do not
// keep the slot.
func TestCluster_ChannelsAreSharded(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb, ok := c.Client(t).(*redis.ClusterClient)
	require.True(t, ok)
	var wakes []func()
	for _, tag := range tagsOf(t, c) { // one on each server
		wakes = append(wakes, waitFor(t, rdb, c.Client(t), tag+"sharded"))
	}
	for _, wake := range wakes {
		wake()
	}
	sharded, _ := calls(t, rdb, "spublish")
	require.GreaterOrEqual(t, sharded, 2*len(wakes))
	classic, _ := calls(t, rdb, "publish")
	require.Zero(t, classic)
}

// TestCluster_ChannelsFallBack to classic ones where a user may not use sharded ones: those of the
// waiter, of the one that wakes it, or of both. No agreement is needed except that those that
// subscribe to sharded ones hear only those that publish there.
func TestCluster_ChannelsFallBack(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	full, ok := c.Client(t).(*redis.ClusterClient)
	require.True(t, ok)
	for i, tag := range tagsOf(t, c) {
		waitFor(t, classicUser(t, full), full, tag+"waiter"+strconv.Itoa(i))()
		waitFor(t, classicUser(t, full), classicUser(t, full), tag+"both"+strconv.Itoa(i))()
	}
	_, refused := calls(t, full, "spublish")
	require.Zero(t, refused, "a script asks before it is denied")
}

// TestCluster_SubscriptionsFollowTheirSlot when it moves to another server, and when a replica
// has taken over in an orderly way: waiters are woken long before they would poll.
func TestCluster_SubscriptionsFollowTheirSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	rdb, tags := c.Client(t), tagsOf(t, c)
	name := tags[0] + "moves"
	wake := waitFor(t, rdb, c.Client(t), name)
	wakeOther := waitFor(t, rdb, c.Client(t), tags[1]+"stays")
	from, to := c.Primary(tags[0]), c.Primary(tags[1])
	c.Migrate(t, c.Slot(t, name), from, to, func() {})
	admin := to.Client(t)
	require.Eventually(t, func() bool {
		return systest.Listeners(t.Context(), admin, "Lock:"+name) == 1 && systest.Listeners(t.Context(), admin, "Queue:"+name) == 1
	}, 20*time.Second, 5*time.Millisecond)
	wake()
	wakeOther()
}

// TestCluster_NoMessagesBetweenServers of locks without contention, and of tasks that are enqueued
// while no client waits.
func TestCluster_NoMessagesBetweenServers(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	full, ok := c.Client(t).(*redis.ClusterClient)
	require.True(t, ok)
	classic := classicUser(t, full)
	const n = 1000
	for name, rdb := range map[string]*redis.ClusterClient{"sharded": full, "classic": classic} {
		l := systest.NewLocker(t, rdb)
		q, err := sluice.NewQueue(rdb, name)
		require.NoError(t, err)
		for what, operation := range map[string]func(i int){
			"release": func(i int) {
				k, err := l.Lock(t.Context(), strconv.Itoa(i))
				require.NoError(t, err)
				require.NoError(t, k.Unlock(t.Context()))
			},
			"task": func(i int) {
				_, err := q.Enqueue(t.Context(), sluice.Task{ID: strconv.Itoa(i)})
				require.NoError(t, err)
				tasks, err := q.Pop(t.Context(), 1)
				require.NoError(t, err)
				require.Len(t, tasks, 1)
			},
		} {
			before := messagesBetween(t, c)
			for i := range n {
				operation(i)
			}
			require.Less(t, messagesBetween(t, c)-before, n/10, "%s %s", name, what)
		}
	}
}

// messagesBetween is how many published messages a Cluster's servers have sent each other.
func messagesBetween(t *testing.T, c *redistest.Cluster) (sent int) {
	t.Helper()
	for _, node := range c.Nodes {
		for line := range strings.Lines(node.Client(t).ClusterInfo(t.Context()).Val()) {
			for _, kind := range []string{"publish", "publishshard"} {
				if text, ok := strings.CutPrefix(line, "cluster_stats_messages_"+kind+"_sent:"); ok {
					n, err := strconv.Atoi(strings.TrimSpace(text))
					require.NoError(t, err)
					sent += n
				}
			}
		}
	}
	return sent
}

// classicUser returns a client of a user who may not use sharded channels.
func classicUser(t *testing.T, admin *redis.ClusterClient) *redis.ClusterClient {
	t.Helper()
	require.NoError(t, admin.ForEachShard(t.Context(), func(ctx context.Context, c *redis.Client) error {
		return c.Do(ctx, "ACL", "SETUSER", "classic", "on", ">CHANGE-ME", "~*", "&*", "+@all", "-ssubscribe", "-spublish").Err()
	}))
	options := *admin.Options()
	options.Username, options.Password = "classic", "CHANGE-ME"
	rdb := redis.NewClusterClient(&options)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}
