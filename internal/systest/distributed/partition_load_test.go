package distributed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// Hosts of the network.
const (
	nodes         = 3 // behind Sentinel, the first ones
	sentinels     = 3 // after them
	clusterNodes  = 6
	firstSentinel = nodes
	firstClient   = 6 // after all servers
	clientHosts   = 3
	hosts         = firstClient + clientHosts
)

// group is servers with a network between them.
type group struct {
	servers interface {
		ClientAt(t testing.TB, n *redistest.Network, host int) redis.UniversalClient
		IsWhole() (bool, error)
		Epoch() int
	}
	net      *redistest.Network
	nodes    []*redistest.Server // that hold data
	tag      string              // what names begin with
	primary  func() *redistest.Server
	replicas int // that the primary has: what all of them acknowledge is not lost
}

func sentinelWithNetwork(t *testing.T) group {
	t.Helper()
	s, net := redistest.StartSentinelApart(t)
	return group{s, net, s.Nodes, "", s.Primary, 2}
}

func clusterWithNetwork(t *testing.T) group {
	t.Helper()
	const tag = "{0}"
	c, net := redistest.StartClusterApart(t)
	return group{c, net, c.Nodes, tag, func() *redistest.Server { return c.Primary(tag) }, 1}
}

// hostLoad is callers on three hosts. On each there is one of every kind for each number of replicas
// that are to acknowledge.
type hostLoad struct {
	*testing.T
	group
	crews   []*hostCrew
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup // the callers that take locks and make tasks
	workers sync.WaitGroup

	// epochs has the servers' epoch at the beginning of each period: what happens from one time at
	// which all is whole to the next. The last one is that of the end.
	epochs []int

	mu      sync.Mutex // guards what follows, and the crews
	period  int
	steps   map[string]int
	errors  map[string]int
	wrong   []string
	closing bool
}

// hostCrew is the callers that want so many replicas to acknowledge what they do, and what became of
// it.
type hostCrew struct {
	replicas int
	queues   [clientHosts]*sluice.Queue
	grants   map[string][]grant // by lock
	tasks    map[string]*task
	acked    [clientHosts]int // acknowledged tasks and grants, by client
}

// task is what became of one.
type task struct {
	period                int
	acknowledged, refused bool
	handled               int
}

const ttl = 800 * time.Millisecond

func newHostLoad(t *testing.T, g group) *hostLoad {
	t.Helper()
	l := &hostLoad{T: t, group: g, steps: map[string]int{}, errors: map[string]int{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	var rdbs [clientHosts]redis.UniversalClient
	for host := range clientHosts {
		rdbs[host] = l.servers.ClientAt(t, l.net, firstClient+host)
	}
	t.Cleanup(func() { l.net.Heal(); l.stop(); l.running.Wait(); l.workers.Wait() })
	l.awaitWhole()
	for n := range g.replicas + 1 {
		c := &hostCrew{replicas: n, grants: map[string][]grant{}, tasks: map[string]*task{}}
		l.crews = append(l.crews, c)
		name := g.tag + redistest.Name(t) + fmt.Sprint(n)
		for host, rdb := range rdbs {
			l.startCrew(c, host, rdb, name)
		}
	}
	return l
}

// startCrew has the callers of one host begin.
func (l *hostLoad) startCrew(c *hostCrew, host int, rdb redis.UniversalClient, name string) {
	l.Helper()
	locker := systest.NewLocker(l.T, rdb, sluice.WithLockReplicas(c.replicas), sluice.WithTTL(ttl), sluice.WithRetryInterval(time.Second))
	q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(-1), sluice.WithQueueReplicas(c.replicas), sluice.WithPollInterval(time.Second))
	require.NoError(l, err)
	c.queues[host] = q
	who := fmt.Sprintf(" of host %d with %d replicas", host, c.replicas)
	for _, kind := range []string{"plain", "fenced"} {
		l.goOn(kind+who, func() bool { return l.hold(c, locker, host, name+kind, kind == "fenced") })
	}
	l.goOn("producer"+who, func() bool { return l.produce(c, q, host) })
	if host > 0 { // so that the first may make tasks that no worker there takes
		l.step("worker"+who, 0)
		w := &sluice.Worker{Queue: q, Concurrency: 4, Lease: 3 * time.Second, Handler: func(_ context.Context, e sluice.Entry) error {
			l.handled(c, e)
			l.step("worker"+who, 1)
			return nil
		}}
		l.workers.Go(func() { _ = w.Run(l.ctx) })
	}
}

// goOn does something again and again, and counts how often it was done.
func (l *hostLoad) goOn(who string, do func() bool) {
	l.step(who, 0)
	l.running.Go(func() {
		for !l.isClosing() {
			if do() {
				l.step(who, 1)
			}
			time.Sleep(10*time.Millisecond + rand.N(10*time.Millisecond)) // other work
		}
	})
}

func (l *hostLoad) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing || l.ctx.Err() != nil
}

func (l *hostLoad) step(who string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps[who] += n
}

// hold takes a lock, which no other caller of its process waits for: so each grant is the server's.
// It holds it mostly for a moment, and sometimes for longer than its TTL: by renewals, or without
// them until it is lost.
func (l *hostLoad) hold(c *hostCrew, locker *sluice.Locker, host int, name string, fenced bool) bool {
	var options []sluice.LockOption
	if fenced {
		options = append(options, sluice.WithFencing())
	}
	hold := rand.N(5 * time.Millisecond)
	switch rand.IntN(40) {
	case 0:
		hold, options = ttl/2+rand.N(ttl), append(options, sluice.WithAutoRenew())
	case 1:
		hold = ttl/2 + rand.N(ttl)
	}
	called := time.Now()
	k, err := locker.Lock(l.ctx, name, options...)
	if err != nil {
		l.failed("lock", err, sluice.ErrLocked)
		return false
	}
	g := grant{Grant: systest.Grant{Fence: k.Fence(), Sent: called, Known: time.Now()}}
	// The lock's own time counts from when it was asked for, at the latest; a caller may have
	// waited in line before.
	if sent := k.Deadline().Add(-ttl + ttl/100 + 2*time.Millisecond); sent.After(called) && sent.Before(g.Known) && g.Known.Sub(sent) < ttl/4 {
		g.Sent = sent
	}
	l.mu.Lock()
	c.acked[host]++
	g.period = l.period
	l.mu.Unlock()
	select {
	case <-time.After(hold): // the work
	case <-k.Context().Done():
	}
	g.until = time.Now()
	if deadline := k.Deadline(); deadline.Before(g.until) {
		g.until = deadline
	}
	l.mu.Lock()
	c.grants[name] = append(c.grants[name], g)
	l.mu.Unlock()
	if err := k.Unlock(l.ctx); err != nil {
		l.failed("unlock", err, sluice.ErrNotHeld)
	}
	return true
}

// produce makes a task.
func (l *hostLoad) produce(c *hostCrew, q *sluice.Queue, host int) bool {
	made, id := &task{}, fmt.Sprintf("%d.%d", host, rand.Int64())
	l.mu.Lock()
	made.period = l.period
	c.tasks[id] = made
	l.mu.Unlock()
	_, err := q.Enqueue(l.ctx, sluice.Task{ID: id, Delay: rand.N(200 * time.Millisecond)})
	l.mu.Lock()
	made.acknowledged = err == nil
	made.refused = err != nil && !errors.Is(err, sluice.ErrUnknown) && !errors.Is(err, sluice.ErrUnderReplicated)
	if made.acknowledged {
		c.acked[host]++
	}
	l.mu.Unlock()
	if err != nil {
		l.failed("enqueue", err, nil)
	}
	return err == nil
}

func (l *hostLoad) handled(c *hostCrew, e sluice.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if done := c.tasks[e.ID]; done != nil {
		done.handled++
	} else {
		l.wrong = append(l.wrong, "a task that was never made")
	}
}

// failed notes an error. Some tell of what did not happen, or should have been waited for.
func (l *hostLoad) failed(op string, err error, allowed error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	l.errors[op+": "+digits.ReplaceAllString(names.ReplaceAllString(err.Error(), ""), "N")]++
	for _, never := range []error{sluice.ErrInvalid, sluice.ErrCorrupt, sluice.ErrClosed, sluice.ErrNotFound, sluice.ErrStale, sluice.ErrLocked, sluice.ErrNotHeld} {
		if errors.Is(err, never) && !errors.Is(never, allowed) {
			l.wrong = append(l.wrong, op+": "+err.Error())
		}
	}
}

// awaitSteps waits until every caller has gone on, and returns for how long.
func (l *hostLoad) awaitSteps() time.Duration {
	l.Helper()
	return systest.AwaitSteps(l, &l.mu, l.steps, patience)
}

// patience is how long a test waits for what has to come, and may be late on a busy machine:
// sentinels there give up a failover and try again.
const patience = 3 * time.Minute

// awaitWhole waits until there is one primary with all its replicas, and all sentinels know of it:
// a new period begins.
func (l *hostLoad) awaitWhole() {
	l.Helper()
	require.EventuallyWithT(l, func(t *assert.CollectT) {
		whole, err := l.servers.IsWhole()
		assert.True(t, whole && err == nil, "not whole again: %v", err)
	}, patience, 20*time.Millisecond)
	l.epochs = append(l.epochs, l.servers.Epoch())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.period = len(l.epochs) - 1
}

// mayLose says whether a failover may have lost what was done in a period: one that was in it or,
// of what it has left, in the next one.
func (l *hostLoad) mayLose(period int) bool {
	last := len(l.epochs) - 1
	return l.epochs[min(period, last)] != l.epochs[min(period+2, last)]
}

// finish ends the callers that make work, waits until the rest is done, and ends the workers.
func (l *hostLoad) finish() {
	l.Helper()
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.running.Wait()
	for _, c := range l.crews {
		require.Eventually(l, func() bool {
			s, err := c.queues[1].Stats(l.ctx)
			return err == nil && s.Due+s.Scheduled+s.Leased == 0
		}, patience, 20*time.Millisecond, "the queue never ran empty")
	}
	l.stop()
	l.workers.Wait()
	l.awaitWhole()
}
