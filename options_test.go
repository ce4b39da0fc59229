package sluice_test

import (
	"context"
	"errors"
	"iter"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
	"github.com/sluice-go/sluice/internal/systest"
	"github.com/sluice-go/sluice/internal/systest/operations"
)

// embedsRing and embedsClient are what users make of a client to add to it; mute cannot
// subscribe.
type (
	embedsRing   struct{ *redis.Ring }
	embedsClient struct{ redis.UniversalClient }
	mute         struct{ redis.UniversalClient }
)

func (mute) Subscribe(context.Context, ...string) *redis.PubSub { return nil }

// unusable are clients that no Locker and no Queue can work with.
func unusable() map[string]redis.UniversalClient {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	_ = ring.Close()
	return map[string]redis.UniversalClient{
		"ring":                         ring,
		"struct with a ring":           embedsRing{ring},
		"interface with a ring":        embedsClient{ring},
		"interface with nothing":       embedsClient{},
		"interface with a nil pointer": embedsClient{(*redis.Client)(nil)},
		"client without subscriptions": mute{},
	}
}

// arguments are what errors name, by how the cases of the test below begin.
var arguments = map[string]string{
	"owner": "WithOwner", "lock owner": "WithOwner", "ttl": "WithTTL", "lock ttl": "WithTTL", "retry interval": "WithRetryInterval", "ttl 9": "WithTTL of 999.999µs: must be 1ms to 100 years",
	"max hold": "WithMaxHold", "max wait": "WithMaxWait", "permits": "WithPermits", "locker prefix": "WithLockPrefix",
	"poll interval": "WithPollInterval", "dead age": "WithDeadAge", "retention": "WithRetention", "max attempts": "WithMaxAttempts",
	"policy": "Duplicates", "once": "WithRetention", "nil function": "fn is nil", "nil lock option": "option is nil",
	"nil queue option": "option is nil", "nil client": "client is nil", "ring": "the client is a Ring", "queue nil client": "client is nil",
	"extend lock": "ttl of ", "claim n": "n must", "pop n": "n must", "peek n": "n must", "list n": "n must", "claim 9": "lease of 999.999µs: must be 1ms to 100 years", "list behind": "after is",
	"list state": "state: ", "all state": "state: ", "list option": "option is nil", "get id": "id is empty", "cancel id": "id is empty",
	"reschedule id": "id is empty", "revive id": "ids[1] is empty", "drop id": "ids[1] is empty", "delay": "Delay of 2562047h47m16.854775807s: must be 100 years at most",
	"retry delay": "delay of", "reschedule delay": "delay of", "Locker.TryLock name ": `sluice: try lock "`, "dequeue beside": "es[1]: ", "batch ": "ts[1]: ", "pause": "d of ", "stock": "item must", "set stock": "total must",
	"limits per": "Limits: Per of ", "limits rate": "Limits: Rate of 2000000000: must be 0 to 1000000000", "limits none": "Per or Burst without a positive Rate (it is -1)",
	"token": "token was not made by a Locker (see Lock.Detach)", "nil: Locker": "Locker not made by", "nil: Queue": "Queue not made by",
	"queue braces": `bad name "{a": leave out the braces, or put text between one pair, as in "{eu}:orders"`, "queue name a{b": `bad name "a{b": leave out the braces`,
	"enqueue no id": "ID must", "batch long id": "ID must", "enqueue payload": "Payload", "enqueue at": "At must", "enqueue delay and at": "Delay and At",
}

// TestOptions_InvalidArgumentsAreRejectedUnsent gives every operation every kind of bad
// argument: ErrInvalid, the argument's name, and not a byte is sent.
func TestOptions_InvalidArgumentsAreRejectedUnsent(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		rdb, faults := s.Faulty(t)
		l := systest.NewLocker(t, rdb)
		k, err := l.Lock(ctx, redistest.Name(t))
		require.NoError(t, err)
		q := systest.NewQueue(t, rdb)
		_, err = q.Enqueue(ctx, sluice.Task{ID: "a", Payload: make([]byte, 1<<20), Delay: time.Hour})
		require.NoError(t, err)
		shown, err := q.Get(ctx, "a")
		require.NoError(t, err)
		e := shown.Entry

		bad := map[string]func() error{}
		locker := func(opts ...sluice.LockOption) func() error {
			return func() error { _, err := sluice.NewLocker(rdb, opts...); return err }
		}
		queue := func(name string, opts ...sluice.QueueOption) func() error {
			return func() error { _, err := sluice.NewQueue(rdb, name, opts...); return err }
		}
		long, forever := strings.Repeat("x", 513), time.Duration(math.MaxInt64)
		for _, name := range []string{"", long, "a{b", "a}b", "a{}b", "}{", "{}a{b}", "{a}:dead", "{a}b:tasks", "{a}:state", "{a}:wake", "{a}:canceled", "{a}:fence", "{a}:line", "{a}b:errors", "{a}:results"} {
			for _, op := range operations.OfLocks() {
				if op.Type() == "Locker" && op.Lost != operations.Unavailable && !op.EndsLocker() { // those that take a name
					bad[op.Name+" name "+name] = func() error { _, err := op.Call(ctx, &operations.Fixture{Locker: l, Name: name}); return err }
				}
			}
			bad["queue name "+name] = queue(name)
		}
		for _, label := range []string{"", long, strings.Repeat("x", 65), "a\nb", "\x00", "\x7f", "\xff", "a\u202eb", "a\u200bb", "\u2028", "\u00a0"} {
			bad["owner "+label] = locker(sluice.WithOwner(label))
			bad["lock owner "+label] = func() error { _, err := l.Lock(ctx, "a", sluice.WithOwner(label)); return err }
		}
		bad["lock prefix"] = func() error { _, err := l.Lock(ctx, "a", sluice.WithLockPrefix(long)); return err }
		bad["locker prefix"] = locker(sluice.WithLockPrefix(long))
		bad["queue prefix"] = queue("a", sluice.WithQueuePrefix(long))
		bad["queue tag only"] = queue("{a}", sluice.WithQueuePrefix(""))
		bad["lock tag only"] = func() error { _, err := l.Lock(ctx, "a}", sluice.WithLockPrefix("{")); return err }
		bad["queue braces"] = queue("a", sluice.WithQueuePrefix("{"))
		for _, d := range []time.Duration{0, -1, time.Millisecond - 1, forever} {
			at := d.String()
			bad["extend lock "+at] = func() error { return k.Extend(ctx, d) }
			bad["claim "+at] = func() error { _, err := q.Claim(ctx, 1, d); return err }
			bad["extend "+at] = func() error { return q.Extend(ctx, e, d) }
			if d == 0 { // an option that is given 0 is not given
				continue
			}
			bad["ttl "+at] = locker(sluice.WithTTL(d))
			bad["lock ttl "+at] = func() error { _, err := l.Lock(ctx, "a", sluice.WithTTL(d)); return err }
			bad["retry interval "+at] = locker(sluice.WithRetryInterval(d))
			bad["poll interval "+at] = queue("a", sluice.WithPollInterval(d))
		}
		for _, d := range []time.Duration{time.Millisecond - 1, forever} { // negative is no limit
			at := d.String()
			bad["max hold "+at] = locker(sluice.WithMaxHold(d))
			bad["max wait "+at] = locker(sluice.WithMaxWait(d))
			bad["lock max wait "+at] = func() error { _, err := l.Lock(ctx, "a", sluice.WithMaxWait(d)); return err }
			bad["dead age "+at] = queue("a", sluice.WithDeadAge(d))
			bad["retention "+at] = queue("a", sluice.WithRetention(d))
		}
		for _, n := range []int{-1, 0, 1001} { // 0 too: see WithPermits
			bad["permits "+strconv.Itoa(n)] = locker(sluice.WithPermits(n))
		}
		bad["delay"] = func() error { _, err := q.Enqueue(ctx, sluice.Task{ID: "b", Delay: forever}); return err }
		bad["retry delay"] = func() error { return q.Retry(ctx, forever, "failed", e) }
		bad["reschedule delay"] = func() error { _, err := q.Reschedule(ctx, "a", forever); return err }
		for what, task := range map[string]sluice.Task{
			"no id":          {},
			"long id":        {ID: long},
			"payload":        {ID: "b", Payload: make([]byte, 1<<20+1)},
			"delay and at":   {ID: "b", Delay: 1, At: time.Now()},
			"at before 1970": {ID: "b", At: time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC)},
			"at after 2200":  {ID: "b", At: time.Date(2200, 1, 2, 0, 0, 0, 0, time.UTC)},
		} {
			bad["enqueue "+what] = func() error { _, err := q.Enqueue(ctx, task); return err }
			bad["batch "+what] = func() error { _, err := q.EnqueueBatch(ctx, []sluice.Task{{ID: "good"}, task}); return err }
		}
		for _, n := range []int{0, -1} {
			bad["claim n"] = func() error { _, err := q.Claim(ctx, n, time.Second); return err }
			bad["pop n"] = func() error { _, err := q.Pop(ctx, n); return err }
			bad["peek n"] = func() error { _, err := q.Peek(ctx, n); return err }
			bad["list n"] = func() error { _, err := q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, n); return err }
		}
		for what, entry := range map[string]sluice.Entry{
			"zero": {}, "nan": {ID: "a", Score: math.NaN()}, "inf": {ID: "a", Score: math.Inf(1)}, "a handler's": {ID: "a", Attempt: 1},
		} {
			bad["dequeue beside "+what] = func() error { return q.Dequeue(ctx, e, entry) }
			for _, op := range operations.OfQueues() {
				if op.Needs == operations.Leased && op.Name != "Queue.List" { // those that take an entry
					bad[op.Name+" "+what] = func() error { _, err := op.Call(ctx, &operations.Fixture{Queue: q, Entry: entry}); return err }
				}
			}
		}
		for what, option := range map[string]sluice.ReadOption{"nil": nil} {
			bad["get option "+what] = func() error { _, err := q.Get(ctx, "a", option); return err }
			bad["list option "+what] = func() error { _, err := q.List(ctx, sluice.StateDue, sluice.TaskInfo{}, 1, option); return err }
			bad["all option "+what] = func() error { return errorOf(q.All(ctx, sluice.StateDead, option)) }
		}
		for what, after := range map[string]sluice.TaskInfo{"nan": {Entry: sluice.Entry{ID: "a", Score: math.NaN()}}, "of another list": shown} {
			bad["list after "+what] = func() error { _, err := q.List(ctx, sluice.StateLeased, after, 1); return err }
		}
		for _, s := range []sluice.State{sluice.StateDue, sluice.StateDead} {
			bad["list behind one of another state: "+s.String()] = func() error { _, err := q.List(ctx, s, shown, 1); return err }
		}
		for _, s := range []sluice.State{sluice.StateAbsent, -1, sluice.StateWaiting + 1} {
			bad["list state "+s.String()] = func() error { _, err := q.List(ctx, s, sluice.TaskInfo{}, 1); return err }
			bad["all state "+s.String()] = func() error { return errorOf(q.All(ctx, s)) }
		}
		bad["pause"] = func() error { return q.Pause(ctx, -1) }
		bad["set stock"] = func() error { return q.SetStock(ctx, "item", -1) }
		bad["stock"] = func() error { _, err := q.Stock(ctx, ""); return err }
		for what, limits := range map[string]sluice.Limits{
			"per -3s": {Rate: 1, Per: -3 * time.Second}, "per 5ns": {Rate: 1, Per: 5}, "rate": {Rate: 2_000_000_000}, "none": {Rate: -1, Per: time.Second},
		} {
			bad["limits "+what] = func() error { return q.SetLimits(ctx, limits) }
		}
		bad["token"] = func() error { _, err := l.Adopt(ctx, "a", "token"); return err }
		bad["get id"] = func() error { _, err := q.Get(ctx, ""); return err }
		bad["revive id"] = func() error { _, err := q.Revive(ctx, "a", ""); return err }
		bad["cancel id"] = func() error { _, err := q.Cancel(ctx, ""); return err }
		bad["reschedule id"] = func() error { _, err := q.Reschedule(ctx, "", 0); return err }
		bad["drop id"] = func() error { _, err := q.Drop(ctx, "a", ""); return err }
		bad["nil function"] = func() error { return l.Do(ctx, "a", nil) }
		bad["nil lock option"] = locker(nil)
		bad["nil queue option"] = queue("a", nil)
		bad["policy"] = queue("a", sluice.WithDuplicates(9))
		bad["max attempts"] = queue("a", sluice.WithMaxAttempts(1_000_000_000))
		bad["once without retention"] = queue("a", sluice.WithDuplicates(sluice.DuplicatesOnce), sluice.WithRetention(-1))
		bad["nil client"] = func() error { _, err := sluice.NewLocker(nil); return err }
		bad["nil pointer client"] = func() error { _, err := sluice.NewLocker((*redis.Client)(nil)); return err }
		for kind, rdb := range unusable() {
			bad[kind] = func() error { _, err := sluice.NewLocker(rdb); return err }
			bad["queue "+kind] = func() error { _, err := sluice.NewQueue(rdb, "a"); return err }
		}
		bad["queue nil client"] = func() error { _, err := sluice.NewQueue(nil, "a"); return err }
		zero := &operations.Fixture{Locker: &sluice.Locker{}, Lock: &sluice.Lock{}, Set: &sluice.LockSet{}, Queue: &sluice.Queue{}, Name: "a", Entry: e}
		for _, op := range operations.Table {
			bad["zero value: "+op.Name] = func() error { _, err := op.Call(ctx, zero); return err }
			if op.Type() == "Lock" || op.Type() == "Locker" || op.Type() == "Queue" {
				bad["nil: "+op.Name] = func() error { _, err := op.Call(ctx, &operations.Fixture{}); return err }
			}
		}

		before, named := faults.Bytes(), map[string]bool{}
		for what, op := range bad {
			require.ErrorIs(t, op(), sluice.ErrInvalid, what)
			for kind, argument := range arguments {
				if strings.HasPrefix(what, kind) {
					require.ErrorContains(t, op(), argument, what)
					named[kind] = true
				}
			}
			for _, kind := range []string{"Queue.", "enqueue ", "batch ", "claim ", "peek ", "list ", "all ", "get ", "revive ", "reschedule ", "limits ", "pause", "stock", "set "} {
				if strings.HasPrefix(what, kind) {
					require.ErrorContains(t, op(), strconv.Quote(q.Name()), what)
				}
			}
			if strings.Contains(what, "name") || strings.Contains(what, "prefix") {
				require.ErrorIs(t, op(), sluice.ErrInvalidName, what)
			}
		}
		require.Len(t, named, len(arguments), "those that were compared")
		require.Equal(t, before, faults.Bytes(), "something was sent")
		require.True(t, k.Valid())
	})
}

// TestOptions_ZeroValuesAreSafe: what returns no error has to do without one.
func TestOptions_ZeroValuesAreSafe(t *testing.T) {
	t.Parallel()
	for _, k := range []*sluice.Lock{nil, {}} {
		require.False(t, k.Valid())
		require.Zero(t, k.Deadline())
		require.Error(t, k.Context().Err())
		require.Empty(t, k.Name())
		require.Empty(t, k.Token())
	}
	require.ErrorIs(t, (&sluice.Locker{}).Close(), sluice.ErrInvalid)
	require.Equal(t, "deferred", sluice.OutcomeDeferred.String())
	require.Equal(t, "unknown", sluice.Outcome(9).String())
}

// TestOptions_AnyNameWorks: any bytes will do, and a companion key lives in the main key's
// slot.
func TestOptions_AnyNameWorks(t *testing.T) {
	systest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb := t.Context(), s.Client(t)
		for _, name := range []string{"a", "ключ", "\x00\xff\n", strings.Repeat("x", 512), "{tag}name", "name{tag}", "a{b}{c", "a{b}}"} {
			l := systest.NewLocker(t, rdb, sluice.WithLockPrefix(redistest.Name(t)))
			k, err := l.Lock(ctx, name)
			require.NoError(t, err, "%q", name)
			require.NoError(t, k.Unlock(ctx))
			q, err := sluice.NewQueue(rdb, name, sluice.WithQueuePrefix(redistest.Name(t)))
			require.NoError(t, err)
			_, err = q.Enqueue(ctx, sluice.Task{ID: "a", Payload: []byte("p")})
			require.NoError(t, err)
			es, err := q.Claim(ctx, 1, time.Minute)
			require.NoError(t, err)
			require.NoError(t, q.Dequeue(ctx, es...))
		}
	})
}

// TestOptions_ExtremesWorkOrAreInvalid gives every number and duration of the API its
// extremes: the operation does what it says, or is ErrInvalid at once.
func TestOptions_ExtremesWorkOrAreInvalid(t *testing.T) {
	const century = 100 * 365 * 24 * time.Hour
	durations := []time.Duration{math.MinInt64, -1, 0, 1, time.Millisecond, century, century + 1, math.MaxInt64}
	numbers := []int{math.MinInt, math.MinInt32, -1, 0, 1, math.MaxInt32, math.MaxInt}
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx := b.Context()
		l := systest.NewLocker(b.T, b.RDB)
		check := func(what string, valid bool, op func() error) {
			b.Helper()
			if valid {
				require.NoError(b, op(), what)
			} else {
				require.ErrorIs(b, op(), sluice.ErrInvalid, what)
			}
		}
		lock := func(opt sluice.LockOption) func() error {
			return func() error {
				k, err := l.Lock(ctx, b.Key, opt)
				if err == nil && k.Valid() { // a TTL of 1ms may be over
					err = k.Unlock(ctx)
				}
				if errors.Is(err, sluice.ErrLost) || errors.Is(err, sluice.ErrNotHeld) {
					return nil
				}
				// A hold of 1ms may end before the server has answered the release.
				if errors.Is(err, sluice.ErrUnknown) && !k.Valid() {
					return nil
				}
				return err
			}
		}
		queue := func(opts ...sluice.QueueOption) func() error {
			return func() error {
				q, err := sluice.NewQueue(b.RDB, b.Key+"options", opts...)
				if err != nil {
					return err
				}
				_, err = q.Enqueue(ctx, sluice.Task{ID: "a", Payload: make([]byte, 1)})
				require.NoError(b, err)
				require.NoError(b, q.Wait(ctx))
				require.NotZero(b, q.MaxAttempts())
				es, err := q.Claim(ctx, 1, time.Minute)
				require.NoError(b, err)
				return q.Dequeue(ctx, es...)
			}
		}
		fresh := func() sluice.Entry { // a claimed task
			require.NoError(b, b.Q.Purge(ctx))
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: "a"})
			return b.ClaimOne(time.Hour)
		}
		for _, d := range durations {
			at := d.String()
			span, delay := d >= time.Millisecond && d <= century, d <= century
			check("TTL "+at, span || d == 0, lock(sluice.WithTTL(d)))
			check("retry interval "+at, span || d == 0, lock(sluice.WithRetryInterval(d)))
			check("max hold "+at, span || d <= 0, lock(sluice.WithMaxHold(d)))
			check("max wait "+at, span || d <= 0, func() error {
				err := lock(sluice.WithMaxWait(d))()
				if d == time.Millisecond && errors.Is(err, context.DeadlineExceeded) {
					return nil // the server may have taken longer
				}
				return err
			})
			check("dead age "+at, span || d <= 0, queue(sluice.WithDeadAge(d)))
			check("retention "+at, span || d <= 0, queue(sluice.WithRetention(d)))
			check("poll interval "+at, span || d == 0, queue(sluice.WithPollInterval(d)))
			check("lease "+at, span, func() error { _, err := b.Q.Claim(ctx, 1, d); return err })
			e := fresh()
			check("retry "+at, delay, func() error { return b.Q.Retry(ctx, d, "failed", e) })
			check("reschedule "+at, delay, func() error { _, err := b.Q.Reschedule(ctx, "a", d); return err })
			check("delay "+at, delay, func() error { _, err := b.Q.Enqueue(ctx, sluice.Task{ID: "a", Delay: d}); return err })
			if delay {
				require.InDelta(b, b.Now()+max(d, 0).Seconds(), b.Get("a").Score, 60, at)
			}
			e = fresh()
			check("extend "+at, span, func() error { return b.Q.Extend(ctx, e, d) })
			if span && d > time.Second {
				require.InDelta(b, b.Now()+d.Seconds(), float64(b.Get("a").LeaseEnds.Unix()), 60, at)
			}
		}
		for _, n := range numbers {
			at := strconv.Itoa(n)
			check("max attempts "+at, n <= 999_999_999, queue(sluice.WithMaxAttempts(n)))
			check("dead limit "+at, true, queue(sluice.WithDeadLimit(n)))
			check("duplicates "+at, n == 0 || n == 1, queue(sluice.WithDuplicates(sluice.Duplicates(n))))
			e := fresh()
			check("claim "+at, n > 0, func() error { _, err := b.Q.Claim(ctx, n, time.Minute); return err })
			check("pop "+at, n > 0, func() error { _, err := b.Q.Pop(ctx, n); return err })
			check("peek "+at, n > 0, func() error { _, err := b.Q.Peek(ctx, n); return err })
			b.Bury(e, "")
			check("dead "+at, n > 0, func() error {
				letters, err := b.Q.List(ctx, sluice.StateDead, sluice.TaskInfo{}, n)
				if err == nil {
					require.Len(b, letters, 1)
				}
				return err
			})
		}
		for what, at := range map[string]time.Time{
			"first": time.Unix(math.MinInt64, 0), "before": time.Unix(-1, 0), "epoch": time.Unix(0, 0),
			"2200": time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC), "after": time.Date(2200, 1, 1, 0, 0, 0, 1, time.UTC),
			"last": time.Unix(math.MaxInt64, 999_999_999), "year": time.Date(math.MaxInt32, 1, 1, 0, 0, 0, 0, time.UTC),
		} {
			check("at "+what, what == "epoch" || what == "2200", func() error {
				_, err := b.Q.Enqueue(ctx, sluice.Task{ID: "at", At: at})
				return err
			})
		}
	})
}

// TestOptions_ZeroIsNotGivenAndNegativeIsNone: so the zero value of a program's configuration is
// right everywhere, and a lock can do without a limit of its Locker.
func TestOptions_ZeroIsNotGivenAndNegativeIsNone(t *testing.T) {
	systest.EachQueue(t, func(b systest.QueueTest) {
		ctx, name := b.Context(), b.Key
		l := systest.NewLocker(b.T, b.RDB, sluice.WithTTL(time.Hour), sluice.WithRetryInterval(time.Minute), sluice.WithMaxHold(time.Minute),
			sluice.WithMaxWait(20*time.Millisecond))
		heldFor := func(opts ...sluice.LockOption) time.Duration {
			k, err := l.Lock(ctx, name, append(opts, sluice.WithMaxWait(-1))...)
			require.NoError(b, err)
			defer func() { require.NoError(b, k.Unlock(ctx)) }()
			return time.Until(k.Deadline())
		}
		require.InDelta(b, time.Minute, heldFor(sluice.WithTTL(0), sluice.WithMaxHold(0), sluice.WithRetryInterval(0)), float64(30*time.Second))
		require.InDelta(b, time.Hour, heldFor(sluice.WithTTL(0), sluice.WithMaxHold(-1)), float64(time.Minute))
		k, err := l.Lock(ctx, name, sluice.WithMaxWait(-1))
		require.NoError(b, err)
		_, err = l.Lock(ctx, name, sluice.WithMaxWait(0))
		require.ErrorIs(b, err, context.DeadlineExceeded)
		unlimited := make(chan error)
		go func() { _, err := l.Lock(ctx, name, sluice.WithMaxWait(-1)); unlimited <- err }()
		b.Eventually(func() bool { return systest.Waiting(l) > 0 })
		require.NoError(b, k.Unlock(ctx))
		require.NoError(b, <-unlimited)

		for want, opts := range map[int][]sluice.QueueOption{
			25: {sluice.WithMaxAttempts(0)},
			3:  {sluice.WithMaxAttempts(3), sluice.WithMaxAttempts(0), sluice.WithPollInterval(0), sluice.WithRetention(0), sluice.WithQueueReplicas(0)},
			-1: {sluice.WithMaxAttempts(3), sluice.WithMaxAttempts(-5)},
		} {
			require.Equal(b, want, b.On(b.RDB, opts...).MaxAttempts())
		}
		die := func(opts ...sluice.QueueOption) int64 {
			q := b.On(b.RDB, opts...)
			for range 3 {
				b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: sluice.NewID()})
				require.NoError(b, q.Bury(ctx, "dead", b.ClaimOne(time.Minute)))
			}
			return b.Stats().Dead
		}
		require.EqualValues(b, 1, die(sluice.WithDeadLimit(1), sluice.WithDeadLimit(0)))
		require.EqualValues(b, 4, die(sluice.WithDeadLimit(1), sluice.WithDeadLimit(-1), sluice.WithDeadAge(time.Hour), sluice.WithDeadAge(-1)))
		retained := func(opts ...sluice.QueueOption) int64 {
			b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: sluice.NewID()})
			require.NoError(b, b.On(b.RDB, opts...).Dequeue(ctx, b.ClaimOne(time.Minute)))
			s, err := b.Q.Stats(ctx)
			require.NoError(b, err)
			return s.Done
		}
		require.Zero(b, retained(sluice.WithRetention(time.Hour), sluice.WithRetention(-1)))
		require.EqualValues(b, 1, retained(sluice.WithRetention(time.Hour), sluice.WithRetention(0)))

		require.Equal(b, "p", string(payloadOf(b, 0)))
		require.Equal(b, "p", string(payloadOf(b, -1)))
	})
}

// payloadOf returns the payload "p" of a new task, as Get shows it up to n bytes.
func payloadOf(b systest.QueueTest, n int) []byte {
	id := sluice.NewID()
	b.Enqueue(sluice.OutcomeAdded, sluice.Task{ID: id, Payload: []byte("p")})
	found, err := b.Q.Get(b.Context(), id, sluice.WithPayloadsUpTo(n))
	require.NoError(b, err)
	return found.Payload
}

// errorOf returns the error with which the range over tasks ends.
func errorOf(tasks iter.Seq2[sluice.TaskInfo, error]) (failed error) {
	for _, err := range tasks {
		failed = err
	}
	return failed
}
