package distributed

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/redistest"
)

// primaries is how many of a Cluster's nodes are primaries, the first ones. In these tests none
// fails.
const primaries = 3

// leastKills is how many workers are killed at least, and until one of them had a task.
const leastKills = 3

// leisure are settings of a Cluster in which no primary is to be taken for dead while it moves a
// large key.
var leisure = []string{"--cluster-node-timeout", "60000"}

// TestQueues_KilledWorkersAndMovedSlotsLoseNothing: four processes work on twelve queues, one after
// the other is killed, and the queues' slots are moved from primary to primary.
func TestQueues_KilledWorkersAndMovedSlotsLoseNothing(t *testing.T) {
	t.Parallel()
	workUnderKills(t, redistest.StartCluster(t, leisure...), 10_000)
}

// workUnderKills has n tasks done by processes that are killed, while slots move.
func workUnderKills(t *testing.T, cluster *redistest.Cluster, n int) {
	t.Helper()
	c := newCrew(t, cluster, redistest.Name(t), manyQueues)
	c.nap = 2 * time.Millisecond
	c.hire(4)
	c.fill(n, time.Second, 2*time.Second+time.Duration(n)*30*time.Microsecond)
	c.begin()
	begun, moves := time.Now(), 0
	for queue := 0; c.kills < leastKills || !c.struckAtWork() || c.left() > int64(n/20); queue = (queue + 1) % manyQueues {
		if c.left() < int64(n/4) && (c.kills < leastKills || !c.struckAtWork()) { // a busy machine moves few slots in the time of the others
			c.fill(n/4, 0, time.Second)
		}
		key := "Queue:" + c.qs[queue].Name()
		from := c.primary(key)
		to := cluster.Nodes[rand.N(primaries)]
		if to == from {
			continue
		}
		at := 1 + moves%2 // the key after which a worker is killed
		cluster.Migrate(t, cluster.Slot(t, key), from, to, func() {
			if at--; at == 0 {
				c.killOne()
			}
			time.Sleep(rand.N(20 * time.Millisecond)) // half of the keys are there
		})
		c.replace() // now that it is not kept waiting by the slot
		moves++
		require.Less(t, time.Since(begun), 10*time.Minute)
	}
	c.awaitDrained()
	c.dismiss()
	v := c.check()
	t.Logf("%d tasks in %v, %d kills, %d slots moved (%d TRYAGAIN, %d ASK, %d MOVED): none lost; %d handed out again, %v after their lease at most, %d of them done again",
		n, time.Since(begun).Round(time.Millisecond), c.kills, moves, cluster.Errors("TRYAGAIN"), cluster.Errors("ASK"), cluster.Errors("MOVED"), v.again, v.latest.Round(time.Millisecond), v.doneAgain)
	require.NotZero(t, c.kills)
	require.NotZero(t, v.again, "no process was killed at work")
	require.NotZero(t, cluster.Errors("MOVED"), "no slot was moved under load")
}

// nodeFigures are figures of a primary.
type nodeFigures struct {
	tasks  int64
	memory int64         // bytes of the queues' keys
	all    float64       // bytes of data, by the server: the Lua scripts that it knows and such things too
	cpu    time.Duration // of the main thread
}

// nodes returns the figures of the primaries.
func (c *crew) nodes() (all [primaries]nodeFigures) {
	c.Helper()
	for i, node := range c.cluster.Nodes[:primaries] {
		info := node.Client(c.T).Info(context.Background(), "cpu", "memory").Val()
		seconds := infoFigure(c.T, info, "used_cpu_user_main_thread") + infoFigure(c.T, info, "used_cpu_sys_main_thread")
		all[i] = nodeFigures{all: infoFigure(c.T, info, "used_memory_dataset"), cpu: time.Duration(seconds * float64(time.Second))}
	}
	for _, q := range c.qs {
		key := "Queue:" + q.Name()
		primary := c.primary(key)
		for i, node := range c.cluster.Nodes[:primaries] {
			if node == primary {
				all[i].tasks += c.rdb.ZCard(c.Context(), key).Val()
				all[i].memory += c.rdb.MemoryUsage(c.Context(), key, 0).Val()
			}
		}
	}
	return all
}

// infoFigure returns a figure of INFO.
func infoFigure(t *testing.T, info, name string) float64 {
	t.Helper()
	_, rest, found := strings.Cut(info, "\n"+name+":")
	require.True(t, found, name)
	text, _, _ := strings.Cut(rest, "\r")
	value, err := strconv.ParseFloat(text, 64)
	require.NoError(t, err)
	return value
}

func since(before, after [primaries]nodeFigures) (d [primaries]nodeFigures) {
	for i := range d {
		d[i] = nodeFigures{after[i].tasks - before[i].tasks, after[i].memory - before[i].memory, after[i].all - before[i].all, after[i].cpu - before[i].cpu}
	}
	return d
}
