package sluice

import (
	"context"
	"errors"
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
// All callers of a name must say the same n. As long as a permit is held, a caller with another n, or without
// WithPermits, gets ErrInvalid. Callers of one process wait in one queue for each n. A permit is not handed
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

// inspectRequest asks about the holder with that token, or with an empty one about any.
func (k *Lock) inspectRequest(token any) redisexec.Request {
	if k.isPermit() {
		return scriptPermitInspect.Request(k.address.keys, token)
	}
	return scriptInspect.Request(k.address.keys, token)
}

// otherPermits returns the ErrInvalid of a name that is held with another number of permits, if permit_acquire.lua says so.
func (k *Lock) otherPermits(value any) error {
	if n, ok := value.(int64); ok && n < -1 && k.isPermit() {
		return fmt.Errorf("%w: it has %d permits, not %d", ErrInvalid, -1-n, k.options.permits)
	}
	return nil
}

// explain returns err, or an ErrInvalid if it comes of a name that is held with permits and not without, or
// without permits and not with.
func (k *Lock) explain(ctx context.Context, err error) error {
	if !errors.Is(err, redisexec.ErrWrongType) {
		return err
	}
	if k.isPermit() {
		reply, failed := k.locker.executor.Run(ctx, scriptInspect.Request(k.address.keys, ""))
		if failed != nil {
			return err
		}
		if ms, _, failed := decodeInspected(reply.Value); failed == nil && (!k.options.fenced || duration(ms) != notHeld) {
			return fmt.Errorf("%w: it is held as a lock without permits", ErrInvalid)
		}
	} else if info, failed := k.inspectPermits(ctx); failed == nil && info.Held {
		return fmt.Errorf("%w: it is held with permits", ErrInvalid)
	}
	return err
}

// decodePermits decodes what permit_inspect.lua says of any holder: for how long, and how many.
func decodePermits(value any) (ms int64, held int, err error) {
	if value == int64(-2) {
		return -2, 0, nil
	}
	pair, err := decodeInts[int64](value, 2)
	if err != nil || pair[0] < 0 || pair[1] < 1 || pair[1] > maxPermits {
		return 0, 0, redisexec.Unexpected(value)
	}
	return pair[0], int(pair[1]), nil
}

// inspectPermits is Inspect for a name with permits.
func (k *Lock) inspectPermits(ctx context.Context) (LockInfo, error) {
	reply, err := k.locker.executor.Run(ctx, scriptPermitInspect.Request(k.address.keys, ""))
	if err != nil {
		return LockInfo{}, err
	}
	ms, held, err := decodePermits(reply.Value)
	if err != nil || held == 0 {
		return LockInfo{}, err
	}
	return LockInfo{Held: true, TTL: duration(ms), Permits: held}, nil
}

// forcePermits is ForceUnlock for a name with permits. It returns the tokens that held them.
func (k *Lock) forcePermits(ctx context.Context) (tokens map[string]bool, err error) {
	reply, err := k.locker.executor.Run(ctx, scriptPermitForce.Request(k.address.keys, k.address.wake))
	if err != nil {
		return nil, err
	}
	list, ok := reply.Value.([]any)
	if !ok {
		return nil, redisexec.Unexpected(reply.Value)
	}
	tokens = map[string]bool{}
	for _, one := range list {
		token, _ := one.(string)
		tokens[token] = true
	}
	return tokens, nil
}
