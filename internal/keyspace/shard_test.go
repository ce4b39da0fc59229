package keyspace_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestSlot_IsRedisOwn: also of keys with hash tags.
func TestSlot_IsRedisOwn(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, "--cluster-enabled", "yes").Client(t)
	keys := []string{"", "a", "123456789", "{a}b", "{}a", "a{b}c{d}", "{a", "a}"}
	for range 1000 {
		key := make([]byte, rand.N(40))
		for i := range key {
			key[i] = byte(rand.N(256))
		}
		keys = append(keys, string(key))
	}
	_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.ClusterKeySlot(t.Context(), key)
		}
		return nil
	})
	require.NoError(t, err)
	for _, key := range keys {
		require.Equal(t, rdb.ClusterKeySlot(t.Context(), key).Val(), int64(keyspace.Slot(key)), "%q", key)
	}
}

// TestShard_SlotsAreSpread: each shard of a queue is in the middle of its part of the slots, by
// the server's own account, and so are its companions.
func TestShard_SlotsAreSpread(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t, "--cluster-enabled", "yes").Client(t)
	for _, n := range []int{2, 3, 6, 8, 16, 100, 256, 1024} {
		for _, key := range []string{"Queue:mail", "q", strings.Repeat("long", 200), "Queue:\xff.1:2"} {
			seen := map[string]bool{}
			for i := range n {
				shard := keyspace.Shard(key, n, i)
				require.False(t, seen[shard])
				seen[shard] = true
				require.True(t, strings.HasPrefix(shard, fmt.Sprintf("%s:1.%d.%d.", key, n, i)))
				require.Equal(t, shard, keyspace.Shard(key, n, i))
				slot := keyspace.Slot(shard)
				require.Equal(t, (2*i+1)*keyspace.Slots/(2*n), slot)
				if n <= 16 {
					require.Equal(t, int64(slot), rdb.ClusterKeySlot(t.Context(), shard).Val())
					require.Equal(t, int64(slot), rdb.ClusterKeySlot(t.Context(), keyspace.Companion(shard, keyspace.Tasks)).Val())
				}
			}
		}
	}
}

// TestShard_NodesHaveEqualParts: with the ranges that redis-cli gives the nodes of a new Cluster,
// no node has more than one shard more than another.
func TestShard_NodesHaveEqualParts(t *testing.T) {
	t.Parallel()
	for nodes := 1; nodes <= 20; nodes++ {
		for _, n := range []int{2, 3, 6, 8, 12, 16, 64, 256} {
			counts := make([]int, nodes)
			for i := range n {
				slot := float64(keyspace.Slot(keyspace.Shard("Queue:q", n, i)))
				counts[int(slot*float64(nodes)/keyspace.Slots)]++
			}
			require.LessOrEqual(t, slices.Max(counts)-slices.Min(counts), 1, "%d shards on %d nodes", n, nodes)
		}
	}
}

// TestShard_KeysAreFixed: these are in databases.
func TestShard_KeysAreFixed(t *testing.T) {
	t.Parallel()
	require.Equal(t, "Queue:mail:1.3.0.222770", keyspace.Shard("Queue:mail", 3, 0))
	require.Equal(t, "Queue:mail:1.3.2.200341", keyspace.Shard("Queue:mail", 3, 2))
	require.Equal(t, "Queue:mail:1.256.255.240507", keyspace.Shard("Queue:mail", 256, 255))
}

// TestKey_IsNoShardOfAnotherQueue: their tasks would be mixed.
func TestKey_IsNoShardOfAnotherQueue(t *testing.T) {
	t.Parallel()
	_, err := keyspace.Key("", keyspace.Shard("Queue:mail", 8, 3))
	require.ErrorContains(t, err, "shard")
	_, err = keyspace.Key("Queue:", strings.TrimPrefix(keyspace.Shard("Queue:mail", 8, 3), "Queue:"))
	require.ErrorContains(t, err, "shard")
	for _, name := range []string{"a:1.8.3", "a:1.8.3.000000x", "a:1.8.8.000000", "a:1.1.0.000000", "a:0.8.3.000000", ":x", "a:1.99999999999999999999.0.1", "1.8.3.1"} {
		_, err := keyspace.Key("Queue:", name)
		require.NoError(t, err, name)
	}
}

func BenchmarkShards256(b *testing.B) {
	for b.Loop() {
		for i := range 256 {
			keyspace.Shard("Queue:mail", 256, i)
		}
	}
}
