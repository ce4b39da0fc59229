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

var endings = []string{keyspace.Tasks, keyspace.State, keyspace.Dead, keyspace.Leased, keyspace.Paused, keyspace.Dropped, keyspace.Wake, keyspace.Idle, keyspace.Canceled, keyspace.Fence, keyspace.Layout}

// FuzzKeys: all keys of a name are in one Cluster slot, as Redis itself says, and no two
// names share a key.
func FuzzKeys(f *testing.F) {
	for _, name := range []string{"stock", "{eu}:stock", "a}b", "{}", "{}x", "{a}{b}", "x{a}", "{a", "a}", "{{a}}", "\x00{\xff}", "{a}:dead", "a:dead", "{a}:x:tasks", "{a}:state", "{0}", "{{0}"} {
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
			for _, ending := range endings {
				slots = append(slots, p.ClusterKeySlot(t.Context(), keyspace.Companion(key, ending)))
			}
			return nil
		})
		require.NoError(t, err)
		for i, ending := range endings {
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

// ownerOf returns the key whose companions begin like this.
func ownerOf(start string) string {
	inner, opened := strings.CutPrefix(start, "{")
	inner, closed := strings.CutSuffix(inner, "}")
	if opened && closed && !strings.ContainsAny(inner, "{}") {
		return inner
	}
	return start
}
