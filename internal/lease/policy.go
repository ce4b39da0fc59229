// Package lease is about holding something for a limited time: how long a holder may
// rely on it by its own clock, when it asks for more, and what becomes of that which was
// acquired without the acquirer knowing.
//
// A [Lease] is a deadline with a context. The [Renewer] extends leases in the background.
// The [Janitor] releases what is held for no caller. The functions in this file are the
// one policy by which locks and tasks are extended.
package lease

import (
	"errors"
	"time"

	"github.com/sluice-go/sluice/internal/redisexec"
)

// ErrLost is the cause with which a context ends when what it stands for is lost.
var ErrLost = errors.New("lock or lease lost")

const (
	minRetry  = time.Millisecond
	minBudget = 20 * time.Millisecond
)

// SafeUntil returns until when a holder may rely on a TTL that it was given by a command
// which was sent at that time: monotonic time before the send, less 1% for clocks that
// run at different speeds, and 2ms for the server's rounding. Of a TTL too short for
// that, half is left.
func SafeUntil(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(max(ttl-ttl/100-2*time.Millisecond, ttl/2))
}

// RenewAfter is the time after which a lease is extended: a third of its TTL.
func RenewAfter(ttl time.Duration) time.Duration { return ttl / 3 }

// RetryAfter is the pause after an extension that failed.
func RetryAfter(ttl time.Duration) time.Duration { return max(ttl/20, minRetry) }

// Leeway is by how much a lease may be extended sooner than it needs to be, to go along
// with others; and later, to wait for a batch that is under way without it.
func Leeway(ttl time.Duration) time.Duration { return ttl / 10 }

// Budget is the time that an extension is given when so much is left of the lease: half
// of it, so that there is always another try, and no longer than any loop waits for a connection
// that has gone quiet.
func Budget(left time.Duration) time.Duration {
	return min(max(left/2, minBudget), redisexec.MaxQuiet)
}
