package model_test

import (
	"context"
	"sync"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-go/sluice"
)

// section is how long each caller of a crowd stays, by the bubble's clock: not long enough for a
// poll in all.
const section = 5 * time.Millisecond

// crowd lets more callers than there are permits want one. Each gets one, without a poll, and never
// are more inside than there are permits left.
func (m *permitMachine) crowd(t *rapid.T) {
	c := m.drawCall(t)
	callers := rapid.SliceOfN(rapid.IntRange(0, 2), 1, 5).Draw(t, "lockers")
	free := m.room(t, c, callers)
	w := &crowd{free: free, fences: map[int64]bool{}, above: m.fence, stay: m.letStay}
	var all sync.WaitGroup
	for _, locker := range callers {
		all.Go(func() { w.visit(m.lockers[locker], m.name, c.opts) })
	}
	all.Wait()
	require.Empty(t, w.failures)
	require.Equal(t, len(callers), w.visits)
	if m.fence = max(m.fence, w.highest); c.fenced {
		require.Len(t, w.fences, len(callers), "two have the same fence")
	}
	if m.virtual {
		require.Equal(t, min(free, len(callers)), w.most, "permits that were left unused")
		require.Less(t, time.Since(m.at), retryInterval/2, "a caller had to poll")
	}
	m.rewrites += w.visits
	m.counts.add("crowd")
	m.forget(callers)
	m.end(t)
}

// room returns how many permits are left for a crowd. It skips one during which that would change,
// or of which the model could not say what the Lockers have beside their queues.
func (m *permitMachine) room(t *rapid.T, c permitCall, lockers []int) (free int) {
	held := m.permits.Held
	switch free = c.number - len(held); {
	case m.key.Token != 0, len(held) > 0 && m.permits.Number != c.number, free == 0:
		t.Skip("none is free")
	case len(held) > 0 && held[0].Ends < m.now()+1000:
		t.Skip("one more will be free")
	}
	for _, locker := range lockers {
		if len(m.apart[locker])+c.number > 5 {
			t.Skip("not known which are dropped")
		}
	}
	for _, h := range m.handles {
		if left := time.Until(h.deadline); !h.over && left > 0 && left < time.Second {
			t.Skip("not known when it is dropped")
		}
	}
	return free
}

// letStay lets a caller of a crowd stay for its section.
func (m *permitMachine) letStay() {
	if m.virtual {
		time.Sleep(section) // the bubble's clock
	}
}

// forget notes that these Lockers have dropped what had ended when they took a permit.
func (m *permitMachine) forget(lockers []int) {
	for _, locker := range lockers {
		h := &handle{locker: locker}
		m.setApart(h)
		m.leave(h)
	}
}

// crowd is callers that want a permit at the same time.
type crowd struct {
	free  int
	above int64 // every fence is higher
	stay  func()

	mu           sync.Mutex // guards what follows
	inside, most int
	visits       int
	fences       map[int64]bool
	highest      int64
	failures     []string
}

// visit takes a permit, stays, and gives it back.
func (w *crowd) visit(l *sluice.Locker, name string, opts []sluice.LockOption) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	lock, err := l.Lock(ctx, name, opts...)
	if err == nil {
		w.enter(lock)
		w.stay()
		w.leave()
		err = lock.Unlock(context.Background())
	}
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.failures = append(w.failures, err.Error())
	}
}

func (w *crowd) enter(lock *sluice.Lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.visits++
	w.inside++
	w.most = max(w.most, w.inside)
	if w.inside > w.free {
		w.failures = append(w.failures, "more inside than there are permits")
	}
	if fence := lock.Fence(); fence != 0 {
		w.fences[fence], w.highest = true, max(w.highest, fence)
		if fence <= w.above {
			w.failures = append(w.failures, "a fence that is not higher")
		}
	}
}

func (w *crowd) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside--
}
