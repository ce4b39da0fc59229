package sluice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-go/sluice/internal/locks"
	"github.com/sluice-go/sluice/internal/queues"
	"github.com/sluice-go/sluice/internal/redisexec"
	"github.com/sluice-go/sluice/internal/store"
)

// maxAttempt is the largest number of attempts that a task's state field holds.
const maxAttempt = 999_999_999

// LockOption sets something about locks: for all locks of a Locker when it is given to NewLocker,
// for one lock when it is given to Lock, TryLock, Do or Adopt, for several when it is given to
// LockAll or DoAll.
//
// 0 means that the option was not given: the Locker's value is used, or the default. A negative
// number or time means none, if the option can be none; otherwise it is ErrInvalid. The exceptions:
// WithPermits(0) and WithOwner("") are ErrInvalid, and the prefix "" means that the key has no
// prefix. Times are at most 100 years, else ErrInvalid.
type LockOption func(*lockOptions)

type lockOptions = locks.Options

// limitOr returns a limit that an option sets, or what is set already for 0. No limit, which is
// negative for callers, is 0 from here on.
func limitOr[N int | time.Duration](given, before N) N {
	if given == 0 {
		return before
	}
	return max(given, 0)
}

var defaultLockOptions = lockOptions{Prefix: "Lock:", TTL: 15 * time.Second, RetryInterval: 100 * time.Millisecond}

// WithTTL sets the time after which the server frees a lock that was neither released nor extended:
// how long a crash of the holder blocks the others. They wait for up to 12ms more, or 202ms far
// from the server; see Locker.Lock. At least 1ms. Defaults to 15s.
func WithTTL(d time.Duration) LockOption {
	return func(o *lockOptions) { o.TTL = cmp.Or(d, o.TTL) }
}

// WithRetryInterval sets how often a caller polls that waits for a lock. It is normally woken by a
// message, and by the end of the holder's TTL; the interval bounds its wait when messages are lost.
// At least 1ms. Defaults to 100ms.
//
// Of the callers of one Locker that wait for a name the first polls for all, at its own interval.
// If its process is the first in line, or in no line, each pause is drawn from [d/2, d]. With n
// processes before it, it polls every d*n/4: at least d, and at most 10s or d, whichever is longer.
// While a lock of the same Locker is held, the first has it inspected once in an interval: should
// its key be gone, the wait ends within two.
func WithRetryInterval(d time.Duration) LockOption {
	return func(o *lockOptions) { o.RetryInterval = cmp.Or(d, o.RetryInterval) }
}

// WithAutoRenew renews a lock in the background, at a third of its TTL, until it is released or the
// process ends. The TTL is then how long a crash blocks others, and no bound for the work.
//
// If the server does not answer in time, or says that the lock is not the caller's any more, the
// lock is lost: see Lock.Context. Do, LockAll and DoAll always renew. Defaults to off.
func WithAutoRenew() LockOption { return func(o *lockOptions) { o.Renew = true } }

// WithMaxHold sets the longest time for which a lock is held, however it is extended. When it is
// over the lock is lost (its Context ends with ErrLost), and the server frees it when its TTL runs
// out.
//
// So a function that hangs does not hold a lock for ever by auto-renewal. At least 1ms; negative is
// no limit. Defaults to none.
func WithMaxHold(d time.Duration) LockOption {
	return func(o *lockOptions) { o.MaxHold = limitOr(d, o.MaxHold) }
}

// WithMaxWait sets the longest time for which Lock, Do, LockAll and DoAll wait; for LockAll and
// DoAll that is all the names together. When it is over they return the error that they return when
// their context ends: ErrLocked joined with context.DeadlineExceeded, if another caller held the
// lock.
//
// The context that the function of Do or DoAll gets, and the lock, are not bounded by it. TryLock
// does not wait, and ignores it. At least 1ms; negative is no limit. Defaults to none.
func WithMaxWait(d time.Duration) LockOption {
	return func(o *lockOptions) { o.MaxWait = limitOr(d, o.MaxWait) }
}

// WithFencing gives each holder of the lock a number, see Lock.Fence, that is higher than that of
// every holder before it.
//
// Store it with what the lock guards, and refuse a lower one there, for the case that a holder has
// lost its lock without knowing: its process was stopped, or a failover gave the lock away. A
// holder that reads before it writes stores its fence before it reads; a check in the write alone
// lets an earlier holder write in between. It costs a second key per name, which expires after a
// day without use. Every caller that locks a name should use it: one that doesn't has no fence, and
// hands the lock to one that does by way of Redis only. Defaults to off.
func WithFencing() LockOption { return func(o *lockOptions) { o.Fenced = true } }

// WithLockReplicas makes an acquisition wait until n replicas have acknowledged it. Replication is
// asynchronous: without this a failover may promote a replica that does not know the lock, which is
// then given to a second caller.
//
// If fewer acknowledge it in time, the error is ErrUnderReplicated, at once, also from Lock, which
// waits for other holders and not for replicas; the lock is released in the background. The
// replicas have a quarter of the TTL to acknowledge it, a second at the most, and less if
// go-redis's ReadTimeout is shorter than that (with one of 300ms, half of it) or the caller's
// context ends sooner (of a second, half). The server counts that in steps of 100ms; the lock's
// deadline counts from before all of it. Under a context of less than 200ms it may still be
// ErrUnknown.
//
// Extend and the renewals of WithAutoRenew wait for n replicas, too: else a replica would end the
// lock earlier than its holder. So while too few replicas answer, no lock is acquired, and one that
// is renewed is lost at its deadline. A hand-over within the process needs no replica, since the
// key stays as it is.
//
// It costs one more round trip, from the server to its replicas, in which the connection is busy.
// Give n no more than the replicas that are left when one has failed: with two replicas, 1. Then it
// takes the loss of two servers to give a lock away, or a failover that promotes the wrong one, as
// one that Sentinel is asked for may: neither Sentinel nor a Cluster promises to choose the replica
// which has acknowledged, though they prefer the one that has read most. And a primary that hangs,
// or is cut off, and goes on afterwards may serve its old clients beside the new one: what that
// gives is counted in docs/guarantees.md. It is not consensus; WithFencing holds where this does
// not. Negative is none. Defaults to no replica.
func WithLockReplicas(n int) LockOption {
	return func(o *lockOptions) { o.Replicas = limitOr(n, o.Replicas) }
}

// WithLockPrefix sets what the key of a lock begins with; with "" the key is the name. It is
// checked together with the name. Defaults to "Lock:".
func WithLockPrefix(p string) LockOption { return func(o *lockOptions) { o.Prefix = p } }

// WithPermits lets up to n callers hold the name at a time, in all processes: 1 to 1000.
//
// Each holds a permit, which is a Lock with a TTL, renewal, a Context and, with WithFencing, a
// fence of its own: fences are unique, and rise in the order of acquisition. Of a crashed holder
// only the permit is gone, for its TTL.
//
// All callers of a name must say the same n. As long as a permit is held, an acquisition with
// another n, or without WithPermits, gets ErrInvalid; so does one with permits of a name that is
// held without. Callers of one process wait in one queue for each n. A permit is not handed over
// within the process, but always goes back to Redis: it is reserved for the first process in line,
// which wakes the next if it leaves a permit free. A section costs about three scripts when many
// wait, where a lock that is handed over costs far fewer. Inspect says how many permits are held,
// and by which owners; ForceUnlock frees all of them. Defaults to 1: a plain lock.
//
// 0 is ErrInvalid: a number that was computed wrongly would make a plain lock of a name that others
// hold with permits.
func WithPermits(n int) LockOption {
	return func(o *lockOptions) { o.Permits = cmp.Or(n, -1) } // out of range; 0 in the field is 1
}

// WithOwner sets a label that says which program or host holds the lock, or waits for it:
// Locker.Inspect shows it, to every client of the server, so it must hold no secret. It has 1 to 64
// bytes of printable UTF-8; otherwise the error is ErrInvalid, also for "", since a label that was
// meant is missing then.
//
// It identifies no holder: any number of them may have the same label.
//
// It is kept in the lock's key, in front of the random token. So a lock is handed over within the
// process only between callers with the same label; to one with another it goes by way of Redis.
// Defaults to no label.
func WithOwner(label string) LockOption {
	return func(o *lockOptions) { o.Owner = cmp.Or(label, "\x00") } // out of range; "" in the field is no label
}

// withLockOptions returns o changed by opts, or says what is wrong with the result.
func withLockOptions(o lockOptions, opts []LockOption) (*lockOptions, error) {
	for _, opt := range opts {
		if opt == nil {
			return &o, fmt.Errorf("%w: an option is nil", ErrInvalid)
		}
		opt(&o)
	}
	if err := cmp.Or(checkDuration("WithTTL", o.TTL), checkDuration("WithRetryInterval", o.RetryInterval),
		checkLimit("WithMaxHold", o.MaxHold), checkLimit("WithMaxWait", o.MaxWait)); err != nil {
		return &o, err
	}
	switch {
	case o.Permits < 0 || o.Permits > store.MaxPermits:
		return &o, fmt.Errorf("%w: WithPermits must be 1 to %d", ErrInvalid, store.MaxPermits)
	case o.Owner != "" && !isLabel(o.Owner):
		return &o, fmt.Errorf("%w: WithOwner must be 1 to %d bytes of printable UTF-8", ErrInvalid, maxLabel)
	}
	o.Prepare()
	return &o, nil
}

// maxLabel is the most bytes of a label, of an owner or a Worker.
const maxLabel = 64

func isLabel(label string) bool {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	return label != "" && len(label) <= maxLabel && utf8.ValidString(label) && !strings.ContainsFunc(label, unprintable)
}

// QueueOption sets something about a Queue.
//
// 0 means that the option was not given: the default is used. A negative number or time means none,
// if the option can be none; otherwise it is ErrInvalid. The exception: the prefix "" means that
// the key has no prefix. Times are at most 100 years, else ErrInvalid.
type QueueOption func(*queueOptions)

type queueOptions struct {
	queues.Options
	prefix     string
	duplicates Duplicates
	hooks      hookList[QueueHooks]
}

var defaultQueueOptions = queueOptions{
	Options: queues.Options{QueueOptions: store.QueueOptions{MaxAttempts: 25}, Poll: time.Second}, prefix: "Queue:", duplicates: DuplicatesReplace,
}

// Duplicates says what Enqueue does with an ID that is already in the queue.
//
// A task that is leased at that moment, which a handler is working on, is never touched.
// With DuplicatesReplace and DuplicatesKeepDue the new version waits for its turn (see
// OutcomeDeferred), and so it does with DuplicatesEarliest and DuplicatesLatest, unless one that
// counts more is waiting already. With DuplicatesKeep and DuplicatesOnce it is dropped: what
// happens while a handler works on the ID leads to no further run. Where it must, use one of the
// others, or another ID.
type Duplicates int

const (
	// DuplicatesReplace gives the task the new due time and payload, so that the last one
	// counts (debounce).
	DuplicatesReplace Duplicates = iota + 1
	// DuplicatesKeep leaves the task unchanged, and drops the new one: also while the task is being
	// worked on.
	DuplicatesKeep
	// DuplicatesEarliest replaces the task if the new due time is earlier. Less than 0.1ms earlier,
	// the new version is due a microsecond after the task that it replaces, so that no receipt is
	// good for both.
	DuplicatesEarliest
	// DuplicatesLatest replaces the task if the new due time is later.
	DuplicatesLatest
	// DuplicatesKeepDue takes the new payload and keeps the earlier due time: repeated updates run
	// once, at the first due time, with the last payload. An update that is not due earlier moves
	// the due time by one microsecond, as with DuplicatesEarliest.
	DuplicatesKeepDue
	// DuplicatesOnce makes the ID an idempotency key: what was finished within WithRetention is not
	// enqueued again (OutcomeDone), nor is what waits or is leased (OutcomeKept). A dead letter is,
	// and what was cancelled. On a Queue without WithRetention it is ErrInvalid.
	//
	// It holds only while the server keeps its data, and if every process that finishes tasks sets
	// WithRetention. Reschedule of a leased task still has it run again. The work itself is done at
	// least once: a handler whose lease runs out, or whose result is lost with the server's data,
	// runs again.
	DuplicatesOnce
)

// check says what is wrong with a policy of a queue that remembers what is done, or does not.
func (d Duplicates) check(remembers bool) error {
	switch {
	case d < DuplicatesReplace || d > DuplicatesOnce:
		return fmt.Errorf("%w: no Duplicates has the value %d", ErrInvalid, d)
	case d == DuplicatesOnce && !remembers:
		return fmt.Errorf("%w: DuplicatesOnce without WithRetention", ErrInvalid)
	}
	return nil
}

// String returns the policy's name in lower case; "unknown" for 0, which stands for the queue's.
func (d Duplicates) String() string { return nameIn(policyNames[:], int(d)) }

// WithDuplicates sets what happens to an ID that is already in the queue, where Task.Duplicates says
// nothing else. Defaults to DuplicatesReplace.
func WithDuplicates(p Duplicates) QueueOption {
	return func(o *queueOptions) { o.duplicates = cmp.Or(p, o.duplicates) }
}

// WithMaxAttempts sets how often a task may be claimed. The claim after the n-th does not
// hand the task out. It puts it among the dead letters, where Get and Stats show it. Negative is
// no limit. Defaults to 25.
//
// A delivery that ends with its lease, without a word from its holder, was perhaps never
// seen by a handler: the reply to the claim was lost. Up to two of those do not count, so
// that a task may be handed out n+2 times. Use Pop for what must run once at most.
//
// The limit is that of the Queue that claims, and is not kept on the server: give it to the
// queues of all workers alike. A Queue with a lower limit buries what others would try again.
func WithMaxAttempts(n int) QueueOption {
	return func(o *queueOptions) { o.MaxAttempts = limitOr(n, o.MaxAttempts) }
}

// WithPollInterval sets the longest time between two polls of Wait, and so the longest delay when a
// notification is lost. If more than 100 clients wait, each polls less often: every 3d at the
// longest. No pause is longer than an hour, whatever d is. At least 1ms. Defaults to 1s.
func WithPollInterval(d time.Duration) QueueOption {
	return func(o *queueOptions) { o.Poll = cmp.Or(d, o.Poll) }
}

// WithDeadLimit bounds the number of dead letters to n: more are dropped for good, those first that
// died first. Stats.Trimmed counts what was dropped. Negative is no limit. Defaults to none.
//
// Bury, a Worker, or a claim that finds the attempts of a task used up, buries the task and drops
// the oldest letters in one step: there are never more than n, however many tasks die at a time. To
// fail to drop is no error of the burial. It works on a full server.
//
// The limit is that of the Queue that buries, and is not kept on the server: give it to the queues
// of all workers alike. A limit that is new or lower, or a Queue without one, leaves more letters
// than n. Each burial then drops up to a hundred more than it buries, and each running Worker of a
// Queue with the limit a hundred at a time: at each heartbeat (see Queue.Workers), and every 250ms
// from then on until n are left.
//
// Where no Worker runs, only burials drop. In a loop of one's own these are Bury, a Claim that
// finds attempts used up, and a Claim or Pop that finds an entry that is not the library's.
func WithDeadLimit(n int) QueueOption {
	return func(o *queueOptions) { o.DeadLimit = limitOr(n, o.DeadLimit) }
}

// WithDeadAge drops dead letters that died longer ago than d, by the server's clock, as
// WithDeadLimit drops those beyond its limit: beside burials, and at each heartbeat of a Worker of
// a Queue with this option, be it idle. Stats.Trimmed counts them too.
//
// Without such a Worker, old letters stay until the next burial. At least 1ms; negative is no
// limit. Defaults to none.
func WithDeadAge(d time.Duration) QueueOption {
	return func(o *queueOptions) { o.DeadAge = limitOr(d, o.DeadAge) }
}

// WithRetention remembers finished tasks for d, by the server's clock. Get, List and All show them
// as StateDone, with DoneAt, Attempt, and what RecordResult has recorded.
//
// What a Worker or Dequeue finishes is remembered. What Pop takes or a handler discards is not; nor
// is a version, or an occurrence of a Periodic, that another one takes the place of. A remembered
// ID can be enqueued again, except with DuplicatesOnce. Cancel and Purge forget.
//
// The d is that of the Queue that finishes, and is not kept on the server: give it to the queues of
// all workers and producers alike; the shortest one counts. What is over is forgotten by what
// finishes tasks, and by each running Worker at each heartbeat (see Queue.Workers): a thousand at a
// time, 250 where there are results. Where neither happens, it stays: a loop with Claim and Dequeue
// forgets as it finishes, one with Pop never.
//
// A task takes about 140 bytes of Redis, and one with a result or with another Attempt than 1 about
// 100 more, and the result. No finish fails for want of room: a full server gets the ID without the
// result, and the Worker logs that. At least 1ms; negative remembers nothing. Defaults to none.
func WithRetention(d time.Duration) QueueOption {
	return func(o *queueOptions) { o.Retention = limitOr(d, o.Retention) }
}

// WithQueueReplicas makes a change of the queue wait until n replicas have acknowledged it: by
// Enqueue, EnqueueBatch, Dequeue, Retry, Release, Bury, Revive, Drop, Reschedule, Cancel, Pop,
// Pause, Resume, SetLimits or Purge. Without this a failover may forget what was acknowledged a
// moment before.
//
// If fewer acknowledge it in time (a second, or less if go-redis's ReadTimeout is shorter or ctx
// ends sooner; see WithLockReplicas), the error is ErrUnderReplicated. The change is made all the
// same, on the primary, and what the operation returns stands beside the error:
//
//   - Accept that, or call again. A repeat says what is true of the replicas, though it may find
//     nothing to do: without ErrUnderReplicated, n of them have all that was done to the queue
//     before, by any call. It costs a small write.
//   - A task that was to be enqueued is in the queue, and may be claimed. To enqueue it again with
//     DuplicatesKeep changes nothing; with DuplicatesReplace it is a new version.
//   - A task that was to be finished is. After a failover that forgets it, it is handed out again,
//     as after a crash: at least once. A further call is ErrStale, joined with ErrUnderReplicated
//     until the replicas have it.
//   - An operation in several steps (EnqueueBatch, Dequeue, Retry, Release, Bury, Revive, Drop,
//     Pop) ends with the step that too few replicas have acknowledged; the next steps are not sent.
//
// Calls that are merged share one wait. What a Worker reports waits for no replica, nor do claims
// and extensions: no caller could do anything about it, tasks are handed out at least once in any
// case, and the replicas get it no sooner. A Pop that finds nothing due needs no replica. It costs
// a round trip from the server to its replicas, in which the connection is busy. Negative waits for
// no replica. Defaults to none.
func WithQueueReplicas(n int) QueueOption {
	return func(o *queueOptions) { o.Replicas = limitOr(n, o.Replicas) }
}

// WithMaxTasks bounds what this Queue lets its queue grow to: an enqueue that would make it have more
// than n tasks is ErrFull, and nothing is enqueued. It keeps a producer from filling the server while
// no worker runs.
//
// Scheduled, due and leased tasks count, and those that wait in their groups; dead letters and what is
// done do not. An ID that is there already adds none, nor does one that DuplicatesOnce keeps out: a
// repeat works on a full queue. A Take is ErrFull there, also where it is sold out. Periodic tasks are
// enqueued anyway. EnqueueBatch goes in steps of 250 tasks at most: one that does not fit is not
// enqueued as a whole, nor are those behind it, and their outcomes are 0.
//
// The bound is that of the Queue that enqueues, and is not kept on the server: give it to all
// producers alike. A Queue without it enqueues any number, and pays nothing for it; with it, a single
// enqueue costs the server about twice as much. Negative is no limit. Defaults to none.
func WithMaxTasks(n int) QueueOption {
	return func(o *queueOptions) { o.MaxTasks = limitOr(n, o.MaxTasks) }
}

// WithQueuePrefix sets what the key of a queue begins with; with "" the key is the name. Defaults to
// "Queue:".
func WithQueuePrefix(p string) QueueOption { return func(o *queueOptions) { o.prefix = p } }

// with returns o changed by opts, or says what is wrong with the result.
func (o queueOptions) with(opts []QueueOption) (queueOptions, error) {
	for _, opt := range opts {
		if opt == nil {
			return o, fmt.Errorf("%w: an option is nil", ErrInvalid)
		}
		opt(&o)
	}
	if o.MaxAttempts > maxAttempt {
		return o, fmt.Errorf("%w: WithMaxAttempts must be %d at most", ErrInvalid, maxAttempt)
	}
	if err := o.duplicates.check(o.Retention > 0); err != nil {
		return o, err
	}
	o.Duplicates = o.duplicates.String()
	return o, cmp.Or(checkDuration("WithPollInterval", o.Poll), checkLimit("WithDeadAge", o.DeadAge), checkLimit("WithRetention", o.Retention))
}

// checkDuration refuses a TTL, lease or interval that Redis could not hold.
func checkDuration(what string, d time.Duration) error {
	return checkDurationFrom(time.Millisecond, what, d)
}

// checkDurationFrom refuses one that is shorter than the least, or longer than 100 years.
func checkDurationFrom(least time.Duration, what string, d time.Duration) error {
	if d < least || d > store.LongestDuration {
		return fmt.Errorf("%w: %s of %v: must be %v to 100 years", ErrInvalid, what, d, least)
	}
	return nil
}

// checkDelay refuses a delay that is longer than 100 years. One below zero is none.
func checkDelay(what string, d time.Duration) error {
	if d > store.LongestDuration {
		return fmt.Errorf("%w: %s of %v: must be 100 years at most", ErrInvalid, what, d)
	}
	return nil
}

// checkLimit is checkDuration of one that is 0 for none.
func checkLimit(what string, d time.Duration) error {
	return checkDuration(what, cmp.Or(d, time.Second))
}

// checkClient refuses a client that cannot be used. A Ring cannot: it moves a name to
// another shard when one is down or comes back, so that two callers hold one lock, or a
// queue is in two parts; and it has no way to subscribe before a channel is known.
// Wrappers of a Ring are recognised by its methods, and the others by what they do when
// they are asked for a subscription to nothing, which takes no I/O.
func checkClient(rdb redis.UniversalClient) (err error) {
	v := reflect.ValueOf(rdb)
	if rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("%w: the client is nil", ErrInvalid)
	}
	if _, isRing := rdb.(interface{ Options() *redis.RingOptions }); isRing {
		return fmt.Errorf("%w: the client is a Ring, which cannot keep a name on one shard", ErrInvalid)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: the client cannot subscribe: %w", ErrInvalid, err)
		}
	}()
	defer redisexec.Contain(&err)
	subscription := rdb.Subscribe(context.Background())
	if subscription == nil {
		return errors.New("it returns nil")
	}
	_ = subscription.Close()
	return nil
}

// hookList has all LockHooks or QueueHooks that were given, in the order in which they are called;
// nil for none.
type hookList[H any] []*H

// have reports whether one of them has a hook for which isSet is true.
func (all hookList[H]) have(isSet func(h *H) bool) bool { return slices.ContainsFunc(all, isSet) }

// with returns the list with another one behind it, if that has any hook.
func (all hookList[H]) with(h *H, isSet bool) hookList[H] {
	if !isSet {
		return all
	}
	return append(slices.Clip(all), h)
}

// callHook calls a hook, if it is set. A panic of it is dropped.
func callHook(isSet bool, hook func()) {
	if isSet {
		var dropped error
		defer redisexec.Contain(&dropped)
		hook()
	}
}
