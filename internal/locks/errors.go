package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
)

// What became of a lock, and the error that its caller is told. The cause with which the lease
// ended says whether the lock had ended before: ErrLost at its deadline, or when the server says
// so, and ErrClosed in UnlockAll and Close.

var (
	// ErrLocked says that another caller holds the lock, or waits for it before this one.
	ErrLocked = errors.New("locked by another holder")
	// ErrNotHeld says that the lock is not, or no longer, the caller's.
	ErrNotHeld = errors.New("lock not held")
	// ErrClosed says that the Engine has been closed, or that UnlockAll or Close has released the
	// lock.
	ErrClosed = errors.New("closed")
)

// whyEnded is the error of an operation on a lock that has ended.
func (h *Hold) whyEnded() error { return h.closedOr(ErrNotHeld) }

// closedOr is ErrClosed for a lock that UnlockAll or Close has released, and else err.
func (h *Hold) closedOr(err error) error {
	if errors.Is(h.lease.Cause(), ErrClosed) {
		return ErrClosed
	}
	return err
}

// whyNotReleased is the error of a release, by what the server has answered: that the token held
// the lock, or not; or err. Ambiguous says that an earlier attempt of it has no reply. Late is a
// lock whose deadline had passed before.
//
//	held        nil
//	not held    nil, if it is not late, and the key can have expired since the lock was given up,
//	              or it is ambiguous: the earlier attempt has removed the key
//	            ErrUnknown, if it is late and ambiguous: it was released or had expired
//	            ErrNotHeld otherwise
//	no answer   err; of one that is late ErrNotHeld too, whatever becomes of the release
func (h *Hold) whyNotReleased(held, ambiguous bool, err error) error {
	_, covered, _ := h.lease.Bounds()
	late, expired := errors.Is(h.lease.Cause(), lease.ErrLost), !time.Now().Before(covered)
	switch {
	case err != nil && late:
		return fmt.Errorf("%w: %w", ErrNotHeld, err)
	case err != nil, held, !late && (expired || ambiguous):
		return err
	case ambiguous:
		return fmt.Errorf("%w: released or expired before", redisexec.ErrUnknown)
	}
	return ErrNotHeld
}

// releasedOrLost returns how a lock ended that was given up in time or not, and whose release
// has returned err. One whose release has no answer was given up in time.
func (h *Hold) releasedOrLost(err error) What {
	if errors.Is(err, ErrNotHeld) || errors.Is(h.lease.Cause(), lease.ErrLost) {
		return Lost
	}
	return Released
}

// cameTooLate is the error of a lock whose deadline had passed when the reply came.
func (h *Hold) cameTooLate() error {
	limit := "the TTL"
	if hold := h.options.MaxHold; hold > 0 && h.grant.sent.Add(hold).Before(lease.SafeUntil(h.grant.sent, h.options.TTL)) {
		limit = "WithMaxHold"
	}
	return fmt.Errorf("%w: the reply took longer than %s", lease.ErrLost, limit)
}

// waitedInVain returns what a caller is told whose wait in line, or for another holder's lock, has
// ended: that the lock is held, unless no server could be reached at last.
func (h *Hold) waitedInVain(ended error) error {
	if why := h.address.outage.Why(); why != nil {
		return fmt.Errorf("%w: %w: %w", redisexec.ErrUnavailable, ended, why)
	}
	return fmt.Errorf("%w: %w", ErrLocked, ended)
}

// failure returns what the caller is told of an acquisition that failed with err. What it
// may have left on the server is released in the background in any case.
func (a *acquisition) failure(ctx context.Context, err error) error {
	ended, unknown := ctx.Err(), errors.Is(err, redisexec.ErrUnknown)
	switch {
	case a.hold.engine.Closed(): // the wait may have ended with that
		return ErrClosed
	case errors.Is(err, ErrLocked), errors.Is(err, redisexec.ErrUnderReplicated):
		return err
	case a.waited && ended != nil && (unknown || errors.Is(err, redisexec.ErrUnavailable) || errors.Is(err, ended)):
		// Whatever became of the last poll, the caller has waited in vain, and for another
		// holder's lock it has nothing else to decide.
		if inVain := a.hold.waitedInVain(ended); errors.Is(inVain, ErrLocked) || !unknown {
			err = inVain
		}
	}
	if a.doubtful && !errors.Is(err, ErrLocked) && !errors.Is(err, redisexec.ErrUnknown) {
		return fmt.Errorf("%w: an earlier reply was lost: %v", redisexec.ErrUnknown, err) //nolint:errorlint // not definite any more
	}
	return err
}
