package queues

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

const (
	// The pause between two looks at a task is this share of the time for which it has been waited
	// for, within these bounds.
	lookShare             = 20
	lookOften, lookSeldom = 20 * time.Millisecond, 500 * time.Millisecond
	// lookEach is what the pause is at least for each task that is waited for: once or twice what a
	// look at it takes the server.
	lookEach = 5 * time.Microsecond
	// lookMost is how many tasks are looked at together: what the first of them are is told before
	// the others are looked at.
	lookMost = 4 * store.MaxGroup
	// lookFor bounds a look.
	lookFor = 5 * time.Second
)

// awaiting are the tasks that calls of Await wait for. All of them are looked at together.
type awaiting struct {
	queue *Queue
	loop  *background.Loop // looks, while there are any
	count atomic.Int64     // of tasks

	mu    sync.Mutex // guards what follows
	tasks map[string]*awaited
	next  awaitedHeap // all, the one that is to be looked at next first
}

// awaited is a task that calls wait for.
type awaited struct {
	id    string
	calls int
	since time.Time // when the last call came
	at    time.Time // when it is to be looked at
	place int       // in the heap
	score string    // of the last look: while it has that, it has not ended
	alive time.Time // when a look found it not ended, by the server's clock
	looks int       // that have begun
	err   error     // of the last look

	ended chan struct{} // closed when the result is there
	info  store.Info
	found error
}

// awaitedHeap is a heap.Interface.
type awaitedHeap []*awaited

func (h awaitedHeap) Len() int           { return len(h) }
func (h awaitedHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h awaitedHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}
func (h *awaitedHeap) Push(x any) {
	t, _ := x.(*awaited)
	t.place = len(*h)
	*h = append(*h, t)
}
func (h *awaitedHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}

func newAwaiting(q *Queue) *awaiting {
	a := &awaiting{queue: q, tasks: map[string]*awaited{}}
	// It ends when no task is awaited; the calls that wait for one wait for it.
	a.loop = background.NewLoop(q.Executor.StartFunc, a.look)
	return a
}

// Await waits until a task is done or dead, and returns it; ErrNotFound if it is gone.
func (q *Queue) Await(ctx context.Context, id string) (store.Info, error) {
	for {
		t, looks := q.awaiting.enter(id)
		select {
		case <-t.ended:
			if t.looks > looks {
				return t.info, t.found
			} // else that look had begun before this call: it may know less than the caller does
		case <-ctx.Done():
			if err := q.awaiting.leave(t); err != nil {
				return store.Info{}, errors.Join(ctx.Err(), err)
			}
			return store.Info{}, ctx.Err()
		}
	}
}

// enter adds a call, and returns how many looks at the task have begun. It is looked at now.
func (a *awaiting) enter(id string) (t *awaited, looks int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t = a.tasks[id]; t == nil {
		t = &awaited{id: id, ended: make(chan struct{})}
		a.tasks[id] = t
		heap.Push(&a.next, t)
		a.count.Add(1)
	}
	t.calls++
	t.since = time.Now()
	a.lookNow(t)
	return t, t.looks
}

// leave takes away a call for a task that has not ended, and returns the error of the last look.
func (a *awaiting) leave(t *awaited) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.calls--; t.calls == 0 {
		a.remove(t)
	}
	return t.err
}

// remove takes a task off, if it is there. The caller holds the mutex.
func (a *awaiting) remove(t *awaited) {
	if a.tasks[t.id] == t {
		delete(a.tasks, t.id)
		heap.Remove(&a.next, t.place)
		a.count.Add(-1)
	}
}

// hint says that a task has ended, perhaps.
func (a *awaiting) hint(id string) {
	if a.count.Load() == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.tasks[id]; t != nil {
		a.lookNow(t)
	}
}

// lookNow has a task looked at. The caller holds the mutex.
func (a *awaiting) lookNow(t *awaited) {
	t.at = time.Time{}
	heap.Fix(&a.next, t.place)
	a.loop.Wake()
}

// look is a turn of the loop: it looks at the tasks that it is time to look at.
func (a *awaiting) look() time.Duration {
	due := a.take(time.Now())
	if len(due) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), lookFor)
		defer cancel()
		if ended := a.ask(ctx, due, 0); len(ended) > 0 {
			a.ask(ctx, ended, store.AllPayloads)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.next) == 0 {
		return background.Idle
	}
	return max(time.Until(a.next[0].at), time.Nanosecond)
}

// take returns the tasks to be looked at now, and when they are to be looked at again.
func (a *awaiting) take(now time.Time) (due []*awaited) {
	a.mu.Lock()
	defer a.mu.Unlock()
	least := max(lookOften, time.Duration(len(a.next))*lookEach)
	for len(due) < lookMost && len(a.next) > 0 && a.next[0].at.Before(now.Add(least/4)) { // those of about one time go together
		t := a.next[0]
		t.at = now.Add(max(least, min(now.Sub(t.since)/lookShare, lookSeldom)))
		t.looks++
		heap.Fix(&a.next, 0)
		due = append(due, t)
	}
	return due
}

// ask asks for tasks, and ends the wait for those that are gone. Without payloads, it returns those
// that have ended; with them, it ends the wait for these.
func (a *awaiting) ask(ctx context.Context, tasks []*awaited, p store.Payloads) (ended []*awaited) {
	parts := slices.Collect(slices.Chunk(tasks, store.MaxGroup))
	requests := make([]redisexec.Request, len(parts))
	for i, part := range parts {
		requests[i] = a.queue.Store.Get(p, a.wanted(part)...)
	}
	for i, result := range a.queue.Executor.Pipeline(ctx, requests) {
		err := result.Final()
		if errors.Is(err, redisexec.ErrUnknown) { // of a look, which changes nothing
			err = fmt.Errorf("%w: %v", redisexec.ErrUnavailable, result.Err) //nolint:errorlint // no other's context
		}
		var found []store.Info
		var now time.Time
		if err == nil {
			now, found, err = store.DecodeGot(result.Value, idsOf(parts[i])...)
		}
		if errors.Is(err, redisexec.ErrCorrupt) && len(parts[i]) > 1 { // one of them is no task of the library's
			for _, t := range parts[i] {
				ended = append(ended, a.ask(ctx, []*awaited{t}, p)...)
			}
			continue
		}
		ended = append(ended, a.note(parts[i], now, found, err, p == 0)...)
	}
	return ended
}

// wanted says what a script is to show of tasks.
func (a *awaiting) wanted(tasks []*awaited) []store.Wanted {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted := make([]store.Wanted, len(tasks))
	for i, t := range tasks {
		wanted[i] = store.Wanted{ID: t.id, Unless: t.score}
	}
	return wanted
}

func idsOf(tasks []*awaited) []string {
	ids := make([]string, len(tasks))
	for i, t := range tasks {
		ids[i] = t.id
	}
	return ids
}

// note notes what was found of tasks, or the error of the look. It returns those that have ended,
// and are to be asked for again.
func (a *awaiting) note(tasks []*awaited, now time.Time, found []store.Info, err error, again bool) (ended []*awaited) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range tasks {
		if t.err = err; err != nil && !errors.Is(err, redisexec.ErrUnavailable) {
			a.end(t, store.Info{}, err)
		}
	}
	for _, info := range found {
		t := a.tasks[info.ID]
		switch {
		case t == nil: // all its calls have left
		case info.State == store.StateAbsent:
			a.end(t, store.Info{}, ErrNotFound)
		case info.State != store.StateDone && info.State != store.StateDead:
			t.score, t.alive = store.ScoreText(info.Score), now
		case info.State == store.StateDone && store.TimeOf(info.Score).Before(t.alive): // of an earlier life
			a.end(t, store.Info{}, ErrNotFound)
		case again:
			ended = append(ended, t)
		default:
			a.end(t, info, nil)
		}
	}
	return ended
}

// end ends the wait for a task. The caller holds the mutex.
func (a *awaiting) end(t *awaited, info store.Info, err error) {
	if a.tasks[t.id] == t {
		t.info, t.found = info, err
		a.remove(t)
		close(t.ended)
	}
}
