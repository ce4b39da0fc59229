package locks

import (
	"fmt"
	"strconv"

	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// isPermit says that h is one of several permits of its name.
func (h *Hold) isPermit() bool { return h.options.Permits > 1 }

// queues returns those in which h waits. The head of one for permits acquires; it never holds, but
// promotes the next waiter, for whom there may be a permit too.
func (h *Hold) queues() *waitqueue.Set[*address] {
	if h.isPermit() {
		return h.engine.permits
	}
	return h.engine.queues
}

// queuePrefix is what stands before h's name in its queues.
func (h *Hold) queuePrefix() string {
	if h.isPermit() {
		return strconv.Itoa(h.options.Permits) + ":" + h.options.Prefix
	}
	return h.options.Prefix
}

// hold makes h a holder. It reports false if the Engine is closed.
func (h *Hold) hold() bool {
	if !h.isPermit() {
		return h.engine.queues.Hold(&h.waiter)
	}
	h.grant.apart = true
	if !h.engine.apart.add(h) {
		return false
	}
	h.engine.permits.PromoteNext(&h.waiter)
	return true
}

// otherKind returns the ErrInvalid of a name that is held with another number of permits than h's.
func (h *Hold) otherKind(permits int) error {
	switch {
	case permits == 1:
		return fmt.Errorf("%w: it is held as a lock without permits", store.ErrInvalid)
	case !h.isPermit():
		return fmt.Errorf("%w: it is held with permits", store.ErrInvalid)
	}
	return fmt.Errorf("%w: it has %d permits, not %d", store.ErrInvalid, permits, h.options.Permits)
}
