package sluice

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice/internal/line"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// isPermit says that k is one of several permits of its name.
func (k *Lock) isPermit() bool { return k.options.permits > 1 }

// newPermitQueues returns the queues of callers that wait for permits, by their number and the key. The head
// of one acquires; it never holds, but promotes the next waiter, for whom there may be a permit too.
func newPermitQueues(p *line.Process) *waitqueue.Set[*address] {
	return waitqueue.New(func(prefix, name string) (*address, error) {
		_, prefix, _ = strings.Cut(prefix, ":") // see Lock.queuePrefix
		return newAddress(p, prefix, name)
	})
}

// queues returns those in which k waits.
func (k *Lock) queues() *waitqueue.Set[*address] {
	if k.isPermit() {
		return k.locker.permits
	}
	return k.locker.queues
}

// queuePrefix is what stands before k's name in its queues.
func (k *Lock) queuePrefix() string {
	if k.isPermit() {
		return strconv.Itoa(k.options.permits) + ":" + k.options.prefix
	}
	return k.options.prefix
}

// hold makes k a holder. It reports false if the Locker is closed.
func (k *Lock) hold() bool {
	if !k.isPermit() {
		return k.locker.queues.Hold(&k.waiter)
	}
	k.grant.apart = true
	if !k.locker.apart.add(k) {
		return false
	}
	k.locker.permits.PromoteNext(&k.waiter)
	return true
}

// otherKind returns the ErrInvalid of a name that is held with another number of permits than k's.
func (k *Lock) otherKind(permits int) error {
	switch {
	case permits == 1:
		return fmt.Errorf("%w: it is held as a lock without permits", ErrInvalid)
	case !k.isPermit():
		return fmt.Errorf("%w: it is held with permits", ErrInvalid)
	}
	return fmt.Errorf("%w: it has %d permits, not %d", ErrInvalid, permits, k.options.permits)
}
