package sluice

import (
	"fmt"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/locks"
	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/taskloop"
)

// One error per decision that a caller makes. Test for them with errors.Is: every method wraps them
// as `sluice: <operation> "<name>": ...`, together with their cause. The name is that of the lock
// or the queue. An ErrInvalid may be without it. No error holds a token, a payload or a password.
var (
	// ErrLocked says that another caller holds the lock, or waits for it before this one:
	// wait, or do without.
	ErrLocked = locks.ErrLocked

	// ErrNotHeld says that the lock is not, or no longer, the caller's.
	ErrNotHeld = locks.ErrNotHeld

	// ErrLost is the cause with which a lock's Context ends when the lock is lost before
	// it was released, and that of a Worker's handler when its task's lease is lost: stop
	// working on it. It is also the error of a Lock or Claim whose reply took so long that
	// what it acquired is over.
	ErrLost = lease.ErrLost

	// ErrCanceled is the cause with which the ctx of a Worker's handler ends when its task
	// was cancelled, by Cancel or Purge: stop working on it.
	ErrCanceled = taskloop.ErrCanceled

	// ErrStale says that a receipt is no longer good: the task was handed to another worker,
	// finished, or moved. The task was not changed; of several tasks, a *StaleError names the stale
	// ones.
	ErrStale = queues.ErrStale

	// ErrNotFound says that the queue has no such task, or no stock of an item. Only Get, Await and
	// Stock return it: Cancel returns StateAbsent, Reschedule returns false, and Revive and Drop do not
	// count the ID.
	ErrNotFound = queues.ErrNotFound

	// ErrUnknown says that a command was sent and its reply lost, so that it may have
	// been carried out or not. The operation's doc says what is safe.
	ErrUnknown = redisexec.ErrUnknown

	// ErrUnavailable says that nothing was carried out, because no server could be reached
	// or none could serve the request: connections are refused, the pool has none that is
	// free, the server is loading, busy, full or has failed over. Trying later may help: it is the
	// "503" beside the "500" of other errors. It is joined with the cause. A closed
	// client, a wrong password and a context that ended first are not ErrUnavailable.
	ErrUnavailable = redisexec.ErrUnavailable

	// ErrFull says that the queue has as many tasks as WithMaxTasks allows: nothing was enqueued by
	// this call, or by the step of EnqueueBatch and those behind it.
	ErrFull = queues.ErrFull

	// ErrUnderReplicated says that the primary has carried the operation out, and that fewer
	// replicas than WithLockReplicas or WithQueueReplicas asks for have acknowledged it in time: a
	// failover might forget it.
	//
	// If an acquisition (Lock, TryLock, Do, LockAll or DoAll) returns it, the lock is released in
	// the background. After Extend the lock is still held, until its previous Deadline. After Adopt
	// it is still held by its previous holder. What was done to a queue stays done; the doc of
	// WithQueueReplicas says what is safe.
	//
	// It is joined with how many replicas have acknowledged it, or with the reason why that is not
	// known: for example, that the user may not run WAIT.
	ErrUnderReplicated = redisexec.ErrUnderReplicated

	// ErrInvalid says that the program is wrong: a bad argument, option or field; a call at a time
	// when it is not allowed, such as SetConcurrency before Run; WithPermits with another number
	// than the holders of that name gave; or a Take or Group other than that of the task which has
	// the ID. Nothing was changed, except by other tasks of an EnqueueBatch. Only for the last two
	// was anything sent.
	ErrInvalid = store.ErrInvalid

	// ErrInvalidName is the ErrInvalid of names and prefixes: empty, longer than 512 bytes, with
	// braces but no hash tag, or like a key that the library makes for another name. A hash tag is
	// the first `{` and the next `}` with something between. docs/keys.md has the rules.
	ErrInvalidName = store.ErrInvalidName

	// ErrCorrupt says that the key holds what the library did not write: a key of another
	// type, or a state field in another format. That was left as it is; trying again does not
	// help.
	ErrCorrupt = redisexec.ErrCorrupt

	// ErrClosed says that the Locker has been closed, or that UnlockAll or Close has
	// released the lock: it was given back, and not lost.
	ErrClosed = locks.ErrClosed
)

// StaleError is the ErrStale of an operation on several tasks. It names those whose
// receipts were stale; the operation was carried out on the others.
type StaleError struct {
	IDs []string
}

// Error gives the number of the tasks only: whether to print an ID is for the caller to
// decide.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v (%d of the tasks)", ErrStale, len(e.IDs))
}

// Is makes a StaleError an ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// wrap adds to err which operation it is of, and on which lock or queue.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sluice: %s %q: %w", op, name, err)
}

// invalid reports a bad argument of op, which is not of one lock or queue.
func invalid(op, what string) error {
	return fmt.Errorf("sluice: %s: %w: %s", op, ErrInvalid, what)
}
