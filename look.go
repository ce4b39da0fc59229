package sluice

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// client is what all Queues on one redis.UniversalClient share while callers wait for their
// tasks: the pub/sub connection, and the looks at queues that are idle.
type client struct {
	rdb      redis.UniversalClient
	notifier *notify.Notifier
	looker   looker
}

func newClient(rdb redis.UniversalClient) *client {
	c := &client{rdb: rdb, notifier: notify.New(rdb)}
	c.looker.executor = redisexec.New(rdb)
	c.looker.planned, c.looker.underWay = map[*idleLook]plan{}, map[*idleLook]bool{}
	c.looker.loop = background.NewLoop(c.looker.group.Go, c.looker.turn)
	return c
}

// registry finds the client of a redis.UniversalClient, by its address. It keeps neither alive:
// the Queues do. An address that is used again for another one is told by client.rdb.
type registry struct {
	mu        sync.Mutex // guards what follows
	byAddress map[uintptr]weak.Pointer[client]
}

var clients = registry{byAddress: map[uintptr]weak.Pointer[client]{}}

// clientOf returns the client of rdb, which is shared if rdb is a pointer. What else a user may
// implement the interface with cannot be compared, perhaps.
func (r *registry) clientOf(rdb redis.UniversalClient) *client {
	v := reflect.ValueOf(rdb)
	if v.Kind() != reflect.Pointer {
		return newClient(rdb)
	}
	address := v.Pointer()
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.byAddress[address].Value(); c != nil && c.rdb == rdb {
		return c
	}
	c := newClient(rdb)
	r.byAddress[address] = weak.Make(c)
	runtime.AddCleanup(c, r.forget, address)
	return c
}

// forget forgets a client that was collected.
func (r *registry) forget(address uintptr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byAddress[address].Value() == nil {
		delete(r.byAddress, address)
	}
}

const (
	// lookerLinger is how long the looker's loop outlives the last planned look.
	lookerLinger = time.Second
	// maxLook is the most queues that one script looks at.
	maxLook = 250
	// lookFor is how long a look at several queues may take: after that each queue looks for
	// itself, so that one connection that hangs does not keep all of them waiting.
	lookFor = time.Second
	// apartFor is how long queues are looked at by a script each, where the server has refused
	// to look at several with one.
	apartFor = time.Minute
)

// looker looks at the queues of one client at which nothing happens. What is due within half a
// poll interval is looked at with what is due now, so that all come to be looked at together.
//
// Its loop runs while a look is planned. Each look is a goroutine for itself, so that a server
// that hangs holds up no other of a Cluster; it ends with the answer, or after a second.
// Nothing waits for either.
type looker struct {
	executor *redisexec.Executor
	loop     *background.Loop
	group    background.Group // the loop and the looks

	mu         sync.Mutex // guards what follows
	planned    map[*idleLook]plan
	underWay   map[*idleLook]bool
	emptySince time.Time // when the last planned look was cancelled or made
	nextTurn   time.Time // of the loop, by itself; zero if it does not run
	apart      time.Time // until when one script looks at one queue
}

// plan is when a look is due, and how much earlier it may be made.
type plan struct {
	at    time.Time
	slack time.Duration
}

// idleLook is a look at a shard that is planned, or under way.
type idleLook struct {
	shard *shard
	found chan lookResult // cap 1
}

// lookResult is what a look has found. If failed, the queue has to be looked at alone.
type lookResult struct {
	head   head
	mark   notify.Mark // before it was sent
	sent   time.Time
	failed bool
}

// plan has a queue looked at, unless a look is under way.
func (l *looker) plan(i *idleLook, p plan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.underWay[i] {
		return
	}
	l.planned[i] = p
	if l.nextTurn.IsZero() || p.at.Before(l.nextTurn) {
		l.nextTurn = p.at
		l.loop.Wake()
	}
}

// cancel takes a planned look back.
func (l *looker) cancel(i *idleLook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.planned, i)
	if len(l.planned) > 0 || l.nextTurn.IsZero() {
		return
	}
	l.emptySince = time.Now()
	if end := l.emptySince.Add(lookerLinger); end.Before(l.nextTurn) {
		l.nextTurn = end
		l.loop.Wake()
	}
}

// turn looks at what is due, and returns when something will be.
func (l *looker) turn() time.Duration {
	due, apart, pause := l.due(time.Now())
	byNode := map[any][]*idleLook{}
	for _, i := range due {
		node := l.executor.NodeOf(i.shard.keys[0])
		byNode[node] = append(byNode[node], i)
	}
	for node, looks := range byNode {
		l.group.Go(func() { l.look(looks, apart || node != nil) })
	}
	return pause
}

// due takes the looks that are due, and says whether each needs a script of its own, and when
// the next turn is.
func (l *looker) due(now time.Time) (due []*idleLook, apart bool, pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	earliest, first := l.emptySince.Add(lookerLinger), true
	for _, p := range l.planned {
		if first || p.at.Before(earliest) {
			earliest, first = p.at, false
		}
	}
	if wait := earliest.Sub(now); wait > 0 {
		l.nextTurn = earliest
		return nil, false, wait
	}
	if len(l.planned) == 0 {
		l.nextTurn = time.Time{}
		return nil, false, background.Idle
	}
	for i, p := range l.planned {
		if p.at.Sub(now) <= p.slack {
			due = append(due, i)
			l.underWay[i] = true
			delete(l.planned, i)
		}
	}
	l.emptySince = now
	return due, now.Before(l.apart), 0
}

// look looks at queues of one server, and passes on what it has found. Scripts for one queue
// each go out in one pipeline.
func (l *looker) look(looks []*idleLook, apart bool) {
	for len(looks) > 0 {
		some := looks[:min(len(looks), maxLook)]
		looks = looks[len(some):]
		results := make([]lookResult, len(some))
		for n, i := range some {
			results[n] = lookResult{mark: i.shard.watcher.mark(), sent: time.Now(), failed: true}
		}
		if len(some) > 1 && !apart && l.together(some, results) {
			continue
		}
		requests := make([]redisexec.Request, len(some))
		for n, i := range some {
			requests[n] = i.shard.nextRequest()
		}
		l.separately(some, requests, results)
	}
}

// separately looks at queues with a script for each.
func (l *looker) separately(looks []*idleLook, requests []redisexec.Request, results []lookResult) {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	for n, r := range l.executor.Pipeline(ctx, requests) {
		l.answer(looks[n], r, 0, 1, results[n])
	}
}

// together looks at queues with one script. If it reports that it did not, the server has
// refused that: access rules forbid one of the keys, or they are in several slots.
func (l *looker) together(looks []*idleLook, results []lookResult) bool {
	keys, channels := make([]any, 2*len(looks)), make([]any, len(looks))
	for n, i := range looks {
		keys[2*n], keys[2*n+1], channels[n] = i.shard.keys[0], i.shard.pause(), i.shard.announce
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	r := l.executor.Pipeline(ctx, []redisexec.Request{scriptNextMany.Request(keys, channels...)})[0]
	if r.Outcome == redisexec.Rejected {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.apart = time.Now().Add(apartFor)
		return false
	}
	for n, i := range looks {
		l.answer(i, r, n, len(looks), results[n])
	}
	return true
}

// answer passes on what a script for so many queues has said of the n-th.
func (l *looker) answer(i *idleLook, r redisexec.Result, n, of int, result lookResult) {
	if r.Outcome == redisexec.Done {
		if heads, err := decodeNext(r.Value, of); err == nil {
			result.head, result.failed = heads[n], heads[n].failed
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.underWay, i)
	select {
	case <-i.found: // the watch has had others to do; the newer result counts
	default:
	}
	i.found <- result // there is room: only this sends, with the mutex held
}

// claimsWork reports whether a look was refused where claims are not, as access rules may have
// it. Then a caller is told now, and again in a poll interval: its claim is the look.
func (w *watcher) claimsWork(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, poll := time.Now(), w.shard.options.poll
	var refusal redis.Error
	if !errors.As(err, &refusal) || now.Sub(w.claimedAt) > 2*poll {
		return false
	}
	w.outlook.known, w.outlook.lookAt = false, now.Add(poll)
	w.tell(1, nil)
	return true
}

func (s *shard) nextRequest() redisexec.Request {
	return scriptNext.Request([]any{s.keys[0], s.pause()}, s.announce)
}

// head is what next.lua says of the head of a queue.
type head struct {
	off     time.Duration // until it is due, at most an hour
	id      string        // tells it from others; empty if none is due within an hour
	clients int           // that wait, or 0 for not counted
	failed  bool          // it could not be read beside others
}

// decodeNext decodes the heads of n queues.
func decodeNext(value any, n int) ([]head, error) {
	list, ok := value.([]any)
	if !ok || len(list) != 3*n {
		return nil, redisexec.Unexpected(value)
	}
	heads := make([]head, n)
	for i := range heads {
		numbers, err := decodeInts[int64]([]any{list[3*i], list[3*i+2]}, 2)
		if err != nil {
			return nil, err
		}
		id, ok := list[3*i+1].(string)
		if !ok {
			return nil, redisexec.Unexpected(value)
		}
		heads[i] = head{offOf(numbers[0]), id, int(numbers[1]), numbers[0] == -2}
	}
	return heads, nil
}
