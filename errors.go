package sluice

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// One error per decision a caller has to make. Test for them with errors.Is:
// every method wraps them as "sluice: <operation> <name>: ...", together with
// their cause. No error holds a token, a payload or a password.
var (
	// ErrLocked says that somebody else holds the lock: wait, or do without.
	ErrLocked = errors.New("locked by another holder")

	// ErrNotHeld says that the lock is not, or no longer, the caller's.
	ErrNotHeld = errors.New("lock not held")

	// ErrLost is the cause with which a lock's Context ends when the lock is
	// lost before it was released, and that of a Worker's handler when its task's
	// lease is: stop working on it.
	ErrLost = errors.New("lock or lease lost")

	// ErrStale says that a receipt has been overtaken: the task was handed to
	// somebody else, finished, or moved. Nothing was changed.
	ErrStale = errors.New("stale receipt")

	// ErrNotFound says that the queue has no such task.
	ErrNotFound = errors.New("no such task")

	// ErrUnknown says that a command was sent and its reply lost, so that it
	// may have been carried out or not. The operation's doc says what is safe.
	ErrUnknown = errors.New("outcome unknown")

	// ErrInvalid says that an argument is bad. Nothing was sent.
	ErrInvalid = errors.New("invalid argument")

	// ErrInvalidName is the ErrInvalid of names and prefixes: empty, longer
	// than 512 bytes, or with braces that are not one proper hash tag.
	ErrInvalidName = fmt.Errorf("%w: bad name", ErrInvalid)

	// ErrCorrupt says that something else lies where the library keeps its
	// data: a key of another type, or a field that it did not write. That
	// was left as it is; trying again does not help.
	ErrCorrupt = errors.New("foreign or damaged data at the key")

	// ErrClosed says that the Locker has been closed.
	ErrClosed = errors.New("closed")
)

// StaleError is the ErrStale of an operation on several tasks. It names those
// whose receipts were stale; the others were dealt with.
type StaleError struct {
	IDs []string
}

// Error names the tasks by number only: a task's ID is the caller's to print.
func (e *StaleError) Error() string {
	return fmt.Sprintf("%v (%d of the tasks)", ErrStale, len(e.IDs))
}

// Is makes a StaleError an ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// wrap gives err its place: which operation on which lock or queue.
func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("sluice: %s %s: %w", op, name, err)
}

// invalid reports a bad argument of op.
func invalid(op, format string, args ...any) error {
	return fmt.Errorf("sluice: %s: %w: %s", op, ErrInvalid, fmt.Sprintf(format, args...))
}

// serverError is a Redis error from which the arguments were cut.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks it as a redis.Error, as the original was.
func (serverError) RedisError() {}

// errServer makes a server's error fit to be shown. It recognises foreign data
// by the text, because miniredis drops the code of an error in a script, and
// cuts off the arguments that "unknown command" repeats, tokens included.
func errServer(err error) error {
	text := err.Error()
	if strings.Contains(text, "wrong kind of value") {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if cut := strings.Index(text, ", with args beginning with"); cut >= 0 {
		return serverError(text[:cut])
	}
	return err
}

// errUnreadable stands for what go-redis says of a reply that it cannot parse: that
// quotes the reply, which may hold a payload.
var errUnreadable = errors.New("unreadable reply")

// errLost makes the error of a command that was sent, and not answered, fit to be
// shown.
func errLost(err error) error {
	text, number := err.Error(), new(strconv.NumError)
	if errors.As(err, &number) {
		return errUnreadable
	}
	for _, start := range []string{"redis: can't", "redis: invalid", "expected digit", "bigInt("} {
		if strings.HasPrefix(text, start) {
			return errUnreadable
		}
	}
	return err
}

var _ redis.Error = serverError("")
