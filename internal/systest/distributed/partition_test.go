package distributed

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// TestPartition_LinksAreCutInOneDirection: what the other tests rest on. A command that is held
// back is carried out after healing, and one whose reply is held back at once.
func TestPartition_LinksAreCutInOneDirection(t *testing.T) {
	t.Parallel()
	s, net := redistest.StartSentinelApart(t)
	rdb, primary := s.ClientAt(t, net, firstClient), s.Nodes[0].Direct(t)
	ctx := t.Context()
	require.NoError(t, rdb.Set(ctx, "a", "before", 0).Err())
	net.Cut(0, firstClient)
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	require.Error(t, rdb.Set(short, "a", "without a reply", 0).Err())
	require.Equal(t, "without a reply", primary.Get(ctx, "a").Val())
	net.Heal()
	require.Eventually(t, func() bool { return rdb.Get(ctx, "a").Val() == "without a reply" }, patience, 10*time.Millisecond)

	net.Cut(firstClient, 0)
	sent := make(chan error, 1)
	go func() { sent <- rdb.Set(ctx, "a", "late", 0).Err() }()
	time.Sleep(300 * time.Millisecond) // it would be there
	require.Equal(t, "without a reply", primary.Get(ctx, "a").Val())
	net.Heal()
	require.Eventually(t, func() bool { return primary.Get(ctx, "a").Val() == "late" }, patience, 10*time.Millisecond)
	<-sent

	net.Refuse(firstClient, 0)
	require.Error(t, rdb.Set(ctx, "a", "refused", 0).Err())
	net.Heal()
	require.Equal(t, "late", primary.Get(ctx, "a").Val())
	require.Eventually(t, func() bool { return rdb.Set(ctx, "a", "again", 0).Err() == nil }, patience, 10*time.Millisecond)
}

// TestPartition_IslandLosesNothingThatReplicasHave: a primary and a client are cut off until
// another primary has been promoted, with a sentinel, of which the client asks for the primary if it
// has no connection left. What the old one acknowledges alone is lost; what waits for
// all its replicas is not.
func TestPartition_IslandLosesNothingThatReplicasHave(t *testing.T) {
	t.Parallel()
	l := newHostLoad(t, sentinelWithNetwork(t))
	l.awaitSteps()
	old := l.primaryHost()
	island := []int{old, firstClient, firstSentinel}
	l.apart(island, theRest(island), true, true)
	require.Eventually(t, func() bool {
		now := l.primary()
		return now != nil && now != l.nodes[old]
	}, patience, 20*time.Millisecond, "no replica was promoted")
	before := l.acknowledged(0)
	require.Eventually(t, func() bool { return l.acknowledged(0) > before+100 }, patience, 5*time.Millisecond, "the island stands still")
	l.net.Heal()
	t.Logf("all callers had gone on after %v", l.awaitSteps().Round(time.Millisecond))
	l.finish()
	l.check()
	require.NotZero(t, l.crews[0].count(l.mayLose).lost, "the primary was not alone")
}

// acknowledged returns how much a client was acknowledged that asks for no replicas.
func (l *hostLoad) acknowledged(client int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.crews[0].acked[client]
}

// TestPartition_MinReplicasBoundsTheIsland: a primary that is cut off with a client soon refuses
// what that asks.
func TestPartition_MinReplicasBoundsTheIsland(t *testing.T) {
	t.Parallel()
	s, net := redistest.StartSentinelApart(t, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")
	lag := systest.Lag(t)
	q, err := sluice.NewQueue(s.ClientAt(t, net, firstClient), redistest.Name(t))
	require.NoError(t, err)
	try := func(id string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := q.Enqueue(ctx, sluice.Task{ID: id})
		return err
	}
	require.Eventually(t, func() bool { return try("first") == nil }, patience, 10*time.Millisecond)
	require.Equal(t, s.Nodes[0], s.Primary())
	for other := 1; other < firstClient; other++ {
		for _, of := range []int{0, firstClient} {
			net.Cut(of, other)
			net.Cut(other, of)
		}
	}
	cut, last := time.Now(), time.Now()
	require.Eventually(t, func() bool {
		err := try("alone")
		if err == nil {
			last = time.Now()
		}
		return err != nil && strings.Contains(err.Error(), "NOREPLICAS")
	}, patience, 10*time.Millisecond, "it never refused")
	took := last.Sub(cut)
	t.Logf("the primary went on for %v (lag %v)", took.Round(time.Millisecond), lag())
	require.Less(t, took, 3*time.Second+10*lag())
	for range 20 {
		require.Error(t, try("alone still"))
	}
	net.Heal()
	require.Eventually(t, func() bool { return try("last") == nil }, patience, 10*time.Millisecond, "tasks do not flow again")
}

// TestPartition_OfEachKind has a partition between each two kinds of hosts.
func TestPartition_OfEachKind(t *testing.T) {
	t.Parallel()
	all := []kind{clientPrimary, primaryReplica, primarySentinels, sentinelSentinel, clientSentinel}
	for i := range all {
		all[i].longest = time.Second // the long test has more patience
	}
	sufferAll(t, sentinelWithNetwork, 1, all...)
}

// sufferAll has so many partitions of each of these kinds, whole ones and others by turns.
func sufferAll(t *testing.T, start func(t *testing.T) group, n int, kinds ...kind) {
	t.Helper()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	l := newHostLoad(t, start(t))
	l.awaitSteps()
	oneWay := r.IntN(2) == 0
	tallies := make([]tally, len(kinds))
	defer func() { // also where it fails
		t.Logf("seed %d", seed)
		for i, k := range kinds {
			t.Logf("%s: %v", k.name, &tallies[i])
		}
	}()
	for range n {
		for i, k := range kinds {
			l.suffer(k, r, oneWay, &tallies[i])
			oneWay = !oneWay
		}
	}
	l.finish()
	l.check()
}
