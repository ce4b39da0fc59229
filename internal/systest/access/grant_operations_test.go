package access

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// operation is one of the library's, on what guarded.prepare has put there: it says which
// locks and tasks there are, by names that tell their state.
type operation struct {
	name string
	run  func(ctx context.Context, g *guarded) error
}

// found makes it an error that an operation has not found what is there.
func found(there bool, err error) error {
	if err == nil && !there {
		return errors.New("found nothing")
	}
	return err
}

// ofTable are the operations of the table, except Check, whose rights have a test of their own, Run, which goes on, and what
// takes or gives up locks of which a part may be denied, or does not say that a release was.
func ofTable(table []operations.Operation) (all []operation) {
	for _, row := range table {
		isPart := row.EndsLocker() || row.Name == "Locker.Do" || row.Name == "Locker.DoAll"
		if row.Lost == operations.Unavailable || row.Lost == operations.GoesOn || isPart {
			continue
		}
		all = append(all, operation{row.Name, func(ctx context.Context, g *guarded) error {
			value, err := row.Call(ctx, g.fixture(row.Needs))
			return found(!operations.FoundNothing(value), err)
		}})
	}
	return all
}

func ofLocks() []operation {
	return []operation{
		{"lock a taken one", func(ctx context.Context, g *guarded) error {
			ctx, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			_, err := g.locker.Lock(ctx, "taken")
			return err
		}},
		{"try lock a taken one", func(ctx context.Context, g *guarded) error { _, err := g.locker.TryLock(ctx, "taken"); return err }},
		{"try lock one without TTL", func(ctx context.Context, g *guarded) error { _, err := g.locker.TryLock(ctx, "eternal"); return err }},
		{"adopt a fenced lock", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.Adopt(ctx, "fenced", g.fence.Token(), sluice.WithFencing(), sluice.WithTTL(time.Hour))
			return err
		}},
		{"fenced lock", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.Lock(ctx, "free", sluice.WithFencing())
			return err
		}},
		{"fenced lock of a taken one", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.TryLock(ctx, "taken", sluice.WithFencing())
			return err
		}},
		{"fenced lock of one without TTL", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.TryLock(ctx, "eternal", sluice.WithFencing())
			return err
		}},
		{"unlock a fenced one", func(ctx context.Context, g *guarded) error { return g.fence.Unlock(ctx) }},
	}
}

func ofPermits() []operation {
	two := sluice.WithPermits(2)
	return []operation{
		{"permit", func(ctx context.Context, g *guarded) error { _, err := g.locker.Lock(ctx, "free", two); return err }},
		{"second permit", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.TryLock(ctx, "permits", two)
			return err
		}},
		{"fenced permit", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.Lock(ctx, "free", two, sluice.WithFencing())
			return err
		}},
		{"extend a permit", func(ctx context.Context, g *guarded) error { return g.permit.Extend(ctx, time.Hour) }},
		{"ttl of a permit", func(ctx context.Context, g *guarded) error { _, err := g.permit.TTL(ctx); return err }},
		{"inspect permits", func(ctx context.Context, g *guarded) error {
			info, err := g.locker.Inspect(ctx, "permits")
			return found(info.Permits == 1, err)
		}},
		{"force permits", func(ctx context.Context, g *guarded) error {
			released, err := g.locker.ForceUnlock(ctx, "permits")
			return found(released, err)
		}},
		{"adopt a fenced permit", func(ctx context.Context, g *guarded) error {
			_, err := g.locker.Adopt(ctx, "permits", g.permit.Token(), two, sluice.WithFencing(), sluice.WithTTL(time.Hour))
			return err
		}},
		{"unlock a permit", func(ctx context.Context, g *guarded) error { return g.permit.Unlock(ctx) }},
		{"unlock one of two permits", func(ctx context.Context, g *guarded) error { return g.oneOfTwo.Unlock(ctx) }},
	}
}

func ofQueues() []operation {
	enqueue := func(tasks ...sluice.Task) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			_, err := g.queue.EnqueueBatch(ctx, tasks)
			return err
		}
	}
	finish := func(finish func(context.Context, *guarded, ...sluice.Entry) error, ids ...string) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			var es []sluice.Entry
			for _, id := range ids {
				es = append(es, g.task(id))
			}
			return finish(ctx, g, es...)
		}
	}
	dequeue := func(ctx context.Context, g *guarded, es ...sluice.Entry) error { return g.queue.Dequeue(ctx, es...) }
	release := func(ctx context.Context, g *guarded, es ...sluice.Entry) error { return g.queue.Release(ctx, es...) }
	bury := func(ctx context.Context, g *guarded, es ...sluice.Entry) error {
		return g.queue.Bury(ctx, es[0], "why")
	}
	extend := func(ctx context.Context, g *guarded, es ...sluice.Entry) error {
		return g.queue.Extend(ctx, es[0], time.Hour)
	}
	retry := func(ctx context.Context, g *guarded, es ...sluice.Entry) error {
		return g.queue.Retry(ctx, es[0], time.Hour)
	}
	reschedule := func(id string) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			there, err := g.queue.Reschedule(ctx, id, time.Hour)
			return found(there, err)
		}
	}
	cancel := func(id string) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			was, err := g.queue.Cancel(ctx, id)
			return found(was != sluice.Absent, err)
		}
	}
	list := func(s sluice.State) func(context.Context, *guarded) error {
		return func(ctx context.Context, g *guarded) error {
			es, err := g.queue.List(ctx, s, sluice.Entry{}, 99)
			return found(len(es) > 0, err)
		}
	}
	p, far := []byte("p"), 2*time.Hour
	return []operation{
		{"enqueue", enqueue(sluice.Task{ID: "a", Delay: far})},
		{"enqueue a new head", enqueue(sluice.Task{ID: "a", At: time.Unix(1, 0)})},
		{"enqueue with a payload", enqueue(sluice.Task{ID: "a", Payload: p, Delay: far})},
		{"enqueue several", enqueue(sluice.Task{ID: "a", Delay: far}, sluice.Task{ID: "b", Payload: p, Delay: far})},
		{"enqueue several, some known", enqueue(sluice.Task{ID: "a", Payload: p, Delay: far}, sluice.Task{ID: "later", Delay: far},
			sluice.Task{ID: "dead", Delay: far}, sluice.Task{ID: "mine", Delay: far}, sluice.Task{ID: "back", Delay: far})},
		{"enqueue one twice", enqueue(sluice.Task{ID: "later", Payload: p, Delay: far}, sluice.Task{ID: "a", Delay: far}, sluice.Task{ID: "a", Delay: far})},
		{"enqueue a known one", enqueue(sluice.Task{ID: "later", Payload: p, Delay: far})},
		{"enqueue a known one, payload removed", enqueue(sluice.Task{ID: "later", Delay: far})},
		{"enqueue a leased one", enqueue(sluice.Task{ID: "mine", Payload: p, Delay: far})},
		{"enqueue a dead one", enqueue(sluice.Task{ID: "dead", Payload: p, Delay: far})},
		{"enqueue a dead one, no payload", enqueue(sluice.Task{ID: "dead", Delay: far})},
		{"enqueue one that was put back", enqueue(sluice.Task{ID: "back", Delay: far})},
		{"claim all", func(ctx context.Context, g *guarded) error {
			es, err := g.queue.Claim(ctx, 99, time.Hour)
			return found(len(es) > 0, err)
		}},
		{"pop all", func(ctx context.Context, g *guarded) error {
			es, err := g.queue.Pop(ctx, 99)
			return found(len(es) > 0, err)
		}},
		{"dequeue, deferred", finish(dequeue, "mine, deferred")},
		{"dequeue several", finish(dequeue, "mine", "mine, back", "mine, deferred, no payload", "mine, odd", "mine, deferred")},
		{"dequeue several, one of them stale", func(ctx context.Context, g *guarded) error {
			err := g.queue.Dequeue(ctx, g.task("mine, deferred"), sluice.Entry{ID: "mine", Score: 1})
			if errors.Is(err, sluice.ErrStale) {
				return nil
			}
			return err
		}},
		{"release several", finish(release, "mine", "mine, back", "mine, deferred, no payload", "mine, deferred")},
		{"retry, deferred", finish(retry, "mine, deferred, no payload")},
		{"extend, back", finish(extend, "mine, back")},
		{"bury, deferred", finish(bury, "mine, deferred, no payload")},
		{"bury, odd", finish(bury, "mine, odd")},
		{"list scheduled", list(sluice.Scheduled)},
		{"list due", list(sluice.Due)},
		{"revive", func(ctx context.Context, g *guarded) error {
			n, err := g.queue.Revive(ctx, "dead", "back")
			return found(n > 0, err)
		}},
		{"revive one without payload", func(ctx context.Context, g *guarded) error {
			n, err := g.queue.Revive(ctx, "dead, no payload")
			return found(n > 0, err)
		}},
		{"cancel a dead one", cancel("dead")},
		{"reschedule a leased one", reschedule("mine")},
		{"reschedule a lapsed one", reschedule("lapsed")},
		{"get a dead one", func(ctx context.Context, g *guarded) error { _, err := g.queue.Get(ctx, "dead"); return err }},
	}
}
