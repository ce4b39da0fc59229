package operations_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// callsOf is which hooks were called, in order.
type callsOf struct {
	mu    sync.Mutex
	names []string
}

// note has all that hooks points to note their calls. Those that return a context return nil, for
// the one that they got.
func (c *callsOf) note(hooks any) {
	all := reflect.ValueOf(hooks).Elem()
	for i := range all.NumField() {
		name, hook := all.Type().Field(i).Name, all.Field(i)
		hook.Set(reflect.MakeFunc(hook.Type(), func([]reflect.Value) (results []reflect.Value) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.names = append(c.names, name)
			for j := range hook.Type().NumOut() {
				results = append(results, reflect.Zero(hook.Type().Out(j)))
			}
			return results
		}))
	}
}

// has reports whether these were the calls since the last take.
func (c *callsOf) has(want string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.names, " ") == want
}

// take returns the calls since the last one.
func (c *callsOf) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.names = nil }()
	return strings.Join(c.names, " ")
}

// TestOperations_CallTheirHooks: each operation calls those that the table has, and each hook is
// called by one.
func TestOperations_CallTheirHooks(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		var calls callsOf
		rdb, all := s.Client(t), "LockWaitFailed TaskStuck" // which are called for no operation of the table: each does what it is to
		var ofLocks sluice.LockHooks
		var ofTasks sluice.QueueHooks
		calls.note(&ofLocks)
		calls.note(&ofTasks)
		operations.EachKind(func(kind string, op operations.Operation, options ...sluice.LockOption) {
			f := operations.New(t, rdb, append(options, sluice.WithLockHooks(ofLocks), sluice.WithTTL(time.Hour))...) // no lock of an earlier operation is lost meanwhile
			f.Queue = systest.NewQueue(t, rdb, sluice.WithQueueHooks(ofTasks))
			var err error
			f.Remembering, err = sluice.NewQueue(rdb, f.Queue.Name(), sluice.WithRetention(time.Hour), sluice.WithQueueHooks(ofTasks))
			require.NoError(t, err)
			op.Prepare(t, f)
			calls.take()
			_, err = op.Call(t.Context(), f)
			require.NoError(t, err, kind)
			// A lock's loss is told by who notices it first, perhaps beside the operation.
			assert.Eventually(t, func() bool { return calls.has(op.Hooks) }, 10*time.Second, time.Millisecond, kind)
			require.Equal(t, op.Hooks, calls.take(), kind)
			all += op.Hooks
		})
		for _, hook := range append(reflect.VisibleFields(reflect.TypeFor[sluice.LockHooks]()), reflect.VisibleFields(reflect.TypeFor[sluice.QueueHooks]())...) {
			require.Contains(t, all, hook.Name, "no operation calls this hook")
		}
	})
}

// TestOperations_DoNothingAfterTheirContext has ended, except those that give up a lock.
func TestOperations_DoNothingAfterTheirContext(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, op := range operations.Table {
			rdb, faults := s.Faulty(t) // its own: clients that have waited leave their lines seconds later
			f := operations.New(t, rdb)
			op.Prepare(t, f)
			before := faults.Bytes()
			_, err := op.Call(systest.Ended(), f)
			if op.Outlives {
				require.True(t, err == nil || errors.Is(err, sluice.ErrUnknown), "%s: %v", op.Name, err) // on a busy machine
				continue
			}
			require.Equal(t, before, faults.Bytes(), "%s has sent something", op.Name)
			if op.Lost != operations.GoesOn { // Run ends without an error
				require.ErrorIs(t, err, context.Canceled, op.Name)
				require.NotErrorIs(t, err, sluice.ErrUnknown, op.Name)
				require.NotErrorIs(t, err, sluice.ErrLocked, op.Name)
			}
		}
	})
}

// TestOperations_OfAClosedLockerSayThatItIs: so do those of its locks. It may be closed twice.
func TestOperations_OfAClosedLockerSayThatItIs(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, op := range operations.OfLocks() {
			f := operations.New(t, s.Client(t))
			op.Prepare(t, f)
			require.NoError(t, f.Locker.Close())
			_, err := op.Call(t.Context(), f)
			if op.EndsLocker() {
				require.NoError(t, err, op.Name)
				continue
			}
			require.ErrorIs(t, err, sluice.ErrClosed, op.Name)
			require.NotErrorIs(t, err, sluice.ErrNotHeld, op.Name)
			require.NotErrorIs(t, err, sluice.ErrLost, op.Name)
		}
	})
}

func TestMain(m *testing.M) { systest.Main(m) }
