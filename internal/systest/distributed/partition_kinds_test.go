package distributed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
)

// kind is where a partition runs: between the hosts of one side and those of the other.
type kind struct {
	name string
	// sides returns the two sides, for a primary on that host.
	sides func(r *rand.Rand, primary int) (one, other []int)
	// longest is how long it lasts at most. Clients wait a second for a reply, and for a failover
	// the sentinels need a second or two.
	longest time.Duration
}

// some returns one or more hosts of as many that begin with first, without one of them.
func some(r *rand.Rand, first, n, without int) []int {
	var all []int
	for _, i := range r.Perm(n) {
		if first+i != without {
			all = append(all, first+i)
		}
	}
	return all[:1+r.IntN(len(all))]
}

// noHost is the number of none.
const noHost = -1

var (
	clientPrimary = kind{"client-primary", func(r *rand.Rand, primary int) (one, other []int) {
		return some(r, firstClient, clientHosts, noHost), []int{primary}
	}, 2 * time.Second}
	primaryReplica = kind{"primary-replica", func(r *rand.Rand, primary int) (one, other []int) {
		return []int{primary}, some(r, 0, nodes, primary)
	}, 3 * time.Second}
	primarySentinels = kind{"primary-sentinels", func(r *rand.Rand, primary int) (one, other []int) {
		return []int{primary}, some(r, firstSentinel, sentinels, noHost)
	}, 4 * time.Second}
	sentinelSentinel = kind{"sentinel-sentinel", func(r *rand.Rand, _ int) (one, other []int) {
		alone := firstSentinel + r.IntN(sentinels)
		return []int{alone}, some(r, firstSentinel, sentinels, alone)
	}, 2 * time.Second}
	clientSentinel = kind{"client-sentinel", func(r *rand.Rand, _ int) (one, other []int) {
		return some(r, firstClient, clientHosts, noHost), some(r, firstSentinel, sentinels, noHost)
	}, time.Second}
	// island has a primary and clients on one side, and on the other all that make another primary.
	island = kind{"island", func(r *rand.Rand, primary int) (one, other []int) {
		one = append(some(r, firstClient, clientHosts-1, noHost), primary)
		return one, theRest(one)
	}, 4 * time.Second}
	primaryNodes = kind{"primary-nodes", func(r *rand.Rand, primary int) (one, other []int) {
		return []int{primary}, some(r, 0, clusterNodes, primary)
	}, 4 * time.Second}
	anywhere = kind{"anywhere", func(r *rand.Rand, _ int) (one, other []int) {
		one = some(r, 0, hosts-1, noHost)
		return one, theRest(one)
	}, 4 * time.Second}
)

func theRest(of []int) (all []int) {
	for host := range hosts {
		if !slices.Contains(of, host) {
			all = append(all, host)
		}
	}
	return all
}

// primaryHost returns the primary's host, once there is one.
func (l *hostLoad) primaryHost() int {
	l.Helper()
	host := noHost
	require.Eventually(l, func() bool {
		now := l.primary()
		host = slices.Index(l.nodes, now)
		return now != nil
	}, patience, 20*time.Millisecond, "no primary")
	return host
}

// apart cuts the links between two sides.
func (l *hostLoad) apart(one, other []int, there, back bool) {
	for _, a := range one {
		for _, b := range other {
			if there {
				l.net.Cut(a, b)
			}
			if back {
				l.net.Cut(b, a)
			}
		}
	}
}

// tally is what partitions of one kind have cost.
type tally struct {
	whole, oneWay int
	waits         []time.Duration // after healing
}

// suffer has a partition come and go, and waits until all is as before.
func (l *hostLoad) suffer(k kind, r *rand.Rand, oneWay bool, n *tally) {
	l.Helper()
	one, other := k.sides(r, l.primaryHost())
	switch {
	case oneWay:
		there := r.IntN(2) == 0
		l.apart(one, other, there, !there)
		n.oneWay++
	case r.IntN(4) == 0:
		for _, a := range one {
			for _, b := range other {
				l.net.Refuse(a, b)
			}
		}
		n.whole++
	default:
		l.apart(one, other, true, true)
		n.whole++
	}
	time.Sleep(200*time.Millisecond + time.Duration(r.Int64N(int64(k.longest)))) // how long it lasts
	l.net.Heal()
	n.waits = append(n.waits, l.awaitSteps())
	l.awaitWhole()
}

func (n *tally) String() string {
	if len(n.waits) == 0 {
		return "none"
	}
	slices.Sort(n.waits)
	wait := func(i int) time.Duration { return n.waits[i].Round(time.Millisecond) }
	return fmt.Sprintf("%d whole partitions, %d of one direction; all callers had gone on after: p50 %v, max %v",
		n.whole, n.oneWay, wait(len(n.waits)/2), wait(len(n.waits)-1))
}
