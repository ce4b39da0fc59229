package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-go/sluice/internal/background"
	"github.com/sluice-go/sluice/internal/lease"
)

// What became of a lock, and the error that its caller is told. The cause with which the lease ended says whether the lock
// had ended before: ErrLost at its deadline, or when the server says so, and ErrClosed in UnlockAll and Close.

// errHeldByCaller is the error of an acquisition that would wait for its own caller.
var errHeldByCaller = fmt.Errorf("%w: the Do of this context holds the lock", ErrInvalid)

// whyEnded is the error of an operation on a lock that has ended.
func (k *Lock) whyEnded() error { return k.closedOr(ErrNotHeld) }

// closedOr is ErrClosed for a lock that UnlockAll or Close has released, and else err.
func (k *Lock) closedOr(err error) error {
	if errors.Is(k.lease.Cause(), ErrClosed) {
		return ErrClosed
	}
	return err
}

// whyNotReleased is the error of a release, by what the server has answered: that the token held the lock, or not; or err.
// Ambiguous says that an earlier attempt of it has no reply. Late is a lock whose deadline had passed before.
//
//	held        nil
//	not held    nil, if it is not late, and the key can have expired since the lock was given up,
//	              or it has not, and so the earlier attempt has removed it
//	            ErrUnknown, if it is late and ambiguous: it was released or had expired
//	            ErrNotHeld otherwise
//	no answer   err; of one that is late ErrNotHeld too, whatever becomes of the release
func (k *Lock) whyNotReleased(held, ambiguous bool, err error) error {
	_, covered, _ := k.lease.Bounds()
	late, expired := errors.Is(k.lease.Cause(), ErrLost), !time.Now().Before(covered)
	switch {
	case err != nil && late:
		return fmt.Errorf("%w: %w", ErrNotHeld, err)
	case err != nil, held, !late && (expired || ambiguous):
		return err
	case ambiguous:
		return fmt.Errorf("%w: released or expired before", ErrUnknown)
	}
	return ErrNotHeld
}

// releasedOrLost returns how a lock ended that was given up in time or not, and whose release
// has returned err. One whose release has no answer was given up in time.
func (k *Lock) releasedOrLost(err error) lockEnding {
	if errors.Is(err, ErrNotHeld) || errors.Is(k.lease.Cause(), ErrLost) {
		return lockLost
	}
	return lockReleased
}

// sectionError returns what became of a section whose lock was valid at its end, or not, and whose
// release has returned err.
func sectionError(valid bool, err error) error {
	switch {
	case errors.Is(err, ErrNotHeld):
		return ErrLost
	case valid:
		return nil
	case errors.Is(err, ErrClosed):
		return ErrClosed
	}
	return ErrLost
}

// cameTooLate is the error of a lock whose deadline had passed when the reply came.
func (k *Lock) cameTooLate() error {
	limit := "the TTL"
	if hold := k.options.maxHold; hold > 0 && k.grant.sent.Add(hold).Before(lease.SafeUntil(k.grant.sent, k.options.ttl)) {
		limit = "WithMaxHold"
	}
	return fmt.Errorf("%w: the reply took longer than %s", ErrLost, limit)
}

// waitedInVain returns what a caller is told whose wait in line, or for another holder's lock, has ended: that
// the lock is held, unless no server could be reached at last.
func (k *Lock) waitedInVain(ended error) error {
	if why := k.address.outage.Why(); why != nil {
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, ended, why)
	}
	return fmt.Errorf("%w: %w", ErrLocked, ended)
}

// failure returns what the caller is told of an acquisition that failed with err. What it
// may have left on the server is released in the background in any case.
func (a *acquisition) failure(ctx context.Context, err error) error {
	ended, unknown := ctx.Err(), errors.Is(err, ErrUnknown)
	switch {
	case background.IsClosed(a.lock.locker.closed):
		return ErrClosed
	case errors.Is(err, ErrLocked), errors.Is(err, ErrUnderReplicated):
		return err
	case a.waited && ended != nil && (unknown || errors.Is(err, ErrUnavailable) || errors.Is(err, ended)):
		// Whatever became of the last poll, the caller has waited in vain, and for another
		// holder's lock it has nothing else to decide.
		if inVain := a.lock.waitedInVain(ended); errors.Is(inVain, ErrLocked) || !unknown {
			err = inVain
		}
	}
	if a.doubtful && !errors.Is(err, ErrLocked) && !errors.Is(err, ErrUnknown) {
		return fmt.Errorf("%w: an earlier reply was lost: %v", ErrUnknown, err) //nolint:errorlint // not definite any more
	}
	return err
}

// joinKinds joins the errors of an operation on several locks: the first of each kind, with its lock's name.
func joinKinds(op string, locks []*Lock, errs []error) error {
	kinds := [...]error{ErrNotHeld, ErrLost, ErrClosed, ErrUnknown, ErrUnavailable}
	var first, others [len(kinds) + 1]int // positions, from 1; the last is that of other errors
	for i, err := range errs {
		if err == nil {
			continue
		}
		kind := slices.IndexFunc(kinds[:], func(kind error) bool { return errors.Is(err, kind) })
		if kind < 0 {
			kind = len(kinds)
		}
		if first[kind] == 0 {
			first[kind] = i + 1
		} else {
			others[kind]++
		}
	}
	var all []error
	for kind, at := range first {
		if at == 0 {
			continue
		}
		err := wrap(op, locks[at-1].name, errs[at-1])
		if others[kind] > 0 {
			err = fmt.Errorf("%w (and %d more)", err, others[kind])
		}
		all = append(all, err)
	}
	if len(all) == 1 {
		return all[0] // which can be unwrapped
	}
	return errors.Join(all...)
}
