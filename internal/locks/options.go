package locks

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluice-go/sluice/internal/store"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// Options are those of a lock, within their ranges. Prepare must have been called.
type Options struct {
	Prefix        string        // what the key begins with
	TTL           time.Duration // of the key
	RetryInterval time.Duration // how often a caller polls that waits
	MaxHold       time.Duration // 0 for any time
	MaxWait       time.Duration // 0 for as long as the context lets it
	Renew         bool          // it is extended in the background while it is held
	Fenced        bool

	Permits  int    // how many may hold; 0 for 1
	Replicas int    // that are to acknowledge an acquisition or extension; 0 for none
	Owner    string // stands in front of tokens; "" for none

	Hooks    []Hook
	observer *observer // of one lock that has hooks, whose options are its own; else nil

	keyTTL any // the key's TTL for the shortest window, in ms, as an argument of scripts
}

// Prepare computes what is the same for all locks with these options.
func (o *Options) Prepare() { o.keyTTL = store.Millis(o.TTL + shortestWindow.margin()) }

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

// sameEverywhere is what the caller is to do about another number of permits.
const sameEverywhere = ": give the same WithPermits everywhere"

// otherKind returns the ErrInvalid of a name that is held with another number of permits than h's.
func (h *Hold) otherKind(permits int) error {
	switch {
	case permits == 1:
		return fmt.Errorf("%w: it is held as a lock without permits"+sameEverywhere, store.ErrInvalid)
	case !h.isPermit():
		return fmt.Errorf("%w: it is held with permits"+sameEverywhere, store.ErrInvalid)
	}
	return fmt.Errorf("%w: it has %d permits, not %d"+sameEverywhere, store.ErrInvalid, permits, h.options.Permits)
}
