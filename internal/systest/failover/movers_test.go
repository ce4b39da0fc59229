package failover

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestReshard_KilledMoversLoseNothing: a queue is moved from 3 shards to 8 and to 2, while other processes
// enqueue and handle its tasks. In each move the process that moves it is killed, and so is a worker;
// another process ends the move.
func TestReshard_KilledMoversLoseNothing(t *testing.T) {
	t.Parallel()
	reshardUnderKills(t, redistest.StartCluster(t, leisure...), 8000, 1)
}

// reshardUnderKills has a queue of n tasks, and more that come meanwhile, moved by processes of which so many
// are killed in each move.
func reshardUnderKills(t *testing.T, cluster *redistest.Cluster, n, kills int) {
	t.Helper()
	c := newCrew(t, cluster, redistest.Name(t), 3)
	c.nap = 5 * time.Millisecond
	c.hire(3)
	producers := []*member{c.start("journal-producer", 1e9), c.start("journal-producer", 2e9)}
	from := time.Now()
	c.begin()
	for _, shards := range []int{8, 2} {
		c.reshard(shards, kills, n)
	}
	filled := len(c.seen.enqueued)
	require.NotZero(t, c.movers, "no mover was killed")
	for _, p := range producers {
		require.NoError(t, p.Close())
	}
	c.awaitDrained()
	c.dismiss()
	v := c.check()
	t.Logf("%d tasks, of which %d were enqueued meanwhile, in %v; %d workers killed: none lost; %d handed out again, %v after their lease at most, %d of them done again",
		len(c.seen.enqueued), len(c.seen.enqueued)-filled, time.Since(from).Round(time.Millisecond), c.kills, v.again, v.latest.Round(time.Millisecond), v.doneAgain)
	require.Greater(t, len(c.seen.enqueued), filled)
	require.NotZero(t, v.again, "no process was killed at work")
}

// reshard moves the queue, with half of n tasks more. So many movers are killed on the way, one after the other.
func (c *crew) reshard(shards, kills, n int) {
	c.Helper()
	movers := make([]*member, kills+1)
	for i := range kills { // each in place of a part that it has to put, once a batch is in transit
		movers[i] = c.start("mover", int64(shards)+killAtPut*int64(1+rand.N(12+n/10_000)))
	}
	movers[kills] = c.start("mover", int64(shards))
	c.fill(n/2, 0, 3*time.Second+time.Duration(n)*20*time.Microsecond)
	begun, before, moved, killed := time.Now(), c.shards, int64(0), 0
	for _, m := range movers[:kills] {
		m.Tell("begin")
		n, died := c.awaitDeath(m)
		if moved += n; !died { // workers have moved so much that it never came to the part at which it dies
			break
		}
		killed++
		require.True(c, c.isBeingMoved(), "the mover had ended")
		if len(c.workers) > 1 {
			c.killOne()
		}
		time.Sleep(rand.N(300 * time.Millisecond)) // for so long no process moves it
	}
	var last int64
	for m, over := movers[kills], false; !over; {
		m.Tell("go on")
		last, over = c.awaitStep(m)
	}
	for _, m := range movers[killed:] {
		require.NoError(c, m.Close())
	}
	require.True(c, last > 0 || killed < kills, "nothing was left for the mover that ended it")
	require.False(c, c.isBeingMoved())
	c.movers += killed
	c.shards = shards
	c.replace()
	c.Logf("from %d shards to %d in %v: %d movers killed, %d tasks moved by those, at least, and %d by the one that ended it",
		before, shards, time.Since(begun).Round(time.Millisecond), killed, moved, last)
}

// awaitDeath has a mover go on until it is killed or has ended the move. It returns how many tasks the mover said
// that it has moved.
func (c *crew) awaitDeath(m *member) (moved int64, died bool) {
	c.Helper()
	for {
		line, err := m.Stdout.ReadString('\n')
		if err != nil {
			require.ErrorContains(c, m.Wait(), "killed")
			return moved, true
		}
		var word string
		_, err = fmt.Sscanf(line, "%s %d", &word, &moved)
		require.NoError(c, err, line)
		if word == "end" {
			return moved, false
		}
		require.Equal(c, "step", word)
		_, _ = fmt.Fprintln(m.Stdin, "go on") // it may be dead by now
	}
}

// awaitStep waits for a step of a mover, or for its end. It returns how many tasks the mover has moved.
func (c *crew) awaitStep(m *member) (moved int64, over bool) {
	c.Helper()
	var word string
	var left int64
	m.Answer(&word, &moved, &left)
	return moved, word == "end"
}

// isBeingMoved reports whether the record beside the queue says so.
func (c *crew) isBeingMoved() bool {
	c.Helper()
	found, err := c.rdb.HExists(c.Context(), keyspace.Companion("Queue:"+c.name, keyspace.Layout), "from").Result()
	require.NoError(c, err)
	return found
}
