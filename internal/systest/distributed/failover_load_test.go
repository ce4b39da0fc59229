package distributed

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
	"github.com/sluice-go/sluice/internal/systest"
)

// load is callers of all kinds, and what became of them.
type load struct {
	*testing.T
	failing
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup // the callers that take locks and make tasks
	workers  sync.WaitGroup
	log      systest.Buffer
	queues   map[string]*sluice.Queue // by key
	probes   map[string]*probe
	bound    time.Duration // of a probe's calls
	replicas int           // that are to acknowledge what is counted; 0 for none

	mu        sync.Mutex // guards what follows
	steps     map[string]int
	holders   map[string][]*sluice.Lock
	fenced    map[string][]systest.Grant
	registers map[string]*register
	tasks     map[string]*taskRecord
	errors    map[string]int
	tokens    map[string]bool
	wrong     []string
	grants    int
	double    map[string]int // two handles that were valid at once, by what had failed last
	kind      string         // what has failed last
	closing   bool
}

// register is what a fenced lock guards: it takes what has a fence no lower than all
// before.
type register struct {
	last           systest.Grant // of those that were let in the latest
	fence          int64
	taken, refused int
}

// taskRecord is what became of a task.
type taskRecord struct {
	acknowledged, refused bool
	handled               int
	kind                  string // what had failed last
}

// probe is a caller that measures for how long its calls fail.
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

const payload = "a payload that must not be in a log"

func newLoad(t *testing.T, f failing, replicas int) *load {
	l := &load{
		replicas: replicas,
		T:        t, failing: f, bound: time.Second, queues: map[string]*sluice.Queue{}, probes: map[string]*probe{}, steps: map[string]int{}, holders: map[string][]*sluice.Lock{},
		fenced: map[string][]systest.Grant{}, registers: map[string]*register{}, tasks: map[string]*taskRecord{},
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
		locker := systest.NewLocker(l.T, client(), sluice.WithLockReplicas(l.replicas))
		for _, tag := range l.tags {
			for n := range 2 {
				who := fmt.Sprint(tag, i, n)
				l.goOn("plain lock "+who, func() bool { return l.contend(locker, tag+"plain", false) })
				l.goOn("fenced lock "+who, func() bool { return l.contend(locker, tag+"fenced", true) })
			}
		}
	}
	prober := systest.NewLocker(l.T, client(), sluice.WithLockReplicas(l.replicas))
	for _, tag := range l.tags { // before the goroutines below, which read the map
		l.probes[tag+"lock"], l.probes[tag+"queue"] = &probe{}, &probe{}
	}
	for _, tag := range l.tags {
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
	q, err := sluice.NewQueue(rdb, name, sluice.WithMaxAttempts(-1), sluice.WithQueueReplicas(l.replicas))
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
				time.Sleep(10 * time.Millisecond) // no caller hammers a server that is down
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
	g := systest.Grant{Fence: k.Fence(), Sent: k.Deadline().Add(-ttl + ttl/100 + 2*time.Millisecond), Known: time.Now()}
	if time.Since(g.Sent) < 0 || time.Since(g.Sent) > ttl/4 { // renewed meanwhile
		g.Sent = called
	}
	g = l.taken(name, k, g, fenced)
	time.Sleep(hold) // the work, for longer than the TTL at times
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

// handed is for how long a lock is handed over within a process. By its fence it may be as
// old as when the process got it from Redis: a tenth of the TTL, while the server is slow.
const handed = 80 * time.Millisecond

// taken notes a grant, and whether another handle of the lock is valid too.
func (l *load) taken(name string, k *sluice.Lock, g systest.Grant, fenced bool) systest.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants++
	if l.tokens[k.Token()] {
		g.Sent = g.Sent.Add(-handed)
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
func (l *load) write(name string, g systest.Grant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.registers[name]
	if r == nil {
		r = &register{}
		l.registers[name] = r
	}
	if g.Fence < r.fence {
		r.refused++
		return
	}
	if g.Known.Before(r.last.Sent) {
		l.wrong = append(l.wrong, fmt.Sprintf("%s: a stale write was let in: fence %d after %d", name, g.Fence, r.fence))
	}
	r.taken++
	r.fence = g.Fence
	if r.last.Sent.Before(g.Sent) {
		r.last = g
	}
}

// produce makes a task. With a probe it is one that does not wait for long.
func (l *load) produce(q *sluice.Queue, tag string, p *probe) bool {
	id := fmt.Sprintf("%s.%d", tag, rand.Int64())
	l.mu.Lock()
	task := &taskRecord{kind: l.kind}
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
	task.refused = err != nil && !errors.Is(err, sluice.ErrUnknown) && !errors.Is(err, sluice.ErrUnderReplicated)
	l.mu.Unlock()
	if err != nil {
		l.failed("enqueue", called, err)
	}
	time.Sleep(5*time.Millisecond + rand.N(5*time.Millisecond)) // other work
	return err == nil
}

// probeLock takes an uncontended lock, if it can be had soon.
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
		l.wrong = append(l.wrong, "a task that was never made")
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
	inVain := errors.Is(err, context.DeadlineExceeded) || strings.Contains(text, "no reply in time") // at the lock's end
	if errors.Is(err, sluice.ErrUnderReplicated) {
		if l.replicas == 0 {
			l.wrong = append(l.wrong, op+": "+text)
		}
		return // WAIT has its own errors: the primary has become a replica
	}
	if errors.As(err, &server) && time.Since(called) < unavailableFor && (!inVain || !errors.Is(err, sluice.ErrUnavailable)) {
		l.wrong = append(l.wrong, op+": "+text)
	}
}

// unavailableFor is for how long the library retries after READONLY, CLUSTERDOWN and the
// like, unless the caller's context or the lock ends before.
const unavailableFor = 10 * time.Second

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

// awaitSteps waits until every caller has gone on.
func (l *load) awaitSteps() {
	l.Helper()
	systest.AwaitSteps(l, &l.mu, l.steps, 30*time.Second)
}

// finish ends the callers that make work, waits until the rest is done, and ends the
// workers.
func (l *load) finish() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.running.Wait()
	for _, q := range l.queues {
		require.Eventually(l, func() bool {
			s, err := q.Stats(l.ctx)
			return err == nil && s.Due+s.Scheduled+s.Leased == 0
		}, 20*time.Second, 20*time.Millisecond, "the queue never ran empty")
	}
	l.stop()
	l.workers.Wait()
}
