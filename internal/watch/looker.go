package watch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// lookerLinger is how long the looker's loop outlives the last planned look.
	lookerLinger = time.Second
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
// Each look is a goroutine for itself, so that a server that hangs holds up no other of a Cluster.
type looker struct {
	executor *redisexec.Executor
	scripts  *store.Scripts
	loop     *background.Loop
	group    background.Group // the loop and the looks

	mu         sync.Mutex // guards what follows
	planned    map[*watch]time.Time
	underWay   map[*watch]bool
	emptySince time.Time // when the last planned look was cancelled or made
	nextTurn   time.Time // of the loop, by itself; zero if it does not run
	apart      time.Time // until when one script looks at one queue
}

// lookResult is what a look has found. If the head has Failed, the queue has to be looked at alone.
type lookResult struct {
	head store.Head
	mark notify.Mark // before it was sent
	sent time.Time
}

func (l *looker) init(executor *redisexec.Executor, scripts *store.Scripts) {
	l.executor, l.scripts = executor, scripts
	l.planned, l.underWay = map[*watch]time.Time{}, map[*watch]bool{}
	// plan wakes it. It ends when no look has been planned for lookerLinger; nothing waits for it.
	l.loop = background.NewLoop(l.group.Go, l.turn)
}

// plan has a watch's queue looked at by then, unless a look is under way.
func (l *looker) plan(w *watch, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.underWay[w] {
		return
	}
	l.planned[w] = at
	l.wakeBy(at)
}

// cancel takes a planned look back.
func (l *looker) cancel(w *watch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.planned, w)
	if len(l.planned) == 0 && !l.nextTurn.IsZero() {
		l.emptySince = time.Now()
		l.wakeBy(l.emptySince.Add(lookerLinger))
	}
}

// wakeBy has the loop take a turn by then. The mutex is held.
func (l *looker) wakeBy(at time.Time) {
	if l.nextTurn.IsZero() || at.Before(l.nextTurn) {
		l.nextTurn = at
		l.loop.Wake()
	}
}

// turn looks at what is due, and returns when something will be.
func (l *looker) turn() time.Duration {
	due, apart, pause := l.due(time.Now())
	for node, which := range l.executor.ByNode(len(due), func(i int) any { return due[i].watcher.queue.RoutingKey() }) {
		watches := make([]*watch, len(which))
		for i, at := range which {
			watches[i] = due[at]
		}
		// It ends after lookFor at most, for each script. Nothing waits for it, but the watches for
		// what it finds.
		l.group.Go(func() { l.look(watches, apart || node != nil) })
	}
	return pause
}

// due takes the looks that are due, and says whether each needs a script of its own, and when
// the next turn is.
func (l *looker) due(now time.Time) (due []*watch, apart bool, pause time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	earliest, first := l.emptySince.Add(lookerLinger), true
	for _, at := range l.planned {
		if first || at.Before(earliest) {
			earliest, first = at, false
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
	for w, at := range l.planned {
		if at.Sub(now) <= w.watcher.poll()/2 {
			due = append(due, w)
			l.underWay[w] = true
			delete(l.planned, w)
		}
	}
	l.emptySince = now
	return due, now.Before(l.apart), 0
}

// look looks at queues of one server, and passes on what it has found. One script looks at several,
// unless the server refuses that: access rules forbid one of the keys, or they are in several slots.
func (l *looker) look(watches []*watch, apart bool) {
	for some := range slices.Chunk(watches, store.MaxLook) {
		results, queues, size := make([]lookResult, len(some)), make([]store.Looking, len(some)), len(some)
		for i, w := range some {
			results[i] = lookResult{mark: w.watcher.Mark(), sent: time.Now(), head: store.Head{Failed: true}}
			queues[i] = w.watcher.looking(results[i].mark)
		}
		if apart {
			size = 1
		}
		replies := l.send(queues, size)
		if size > 1 && replies[0].Outcome == redisexec.Rejected {
			l.lookApart()
			apart, size = true, 1
			replies = l.send(queues, size)
		}
		for i, r := range replies {
			at := i * size
			l.answer(some[at:at+size], results[at:at+size], r)
		}
	}
}

// send sends a script for each so many queues, all in one pipeline.
func (l *looker) send(queues []store.Looking, size int) []redisexec.Result {
	var requests []redisexec.Request
	for some := range slices.Chunk(queues, size) {
		requests = append(requests, l.scripts.Look(some))
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookFor)
	defer cancel()
	return l.executor.Pipeline(ctx, requests)
}

// lookApart has the queues looked at by a script each, for a while.
func (l *looker) lookApart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.apart = time.Now().Add(apartFor)
}

// answer passes on what a script has said of the queues that it has looked at.
func (l *looker) answer(watches []*watch, results []lookResult, r redisexec.Result) {
	if r.Outcome == redisexec.Done {
		if heads, err := store.DecodeHeads(r.Value, len(watches)); err == nil {
			for i, h := range heads {
				results[i].head = h
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range watches {
		delete(l.underWay, w)
		select {
		case <-w.found: // the watch has had others to do; the newer result counts
		default:
		}
		w.found <- results[i] // there is room: only this sends, with the mutex held
	}
}
