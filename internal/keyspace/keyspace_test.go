package keyspace_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// FuzzKeys: all keys of a name are in one Cluster slot, as Redis itself says, and no two
// names share a key, nor will with the keys that a later version may have.
func FuzzKeys(f *testing.F) {
	for _, name := range []string{"stock", "{eu}:stock", "a}b", "{}", "{}x", "{a}{b}", "x{a}", "{a", "a}", "{{a}}", "\x00{\xff}", "{a}:dead", "a:dead", "{a}:x:tasks", "{a}:state", "{a}:line", "{a}:x:errors", "{a}:errors:dead", "a:done", "{0}", "{{0}"} {
		f.Add("Queue:", name)
		f.Add("", name)
		f.Add("{p}", name)
	}
	rdb := redistest.Start(f, "--cluster-enabled", "yes").Client(f)
	f.Fuzz(func(t *testing.T, prefix, name string) {
		key, err := keyspace.Key(prefix, name)
		if err != nil {
			return
		}
		slots := []*redis.IntCmd{}
		_, err = rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			slots = append(slots, p.ClusterKeySlot(t.Context(), key))
			for _, ending := range keyspace.Endings {
				slots = append(slots, p.ClusterKeySlot(t.Context(), keyspace.Companion(key, ending)))
			}
			return nil
		})
		require.NoError(t, err)
		for i, ending := range keyspace.Endings {
			other := keyspace.Companion(key, ending)
			require.Equal(t, slots[0].Val(), slots[i+1].Val(), "%q", other)
			// Back from the companion: there is one key that it can be of, and no name
			// whose key it is.
			require.Equal(t, key, ownerOf(strings.TrimSuffix(other, ending)))
			_, err := keyspace.Key("", other)
			require.Error(t, err, "%q is a name, too", other)
		}
	})
}

// TestKey_EndingsAreRefusedWithAHashTag: those of companions, and those that are reserved.
func TestKey_EndingsAreRefusedWithAHashTag(t *testing.T) {
	t.Parallel()
	for _, ending := range []string{
		":tasks", ":state", ":dead", ":leased", ":paused", ":errors", ":counts", ":done", ":results", ":workers", ":dropped", ":wake", ":idle", ":canceled", ":layout", ":fence",
		":line", ":watch", ":limits", ":stock", ":attached", ":groups",
	} {
		for _, name := range []string{"{eu}" + ending, "{eu}:orders" + ending, "orders:{eu}" + ending, "{Queue:orders}" + ending} {
			for _, prefix := range []string{"", "Lock:", "Queue:"} {
				_, err := keyspace.Key(prefix, name)
				require.ErrorContains(t, err, "the ending "+ending, "%q %q", prefix, name)
			}
		}
		for _, name := range []string{"orders" + ending, "{eu}" + ending + "s", "{eu}" + ending + ":x", "{eu" + ending + "}:orders"} {
			_, err := keyspace.Key("Queue:", name)
			require.NoError(t, err, name)
		}
	}
	require.Len(t, keyspace.Endings, 22, "each is above")
}

// ownerOf returns the key whose companions begin like this.
func ownerOf(start string) string {
	inner, opened := strings.CutPrefix(start, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	if opened && closed && !strings.ContainsAny(inner, "{}") {
		return inner
	}
	return start
}
