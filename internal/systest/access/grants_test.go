package access

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// setUser gives the user parts of the documented rule, less a word of it.
func setUser(t *testing.T, admin redis.UniversalClient, less string, parts ...int) {
	args := []any{"ACL", "SETUSER", "sluice"}
	for _, part := range parts {
		for _, word := range redistest.Rules(t)[part] {
			if word != less {
				args = append(args, word)
			}
		}
	}
	require.NoError(t, admin.Do(t.Context(), args...).Err())
	require.NoError(t, admin.Do(t.Context(), "ACL", "LOG", "RESET").Err())
}

// refusals is what a server has denied since setUser. Where CLIENT SETINFO and the like
// are, go-redis sends them, and takes no for an answer.
func refusals(t *testing.T, admin redis.UniversalClient) (objects []string) {
	log, err := admin.ACLLog(t.Context(), 99).Result()
	require.NoError(t, err)
	for _, entry := range log {
		if !strings.HasPrefix(entry.Object, "client|") {
			objects = append(objects, entry.Object)
		}
	}
	return objects
}

// TestAccess_DocumentedGrantsInACluster: two nodes, one of which is giving a slot away.
func TestAccess_DocumentedGrantsInACluster(t *testing.T) {
	redistest.NotShort(t)
	t.Parallel()
	ctx := t.Context()
	servers, admins, ids := make([]*redistest.Server, 2), make([]redis.UniversalClient, 2), make([]string, 2)
	for i := range servers {
		servers[i] = redistest.Start(t, append([]string{"--cluster-enabled", "yes"}, redistest.OpenChannels...)...)
		admins[i] = servers[i].Client(t)
		ids[i] = admins[i].Do(ctx, "cluster", "myid").Val().(string)
	}
	require.NoError(t, admins[0].ClusterAddSlotsRange(ctx, 0, 16383).Err())
	host, port, err := net.SplitHostPort(servers[1].Addr)
	require.NoError(t, err)
	require.NoError(t, admins[0].ClusterMeet(ctx, host, port).Err())
	require.Eventually(t, func() bool {
		return strings.Contains(admins[1].ClusterInfo(ctx).Val(), "cluster_state:ok")
	}, 10*time.Second, 10*time.Millisecond)
	slot := admins[0].ClusterKeySlot(ctx, "Lock:asked").Val()
	require.NoError(t, admins[1].Do(ctx, "cluster", "setslot", slot, "importing", ids[0]).Err())
	require.NoError(t, admins[0].Do(ctx, "cluster", "setslot", slot, "migrating", ids[1]).Err())

	for _, less := range []string{"", "+cluster|slots", "+command", "+asking"} {
		for _, admin := range admins {
			setUser(t, admin, less, grantsOfAll, grantsOfLocks, grantsOfFences, grantsOfQueues, grantsOfClusters)
		}
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr}, Username: "sluice", Password: "CHANGE-ME"})
		l := systest.NewLocker(t, rdb)
		k, err := l.TryLock(ctx, "asked")
		switch less {
		case "+cluster|slots", "+asking":
			require.Equal(t, "refused", decision(err), "%s: %v", less, err)
			require.Empty(t, append(admins[0].Keys(ctx, "Lock:asked").Val(), admins[1].Keys(ctx, "Lock:asked").Val()...))
		default: // without COMMAND, go-redis knows where scripts have their keys all the same
			require.NoError(t, err, less)
			require.Len(t, admins[1].Keys(ctx, "Lock:asked").Val(), 1) // there, by ASK
			require.NoError(t, k.Unlock(ctx))
			g := &guarded{T: t, admin: admins[0], user: rdb}
			for _, err := range append(append(useLocks(sluice.WithFencing())(g), useLocks()(g)...), useQueues()(g)...) {
				require.NoError(t, err, less)
			}
		}
		switch less {
		case "":
			require.Empty(t, append(refusals(t, admins[0]), refusals(t, admins[1])...))
		case "+command": // asked for again with each command: the log counts
			log, err := admins[0].ACLLog(ctx, 1).Result()
			require.NoError(t, err)
			require.Greater(t, log[0].Count, int64(10))
		}
		require.NoError(t, l.Close())
		require.NoError(t, rdb.Close())
	}
}

// TestAccess_DocumentedGrantsBehindSentinel: the user on the data node, and the one on the
// sentinel, with each of the latter's grants missing in turn.
func TestAccess_DocumentedGrantsBehindSentinel(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), redistest.Start(t, redistest.OpenChannels...)
	watcher := redistest.StartSentinelFor(t, s)
	admin, sentinel := s.Client(t), systest.Dial(t, redis.Options{Addr: watcher.Addr})
	setUser(t, admin, "", grantsOfAll, grantsOfLocks, grantsOfFences, grantsOfQueues)
	for _, less := range append([]string{""}, redistest.Rules(t)[grantsOnSentinels][4:]...) {
		setUser(t, sentinel, less, grantsOnSentinels)
		rdb := redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.MasterName, SentinelAddrs: []string{watcher.Addr}, Username: "sluice", Password: "CHANGE-ME",
			SentinelUsername: "sluice", SentinelPassword: "CHANGE-ME",
		})
		if strings.Contains(less, "get-master") {
			q, err := sluice.NewQueue(rdb, "q")
			require.NoError(t, err)
			short, cancel := context.WithTimeout(ctx, time.Second)
			_, err = q.Stats(short)
			cancel()
			require.Equal(t, "refused", decision(err))
		} else {
			g := &guarded{T: t, admin: admin, user: rdb}
			for _, err := range append(append(useLocks(sluice.WithFencing())(g), useLocks()(g)...), useQueues()(g)...) {
				require.NoError(t, err, less)
			}
		}
		require.NoError(t, rdb.Close())
		switch less {
		case "":
			require.Empty(t, append(refusals(t, admin), refusals(t, sentinel)...))
		case "+ping": // sent after three quiet seconds
		default:
			require.NotEmpty(t, refusals(t, sentinel), "nothing needs %s", less)
		}
	}
}
