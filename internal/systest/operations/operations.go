// Package operations is the one table of what users call that sends something to a server. A test
// that does something to each operation ranges over Table, so a new operation is one row; a test
// here fails without it.
package operations

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
)

// Operation is a row of the table: a method of the library.
type Operation struct {
	// Name is Type.Method.
	Name string
	// Needs is what has to be there, so that the method finds something to do.
	Needs Needs
	// Lost is what becomes of a call whose reply is lost.
	Lost Lost
	// Outlives says that the method does its work although its context has ended.
	Outlives bool
	// Adds says that the method puts something new there: a server whose memory is full refuses it,
	// and nothing else.
	Adds bool
	// Replicated says that the method waits for the replicas of WithLockReplicas or
	// WithQueueReplicas.
	Replicated bool
	// Hooks are the fields of sluice.LockHooks and sluice.QueueHooks that are called, in order.
	Hooks string
	// NoModel and NoChaos say why proof/model or proof/chaos does not call the method. Otherwise it
	// has to.
	NoModel, NoChaos string
	// Call calls the method, and returns what that returns. The value is nil if there is none but
	// the error.
	Call func(ctx context.Context, f *Fixture) (any, error)
}

// Type is the name of the type that has the method.
func (o Operation) Type() string { return strings.Split(o.Name, ".")[0] }

// EndsLocker says whether the method gives up all locks of its Locker.
func (o Operation) EndsLocker() bool { return o.Type() == "Locker" && o.Outlives }

// OfLocks are the operations on locks.
func OfLocks() []Operation { return of(true) }

// OfQueues are all others: those on queues, and of workers.
func OfQueues() []Operation { return of(false) }

func of(locks bool) []Operation {
	return slices.DeleteFunc(slices.Clone(Table), func(op Operation) bool { return strings.HasPrefix(op.Name, "Lock") != locks })
}

// EachKind calls f with each operation, and those on locks with the options of each kind of lock.
func EachKind(f func(kind string, op Operation, options ...sluice.LockOption)) {
	for _, op := range Table {
		f(op.Name, op)
	}
	for _, op := range OfLocks() {
		f(op.Name+", fenced", op, sluice.WithFencing())
		f(op.Name+", permit", op, sluice.WithPermits(2))
	}
}

// Needs is what has to be there when an operation is called.
type Needs int

// The lock of a fixture is free if the operation does not need it, and the queue empty.
const (
	Nothing Needs = iota
	Held          // the lock
	HeldSet       // the lock and another one, taken together
	Due           // the task
	Leased        // the task
	Dead          // the task
	Paused        // the queue
	Stocked       // an item
)

// Lost is what becomes of a call whose reply is lost.
type Lost int

// The script's header says which it is, and why.
const (
	// Repeated: the request is sent again, and the caller learns its outcome.
	Repeated Lost = iota
	// Replaced: likewise, but for another token, while the first one is released beside it.
	Replaced
	// UsedUp: it is sent again. If the first one was carried out, the repeat finds the receipt used
	// up, and the caller is told ErrUnknown.
	UsedUp
	// Unknown: it is not sent again, and the caller is told ErrUnknown.
	Unknown
	// Unavailable: it is not sent again. It would have changed nothing, and the caller is told
	// ErrUnavailable.
	Unavailable
	// GoesOn: the method does not return for such an error of the server, or goes on in the
	// background. Its own tests lose replies.
	GoesOn
	// Local: the method sends nothing.
	Local
)

// Fixture is what operations are called on.
type Fixture struct {
	// Name is that of the lock and of the queue.
	Name   string
	Locker *sluice.Locker
	Lock   *sluice.Lock
	Set    *sluice.LockSet
	Queue  *sluice.Queue
	// Remembering is the same queue, with a retention.
	Remembering *sluice.Queue
	Entry       sluice.Entry
}

// New returns a fixture with names of its own, of which nothing is there yet.
func New(t *testing.T, rdb redis.UniversalClient, opts ...sluice.LockOption) *Fixture {
	t.Helper()
	f := &Fixture{Name: redistest.Name(t), Locker: systest.NewLocker(t, rdb, opts...), Set: &sluice.LockSet{}, Entry: sluice.Entry{ID: "a", Score: 1, Payload: []byte("p")}}
	var err error
	f.Queue, err = sluice.NewQueue(rdb, f.Name)
	require.NoError(t, err)
	f.Remembering, err = sluice.NewQueue(rdb, f.Name, sluice.WithRetention(time.Hour))
	require.NoError(t, err)
	return f
}

// Prepare puts there what the operation needs. What is claimed or locked is so for a minute.
func (o Operation) Prepare(t *testing.T, f *Fixture) {
	t.Helper()
	var err error
	ctx := t.Context()
	switch o.Needs {
	case Nothing:
	case Held:
		f.Lock, err = f.Locker.Lock(ctx, f.Name, sluice.WithTTL(time.Minute), sluice.WithOwner("holder"))
	case HeldSet:
		f.Set, err = f.Locker.LockAll(ctx, f.names(), sluice.WithTTL(time.Minute))
	case Stocked:
		err = f.Queue.SetStock(ctx, "item", 1)
	case Paused:
		err = f.Queue.Pause(ctx, time.Hour)
	default:
		_, err = f.Queue.Enqueue(ctx, sluice.Task{ID: f.Entry.ID, Payload: f.Entry.Payload})
	}
	require.NoError(t, err, o.Name)
	if o.Needs == Leased || o.Needs == Dead {
		es, err := f.Queue.Claim(ctx, 1, time.Minute)
		require.NoError(t, err, o.Name)
		require.Len(t, es, 1, o.Name)
		f.Entry = es[0]
	}
	if o.Needs == Dead {
		require.NoError(t, f.Queue.Bury(ctx, "why", f.Entry), o.Name)
	}
}

// Ready is an operation, and what it works on.
type Ready struct {
	Operation
	On *Fixture
}

// Do calls the method.
func (r Ready) Do(ctx context.Context) (any, error) { return r.Call(ctx, r.On) }

// Ready prepares an operation on a fixture.
func (o Operation) Ready(t *testing.T, f *Fixture) Ready {
	t.Helper()
	o.Prepare(t, f)
	return Ready{o, f}
}

// FoundNothing says whether a method has returned a value that says so: false, no tasks, no
// outcome.
func FoundNothing(value any) bool {
	v := reflect.ValueOf(value)
	return value != nil && (v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0)
}

func (f *Fixture) names() []string { return []string{f.Name, f.Name + "2"} }

// token is the lock's, or one that a lock might have.
func (f *Fixture) token() string {
	if token := f.Lock.Token(); token != "" {
		return token
	}
	return strings.Repeat("TOKEN234", 4)[:26]
}

func (f *Fixture) task() sluice.Task {
	return sluice.Task{ID: f.Entry.ID, Payload: f.Entry.Payload, Delay: time.Hour}
}

// worker returns a worker that calls its handler once.
func (f *Fixture) worker(handler func()) *sluice.Worker {
	return &sluice.Worker{Queue: f.Queue, Grace: time.Second, Handler: func(context.Context, sluice.Entry) error { handler(); return nil }}
}

// pool returns a pool that calls its handler once.
func (f *Fixture) pool(handler func()) *sluice.Pool {
	w := f.worker(handler)
	w.Grace = 0
	return &sluice.Pool{Workers: []*sluice.Worker{w}, Grace: time.Second}
}

// section is the function of Do and its like.
func section(ctx context.Context) error { return ctx.Err() }
