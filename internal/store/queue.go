package store

import (
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sluice-go/sluice/internal/keyspace"
	"github.com/sluice-go/sluice/internal/redisexec"
)

const (
	// MaxGroup is the most tasks that one script handles.
	MaxGroup = 250
	// MaxGroupBytes is the most payload that one script is given, unless a single one is larger.
	MaxGroupBytes = 1 << 20
	// ReplicaWait is how long replicas are waited for at the most.
	ReplicaWait = time.Second
)

// QueueOptions are what requests say of a queue.
type QueueOptions struct {
	MaxAttempts int           // how often a task may be claimed; 0 for any number
	DeadLimit   int           // dead letters that may stay; 0 for any number
	DeadAge     time.Duration // for how long; 0 for ever
	Retention   time.Duration // for how long finished tasks are remembered; 0 for none
	Replicas    int           // that are to acknowledge a change; 0 for none
	MaxTasks    int           // that the queue may have where a producer enqueues; 0 for any number
}

// Queue has the keys of a queue, and makes the requests about it.
//
// Those that change the queue for a caller wait for its replicas. What a worker sends does not.
type Queue struct {
	scripts *Scripts
	options QueueOptions
	bounds  []any // of dead letters, as scripts read them

	// A script is given the keys that it needs and those before them.
	tasks  []any // the queue, tasks, dead letters, states, leased tasks
	errors []any // and the line of idle clients, the last errors
	counts []any // and the pause, the counts
	done   []any // and what is done, with its results
	stock  []any // and the stocks
	all    []any // and the workers, the groups

	// holds says that there are tasks which hold units, or are in groups. Scripts that end tasks
	// are given the stocks and the groups then: a queue without them pays nothing for them.
	holds atomic.Bool

	wake, canceled string
}

// Where these stand among the keys.
const (
	lineKey  = 5
	pauseKey = 7
)

// NewQueue returns the queue with that main key.
func NewQueue(s *Scripts, key string, o QueueOptions) *Queue {
	all := []any{key}
	for _, ending := range []string{
		keyspace.Tasks, keyspace.Dead, keyspace.State, keyspace.Leased, keyspace.Line, keyspace.Errors, keyspace.Paused, keyspace.Counts,
		keyspace.Done, keyspace.Results, keyspace.Stock, keyspace.Workers, keyspace.Groups,
	} {
		all = append(all, keyspace.Companion(key, ending))
	}
	return &Queue{
		scripts: s, options: o, bounds: []any{o.DeadLimit, Duration(o.DeadAge)},
		tasks: all[:5:5], errors: all[:7:7], counts: all[:9:9], done: all[:11:11], stock: all[:12:12], all: all,
		wake: keyspace.Companion(key, keyspace.Wake), canceled: keyspace.Companion(key, keyspace.Canceled),
	}
}

// Key is the main key: that of the sorted set of tasks.
func (q *Queue) Key() string {
	key, _ := q.all[0].(string)
	return key
}

// RoutingKey is the main key as an argument: it says which server has the queue.
func (q *Queue) RoutingKey() any { return q.all[0] }

// Keys are all of its keys.
func (q *Queue) Keys() []any { return slices.Clone(q.all) }

// WakeChannel is what the channels begin with on which idle clients are notified.
func (q *Queue) WakeChannel() string { return q.wake }

// CanceledChannel is that on which the IDs of tasks are published that were cancelled while leased.
func (q *Queue) CanceledChannel() string { return q.canceled }

// replicated has a request that changes the queue wait for the replicas. If there is nothing to
// change, they are to have what has been changed before: perhaps by a call that too few have
// acknowledged, and this one is its repeat.
func (q *Queue) replicated(r redisexec.Request) redisexec.Request {
	if q.options.Replicas > 0 {
		mark := q.scripts.Mark.Request(q.tasks)
		r.Replicas, r.ReplicaWait, r.Mark = q.options.Replicas, ReplicaWait, &mark
	}
	return r
}

// Enqueue enqueues tasks.
func (q *Queue) Enqueue(tasks *Batch) redisexec.Request {
	if tasks.rules.Grouped {
		q.holds.Store(true)
		return q.replicated(q.scripts.EnqueueGroup.Request(q.all, tasks.arguments()...))
	}
	keys := q.errors
	switch {
	case q.isBounded(tasks.rules):
		keys = q.all
	case tasks.rules.Takes:
		keys = q.stock
	case tasks.rules.Duplicates == Once:
		keys = q.done
	}
	if tasks.rules.Takes {
		q.holds.Store(true)
		return q.replicated(q.scripts.Take.Request(keys, tasks.arguments()...))
	}
	return q.replicated(q.scripts.Enqueue.Request(keys, tasks.arguments()...))
}

// Claimed notes what a claim has brought.
func (q *Queue) Claimed(x *Exchanged) {
	if x.Lacks {
		q.SetHolds()
	}
	q.Holds(x.Tasks)
}

// SetHolds notes that there are tasks which hold units, or are in groups.
func (q *Queue) SetHolds() { q.holds.Store(true) }

// Holds notes that tasks hold units, or are in groups.
func (q *Queue) Holds(tasks []Task) {
	if !q.holds.Load() && slices.ContainsFunc(tasks, func(t Task) bool { return t.Take.Units > 0 || t.Group != "" }) {
		q.holds.Store(true)
	}
}

// ending are the keys for scripts that end tasks, except what is done.
func (q *Queue) ending() []any {
	if q.holds.Load() {
		return q.all
	}
	return q.counts
}

// Claim is what an exchange is to claim.
type Claim struct {
	N      int // how many tasks; 0 for none
	Lease  time.Duration
	Worker string // which is to have them; "" for a caller of its own
	Asking Asking // for a place in line
}

// Asking is what a claim says of the client's place in line.
type Asking struct {
	Client string // "" if it asks for none
	Below  int    // it joins if it claims fewer tasks than that. Negative: it is in line, and leaves it otherwise
	Watch  time.Duration
}

// Exchange finishes tasks, or discards them, and claims others.
func (q *Queue) Exchange(finish []Item, c Claim) redisexec.Request {
	args := make([]any, 0, 13+2*len(finish))
	args = append(args, c.Asking.Client, c.N, Duration(c.Lease), q.options.MaxAttempts)
	if c.N > 0 {
		args = append(append(args, c.Asking.Below, Millis(c.Asking.Watch)), q.bounds...)
		args = append(args, claimant(c.Lease, c.Worker))
	}
	keys, args := q.ending(), appendByReceipt(args, finish)
	switch {
	case len(finish) == 0:
	case finish[0].Disposition.Settler() == ByDiscard:
		args = append(args, noReceipt, -1)
	case finish[0].Disposition.Action == Finish && q.options.Retention > 0:
		args = appendRetention(args, finish, q.options.Retention)
		if len(keys) < len(q.done) { // not by holds, which another call may set meanwhile
			keys = q.done
		}
	}
	r := q.scripts.Exchange.Request(keys, args...)
	if c.N == 0 {
		r.Retry = redisexec.Idempotent
	}
	return r
}

// Settle ends the leases of tasks, all by the same script, for a caller.
func (q *Queue) Settle(items []Item) redisexec.Request { return q.replicated(q.Report(items)) }

// Report is Settle for a worker.
func (q *Queue) Report(items []Item) redisexec.Request {
	script, args := q.scripts.GiveBack, make([]any, 0, 2+6*len(items))
	switch items[0].Disposition.Settler() {
	case ByExchange, ByDiscard:
		return q.Exchange(items, Claim{})
	case ByBury:
		script, args = q.scripts.Bury, append(args, q.bounds...)
	}
	for i := range items {
		args = appendItem(args, &items[i])
	}
	return script.Request(q.ending(), args...)
}

// Extend extends the leases of tasks.
func (q *Queue) Extend(lease time.Duration, items ...Item) redisexec.Request {
	args := append(make([]any, 0, 3+2*len(items)), Duration(lease))
	return q.scripts.ExtendLeases.Request(q.counts, appendByReceipt(args, items)...)
}

// Pop takes up to n due tasks out.
func (q *Queue) Pop(n int) redisexec.Request {
	r := q.replicated(q.scripts.Pop.Request(q.all, append([]any{n}, q.bounds...)...))
	r.Mark = nil // where nothing is due, nothing was to be acknowledged
	return r
}

// Cancel removes tasks, [MaxGroup] at most. The IDs of those that are leased are published on the
// channel, which is as scripts are given it. With scores, a task is left alone that has another one
// than when it was read.
func (q *Queue) Cancel(ids []string, scores []float64, channel any) redisexec.Request {
	args := append([]any{channel, len(ids)}, asArguments(ids)...)
	for _, score := range scores {
		args = append(args, ScoreText(score))
	}
	return q.replicated(q.scripts.Cancel.Request(q.all, args...))
}

// Reschedule has a task due in d.
func (q *Queue) Reschedule(id string, d time.Duration) redisexec.Request {
	return q.replicated(q.scripts.Reschedule.Request(q.all, id, Duration(d)))
}

// Revive puts dead letters back into the queue.
func (q *Queue) Revive(ids []string) redisexec.Request {
	return q.replicated(q.scripts.Revive.Request(q.all, asArguments(ids)...))
}

// Drop removes dead letters for good.
func (q *Queue) Drop(ids []string) redisexec.Request {
	return q.replicated(q.scripts.Drop.Request(q.stock, asArguments(ids)...))
}

func asArguments(ids []string) []any {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	return args
}

// Purge removes all tasks.
func (q *Queue) Purge() redisexec.Request { return q.replicated(q.scripts.Purge.Request(q.all)) }

// Payloads is up to how many bytes a payload is shown, as it is stored.
type Payloads int

// AllPayloads shows payloads of any size.
const AllPayloads Payloads = -1

func (p Payloads) argument() string {
	if p == AllPayloads {
		return ""
	}
	return strconv.Itoa(int(p))
}

// Wanted is a task that Get is to show, unless it has that score, as text.
type Wanted struct{ ID, Unless string }

// Get shows tasks.
func (q *Queue) Get(p Payloads, tasks ...Wanted) redisexec.Request {
	args := append(make([]any, 0, 2+2*len(tasks)), p.argument(), Duration(q.options.Retention))
	for _, t := range tasks {
		args = append(args, t.ID, t.Unless)
	}
	return q.scripts.Get.Request(q.done, args...)
}

// Cursor is where a list goes on. The zero value is its beginning, and its end.
type Cursor struct{ Score, ID string }

// WaitingCursor is where a list of tasks that wait goes on behind one.
func WaitingCursor(group string, due float64, id string) Cursor {
	return Cursor{Score: fmt.Sprintf("~%s\x00%016.0f%s", group, due*1e6, id)}
}

// Listing is what List shows.
type Listing struct {
	State    State
	Payloads Payloads
	Group    string // of those that wait; "" for all groups
	Newest   bool   // from the last one on
	Moves    string // "due" or "all" for versions, too, that wait behind a lease which has run out: see list.lua
}

// listedKeys say where the list of a state stands among the keys.
var listedKeys = [...]int{StateScheduled: 0, StateDue: 0, StateLeased: 4, StateDead: 2, StateDone: 9}

// List shows tasks in a state.
func (q *Queue) List(l Listing, after Cursor, n int) redisexec.Request {
	if l.State == StateWaiting {
		return q.scripts.ListWaiting.Request(q.all, n, after.Score, l.Group, l.Payloads.argument())
	}
	keys := append(q.done, q.all[listedKeys[l.State]])
	newest := ""
	if l.Newest {
		newest = "newest"
	}
	return q.scripts.List.Request(keys, n, after.Score, after.ID, int(l.State), l.Payloads.argument(), l.Moves, Duration(q.options.Retention), newest)
}

// Stats counts a queue's tasks.
func (q *Queue) Stats() redisexec.Request {
	return q.scripts.Stats.Request(q.all, Duration(q.options.Retention))
}

// Pause pauses the queue for d, or without an end for 0.
func (q *Queue) Pause(d time.Duration) redisexec.Request {
	return q.replicated(q.scripts.Pause.Request(q.counts, Millis(d)))
}

// Resume ends a pause.
func (q *Queue) Resume() redisexec.Request {
	return q.replicated(q.scripts.Pause.Request(q.counts, ""))
}

// Limits are a queue's, as the root's Limits.
type Limits struct {
	Running, Rate int
	Per           time.Duration
	Burst         int
	PerGroup      int
}

// Limit sets the queue's limits.
func (q *Queue) Limit(l Limits) redisexec.Request { return q.replicated(q.limit(l, 0)) }

// LimitIfUnset sets the queue's limits if none have been set. The value is 1 then, else 0.
func (q *Queue) LimitIfUnset(l Limits) redisexec.Request { return q.limit(l, 1) }

func (q *Queue) limit(l Limits, ifUnset int) redisexec.Request {
	return q.scripts.Limit.Request(q.counts, l.Running, l.Rate, CeilMicros(l.Per), l.Burst, l.PerGroup, ifUnset)
}

// Workers shows the workers that live.
func (q *Queue) Workers() redisexec.Request { return q.scripts.Workers.Request(q.all) }

// Presence notes what a worker says of itself, which counts for some seconds; or that it has ended,
// for "". before is what it may have said before. Then it drops and forgets what there is too much
// of.
func (q *Queue) Presence(counts int64, said string, before []string) redisexec.Request {
	args := append(append([]any{counts, said}, q.bounds...), Duration(q.options.Retention))
	return q.scripts.Presence.Request(q.all, append(args, asArguments(before)...)...)
}
