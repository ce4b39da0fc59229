package distributed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// failing is a group of servers that outlives one of them.
type failing struct {
	servers interface {
		Client(t testing.TB) redis.UniversalClient
		AwaitWhole(t testing.TB)
	}
	tags      []string                           // what names begin with, for each primary
	primary   func(tag string) *redistest.Server // nil if there is none just now
	promote   func(of *redistest.Server) error   // has a replica take over, though all is well
	remaining int                                // so many replicas a primary has once one has been promoted for another that was killed
}

// serving returns the primary of a tag once one answers: the group may be whole before that.
func (f failing) serving(t testing.TB, tag string) *redistest.Server {
	t.Helper()
	var primary *redistest.Server
	require.Eventually(t, func() bool {
		primary = f.primary(tag)
		return primary != nil
	}, time.Minute, 10*time.Millisecond, "no primary answers")
	return primary
}

// behindSentinel starts a primary and what watches it.
func behindSentinel(t *testing.T) failing {
	s := redistest.StartSentinel(t)
	return failing{
		servers: s, tags: []string{""}, remaining: 1,
		primary: func(string) *redistest.Server { return s.Primary() },
		promote: func(*redistest.Server) error { return s.Failover() },
	}
}

// onCluster starts a Cluster whose replicas take over soon, if no setting says otherwise.
func onCluster(t *testing.T, settings ...string) (failing, *redistest.Cluster) {
	c := redistest.StartCluster(t, slices.Concat(redistest.FastFailover, settings)...)
	return failing{
		servers: c, tags: tagsOf(t, c),
		primary: func(tag string) *redistest.Server { return c.Primary(tag) },
		promote: c.Failover,
	}, c
}

// tagsOf returns a hash tag for each of a Cluster's primaries.
func tagsOf(t *testing.T, c *redistest.Cluster) (tags []string) {
	t.Helper()
	rdb := c.Client(t)
	seen := map[*redistest.Server]bool{}
	for i := 0; len(tags) < 3; i++ {
		tag := fmt.Sprintf("{%d}", i)
		slot, err := rdb.ClusterKeySlot(t.Context(), tag).Result()
		require.NoError(t, err)
		if owner := c.Nodes[int(slot)*3/16384]; !seen[owner] {
			seen[owner] = true
			tags = append(tags, tag)
		}
	}
	return tags
}

// Ways in which a primary fails.
const (
	killed = "killed" // kill -9; it comes back empty, and takes itself for a primary
	hung   = "hung"   // it stops until another was promoted, and goes on as the primary that it was
	asked  = "asked"  // it is well, and a replica is asked to take over
)
