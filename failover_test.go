package sluice_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// failing is a group of servers that outlives one of them.
type failing struct {
	servers interface {
		Client(t testing.TB) redis.UniversalClient
		AwaitWhole(t testing.TB)
	}
	tags    []string                           // what names begin with, for each primary
	primary func(tag string) *redistest.Server // nil if there is none just now
	promote func(of *redistest.Server) error   // has a replica take over, though all is well
}

// behindSentinel starts a primary and what watches it.
func behindSentinel(t *testing.T) failing {
	s := redistest.StartSentinel(t)
	return failing{
		servers: s, tags: []string{""},
		primary: func(string) *redistest.Server { return s.Primary() },
		promote: func(*redistest.Server) error { return s.Failover() },
	}
}

// onCluster starts a Cluster.
func onCluster(t *testing.T, settings ...string) (failing, *redistest.Cluster) {
	c := redistest.StartCluster(t, settings...)
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
	killed = "killed" // kill -9; it comes back empty, and believes to be a primary
	hung   = "hung"   // it stops until another was promoted, and goes on as the primary that it was
	asked  = "asked"  // it is well, but a replica is told to take over
)

// TestSentinelFailovers has primaries fail, one after the other, under load. What may
// be lost with them is counted, what may not is required. In full:
//
//	go test -run TestSentinelFailovers -v -timeout 30m . -failovers 100
func TestSentinelFailovers(t *testing.T) {
	// Not parallel: it measures.
	runFailovers(t, behindSentinel(t), killed, hung, asked)
}

// TestClusterFailovers is TestSentinelFailovers on a Cluster.
//
//	go test -run TestClusterFailovers -v -timeout 30m . -failovers 100
func TestClusterFailovers(t *testing.T) {
	// Not parallel: it measures.
	f, _ := onCluster(t)
	runFailovers(t, f, killed, hung, asked)
}

// TestOrderlyClusterFailovers: a Cluster's primary that is asked to hand over does so
// without loss. So what is lost in other failovers is what had not been replicated.
func TestOrderlyClusterFailovers(t *testing.T) {
	t.Parallel()
	f, _ := onCluster(t)
	l := runFailovers(t, f, asked)
	require.Empty(t, l.double, "double grants")
	require.Empty(t, l.lostTasks(), "lost tasks")
}

func runFailovers(t *testing.T, f failing, kinds ...string) *load {
	l := newLoad(t, f)
	l.start()
	count := map[string]int{}
	var outages [2][]time.Duration // of locks, of queues
	var resumed []time.Duration
	for i := range *failovers {
		kind, tag := kinds[i%len(kinds)], f.tags[i/len(kinds)%len(f.tags)]
		took := l.fail(kind, tag)
		count[kind]++
		resumed = append(resumed, took)
		outages[0] = append(outages[0], l.probes[tag+"lock"].longest())
		outages[1] = append(outages[1], l.probes[tag+"queue"].longest())
	}
	l.finish()
	t.Logf("%d failovers under load: %v", *failovers, count)
	t.Logf("outage of locks: p50 %v, max %v; of queues: p50 %v, max %v; everybody has gone on after: p50 %v, max %v",
		half(outages[0]), slices.Max(outages[0]), half(outages[1]), slices.Max(outages[1]), half(resumed), slices.Max(resumed))
	l.report()
	l.check()
	return l
}

func half(ds []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(ds))[len(ds)/2].Round(time.Millisecond)
}

// load is callers of all kinds, and what became of them.
type load struct {
	*testing.T
	failing
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup // those who take locks and make tasks
	workers sync.WaitGroup
	log     diary
	queues  map[string]*sluice.Queue // by key
	probes  map[string]*probe
	bound   time.Duration // of a probe's calls

	mu        sync.Mutex // guards what follows
	steps     map[string]int
	holders   map[string][]*sluice.Lock
	fenced    map[string][]grant
	registers map[string]*register
	tasks     map[string]*fate
	errors    map[string]int
	tokens    map[string]bool
	wrong     []string
	grants    int
	double    map[string]int // two handles that were valid at once, by what had failed last
	kind      string         // what has failed last
	closing   bool
}

// grant is a lock that was taken, at some time between sent and known.
type grant struct {
	fence       int64
	sent, known time.Time
}

// register is what a fenced lock guards: it takes what has a fence no lower than all
// before.
type register struct {
	last           grant // of those that were let in the latest
	fence          int64
	taken, refused int
}

// fate is what became of a task.
type fate struct {
	acknowledged, refused bool
	handled               int
	kind                  string // what had failed last
}

// probe is a caller who measures for how long nothing goes.
type probe struct {
	mu   sync.Mutex
	last time.Time
	gap  time.Duration
}

func (p *probe) success() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.gap, p.last = max(p.gap, now.Sub(p.last)), now
}

func (p *probe) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap, p.last = 0, time.Now()
}

func (p *probe) longest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gap.Round(time.Millisecond)
}

const payload = "a payload that nobody may read in a log"

func newLoad(t *testing.T, f failing) *load {
	l := &load{
		T: t, failing: f, bound: time.Second, queues: map[string]*sluice.Queue{}, probes: map[string]*probe{}, steps: map[string]int{}, holders: map[string][]*sluice.Lock{},
		fenced: map[string][]grant{}, registers: map[string]*register{}, tasks: map[string]*fate{},
		errors: map[string]int{}, tokens: map[string]bool{}, double: map[string]int{},
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	t.Cleanup(func() { l.stop(); l.running.Wait(); l.workers.Wait() })
	return l
}

// start has three Lockers contend for two locks on each primary, one of them
// fenced, and on each a queue with producers, a worker and a loop of a caller's own.
func (l *load) start() {
	client := func() redis.UniversalClient { return l.servers.Client(l) }
	for i := range 3 {
		locker := newLocker(l.T, client())
		for _, tag := range l.tags {
			for n := range 2 {
				who := fmt.Sprint(tag, i, n)
				l.goOn("plain lock "+who, func() bool { return l.contend(locker, tag+"plain", false) })
				l.goOn("fenced lock "+who, func() bool { return l.contend(locker, tag+"fenced", true) })
			}
		}
	}
	prober := newLocker(l.T, client())
	for _, tag := range l.tags {
		l.probes[tag+"lock"], l.probes[tag+"queue"] = &probe{}, &probe{}
		name := tag + redistest.Name(l)
		produce, consume := l.queue(client(), name), l.queue(client(), name)
		l.queues["Queue:"+name] = produce
		l.goOn("producer"+tag, func() bool { return l.produce(produce, tag, nil) })
		l.goOn("probe of the queue"+tag, func() bool { return l.produce(produce, tag, l.probes[tag+"queue"]) })
		l.goOn("probe of a lock"+tag, func() bool { return l.probeLock(prober, tag) })
		l.consume(consume, "loop"+tag)
		w := &sluice.Worker{Queue: consume, Concurrency: 8, Lease: 3 * time.Second, Logger: slog.New(slog.NewTextHandler(&l.log, nil)),
			Handler: func(_ context.Context, e sluice.Entry) error { l.handled("worker"+tag, e); return nil }}
		l.workers.Go(func() { _ = w.Run(l.ctx) })
	}
}

func (l *load) queue(rdb redis.UniversalClient, name string) *sluice.Queue {
	q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(0))
	require.NoError(l, err)
	return q
}

// goOn does something again and again, and counts how often it was done.
func (l *load) goOn(who string, do func() bool) {
	l.step(who, 0)
	l.running.Go(func() {
		for !l.isClosing() && l.ctx.Err() == nil {
			if do() {
				l.step(who, 1)
			} else {
				time.Sleep(10 * time.Millisecond) // nobody hammers a server that is down
			}
		}
	})
}

func (l *load) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing
}

func (l *load) step(who string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps[who] += n
}

// contend takes a lock and works under it: mostly for a moment, sometimes for long,
// and sometimes for longer than it is held.
func (l *load) contend(locker *sluice.Locker, name string, fenced bool) bool {
	const ttl = 800 * time.Millisecond
	options := []sluice.LockOption{sluice.WithTTL(ttl)}
	hold, how := rand.N(4*time.Millisecond), rand.IntN(400)
	switch {
	case how < 3:
		hold, options = ttl+rand.N(ttl), append(options, sluice.WithAutoRenew())
	case how < 5:
		hold = ttl + rand.N(ttl/2) // too long
	}
	if fenced {
		options = append(options, sluice.WithFencing())
	}
	called := time.Now()
	k, err := locker.Lock(l.ctx, name, options...)
	if err != nil {
		l.failed("lock", called, err, sluice.ErrLocked)
		return false
	}
	g := grant{fence: k.Fence(), sent: k.Deadline().Add(-ttl + ttl/100 + 2*time.Millisecond), known: time.Now()}
	if time.Since(g.sent) < 0 || time.Since(g.sent) > ttl/4 { // renewed meanwhile
		g.sent = called
	}
	g = l.taken(name, k, g, fenced)
	time.Sleep(hold) // work
	if fenced {
		l.write(name, g)
	}
	l.left(name, k)
	released := time.Now()
	if err := k.Unlock(l.ctx); err != nil && !errors.Is(err, sluice.ErrNotHeld) {
		l.failed("unlock", released, err, sluice.ErrLocked)
	}
	time.Sleep(rand.N(4 * time.Millisecond)) // other work
	return true
}

// handed is for how long a lock goes from hand to hand within a process. By its fence
// it is as old as when the process got it from Redis.
const handed = 10 * time.Millisecond

// taken notes a grant, and whether anybody else holds the lock too.
func (l *load) taken(name string, k *sluice.Lock, g grant, fenced bool) grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants++
	if l.tokens[k.Token()] {
		g.sent = g.sent.Add(-handed)
	}
	l.tokens[k.Token()] = true
	for _, other := range l.holders[name] {
		if other.Valid() && k.Valid() {
			l.double[l.kind]++
		}
	}
	l.holders[name] = append(l.holders[name], k)
	if fenced {
		l.fenced[name] = append(l.fenced[name], g)
	}
	return g
}

// left notes that a lock is about to be released.
func (l *load) left(name string, k *sluice.Lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holders[name] = slices.DeleteFunc(l.holders[name], func(other *sluice.Lock) bool { return other == k })
}

// write writes to what a fenced lock guards, without asking whether the lock is
// still held. What is let in must not be older than what was let in before.
func (l *load) write(name string, g grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.registers[name]
	if r == nil {
		r = &register{}
		l.registers[name] = r
	}
	if g.fence < r.fence {
		r.refused++
		return
	}
	if g.known.Before(r.last.sent) {
		l.wrong = append(l.wrong, fmt.Sprintf("%s: a stale write was let in: fence %d after %d", name, g.fence, r.fence))
	}
	r.taken++
	r.fence = g.fence
	if r.last.sent.Before(g.sent) {
		r.last = g
	}
}

// produce makes a task. With a probe it is one that does not wait for long.
func (l *load) produce(q *sluice.Queue, tag string, p *probe) bool {
	id := fmt.Sprintf("%s.%d", tag, rand.Int64())
	l.mu.Lock()
	task := &fate{kind: l.kind}
	l.tasks[id] = task
	l.mu.Unlock()
	ctx, cancel := l.ctx, context.CancelFunc(func() {})
	if p != nil {
		ctx, cancel = context.WithTimeout(l.ctx, l.bound)
	}
	defer cancel()
	called := time.Now()
	_, err := q.Enqueue(ctx, sluice.Task{ID: id, Payload: []byte(payload), Delay: rand.N(200 * time.Millisecond)})
	if err == nil && p != nil {
		p.success()
	}
	l.mu.Lock()
	task.acknowledged = err == nil
	task.refused = err != nil && !errors.Is(err, sluice.ErrUnknown)
	l.mu.Unlock()
	if err != nil {
		l.failed("enqueue", called, err)
	}
	time.Sleep(5*time.Millisecond + rand.N(5*time.Millisecond)) // other work
	return err == nil
}

// probeLock takes a lock that nobody else wants, if it can be had soon.
func (l *load) probeLock(locker *sluice.Locker, tag string) bool {
	ctx, cancel := context.WithTimeout(l.ctx, l.bound)
	defer cancel()
	called := time.Now()
	k, err := locker.Lock(ctx, tag+"probe", sluice.WithTTL(time.Second))
	if err != nil {
		l.failed("probe", called, err, sluice.ErrLocked) // of its own, whose release was lost
		return false
	}
	l.probes[tag+"lock"].success()
	called = time.Now()
	if err := k.Unlock(ctx); err != nil {
		l.failed("unlock", called, err, sluice.ErrNotHeld)
	}
	time.Sleep(5 * time.Millisecond) // other work
	return true
}

// consume is a caller's own loop.
func (l *load) consume(q *sluice.Queue, who string) {
	l.step(who, 0)
	l.workers.Go(func() {
		for l.ctx.Err() == nil {
			called := time.Now()
			err := q.Wait(l.ctx)
			if err == nil {
				called = time.Now()
				var es []sluice.Entry
				if es, err = q.Claim(l.ctx, 10, 3*time.Second); err == nil && len(es) > 0 {
					for _, e := range es {
						l.handled(who, e)
					}
					called = time.Now()
					err = q.Dequeue(l.ctx, es...)
				}
			}
			if err != nil {
				l.failed("loop", called, err, sluice.ErrStale)
				time.Sleep(10 * time.Millisecond) // as the doc of Wait says
			}
		}
	})
}

func (l *load) handled(who string, e sluice.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps[who]++
	task := l.tasks[e.ID]
	switch {
	case task == nil:
		l.wrong = append(l.wrong, "a task that nobody made")
	case string(e.Payload) != payload:
		l.wrong = append(l.wrong, "a task without its payload")
	default:
		task.handled++
	}
}

// failed notes an error. Some mean something that did not happen, or should have been
// waited for.
func (l *load) failed(op string, called time.Time, err error, allowed ...error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	text := err.Error()
	l.errors[digits.ReplaceAllString(text, "N")]++
	l.wrongText(text)
	var server redis.Error
	var dial *net.OpError
	if op == "enqueue" && errors.Is(err, sluice.ErrUnknown) && errors.As(err, &dial) && dial.Op == "dial" {
		l.wrong = append(l.wrong, "not sent, and called unknown: "+text)
	}
	for _, never := range []error{sluice.ErrInvalid, sluice.ErrCorrupt, sluice.ErrClosed, sluice.ErrNotFound, sluice.ErrStale, sluice.ErrLocked, sluice.ErrNotHeld} {
		if errors.Is(err, never) && !slices.Contains(allowed, never) {
			l.wrong = append(l.wrong, op+": "+text)
		}
	}
	if errors.As(err, &server) && time.Since(called) < patience {
		l.wrong = append(l.wrong, op+": "+text)
	}
}

// patience is for how long READONLY, CLUSTERDOWN and the like are waited for.
const patience = 10 * time.Second

var (
	digits = regexp.MustCompile(`[0-9]+`)
	secret = regexp.MustCompile(`[A-Z2-7]{26}`)
)

// wrongText looks for secrets in what an error or a log says. Call it with mu.
func (l *load) wrongText(text string) {
	for _, word := range secret.FindAllString(text, -1) {
		if l.tokens[word] {
			l.wrong = append(l.wrong, "a token: "+text)
		}
	}
	if strings.Contains(text, payload) {
		l.wrong = append(l.wrong, "a payload: "+text)
	}
}

// fail has a primary fail, waits until another has taken its place and everybody has
// gone on, and brings the old one back. It returns how long that took everybody.
func (l *load) fail(kind, tag string) time.Duration {
	l.Helper()
	old := l.primary(tag)
	require.NotNil(l, old)
	for _, p := range l.probes {
		p.reset()
	}
	l.mu.Lock()
	l.kind = kind
	l.mu.Unlock()
	begun := time.Now()
	switch kind {
	case killed:
		old.Down()
	case hung:
		old.Pause(l)
	}
	var again time.Time
	var refused error
	for now := old; now == nil || now.Addr == old.Addr; now = l.primary(tag) {
		require.Less(l, time.Since(begun), time.Minute, "nobody was promoted: %s, %v", kind, refused)
		if kind == asked && time.Now().After(again) {
			refused, again = l.promote(old), time.Now().Add(5*time.Second)
		}
		time.Sleep(10 * time.Millisecond) // processes
	}
	if kind == hung {
		time.Sleep(rand.N(300 * time.Millisecond)) // the longer, the more of its clients have left it
		old.Resume(l)
	}
	l.awaitSteps()
	took := time.Since(begun)
	if kind == killed {
		old.Up(l) // nobody was told by the old one where to go
	}
	l.servers.AwaitWhole(l)
	return took.Round(time.Millisecond)
}

// awaitSteps waits until everybody has gone on.
func (l *load) awaitSteps() {
	l.Helper()
	begun := time.Now()
	l.mu.Lock()
	before := map[string]int{}
	for who, n := range l.steps {
		before[who] = n
	}
	l.mu.Unlock()
	for {
		var stuck []string
		l.mu.Lock()
		for who, n := range before {
			if l.steps[who] == n {
				stuck = append(stuck, who)
			}
		}
		l.mu.Unlock()
		if len(stuck) == 0 {
			return
		}
		require.Less(l, time.Since(begun), 30*time.Second, "stuck: %q", stuck)
		time.Sleep(5 * time.Millisecond) // they work
	}
}

// finish ends those who make work, waits until the rest is done, and ends those who
// do it.
func (l *load) finish() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.running.Wait()
	for _, q := range l.queues {
		require.Eventually(l, func() bool {
			s, err := q.Stats(l.ctx)
			return err == nil && s.Due+s.Scheduled == 0
		}, 20*time.Second, 20*time.Millisecond, "the queue never ran empty")
	}
	l.stop()
	l.workers.Wait()
}

// lostTasks is how many acknowledged tasks were lost, by what had failed last.
func (l *load) lostTasks() map[string]int {
	lost := map[string]int{}
	for _, task := range l.tasks {
		if task.acknowledged && task.handled == 0 {
			lost[task.kind]++
		}
	}
	return lost
}

func (l *load) report() {
	acknowledged, unknown, refused, twice, unknownDone := 0, 0, 0, 0, 0
	for _, task := range l.tasks {
		switch {
		case task.acknowledged:
			acknowledged++
		case task.refused:
			refused++
		default:
			unknown++
			unknownDone += min(task.handled, 1)
		}
		if task.handled > 1 {
			twice++
		}
	}
	fences, taken, turned := 0, 0, 0
	for name, r := range l.registers {
		fences += len(l.fenced[name])
		taken, turned = taken+r.taken, turned+r.refused
	}
	l.Logf("%d locks granted, %d of them while another handle was valid (%v); %d fences, %d fenced writes taken, %d stale ones refused",
		l.grants, sum(l.double), l.double, fences, taken, turned)
	lost := l.lostTasks()
	l.Logf("%d tasks acknowledged, %d of them lost (%v), %d unknown of which %d were done, %d refused; %d handled more than once",
		acknowledged, sum(lost), lost, unknown, unknownDone, refused, twice)
	for text, n := range l.errors {
		l.Logf("%5d × %s", n, text)
	}
}

func sum(counts map[string]int) (all int) {
	for _, n := range counts {
		all += n
	}
	return all
}

// check requires what no failover may take away.
func (l *load) check() {
	l.wrongText(l.log.String())
	for name, gs := range l.fenced {
		l.wrong = append(l.wrong, wrongFences(name, gs)...)
	}
	for id, task := range l.tasks {
		if task.refused && task.handled > 0 {
			l.wrong = append(l.wrong, "a task that was refused has been done: "+id)
		}
	}
	rdb := l.servers.Client(l)
	for key, q := range l.queues {
		s, err := q.Stats(context.Background())
		require.NoError(l, err)
		if left := rdb.HLen(context.Background(), key+":tasks").Val() + rdb.HLen(context.Background(), "{"+key+"}:tasks").Val(); left+s.Dead != 0 {
			l.wrong = append(l.wrong, fmt.Sprintf("%s: %d fields and %d dead letters are left of an empty queue", key, left, s.Dead))
		}
	}
	require.Empty(l, l.wrong[:min(len(l.wrong), 20)], "%d in all", len(l.wrong))
	require.NotZero(l, l.grants)
}

// wrongFences returns which fences were given twice, and which do not rise in the order
// in which they were given.
func wrongFences(name string, gs []grant) (wrong []string) {
	known := slices.Clone(gs)
	slices.SortFunc(gs, func(a, b grant) int { return a.sent.Compare(b.sent) })
	slices.SortFunc(known, func(a, b grant) int { return a.known.Compare(b.known) })
	seen := map[int64]bool{}
	highest := int64(0) // of those that were known before this one was asked for
	for _, g := range gs {
		for len(known) > 0 && known[0].known.Before(g.sent) {
			highest, known = max(highest, known[0].fence), known[1:]
		}
		if seen[g.fence] {
			wrong = append(wrong, fmt.Sprintf("%s: fence %d was given twice", name, g.fence))
		}
		if g.fence <= highest {
			wrong = append(wrong, fmt.Sprintf("%s: fence %d was given after %d", name, g.fence, highest))
		}
		seen[g.fence] = true
	}
	return wrong
}

// TestReadOnlyForAWhile: a server that is a replica for a moment, as some are in a
// failover, is waited for by every operation.
func TestReadOnlyForAWhile(t *testing.T) {
	t.Parallel()
	ctx, s := t.Context(), redistest.Start(t)
	rdb := s.Client(t)
	l, q := newLocker(t, rdb), newQueue(t, rdb)
	var plain, fenced *sluice.Lock
	var es []sluice.Entry
	for i, operation := range []func() (err error){
		func() (err error) { plain, err = l.Lock(ctx, "plain"); return err },
		func() (err error) { fenced, err = l.TryLock(ctx, "fenced", sluice.WithFencing()); return err },
		func() error { return plain.Extend(ctx, time.Minute) },
		func() error { return plain.Unlock(ctx) },
		func() error { return fenced.Unlock(ctx) },
		func() error { _, err := q.Enqueue(ctx, sluice.Task{ID: "a"}); return err },
		func() (err error) { es, err = q.Claim(ctx, 1, time.Minute); return err },
		func() error { return q.Dequeue(ctx, es...) },
	} {
		require.NoError(t, rdb.ReplicaOf(ctx, "127.0.0.1", "1").Err())
		result := make(chan error, 1)
		go func() { result <- operation() }()
		select {
		case err := <-result:
			t.Fatalf("operation %d has not waited: %v", i, err)
		case <-time.After(100 * time.Millisecond):
		}
		require.NoError(t, rdb.ReplicaOf(ctx, "no", "one").Err())
		require.NoError(t, <-result, "operation %d", i)
	}
	require.Len(t, es, 1)
}
