package locks

import (
	"context"
	"slices"

	"github.com/sluice-go/sluice/internal/lease"
)

// Set is several locks of one Engine that are held together. It is safe for concurrent use once
// Acquire has returned.
type Set struct {
	Holds  []*Hold         // in the order in which they were acquired
	ctx    context.Context // ends with the first of them
	cancel context.CancelCauseFunc
}

// Acquire acquires all the locks in this order, or none. ctx is the caller's, and bounded the same
// with a limit for the wait. After an error it returns the lock that could not be acquired, or was
// lost meanwhile; those that had been acquired are released.
func (s *Set) Acquire(ctx, bounded context.Context, holds []*Hold) (failed *Hold, err error) {
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if failed, err = s.acquire(ctx, bounded, holds); err != nil {
		releasing, cancel := context.WithTimeout(ctx, CloseWait)
		defer cancel()
		s.Unlock(releasing)
	}
	return failed, err
}

func (s *Set) acquire(ctx, bounded context.Context, holds []*Hold) (failed *Hold, err error) {
	bounded, cancel := context.WithCancel(bounded)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for i, h := range holds {
		err := h.Acquire(ctx, bounded, false)
		if err == nil {
			s.add(h)
			if i < len(holds)-1 {
				continue
			}
		}
		for _, h := range s.Holds {
			if !h.Valid() { // not err, which may come of this
				return h, h.closedOr(lease.ErrLost)
			}
		}
		return h, err
	}
	return nil, nil
}

// add adds a lock that was acquired.
func (s *Set) add(h *Hold) {
	s.Holds = append(s.Holds, h)
	held := h.lease.Context()
	context.AfterFunc(held, func() { s.cancel(context.Cause(held)) })
}

// Unlock releases all the locks and ends the Context. It returns what became of each.
func (s *Set) Unlock(ctx context.Context) []error {
	errs := make([]error, len(s.Holds))
	var ended []*Hold
	var places []int // of those among all
	hadEnded := ctx.Err() != nil
	for i, h := range s.Holds {
		if !h.lease.End(nil) {
			errs[i] = h.whyEnded()
			continue
		}
		ended, places = append(ended, h), append(places, i)
	}
	for _, h := range s.Holds {
		if cause := h.lease.Cause(); cause != nil {
			s.cancel(cause)
		}
	}
	s.cancel(nil)
	ctx, cancel := outlive(ctx, hadEnded)
	defer cancel()
	if len(ended) > 0 {
		for j, err := range ended[0].engine.giveBackAll(ctx, ended, false) {
			errs[places[j]] = err
		}
	}
	return errs
}

// Valid reports whether all the locks are held, by the local clock.
func (s *Set) Valid() bool {
	return len(s.Holds) > 0 && !slices.ContainsFunc(s.Holds, func(h *Hold) bool { return !h.Valid() })
}

// Context returns a context that ends when the first of the locks does, with the same cause.
func (s *Set) Context() context.Context { return s.ctx }
