package access

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// operation is one of the library's, on what guarded.prepare has put there: it says which
// locks and tasks there are, by names that tell their state. It returns what it has found, or nil.
type operation struct {
	name string
	run  func(ctx context.Context, g *guarded) (any, error)
}

// ofTable are the operations of the table, except Check, whose rights have a test of their own,
// Run, which goes on, and what takes or gives up locks of which a part may be denied, or does not
// say that a release was.
func ofTable(locks bool) (all []operation) {
	operations.EachKind(func(kind string, op operations.Operation, _ ...sluice.LockOption) {
		isPart := op.EndsLocker() || op.Name == "Locker.Do" || op.Name == "Locker.DoAll"
		if strings.HasPrefix(op.Name, "Lock") != locks || op.Lost == operations.Unavailable || op.Lost == operations.GoesOn || isPart {
			return
		}
		all = append(all, operation{kind, func(ctx context.Context, g *guarded) (any, error) {
			_, ofLock, _ := strings.Cut(kind, ", ")
			return op.Call(ctx, g.fixture(op.Needs, ofLock))
		}})
		for _, id := range further[op.Name] {
			all = append(all, operation{op.Name + " of " + id, func(ctx context.Context, g *guarded) (any, error) {
				f := g.fixture(op.Needs, "")
				f.Entry = g.task(id)
				return op.Call(ctx, f)
			}})
		}
	})
	return all
}

// further are other tasks for operations of the table.
var further = map[string][]string{
	"Queue.Enqueue":    {"later", "mine", "dead", "back"},
	"Queue.Dequeue":    {"mine, deferred"},
	"Queue.Retry":      {"mine, deferred, no payload"},
	"Queue.Extend":     {"mine, back"},
	"Queue.Bury":       {"mine, deferred, no payload", "mine, odd"},
	"Queue.Revive":     {"dead, no payload"},
	"Queue.Cancel":     {"dead", "later"},
	"Queue.Reschedule": {"mine", "lapsed", "later"},
	"Queue.Get":        {"dead", "later"},
}

func ofLocks() []operation {
	two, fencing := sluice.WithPermits(2), sluice.WithFencing()
	try := func(name string, opts ...sluice.LockOption) func(context.Context, *guarded) (any, error) {
		return func(ctx context.Context, g *guarded) (any, error) { return g.lockers[""].TryLock(ctx, name, opts...) }
	}
	return []operation{
		{"lock a taken one", func(ctx context.Context, g *guarded) (any, error) {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			return g.lockers[""].Lock(ctx, "taken")
		}},
		{"try lock a taken one", try("taken")},
		{"try lock one without TTL", try("eternal")},
		{"fenced lock of a taken one", try("taken", fencing)},
		{"fenced lock of one without TTL", try("eternal", fencing)},
		{"inspect a foreign one", func(ctx context.Context, g *guarded) (any, error) { return g.lockers[""].Inspect(ctx, "taken") }},
		{"force unlock a foreign one", func(ctx context.Context, g *guarded) (any, error) { return g.lockers[""].ForceUnlock(ctx, "taken") }},
		{"second permit", try("permits", two)},
		{"fenced permit", try("free", two, fencing)},
		{"adopt a fenced permit", func(ctx context.Context, g *guarded) (any, error) {
			return g.lockers[""].Adopt(ctx, "permits", g.locks["permit"].Token(), two, fencing, sluice.WithTTL(time.Hour))
		}},
		{"unlock one of two permits", func(ctx context.Context, g *guarded) (any, error) { return nil, g.oneOfTwo.Unlock(ctx) }},
	}
}

func ofQueues() []operation {
	enqueue := func(tasks ...sluice.Task) func(context.Context, *guarded) (any, error) {
		return func(ctx context.Context, g *guarded) (any, error) { return g.queue.EnqueueBatch(ctx, tasks) }
	}
	finish := func(finish func(*sluice.Queue, context.Context, ...sluice.Entry) error, ids ...string) func(context.Context, *guarded) (any, error) {
		return func(ctx context.Context, g *guarded) (any, error) {
			var es []sluice.Entry
			for _, id := range ids {
				es = append(es, g.task(id))
			}
			return nil, finish(g.queue, ctx, es...)
		}
	}
	list := func(s sluice.State) func(context.Context, *guarded) (any, error) {
		return func(ctx context.Context, g *guarded) (any, error) { return g.queue.List(ctx, s, sluice.TaskInfo{}, 99) }
	}
	p, far := []byte("p"), 2*time.Hour
	return append(slices.Concat(ofLimits(), ofHolders()), []operation{
		{"enqueue without a payload", enqueue(sluice.Task{ID: "a", Delay: far})},
		{"enqueue a new head", enqueue(sluice.Task{ID: "a", At: time.Unix(1, 0)})},
		{"enqueue several, some known", enqueue(sluice.Task{ID: "a", Payload: p, Delay: far}, sluice.Task{ID: "later", Delay: far},
			sluice.Task{ID: "dead", Delay: far}, sluice.Task{ID: "mine", Delay: far}, sluice.Task{ID: "back", Delay: far})},
		{"enqueue one twice", enqueue(sluice.Task{ID: "later", Payload: p, Delay: far}, sluice.Task{ID: "a", Delay: far}, sluice.Task{ID: "a", Delay: far})},
		{"enqueue a known one, payload removed", enqueue(sluice.Task{ID: "later", Delay: far})},
		{"enqueue a dead one, no payload", enqueue(sluice.Task{ID: "dead", Delay: far})},
		{"enqueue one that was put back, no payload", enqueue(sluice.Task{ID: "back", Delay: far})},
		{"enqueue in a group", enqueue(sluice.Task{ID: "first", Group: "g", Payload: p, Delay: far}, sluice.Task{ID: "second", Group: "g", Delay: 2 * far},
			sluice.Task{ID: "third", Group: "g", Delay: far / 2})},
		{"claim all", func(ctx context.Context, g *guarded) (any, error) { return g.queue.Claim(ctx, 99, time.Hour) }},
		{"pop all", func(ctx context.Context, g *guarded) (any, error) { return g.queue.Pop(ctx, 99) }},
		{"peek at all", func(ctx context.Context, g *guarded) (any, error) { return g.queue.Peek(ctx, 99) }},
		{"dequeue several", finish((*sluice.Queue).Dequeue, "mine", "mine, back", "mine, deferred, no payload", "mine, odd", "mine, deferred")},
		{"dequeue several, one of them stale", func(ctx context.Context, g *guarded) (any, error) {
			err := g.queue.Dequeue(ctx, g.task("mine, deferred"), sluice.Entry{ID: "mine", Score: 1})
			if errors.Is(err, sluice.ErrStale) {
				return nil, nil
			}
			return nil, err
		}},
		{"release several", finish((*sluice.Queue).Release, "mine", "mine, back", "mine, deferred, no payload", "mine, deferred")},
		{"dead, all", func(ctx context.Context, g *guarded) (any, error) {
			return g.queue.List(ctx, sluice.StateDead, sluice.TaskInfo{}, 99)
		}},
		{"list scheduled", list(sluice.StateScheduled)},
		{"list due", list(sluice.StateDue)},
		{"list leased", list(sluice.StateLeased)},
		{"resume what goes on", func(ctx context.Context, g *guarded) (any, error) { return nil, g.queue.Resume(ctx) }},
		{"revive two", func(ctx context.Context, g *guarded) (any, error) { return g.queue.Revive(ctx, "dead", "back") }},
	}...)
}

// ofLimits are operations on a queue that has limits: what takes tasks writes down that the rate
// was used, and what ends a lease looks whether another one may go.
func ofLimits() []operation {
	mine := func(g *guarded) sluice.Entry { return sluice.Entry{ID: "mine", Score: g.now + 900, Attempt: 1} }
	return []operation{
		{"claim with limits", func(ctx context.Context, g *guarded) (any, error) { return g.limited.Claim(ctx, 99, time.Hour) }},
		{"pop with limits", func(ctx context.Context, g *guarded) (any, error) { return g.limited.Pop(ctx, 99) }},
		{"dequeue with limits", func(ctx context.Context, g *guarded) (any, error) { return nil, g.limited.Dequeue(ctx, mine(g)) }},
		{"release with limits", func(ctx context.Context, g *guarded) (any, error) { return nil, g.limited.Release(ctx, mine(g)) }},
		{"bury with limits", func(ctx context.Context, g *guarded) (any, error) { return nil, g.limited.Bury(ctx, "why", mine(g)) }},
		{"cancel with limits", func(ctx context.Context, g *guarded) (any, error) { return g.limited.Cancel(ctx, "mine") }},
		{"pause with limits", func(ctx context.Context, g *guarded) (any, error) { return nil, g.limited.Pause(ctx, time.Hour) }},
		{"limit what is limited", func(ctx context.Context, g *guarded) (any, error) {
			return nil, g.limited.SetLimits(ctx, sluice.Limits{Running: 1, Rate: 10})
		}},
		{"limit no more", func(ctx context.Context, g *guarded) (any, error) {
			return nil, g.limited.SetLimits(ctx, sluice.Limits{})
		}},
		{"limit what is paused", func(ctx context.Context, g *guarded) (any, error) {
			return nil, g.paused.SetLimits(ctx, sluice.Limits{Running: 1})
		}},
		{"read limits", func(ctx context.Context, g *guarded) (any, error) { return g.limited.Stats(ctx) }},
	}
}

// ofHolders are operations on tasks that hold units, or are in groups: what ends them sees to both.
func ofHolders() []operation {
	entry := func(g *guarded, id string) sluice.Entry {
		return sluice.Entry{ID: id, Score: g.now + 900, Attempt: 1, Group: "any"} // so that the scripts are given stock and groups
	}
	none := func(run func(context.Context, *guarded) error) func(context.Context, *guarded) (any, error) {
		return func(ctx context.Context, g *guarded) (any, error) { return nil, run(ctx, g) }
	}
	far := 2 * time.Hour
	return []operation{
		{"dequeue units", none(func(ctx context.Context, g *guarded) error { return g.shop.Dequeue(ctx, entry(g, "taken")) })},
		{"dequeue a version, and units", none(func(ctx context.Context, g *guarded) error {
			return g.shop.Dequeue(ctx, entry(g, "b1"), entry(g, "taken"))
		})},
		{"dequeue units unknown to it", none(func(ctx context.Context, g *guarded) error {
			return g.shop.Dequeue(ctx, sluice.Entry{ID: "taken", Score: g.now + 900})
		})},
		{"dequeue of a group", none(func(ctx context.Context, g *guarded) error { return g.shop.Dequeue(ctx, entry(g, "a1")) })},
		{"release a version of a group", none(func(ctx context.Context, g *guarded) error { return g.shop.Release(ctx, entry(g, "b1")) })},
		{"bury of a group", none(func(ctx context.Context, g *guarded) error { return g.shop.Bury(ctx, "why", entry(g, "a1")) })},
		{"pop units", func(ctx context.Context, g *guarded) (any, error) { return g.shop.Pop(ctx, 9) }},
		{"cancel units", func(ctx context.Context, g *guarded) (any, error) { return g.shop.Cancel(ctx, "taken") }},
		{"cancel of a group", func(ctx context.Context, g *guarded) (any, error) { return g.shop.Cancel(ctx, "a1") }},
		{"reschedule what waits", func(ctx context.Context, g *guarded) (any, error) { return g.shop.Reschedule(ctx, "a2", far) }},
		{"drop units", func(ctx context.Context, g *guarded) (any, error) { return g.shop.Drop(ctx, "letter") }},
		{"purge units", none(func(ctx context.Context, g *guarded) error { return g.shop.Purge(ctx) })},
		{"enqueue one twice in a group", func(ctx context.Context, g *guarded) (any, error) {
			return g.shop.EnqueueBatch(ctx, []sluice.Task{{ID: "x", Group: "x", Delay: far}, {ID: "x", Group: "x", Delay: far}})
		}},
		{"enqueue a known one, and a dead one with units", func(ctx context.Context, g *guarded) (any, error) {
			return g.shop.EnqueueBatch(ctx, []sluice.Task{{ID: "plain", Delay: far}, {ID: "letter", Delay: far}})
		}},
	}
}
