package sluice

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-go/sluice/internal/notify"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/waitqueue"
)

// maxPermits is the most that a name may have: ForceUnlock reads all their tokens at once.
const maxPermits = 1000

// WithPermits lets up to n callers hold the name at a time, in all processes: 1 to 1000. Each holds a permit, which is a
// Lock with a TTL, renewal, a Context and, with WithFencing, a fence of its own: fences are unique, and
// rise in the order of acquisition. Of a crashed holder only the permit is gone, for its TTL.
//
// All callers of a name must say the same n. As long as a permit is held, an acquisition with another n, or without
// WithPermits, gets ErrInvalid; so does one with permits of a name that is held without. Callers of one process wait in one queue for each n. A permit is not handed
// over within the process, but always goes back to Redis: the first in line of each process is notified of
// it, and what has had one most recently goes last. A section costs about two scripts when many wait, where a
// lock that is handed over costs far fewer. Inspect says how many permits are held, and shows no owner;
// ForceUnlock frees all of them. Defaults to 1: a plain lock.
func WithPermits(n int) LockOption {
	return func(o *lockOptions) {
		if o.permits = n; n == 0 {
			o.permits = -1 // out of range, as in WithMaxHold
		}
	}
}

func (o *lockOptions) checkPermits() error {
	if o.permits < 0 || o.permits > maxPermits {
		return fmt.Errorf("%w: a name has 1 to %d permits", ErrInvalid, maxPermits)
	}
	return nil
}

// isPermit says that k is one of several permits of its name.
func (k *Lock) isPermit() bool { return k.options.permits > 1 }

// newPermitQueues returns the queues of callers that wait for permits, by their number and the key. The head
// of one acquires; it never holds, but promotes the next waiter, for whom there may be a permit too.
func newPermitQueues(n *notify.Notifier) *waitqueue.Set[*address] {
	return waitqueue.New(func(prefix, name string) (*address, error) {
		_, prefix, _ = strings.Cut(prefix, ":") // see Lock.queuePrefix
		return newAddress(n, prefix, name)
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

// givenBack lets the next waiter acquire what k has given back, of which so many other processes were notified.
func (k *Lock) givenBack(notified, received int) {
	if k.isPermit() {
		k.locker.permits.NoteGivenBack(&k.waiter, notified, received)
		return
	}
	k.locker.queues.GivenBack(&k.waiter, notified, received)
}

// permitRequest takes a permit.
func (k *Lock) permitRequest(px any) redisexec.Request {
	keys := k.address.keys
	if k.options.fenced {
		keys = k.address.fencedKeys()
	}
	return scriptPermitAcquire.Request(keys, k.grant.token, px, k.options.permits, fenceLife.Milliseconds())
}

// inspectRequest asks whether k's token holds it.
func (k *Lock) inspectRequest() redisexec.Request {
	script := scriptInspect
	if k.isPermit() {
		script = scriptPermitInspect
	}
	return script.Request(k.address.keys, k.grant.token)
}

// otherKind returns the ErrInvalid of a name that is held with another number of permits than k's, if the reply to an
// acquisition says so. One permit is a plain lock.
func (k *Lock) otherKind(value any) error {
	n, ok := value.(int64)
	switch n = -1 - n; {
	case !ok || n < 1:
		return nil
	case n == 1:
		return fmt.Errorf("%w: it is held as a lock without permits", ErrInvalid)
	case !k.isPermit():
		return fmt.Errorf("%w: it is held with permits", ErrInvalid)
	}
	return fmt.Errorf("%w: it has %d permits, not %d", ErrInvalid, n, k.options.permits)
}
