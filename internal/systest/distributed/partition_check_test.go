package distributed

import (
	"regexp"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice/internal/systest"
)

var names = regexp.MustCompile(`\S*TestPartition_\S+ ?`)

// grant is a lock that was taken at some time between sent and known, and held until its release,
// its end or its loss.
type grant struct {
	systest.Grant
	period int
	until  time.Time
}

// crewCounts is what became of what a crew did.
type crewCounts struct {
	acknowledged, lost, unknown, refused, again int // tasks
	grants, double, fences                      int
	excused                                     int // of what was lost or granted twice: there was a failover
}

// count returns what became of what a crew did. What mayLose allows of it is excused. A grant is
// double if another handle of its lock was valid as its caller got it.
func (c *hostCrew) count(mayLose func(period int) bool) (n crewCounts) {
	for _, made := range c.tasks {
		switch {
		case made.acknowledged:
			n.acknowledged++
			if made.handled == 0 {
				n.lost++
				n.excuse(mayLose(made.period))
			}
		case made.refused:
			n.refused++
		default:
			n.unknown++
		}
		if made.handled > 1 {
			n.again++
		}
	}
	for _, gs := range c.grants {
		n.grants += len(gs)
		slices.SortFunc(gs, func(a, b grant) int { return a.Known.Compare(b.Known) })
		var until time.Time
		for _, g := range gs {
			if g.Known.Before(until) && g.Known.Before(g.until) {
				n.double++
				n.excuse(mayLose(g.period))
			}
			if g.until.After(until) {
				until = g.until
			}
			if g.Fence != 0 {
				n.fences++
			}
		}
	}
	return n
}

func (n *crewCounts) excuse(it bool) {
	if it {
		n.excused++
	}
}

// atOnce returns how many handles of a lock were valid at once, at most.
func (c *hostCrew) atOnce() (most int) {
	for _, gs := range c.grants {
		var spans []systest.Span
		for _, g := range gs {
			if g.Known.Before(g.until) {
				spans = append(spans, systest.Span{From: g.Known.Sub(began).Nanoseconds(), Until: g.until.Sub(began).Nanoseconds()})
			}
		}
		most = max(most, systest.AtOnce(spans))
	}
	return most
}

var began = time.Now()

// check requires what no partition may take away, and logs the rest. Without a failover nothing is
// lost; with one, nothing that all replicas have acknowledged.
func (l *hostLoad) check() {
	l.Helper()
	l.Logf("%d failovers", l.epochs[len(l.epochs)-1]-l.epochs[0])
	for text, n := range l.errors {
		l.Logf("%5d × %s", n, text)
	}
	for _, c := range l.crews {
		n := c.count(l.mayLose)
		l.Logf("%d replicas asked: %d tasks acknowledged, %d lost, %d unknown, %d refused, %d handled again; %d locks granted, %d twice (%d at once), %d fences",
			c.replicas, n.acknowledged, n.lost, n.unknown, n.refused, n.again, n.grants, n.double, c.atOnce(), n.fences)
		for name, gs := range c.grants {
			if gs[0].Fence != 0 {
				var fences []systest.Grant
				for _, g := range gs {
					fences = append(fences, g.Grant)
				}
				l.wrong = append(l.wrong, systest.WrongFences(name, fences)...)
			}
		}
		for id, made := range c.tasks {
			if made.refused && made.handled > 0 {
				l.wrong = append(l.wrong, "a task that was refused has been done: "+id)
			}
		}
		require.Equal(l, n.excused, n.lost+n.double, "tasks lost and double grants without a failover, %d replicas asked", c.replicas)
		if c.replicas == l.replicas {
			require.Zero(l, n.lost, "lost tasks")
			require.Zero(l, n.double, "double grants")
			require.LessOrEqual(l, c.atOnce(), 1, "handles that were valid at once")
		}
		require.NotZero(l, n.fences)
		require.NotZero(l, n.acknowledged)
	}
	require.Empty(l, l.wrong[:min(len(l.wrong), 20)], "%d in all", len(l.wrong))
}
