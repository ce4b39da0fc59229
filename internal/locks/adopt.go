package locks

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-go/sluice/internal/lease"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/shrink"
	"github.com/sluice-go/sluice/internal/store"
)

// Adopt makes h, which must have been located, the hold of what the token holds. It waits for the
// reply.
func (h *Hold) Adopt(ctx context.Context, token string) error {
	own := *h.options
	own.Owner, _ = OwnerIn(token)
	h.options = &own
	h.observe()
	if err := h.adopt(ctx, token); err != nil {
		return err
	}
	if h.options.Renew {
		h.engine.renewer.Add(h)
	}
	h.tellAcquired(ctx, Acquired)
	return nil
}

// adopt makes h the holder of what the token holds.
func (h *Hold) adopt(ctx context.Context, token string) error {
	g := &grant{token: token, window: shortestWindow, apart: true}
	h.grant = g
	request := h.replicated(h.address.Adopt(token, h.options.TTL+g.window.margin(), h.isPermit(), h.options.Fenced))
	request.Small = true
	reply, err := h.engine.Executor.Run(ctx, request)
	if err != nil {
		return err
	}
	held, fence, err := store.DecodeAdopted(reply.Value)
	switch {
	case err != nil:
		return err
	case !held:
		return ErrNotHeld
	case reply.Shortfall != nil:
		return reply.Shortfall
	}
	if h.options.Fenced {
		h.fence, g.fences = fence, fences{first: fence, block: 1, since: time.Now()}
	}
	g.sent, g.replicas = reply.Sent, h.options.Replicas
	h.begin(g.sent, lease.SafeUntil(g.sent, h.options.TTL), lease.SafeUntil(g.sent, h.options.TTL+g.window.margin()))
	switch {
	case !h.lease.Valid():
		return h.cameTooLate()
	case !h.engine.apart.add(h):
		return ErrClosed
	}
	return nil
}

// Detach ends h, and leaves the lock held for the process that adopts the token, which it returns.
// If a renewal is under way, it waits for that until ReplyGrace after ctx has ended.
func (h *Hold) Detach(ctx context.Context) (token string, err error) {
	hadEnded := ctx.Err() != nil
	if !h.lease.End(nil) {
		return "", h.whyEnded()
	}
	ctx, cancel := outlive(ctx, hadEnded)
	defer cancel()
	if h.options.Renew {
		h.engine.renewer.Remove(ctx, redisexec.ReplyGrace, h)
	}
	late := errors.Is(h.lease.Cause(), lease.ErrLost)
	if late { // no process may rely on it
		h.releaseInBackground()
	}
	h.leave()
	if late || h.notOurs.Load() {
		h.tellEnded(Lost)
		return "", ErrNotHeld
	}
	h.tellEnded(Released)
	return h.Token(), nil
}

// apartLocks are the locks of an Engine that are held outside of the queues of its callers, and so
// never handed over. The zero value is ready.
type apartLocks struct {
	mu    sync.Mutex // guards what follows
	locks map[*Hold]struct{}
	peak  int // the most locks so far, see shrink.Map
}

// add reports false if the Engine is closed. It drops some locks that have ended and were not
// released, so that forgetting to leaks nothing.
func (a *apartLocks) add(h *Hold) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.engine.Closed() { // else UnlockAll, which Close calls after that, finds it
		return false
	}
	if a.locks == nil {
		a.locks = map[*Hold]struct{}{}
	}
	looks := 4
	for other := range a.locks {
		if looks--; looks < 0 {
			break
		}
		if !other.Valid() {
			delete(a.locks, other)
		}
	}
	a.locks[h] = struct{}{}
	a.peak = max(a.peak, len(a.locks))
	return true
}

func (a *apartLocks) remove(h *Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.locks, h)
	a.locks = shrink.Map(a.locks, &a.peak)
}

// all returns the locks, those with a key, or with any if it is empty.
func (a *apartLocks) all(key string) (locks []*Hold) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for h := range a.locks {
		if key == "" || h.address.Key() == key {
			locks = append(locks, h)
		}
	}
	return locks
}
