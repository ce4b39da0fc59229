package sluice

import (
	"context"
	"slices"
	"sync"
)

// bring moves tasks to their new shards first, if they are still in a former one.
func (q *Queue) bring(ctx context.Context, l *layout, ids ...string) error {
	byShard := map[int][]string{}
	for _, id := range ids {
		if i := l.from.indexOf(id); !l.drained[i].Load() {
			byShard[i] = append(byShard[i], id)
		}
	}
	for i, named := range byShard {
		for part := range slices.Chunk(named, maxGroup) {
			err := l.gates[i].pass(ctx, part, func(ids []string) error { return (move{q, l, i}).named(ctx, ids) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// gate merges what the operations of one client bring out of a former shard: one of them at a time moves the
// tasks of all that wait. Otherwise each would put what the others have in transit, again and again.
type gate struct {
	busy   chan struct{} // holds a value while an operation moves tasks
	mu     sync.Mutex    // guards wishes
	wishes []*wish
}

// wish is what an operation waits for at a gate.
type wish struct {
	ids  []string
	done chan struct{} // closed when they have been moved
}

func newGates(n int) []*gate {
	gates := make([]*gate, n)
	for i := range gates {
		gates[i] = &gate{busy: make(chan struct{}, 1)}
	}
	return gates
}

// pass returns when tasks have been moved, by move or by another operation that calls it. It returns what
// move returns for these tasks, or the error of ctx.
func (g *gate) pass(ctx context.Context, ids []string, move func(ids []string) error) error {
	w := &wish{ids, make(chan struct{})}
	g.add(w)
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		g.remove(w)
		return ctx.Err()
	case g.busy <- struct{}{}:
	}
	defer func() { <-g.busy }()
	select {
	case <-w.done:
		return nil
	default:
	}
	g.remove(w)
	group := append([]*wish{w}, g.next(maxGroup-len(ids))...)
	var all []string
	for _, one := range group {
		all = append(all, one.ids...)
	}
	slices.Sort(all)
	if err := move(slices.Compact(all)); err != nil {
		g.add(group[1:]...) // each tries for itself, with a context of its own
		return err
	}
	for _, one := range group {
		close(one.done)
	}
	return nil
}

func (g *gate) add(ws ...*wish) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wishes = append(g.wishes, ws...)
}

func (g *gate) remove(w *wish) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wishes = slices.DeleteFunc(g.wishes, func(one *wish) bool { return one == w })
}

// next takes out wishes, in the order in which they came, for up to n tasks.
func (g *gate) next(n int) []*wish {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := 0
	for taken < len(g.wishes) && n >= len(g.wishes[taken].ids) {
		n -= len(g.wishes[taken].ids)
		taken++
	}
	group := slices.Clone(g.wishes[:taken])
	g.wishes = slices.Delete(g.wishes, 0, taken)
	return group
}
